"""LiveRun's logic in an event loop, with the simulated backend and without a browser."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from typing import Any

import pytest

import minirt
from minirt import workloads
from minirt.backends.simulated import SimulatedBackend
from widgets.live import LiveRun


class Recorded(LiveRun):
    """Keeps what would go to the browser."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[tuple[dict[str, Any], Any]] = []
        super().__init__(*args, **kwargs)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent.append((content, buffers))


def engine(**options: Any) -> minirt.Engine:
    return minirt.ContinuousEngine(SimulatedBackend(), max_batch_size=2, num_blocks=64, **options)


def requests(n: int, out: int = 10) -> list[minirt.Request]:
    return workloads.make_requests(n, 8, out)


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait for something that the run will do."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("waited in vain")


def in_loop(function: Any) -> Any:
    """Run a coroutine function as a test of its own loop."""

    def test() -> None:
        asyncio.run(function())

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


@in_loop
async def test_it_serves_everything_and_sends_every_step_once():
    eng = engine()
    live = Recorded(eng, requests(4), pace=0)
    trace = await live
    assert live.status == "done" and all(o["finish_reason"] == "length" for o in trace.outputs.values())
    grown = [c for c, _ in live.sent if c["type"] == "grow"]
    assert [s["step"] for c in grown for s in c["steps"]] == [s.step for s in trace]
    assert [r["id"] for c in grown for r in c["requests"]] == [0, 1, 2, 3]
    assert live._trace and len(json.loads(gzip.decompress(live._trace))["steps"]) == len(trace)


@in_loop
async def test_pause_step_resume_and_insert():
    live = Recorded(engine(), requests(2, 300), pace=0.001)
    await until(lambda: len(live.trace) > 3)
    live.pause()
    await until(lambda: live.status == "paused")
    await asyncio.sleep(0.05)
    n = len(live.trace)
    await asyncio.sleep(0.1)
    assert len(live.trace) == n
    live.step()
    await until(lambda: len(live.trace) == n + 1)
    await asyncio.sleep(0.05)
    assert len(live.trace) == n + 1 and live.status == "paused"
    live.add(requests(1, 5)[0])
    live.abort(0)  # its slot goes to the one just inserted
    live.resume()
    await until(lambda: 2 in live.trace.outputs)
    assert live.trace.outputs[2]["finish_reason"] == "length" and live.trace.outputs[0]["finish_reason"] == "aborted"
    live.stop()
    await live
    assert live.status == "stopped" and not live.engine.has_work and live.engine.pool.num_used == 0


@in_loop
async def test_messages_may_come_from_another_thread():
    """Newer JupyterLab delivers them in a kernel subshell, which is a thread of its own."""
    live = Recorded(engine(), requests(2, 500), pace=0.001)
    await until(lambda: len(live.trace) > 2)

    def browser() -> None:
        for content in ({"type": "hello"}, {"type": "pause"}):
            live._receive({**content, "view": "v"})

    thread = threading.Thread(target=browser)
    thread.start()
    await until(lambda: live.status == "paused")
    thread.join()
    await until(lambda: any(c["type"] == "all" for c, _ in live.sent))
    content, buffers = next((c, b) for c, b in live.sent if c["type"] == "all")
    data = json.loads(gzip.decompress(buffers[0]))
    assert content["view"] == "v" and len(data["steps"]) <= len(live.trace) and len(data["requests"]) == 2
    live.stop()
    await live


@in_loop
async def test_the_loop_stays_free_while_a_step_is_computed():
    eng = engine()
    real = eng.backend.execute
    gate = threading.Event()
    eng.backend.execute = lambda batch: (gate.wait(2), real(batch))[1]  # type: ignore[method-assign]
    live = Recorded(eng, requests(1, 2), pace=0)
    ticks = 0
    for _ in range(20):
        await asyncio.sleep(0.005)
        ticks += 1
    assert ticks == 20 and len(live.trace) == 0
    gate.set()
    await live


