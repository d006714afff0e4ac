"""Policies of one's own: what a plan may not do is refused with the numbers, before anything has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from minirt import Engine, Planner, PolicyError, Request, StepPlan
from minirt.policies.base import Admission, Chunk, Preemption, State
from minirt.queues import QueueView
from minirt.request import RequestState, Sequence
from tests.fake_backend import FakeBackend, expected

BLOCKS, BLOCK, SLOTS = 8, 4, 3


class ByHand:
    """A whole policy from plain data structures, without a Planner; `wrong` may spoil one of its plans."""

    name = "by-hand"

    def __init__(self, wrong: Callable[[StepPlan, State], Any] | None = None, at: int = 0) -> None:
        self.wrong, self.at = wrong, at

    def plan(self, state: State) -> StepPlan:
        plan = StepPlan(decode=list(state.running))
        blocks = sum(1 for s in state.running if s.table is not None and s.num_computed >= s.table.capacity)
        for seq in list(state.waiting)[: state.free_slots]:
            blocks += -(-len(seq.tokens) // state.limits.block_size)
            if blocks > state.free_blocks:
                break
            plan.admit.append(Admission(seq))
            plan.prefill.append(Chunk(seq, len(seq.tokens)))
        if self.wrong is not None and state.step == self.at:
            wrong, self.wrong = self.wrong, None
            return wrong(plan, state)  # type: ignore[no-any-return]
        return plan


def request(prompt: int = 5, n: int = 4, first: int = 1) -> Request:
    return Request(prompt_ids=[first] + list(range(2, prompt + 1)), max_new_tokens=n, ignore_eos=True)


def engine(policy: Any, requests: int = 4, **options: Any) -> Engine:
    sizes = {"max_batch_size": SLOTS, "num_blocks": BLOCKS, "block_size": BLOCK, **options}
    eng = Engine(FakeBackend(max_model_len=64), policy, **sizes)
    for i in range(requests):
        eng.add(request(first=i))
    return eng


def snapshot(eng: Engine) -> Any:
    """Everything a refused plan must leave alone."""
    seqs = [(s.id, s.state, s.slot, s.num_computed, tuple(s.tokens), tuple(s.table.blocks) if s.table else None)
            for s in eng._seqs.values()]  # fmt: skip
    return seqs, list(eng.pool.refs), list(eng._free_slots), [s.id for s in eng.waiting], len(eng.trace), eng._host_used


def finish(eng: Engine) -> None:
    """Serve what is left: a refused plan must not have hurt anybody."""
    for _ in range(200):
        if not eng.has_work:
            break
        eng.step()
    assert not eng.has_work and eng.pool.num_used == 0
    eng.pool.check([])
    for out in eng.outputs.values():
        ids = list(out.request.prompt_ids or ())
        assert out.token_ids == expected(ids, out.request.max_new_tokens, True), out


def test_a_policy_written_by_hand_serves() -> None:
    eng = engine(ByHand())
    finish(eng)
    assert len(eng.outputs) == 4 and all(o.finish_reason == "length" for o in eng.outputs.values())


def stranger(state: str = "waiting") -> Sequence:
    return Sequence(0, request(), [1, 2, 3], 3, 0.0, state=RequestState(state))


def plus(**lists: Callable[[State], Any]) -> Callable[[StepPlan, State], StepPlan]:
    """The good plan with one more entry in each of these lists."""

    def wrong(plan: StepPlan, state: State) -> StepPlan:
        for name, entry in lists.items():
            getattr(plan, name).append(entry(state))
        return plan

    return wrong


def only(**lists: Callable[[State], Any]) -> Callable[[StepPlan, State], StepPlan]:
    """A plan of these entries alone."""
    return lambda plan, state: plus(**lists)(StepPlan(), state)


def first(queue: Any) -> Sequence:
    return next(iter(queue))  # type: ignore[no-any-return]


def waiting(i: int = 0) -> Callable[[State], Sequence]:
    return lambda state: list(state.waiting)[i]


def running(i: int = 0) -> Callable[[State], Sequence]:
    return lambda state: list(state.running)[i]


def everyone(plan: StepPlan, state: State) -> StepPlan:
    return StepPlan(admit=[Admission(s) for s in state.waiting])


def too_many_blocks(plan: StepPlan, state: State) -> StepPlan:
    """Three prompts of 13 tokens want 12 blocks of 8."""
    seqs = list(state.waiting)[:3]
    return StepPlan(admit=[Admission(s) for s in seqs], prefill=[Chunk(s, len(s.tokens)) for s in seqs])


def no_run(plan: StepPlan, state: State) -> StepPlan:
    """Requests 0 and 2 leave blocks between those of the others: enough are free, but not in a row."""
    return StepPlan(
        fail=[(s, "makes a hole") for s in list(state.running)[::2]], admit=[Admission(first(state.waiting), 20)]
    )


class NotAPlan:
    decode: list[Any] = []


# name -> (step, what the policy returns in place of its plan, what the error must say)
WRONG: dict[str, tuple[int, Callable[[StepPlan, State], Any], str]] = {
    "nothing returned": (0, lambda p, s: None, r"must return a StepPlan, not NoneType.*return p\.plan"),
    "another object": (0, lambda p, s: NotAPlan(), "must return a StepPlan, not NotAPlan"),
    "a list": (0, lambda p, s: list(s.waiting), "must return a StepPlan, not list"),
    "too many slots": (0, everyone, r"admit request 3\b.*0 free slots of 3 and 8 free blocks of 8 \(4 tokens each\)"),
    "too many blocks": (0, lambda p, s: too_many_blocks(p, s), r"prefill 13 tokens of request 2.*0 free blocks of 8"),
    "decode of a waiting one": (0, only(decode=waiting()), "names request 0, which is waiting"),
    "decode in the step of admission": (0, plus(decode=waiting()), "plan.decode names request 0, which is waiting"),
    "prefill of a waiting one": (
        0, only(prefill=lambda s: Chunk(first(s.waiting), 2)), "request 0 can't prefill: it is waiting, and was not adm"),
    "prefill of a running one": (
        1, only(prefill=lambda s: Chunk(first(s.running), 1)), "plan.prefill names request 0, which is running"),
    "someone else's request": (0, only(admit=lambda s: Admission(stranger())), "admit names request 0.*not stand in this"),
    "someone else's running one": (1, only(decode=lambda s: stranger("running")), "decode names request 0"),
    "twice in decode": (1, plus(decode=running()), "request 0 stands twice"),
    "admitted twice": (0, plus(admit=lambda s: Admission(first(s.waiting))), "request 0 stands twice"),
    "two chunks": (0, plus(prefill=lambda s: Chunk(first(s.waiting), 1)), "request 0 stands twice"),
    "decoded and failed": (1, plus(fail=lambda s: (list(s.running)[1], "no")), "request 1 stands twice"),
    "decoded and preempted": (
        1, plus(preempt=lambda s: Preemption(list(s.running)[1], "recompute")), "request 1 stands twice"),
    "refused and admitted": (0, plus(refuse=lambda s: (first(s.waiting), "no")), "request 0 stands twice"),
    "chunk too long": (
        0, only(admit=lambda s: Admission(first(s.waiting)), prefill=lambda s: Chunk(first(s.waiting), 6)),
        "request 0 is to prefill 6 tokens: a chunk has at least 1, and 5 of its 5 tokens are not"),
    "chunk of nothing": (
        0, only(admit=lambda s: Admission(first(s.waiting)), prefill=lambda s: Chunk(first(s.waiting), 0)),
        "prefill 0 tokens"),
    "negative padding": (
        0, only(admit=lambda s: Admission(first(s.waiting)), prefill=lambda s: Chunk(first(s.waiting), 2, -1)),
        "padded by -1 positions"),
    "too little reserved": (0, only(admit=lambda s: Admission(first(s.waiting), 4)), "reserves 4 tokens but.* has 5"),
    "more reserved than there is": (
        0, only(admit=lambda s: Admission(first(s.waiting), 33)), "9 blocks in a row.*8 free blocks.*run of them 8"),
    "no run long enough": (1, no_run, r"5 blocks in a row.*6 free blocks of 8.*longest run of them 4"),
    "refuse a running one": (1, only(refuse=lambda s: (first(s.running), "no")), "refuse names request 0, which is running"),
    "fail a waiting one": (0, only(fail=lambda s: (first(s.waiting), "no")), "fail names request 0, which is waiting"),
    "preempt a waiting one": (0, only(preempt=lambda s: Preemption(first(s.waiting), "swap")), "preempt names request 0"),
    "preempt in an unknown way": (
        1, only(preempt=lambda s: Preemption(first(s.running), "kill")), 'must be "recompute" or "swap"'),  # type: ignore[arg-type]
    "resume a waiting one": (0, only(resume=waiting()), "resume names request 0, which is waiting"),
    "release a running one": (1, only(release=running()), "release names request 0, which is running"),
    "waste a running one": (1, only(wasted=running()), "wasted names request 0, which is running"),
    "an id for a request": (1, only(decode=lambda s: 0), r"plan.decode\[0\] is a int, 0; it should be a request"),
    "a request for a chunk": (1, only(prefill=running()), r"plan.prefill\[0\] is a Sequence.*should be Chunk"),
    "a bare tuple for a chunk": (1, only(prefill=lambda s: (first(s.running), 1, 0)), r"should be Chunk\(seq, n, padding"),
    "half a token": (0, plus(prefill=lambda s: Chunk(first(s.waiting), 2.5)), r"should be Chunk"),  # type: ignore[arg-type]
    "a request for an admission": (0, only(admit=waiting()), r"should be Admission\(seq, reserve\)"),
    "no reason": (0, only(refuse=waiting()), r"plan.refuse\[0\] is a Sequence.*should be \(seq, why\)"),
    "a tuple for a list": (0, lambda p, s: StepPlan(decode=()), "plan.decode is a tuple.*should be a list"),  # type: ignore[arg-type]
    "wait until somewhen": (0, lambda p, s: StepPlan(wait_until="soon"), "wait_until='soon' must be a time"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_plan_is_refused_and_nothing_has_changed(what: str) -> None:
    step, wrong, message = WRONG[what]
    eng = engine(ByHand(wrong, at=step), requests=0, num_blocks=BLOCKS)
    prompt = 13 if what == "too many blocks" else 5
    # Distinct prompts; three of the four fit at once (2 blocks each), so one is always waiting.
    for i in range(4):
        eng.add(request(prompt, first=i))
    while eng.step_count < step:
        eng.step()
    eng._wake_up()
    before = snapshot(eng)
    with pytest.raises(PolicyError, match=message):
        eng.step()
    assert snapshot(eng) == before
    finish(eng)


def test_a_finished_request_is_refused() -> None:
    kept: list[Sequence] = []

    class Clings(ByHand):
        """Keeps a list of its own, as a beginner might, and so decodes one that has ended."""

        def plan(self, state: State) -> StepPlan:
            plan = super().plan(state)
            if kept and kept[0].ended:
                plan.decode, kept[:] = list(kept), []
            elif state.step == 1:
                kept[:] = plan.decode
            return plan

    eng = engine(Clings())
    with pytest.raises(PolicyError, match=r"names request 0, which has ended \(length\)"):
        for _ in range(10):
            eng.step()
    assert not eng.running and eng.waiting  # requests 0 to 2 have ended, request 3 still waits
    finish(eng)


def test_an_old_plan_is_refused() -> None:
    class Lazy:
        """Plans once and hands out the same plan ever after."""

        name = "lazy"
        made: StepPlan | None = None
        asked = 0

        def plan(self, state: State) -> StepPlan:
            self.asked += 1
            if self.asked != 2 or self.made is None:
                p = Planner(state)
                for seq in state.running:
                    p.decode(seq)
                for seq in state.waiting:
                    p.admit(seq)
                self.made = p.plan
            return self.made

    eng = engine(Lazy(), requests=2)
    eng.step()
    with pytest.raises(PolicyError, match="plan.prefill names request 0, which is running"):
        eng.step()
    finish(eng)


@pytest.mark.parametrize("what", ["swap an entry", "a longer chunk", "one more", "one moved"])
def test_a_planner_s_plan_that_was_changed_by_hand_is_counted_again(what: str) -> None:
    class Meddler:
        name = "meddler"

        def plan(self, state: State) -> StepPlan:
            p = Planner(state, budget=4)
            for seq in state.running:
                p.decode(seq)
            for seq in [*state.prefilling][:1]:
                p.prefill(seq)
            for seq in state.waiting:
                p.admit(seq)
            plan = p.plan
            if what == "swap an entry":
                plan.prefill[0] = Chunk(list(state.waiting)[-1], 4)
            elif what == "a longer chunk":
                plan.prefill[0] = plan.prefill[0]._replace(n=60)
            elif what == "one more":
                plan.admit += [Admission(s) for s in state.waiting if s.id > 0]
            else:
                plan.decode.append(plan.prefill.pop().seq)
            return plan

    eng = engine(Meddler())
    before = snapshot(eng)[1:]
    with pytest.raises(PolicyError):
        eng.step()
    assert snapshot(eng)[1:3] == before[:2]


def test_the_planner_says_what_it_is_given() -> None:
    class Ids:
        name = "ids"

        def plan(self, state: State) -> StepPlan:
            p = Planner(state)
            p.decode(3)  # type: ignore[arg-type]
            return p.plan

    with pytest.raises(PolicyError, match="requests taken from the state; 3 is a int"):
        engine(Ids()).step()


@pytest.mark.parametrize("first", ["resume", "reserve"])
def test_a_resume_and_a_run_of_blocks_don_t_share_a_step(first: str) -> None:
    """What comes back from host memory may land anywhere, so no run can be promised beside it."""

    class Both:
        name = "both"

        def plan(self, state: State) -> StepPlan:
            p = Planner(state)
            if state.step == 1:
                p.preempt(next(iter(state.running)), "swap")
            for what in ("resume", "reserve") if first == "resume" else ("reserve", "resume"):
                for seq in state.swapped if what == "resume" else state.waiting:
                    p.resume(seq) if what == "resume" else p.admit(seq, reserve=12)
            return p.plan

    eng = engine(Both(), requests=1)
    eng.step()
    eng.step()
    eng.add(request())
    with pytest.raises(PolicyError, match="request 1 can't be promised consecutive blocks in the step that.* 0"):
        eng.step()


def test_a_prompt_that_was_swapped_out_halfway_can_t_decode_when_it_comes_back() -> None:
    class Hasty:
        name = "hasty"

        def plan(self, state: State) -> StepPlan:
            p = Planner(state)
            for seq in state.prefilling:
                p.preempt(seq, "swap")
            for seq in state.swapped:
                p.resume(seq)
                p.decode(seq)
            for seq in state.waiting:
                p.admit(seq, 2)
            return p.plan

    eng = engine(Hasty(), requests=1)
    eng.step()
    eng.step()
    with pytest.raises(PolicyError, match="request 0 can't decode: it is swapped, not running, and 3 of its 5 tokens"):
        eng.step()


SAME = [7, 7, 7, 7, 8]


class Mixed:
    """Prompts of SAME's length grow block by block and may hit the cache; others get a run of blocks."""

    name = "mixed"
    prefix_caching = True

    def plan(self, state: State) -> StepPlan:
        p = Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.waiting:
            p.admit(seq, reserve=None if seq.num_prompt == len(SAME) else seq.max_total)
        return p.plan


