"""Interrupt a real Jupyter kernel in the middle of a run: what had finished is kept, nothing is held, the next cell runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

from minirt import Engine, Request, StepRecord
from minirt.replay import replay
from tests.fake_backend import FakeBackend, expected

ROOT = Path(__file__).resolve().parents[2]

SETUP = """
import json
from minirt import ContinuousEngine, Request, WallClock
from minirt.model.loading import random_model
lm = random_model(vocab=500, hidden=128, intermediate=256, layers=3, max_model_len=100_000)
def ask(n, **more):
    return Request(prompt_ids=[1, 2, n % 400], max_new_tokens=n, ignore_eos=True, **more)
def state(engine):
    run = engine.last_run
    engine.pool.check([])
    print(json.dumps({
        "reasons": [o.finish_reason for o in run.outputs], "tokens": [len(o.token_ids) for o in run.outputs],
        "errors": [o.error for o in run.outputs], "used": engine.pool.num_used, "work": engine.has_work,
        "events": [e.kind for s in run.trace for e in s.events if e.kind in ("finished", "aborted")],
        "metrics": [r.finish_reason for r in run.metrics.requests]}))
"""


class Notebook:
    """A kernel and its cells."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str, interrupt_at: str | None = None) -> tuple[str, str | None]:
        """Run a cell: what it printed, and the name of its error. Interrupts once it has printed interrupt_at."""
        message = self.client.execute(code)
        out, error, deadline = "", None, time.monotonic() + 90
        while time.monotonic() < deadline:
            got = self.client.get_iopub_msg(timeout=60)
            if got["parent_header"].get("msg_id") != message:
                continue
            kind, content = got["msg_type"], got["content"]
            if kind == "stream":
                out += content["text"]
                if interrupt_at and interrupt_at in out:
                    interrupt_at = None
                    self.manager.interrupt_kernel()
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return out, error
        raise AssertionError(f"the cell did not end; so far it printed {out!r}")

    def value(self, code: str) -> dict[str, Any]:
        out, error = self.run(code)
        assert error is None, out
        return json.loads(out)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    manager, client = start_new_kernel(startup_timeout=90, kernel_name="python3", cwd=str(ROOT), env=env)
    try:
        book = Notebook(manager, client)
        assert book.run(SETUP) == ("", None)
        yield book
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("policy", ["static", "vllm"])
def test_interrupting_a_run_in_a_kernel(notebook: Notebook, policy: str) -> None:
    _, error = notebook.run(
        f"""
engine = ContinuousEngine(lm, policy={policy!r}, max_batch_size=3, num_blocks=20_000)
def tell(record):
    if record.step == 30:
        print("now", flush=True)
engine.run([ask(4), ask(60_000), ask(50_000), ask(5)], progress=tell)
""",
        interrupt_at="now",
    )
    assert error == "KeyboardInterrupt"
    after = notebook.value("state(engine)")
    # Under vllm the slot of the first went to the fourth; a static batch keeps it until the batch is over.
    finished = [True, False, False, policy == "vllm"]
    assert after["reasons"] == ["length" if f else "aborted" for f in finished]
    assert after["metrics"] == after["reasons"]
    assert after["tokens"][0] == 4 and after["tokens"][1] >= 20  # what was there of an aborted answer is kept
    assert all((e is None) == f for e, f in zip(after["errors"], finished))
    assert "KeyboardInterrupt" in after["errors"][1]
    assert sorted(after["events"]) == ["aborted"] * finished.count(False) + ["finished"] * sum(finished)
    assert after["used"] == 0 and not after["work"]

    again = notebook.value("engine.run([ask(4), ask(6)]); state(engine)")
    assert again["reasons"] == ["length", "length"] and again["tokens"] == [4, 6]
    fresh = "ContinuousEngine(lm, max_batch_size=3, num_blocks=64).run([ask(4), ask(6)]).outputs"
    assert notebook.value(f"print(json.dumps([o.token_ids for o in {fresh}]))") == notebook.value(
        "print(json.dumps([o.token_ids for o in engine.last_run.outputs]))"
    )


