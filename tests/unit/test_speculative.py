"""Speculation: same tokens in fewer steps, within blocks, budget and length; the trace says what was guessed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from minirt import ConfigError, Engine, Request, Trace, simulate
from minirt.metrics import RunMetrics
from minirt.model.loading import random_model
from minirt.replay import replay
from minirt.speculative import NgramLookup
from minirt.workloads import make_requests
from tests.fake_backend import VOCAB, FakeBackend, Oracle, expected


def requests(seed: int, n: int = 9, ignore_eos: bool = False) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            prompt_ids=[rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))], max_new_tokens=rng.randint(1, 30),
            ignore_eos=ignore_eos, arrival=float(rng.randint(0, 9)),
        )
        for _ in range(n)
    ]  # fmt: skip


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("static", {}),
    ("orca", {"variant": "oracle"}),
    ("tgi", {}),
    ("mini-runtime", {"chunk": 4}),
    ("vllm", {"max_num_batched_tokens": 9}),
    ("vllm", {"preemption": "swap", "host_blocks": 4}),
    ("vllm", {"prefix_caching": True, "max_num_batched_tokens": 16}),
]


@pytest.mark.parametrize("policy,options", VARIANTS)
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_tokens_are_those_without_guesses(policy: str, options: dict[str, Any], right: float) -> None:
    for seed in range(6):
        asked = requests(seed)
        backend = FakeBackend(max_model_len=64)
        engine = Engine(
            backend, policy, max_batch_size=3, num_blocks=30 if policy in ("static", "mini-runtime") else 14,
            block_size=4, max_model_len=64, speculation=Oracle(3, right, seed), **options,
        )  # fmt: skip
        run = engine.run(asked)
        for request, out in zip(asked, run.outputs):
            assert out.token_ids == expected(list(request.prompt_ids or ()), request.max_new_tokens, False)
        engine.pool.check([])
        assert engine.pool.num_used == 0 and not backend.host


def test_right_guesses_save_steps_and_wrong_ones_cost_none() -> None:
    asked = [Request(prompt_ids=[1, 2, 3], max_new_tokens=21, ignore_eos=True)]
    steps = {}
    for right in (0.0, 1.0):
        run = Engine(FakeBackend(), speculation=Oracle(3, right)).run(asked)
        steps[right] = run.metrics.decode_steps
    # The first token comes with the prompt; after it each step gives 4 of the other 20.
    assert steps == {0.0: 21, 1.0: 6}


def test_the_trace_tells_what_was_guessed_and_replays(tmp_path: Any) -> None:
    engine = Engine(FakeBackend(), max_batch_size=4, num_blocks=40, block_size=4, speculation=Oracle(3, 0.7, 1))
    run = engine.run(requests(5))
    run.trace.save(tmp_path / "t.jsonl")
    again = Trace.load(tmp_path / "t.jsonl")
    assert again.steps == run.trace.steps
    assert RunMetrics.from_trace(again).to_dict() == run.metrics.to_dict()
    drafted = [d for s in again for d in s.drafted]
    assert drafted and all(0 <= right <= guesses <= 3 for _, guesses, right in drafted)
    assert any(len(set(s.emitted)) < len(s.emitted) for s in again)
    assert run.metrics.littles_law.error < 1e-6
    for state, record in zip(replay(again), again):  # what is computed fits into the blocks, and fills what `valid` says
        assert all(state.computed[i] <= 4 * len(state.tables[i]) for i in state.resident)
        assert record.valid == sum(state.computed[i] for i in state.resident)


def test_guesses_keep_to_the_budget_and_the_free_blocks() -> None:
    asked = requests(3, n=6, ignore_eos=True)
    engine = Engine(FakeBackend(), max_batch_size=3, num_blocks=9, block_size=4, max_num_batched_tokens=5,
                    speculation=Oracle(4, 1.0))  # fmt: skip
    run = engine.run([r for r in asked if len(r.prompt_ids or ()) + r.max_new_tokens <= 36])
    assert max(s.num_tokens for s in run.trace) == 5


def test_sampled_rows_get_no_guesses() -> None:
    asked = [Request(prompt_ids=[1, 2], max_new_tokens=9, temperature=0.8, ignore_eos=True),
             Request(prompt_ids=[1, 2], max_new_tokens=9, ignore_eos=True)]  # fmt: skip
    run = Engine(FakeBackend(), speculation=Oracle(2, 1.0)).run(asked)
    assert {i for s in run.trace for i, _, _ in s.drafted} == {1}


def test_an_interrupted_step_leaves_no_guess_in_an_answer() -> None:
    backend = FakeBackend(fail_at=4)
    engine = Engine(backend, speculation=Oracle(3, 0.0))
    with pytest.raises(RuntimeError):
        engine.run([Request(prompt_ids=[5, 6], max_new_tokens=20, ignore_eos=True)])
    out = engine.outputs[0]
    assert out.finish_reason == "aborted" and out.token_ids == expected([5, 6], 20, True)[: len(out.token_ids)]


def test_ngram_lookup() -> None:
    look = NgramLookup(k=3, n=2)
    assert look.propose([1, 2, 3, 4, 1, 2], 9) == [3, 4, 1]
    assert look.propose([1, 2, 3, 1, 2, 9, 1, 2], 9) == [9, 1, 2]  # the latest place
    assert look.propose([7, 2, 5, 1, 2], 9) == [5, 1, 2]  # two tokens never came before, one did
    assert look.propose([1, 2, 3, 4, 1, 2], 1) == [3]
    assert look.propose([1, 2, 3], 9) == [] and look.propose([1], 9) == []
    assert look.propose([4, 4, 4], 9) == [4]
    assert NgramLookup(k=3, n=2, least=2).propose([7, 2, 5, 1, 2], 9) == []


def test_the_real_model_gives_the_same_tokens() -> None:
    """A random model in float32 runs into loops, so that n-gram guesses are often right."""
    lm = random_model(vocab=40, hidden=64, intermediate=96, layers=2, seed=3)
    asked = make_requests(6, prompt=[3, 9, 17, 30, 41, 5], output=[90, 52, 83, 75, 48, 87], seed=2, vocab_size=40)
    plain = Engine(lm, max_batch_size=4, num_blocks=60, block_size=4).run(asked)
    fast = Engine(lm, max_batch_size=4, num_blocks=60, block_size=4, speculation=NgramLookup(k=4)).run(asked)
    assert [o.token_ids for o in fast.outputs] == [o.token_ids for o in plain.outputs]
    right = sum(n for s in fast.trace for _, _, n in s.drafted)
    assert right > 20 and fast.metrics.decode_steps < plain.metrics.decode_steps


def test_the_simulator_charges_for_guesses() -> None:
    class Zeros:
        def propose(self, tokens: list[int], most: int) -> list[int]:
            return [1] * min(3, most)  # never right: the simulator's token is 0

    asked = make_requests(4, prompt=8, output=20, seed=1)
    plain, wrong = simulate("vllm", asked), simulate("vllm", asked, speculation=Zeros())
    assert plain.metrics.decode_steps == wrong.metrics.decode_steps
    assert wrong.metrics.duration > plain.metrics.duration
    assert wrong.metrics.computed_tokens > plain.metrics.computed_tokens


@pytest.mark.parametrize("bad", [{"k": 0}, {"n": 0}, {"n": 2, "least": 3}])
def test_bad_lookup(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="NgramLookup"):
        NgramLookup(**bad)


def test_a_proposer_must_propose_ids() -> None:
    class Wild:
        def __init__(self, guess: Any) -> None:
            self.guess = guess

        def propose(self, tokens: list[int], most: int) -> Any:
            return self.guess

    asked = [Request(prompt_ids=[1], max_new_tokens=9, ignore_eos=True)]
    for guess, words in (([VOCAB], "ids go from 0"), (["x"], "list of token ids"), (None, "list of token ids")):
        with pytest.raises(ConfigError, match=words):
            Engine(FakeBackend(), speculation=Wild(guess)).run(asked)
    with pytest.raises(ConfigError, match="propose"):
        Engine(FakeBackend(), speculation=3)  # type: ignore[arg-type]