def test_a_revived_block_lies_in_no_run_promised_after_it() -> None:
    """A run, then a hit on a free cached block, then another run: it may not contain the revived block."""
    eng = engine(Mixed(), requests=0, num_blocks=7, max_batch_size=5)
    eng.add(Request(prompt_ids=list(range(13)), max_new_tokens=1, ignore_eos=True))  # blocks 0 to 3
    eng.add(Request(prompt_ids=SAME, max_new_tokens=1, ignore_eos=True))  # blocks 4 and 5; then 4 is findable
    eng.step()
    assert eng.pool.num_free == 7
    eng.add(Request(prompt_ids=[1, 2], max_new_tokens=7, ignore_eos=True))  # blocks 0 and 1
    eng.add(Request(prompt_ids=SAME, max_new_tokens=2, ignore_eos=True))  # revives 4
    eng.add(Request(prompt_ids=[1, 2, 3], max_new_tokens=10, ignore_eos=True))  # 3 in a row: not before 4 is free again
    record = eng.step()
    assert [e.id for e in record.events if e.kind == "admitted"] == [2, 3] and eng.pool.refs[4] == 1
    finish(eng)
    assert all(o.finish_reason == "length" for o in eng.outputs.values())


def test_paged_hits_and_a_run_of_blocks_share_a_step() -> None:
    """A cached free block that one admission revives can't lie in the run that the next one is promised."""
    for blocks in (5, 6, 7):
        eng = engine(Mixed(), requests=0, num_blocks=blocks)
        eng.add(Request(prompt_ids=SAME, max_new_tokens=1, ignore_eos=True))
        eng.step()  # block 0 is now free but findable
        assert eng.pool.num_cached == 1
        eng.add(Request(prompt_ids=SAME, max_new_tokens=4, ignore_eos=True))
        eng.add(Request(prompt_ids=[1, 2, 3], max_new_tokens=13, ignore_eos=True))
        finish(eng)
        assert all(o.finish_reason == "length" for o in eng.outputs.values())