@in_loop
async def test_an_exception_is_shown_and_leaves_nothing():
    eng = engine()
    eng.backend.execute = lambda batch: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    live = Recorded(eng, requests(5), pace=0)
    with pytest.raises(ZeroDivisionError):
        await live
    assert live.status == "failed" and "ZeroDivisionError: division by zero" in live.error
    await until(live._task.done)
    assert not eng.has_work and eng.pool.num_used == 0
    shown = {e[1] for c, _ in live.sent if c["type"] == "grow" for s in c["steps"] for e in s.get("events", [])}
    assert shown >= {0, 1, 2, 3, 4}, "everyone's end is drawn, those who waited too"


@in_loop
async def test_making_it_again_stops_the_old_one_and_waits_for_its_step():
    eng = engine()
    first = Recorded(eng, requests(2, 500), pace=0.001)
    await until(lambda: len(first.trace) > 2)
    second = Recorded(eng, requests(2, 5), pace=0)
    await second
    assert first.status == "stopped" and first._task.done() and second.status == "done"


@in_loop
async def test_a_view_that_is_gone_for_good_stops_the_run():
    import widgets._link as module

    grace, module.GRACE_S = module.GRACE_S, 0.05
    try:
        live = Recorded(engine(), requests(2, 800), pace=0.001)
        live._receive({"type": "hello", "view": "a"})
        live._receive({"type": "gone", "view": "a"})
        live._receive({"type": "hello", "view": "b"})  # it only moved
        await asyncio.sleep(0.15)
        assert live.status == "running"
        live._receive({"type": "gone", "view": "b"})
        await until(lambda: live.status == "stopped")
    finally:
        module.GRACE_S = grace


@in_loop
async def test_a_request_that_cannot_be_served_is_named_and_the_run_goes_on():
    live = Recorded(engine(), requests(1, 300), pace=0.001)
    live.add("no tokenizer here")
    await until(lambda: "tokenizer" in live.notice)
    live.add("", 5)
    await until(lambda: "empty" in live.notice)
    assert live.status == "running"
    live.stop()
    await live


@in_loop
async def test_after_the_end_an_inserted_request_is_served_too():
    live = Recorded(engine(), requests(1, 3), pace=0)
    await live
    live.add(requests(1, 4)[0])
    await until(lambda: len(live.trace.outputs) == 2 and live.status == "done")
    live.stop()
    await until(live._task.done)


def test_in_a_plain_script_it_runs_through():
    live = Recorded(engine(), requests(3))
    assert live.status == "done" and len(live.trace.outputs) == 3


def test_its_text_form_is_stable_and_wrong_engines_are_named():
    live = Recorded(engine(), requests(3))
    data = live._repr_mimebundle_()
    assert data["text/plain"] == "LiveRun(policy=vllm, requests=3)" and "R2</span>" in data["text/html"]
    with pytest.raises(TypeError, match="takes an engine"):
        LiveRun(3)


@in_loop
async def test_what_is_asked_wrongly_is_named_and_the_run_goes_on():
    live = Recorded(engine(), requests(1, 200), pace=0.001)
    await until(lambda: len(live.trace) > 2)
    live.abort([0])  # type: ignore[arg-type]
    await until(lambda: "abort([0])" in live.notice)
    live.add(requests(1)[0], max_new_tokens=0)
    await until(lambda: "max_new_tokens" in live.notice)
    live.add("hi", max_new_tokens=0)
    await until(lambda: "max_new_tokens" in live.notice)
    assert live.status == "running"
    live.add(requests(1, 10)[0], max_new_tokens=7)
    await until(lambda: len(live.trace.requests) == 2)
    assert list(live.trace.requests.values())[-1].max_new_tokens == 7
    live.stop()
    live.add(requests(1)[0])
    await live
    assert live.status == "stopped" and "没有再加入请求" in live.notice and len(live.trace.requests) == 2
    live.notice = ""
    live.add(requests(1)[0])
    await until(lambda: "没有再加入请求" in live.notice)