def test_interrupting_a_run_that_waits_for_an_arrival(notebook: Notebook) -> None:
    _, error = notebook.run(
        """
engine = ContinuousEngine(lm, clock=WallClock(), num_blocks=64)
engine.run([ask(2), ask(3, arrival=600.0)], progress=lambda r: print("step", r.step, flush=True))
""",
        interrupt_at="step 1",
    )
    assert error == "KeyboardInterrupt"
    after = notebook.value("state(engine)")
    assert after["reasons"] == ["length", "aborted"] and after["used"] == 0 and not after["work"]


def test_interrupting_a_step_by_hand(notebook: Notebook) -> None:
    """Resident requests are aborted; those that wait keep waiting, and are served when the learner goes on."""
    _, error = notebook.run(
        """
engine = ContinuousEngine(lm, max_batch_size=1, num_blocks=20_000)
ids = [engine.add(ask(50_000)), engine.add(ask(3))]
print("now", flush=True)
while engine.has_work:
    engine.step()
""",
        interrupt_at="now",
    )
    assert error == "KeyboardInterrupt"
    if notebook.value("print(json.dumps(0 in engine.outputs))"):
        assert notebook.value("print(json.dumps(engine.outputs[0].finish_reason))") == "aborted"
    else:  # the signal came between two steps: nothing has happened at all
        notebook.run("engine.abort(0)")
    served = notebook.value("""
while engine.has_work:
    engine.step()
engine.pool.check([])
print(json.dumps([engine.outputs[1].finish_reason, len(engine.outputs[1].token_ids), engine.pool.num_used]))
""")
    assert served == ["length", 3, 0]


# -- everywhere else an interrupt can strike: after any number of bytecodes ---------------------------
class Striking:
    """Raises KeyboardInterrupt in the thread that runs a step, at the n-th line of minirt's engine it executes."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if os.sep + "minirt" + os.sep not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("policy", ["static", "mini-runtime", "vllm"])
def test_an_interrupt_at_any_line_loses_no_request_and_no_block(policy: str) -> None:
    import sys

    requests = [
        Request(prompt_ids=[i, 1, 2, 3, 4], max_new_tokens=3 + i, arrival=float(i // 2), ignore_eos=True)
        for i in range(5)
    ]
    options = {"prefix_caching": True, "max_num_batched_tokens": 8} if policy == "vllm" else {}
    struck = 0
    for n in range(1, 40_000, 61):
        engine = Engine(FakeBackend(), policy, max_batch_size=2, num_blocks=12, block_size=2, **options)
        before = sys.gettrace()
        sys.settrace(Striking(n))
        try:
            engine.run(requests)
            done = True
        except KeyboardInterrupt:
            done = False
        finally:
            sys.settrace(before)
        if done:
            break
        struck += 1
        run = engine.last_run
        if run is not None:  # None: it struck before the run began
            known = set(engine.trace.requests)
            assert {o.id for o in run.outputs} == known, f"line {n}"
            for o in run.outputs:
                want = expected(list(o.prompt_ids), o.request.max_new_tokens, True)
                assert o.token_ids == want[: len(o.token_ids)]
                assert o.finish_reason in ("length", "aborted")
        assert not engine.has_work, f"line {n}"
        engine.pool.check([])
        assert engine.pool.num_used == 0
        for _ in replay(engine.trace):  # the trace still makes sense; a contradiction raises
            pass
        if run is not None:
            assert {r.id: r.finish_reason for r in run.metrics.requests} == {o.id: o.finish_reason for o in run.outputs}
        again = engine.run(requests)
        assert [o.finish_reason for o in again.outputs] == ["length"] * 5
    assert struck > 20


def test_abort_from_a_callback_frees_slot_and_blocks_at_once() -> None:
    engine = Engine(FakeBackend(), "vllm", max_batch_size=1, num_blocks=40, block_size=4)

    def tell(record: StepRecord) -> None:
        if record.step == 3:
            engine.abort(0)
            assert engine.pool.num_used == 0

    run = engine.run([Request(prompt_ids=[1], max_new_tokens=90, ignore_eos=True), Request(prompt_ids=[2])], progress=tell)
    assert run.outputs[0].finish_reason == "aborted" and run.outputs[0].error == "aborted by the caller"
    assert run.outputs[1].token_ids == expected([2], 64, False)