def test_a_prefix_found_midway_never_takes_more_blocks_than_planned() -> None:
    """A request in the middle of its prompt shares what others hold; free cached blocks it does not revive, since its
    plan counted one block and no more."""
    prompt = list(range(17))

    class Slow:
        """One block of prompt a step for request 0; request 1, of the same prompt, overtakes it and ends."""

        name = "slow"
        prefix_caching = True

        def plan(self, state: State) -> StepPlan:
            p = Planner(state)
            for seq in state.running:
                p.decode(seq)
            for seq in state.prefilling:
                if seq.id != 0 or not state.waiting:
                    p.prefill(seq, 4)
            for seq in state.waiting:
                p.admit(seq, 4 if seq.id == 0 else None)
            return p.plan

    eng = engine(Slow(), requests=0, num_blocks=6)
    eng.add(Request(prompt_ids=prompt, max_new_tokens=2, ignore_eos=True))
    eng.step()
    eng.add(Request(prompt_ids=prompt, max_new_tokens=1, ignore_eos=True))
    eng.step()  # request 1 shares request 0's block, computes the rest and ends: 3 blocks stay findable
    assert 1 in eng.outputs and eng.pool.num_cached == 3
    free = eng.pool.num_free
    eng.step()
    assert free - eng.pool.num_free == 1
    finish(eng)


def test_planning_reads_the_queue_only_as_far_as_it_admits() -> None:
    """Invariant 5: a queue of thousands costs no more than a queue of ten."""

    for policy in ("static", "orca", "tgi", "mini-runtime", "vllm"):
        seen = []
        for n in (10, 2000):
            eng = engine(policy, requests=n, num_blocks=64)
            count = 0

            class Spy(QueueView):
                def __iter__(self) -> Any:
                    nonlocal count
                    for seq in super().__iter__():
                        count += 1
                        yield seq

            eng._wake_up()
            state = eng._state(0.0)
            state = dataclasses.replace(state, waiting=Spy(eng.waiting))
            eng.policy.plan(state)
            seen.append(count)
        assert seen[0] == seen[1] <= SLOTS + 1, f"{policy}: {seen}"
