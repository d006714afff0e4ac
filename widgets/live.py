"""LiveRun: the real engine steps while you watch; pause it, step it, put a request in, take one out.

The engine is stepped from the kernel's own event loop, with the forward in an executor: widget updates sent
from a plain background thread are lost or raise under current ipykernel, and a loop that computed by itself
would block every other cell. One task owns the engine. Whatever comes from the browser (which newer JupyterLab
delivers in a thread of its own, a kernel subshell) is only put into a queue, and carried out between two steps.
(The first is ipywidgets issue 4001; that a widget whose output was cleared can run on is issue 2747, so a run ends
when its cell is run again, and when no page has shown it for a few seconds.)
"""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from minirt import MinirtError, Request, StepRecord, Trace
from minirt.trace import Event

from ._assets import check_lang, translate
from ._link import OVER, Link
from ._payload import pack, plain

_running: list[LiveRun] = []


class LiveRun(Link):
    """Serve requests while you watch.

    engine: a minirt engine (it must not be used elsewhere meanwhile). requests: what to begin with; more can be
    typed in. pace: seconds a step takes at least (0 = full speed). max_new_tokens: for requests typed in. paused:
    wait for the first press of play. lang: "zh" or "en".

    pause(), resume(), step(), stop(), add(request), abort(id); `await live` waits for the end and returns the trace.
    A cell that is run again, or whose output is cleared, stops its old run.
    """

    def __init__(
        self,
        engine: Any,
        requests: Iterable[Request] = (),
        *,
        lang: str = "zh",
        pace: float = 0.125,
        max_new_tokens: int = 48,
        paused: bool = False,
        title: str = "",
    ) -> None:
        if not all(hasattr(engine, name) for name in ("add", "step", "abort", "has_work", "trace")):
            raise TypeError(
                f"LiveRun takes an engine (with add, step, abort, has_work and trace), not a {type(engine).__name__}."
            )
        self.engine, self.lang, self.pace = engine, check_lang(lang), max(0.0, pace)
        self.requests = list(requests)
        self._todo: deque[Callable[[], None]] = deque()
        self._single = self._stopping = False
        self._why = "stopped"
        self._failure: BaseException | None = None
        self._cell = _cell_id()
        speed = next((n for n in (1, 2, 4, 8, 16, 32) if n * self.pace >= 0.99), 32) if self.pace else 1000
        options = {"lang": lang, "title": str(title), "speed": speed, "max_new_tokens": max_new_tokens}
        super().__init__(_options=options, status="paused" if paused else "running")
        old = [run for run in _running if run._is_replaced_by(self)]
        for run in old:
            run.stop(translate(self.lang, "live.rerun"))
        _running.append(self)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # a plain script: there is nobody to watch, so run it through
            self._loop = None
            self._run_through()
            return
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="minirt-live")
        self._finished = asyncio.Event()
        self._task = self._loop.create_task(self._drive([r for r in old if r._loop is self._loop]))

    # -- what can be asked of it (from any thread) ------------------------------------------------
    def pause(self) -> None:
        """Stop after the step that is being computed."""
        self._do(lambda: self._set("paused", "running"))

    def resume(self) -> None:
        """Go on."""
        self._do(lambda: self._set("running", "paused"))

    def step(self) -> None:
        """Compute one step, then wait."""

        def one() -> None:
            self._set("paused", "running")
            self._single = True

        self._do(one)

    def stop(self, why: str = "") -> None:
        """End the run: what has not finished is aborted, every block is free."""

        def end() -> None:
            self._stopping, self._why = True, why or translate(self.lang, "live.by_hand")

        self._do(end)

    def add(self, request: Request | str, max_new_tokens: int | None = None) -> None:
        """Insert a request now; a string is a prompt. One that can't be served is named in the widget, the run goes on.

        max_new_tokens: instead of the request's own; for a string without it, the widget's. After stop() nothing is
        added, and the widget says so.
        """
        late = translate(self.lang, "live.too_late")
        if self._loop is None or self.status in OVER:
            self._in_loop(lambda: setattr(self, "notice", late))
            return

        def put() -> None:
            if self._stopping:
                self._why += f"\n{late}"
                return
            self.notice = ""
            try:
                made = self._made(request, max_new_tokens)
                new = self.engine.add(made)
                self.notice = getattr(getattr(self.engine, "outputs", {}).get(new), "error", None) or ""
            except (MinirtError, ValueError, TypeError) as e:
                self.notice = str(e)
            if self.status == "done" and self.engine.has_work:
                self.status = "running"
                self._finished.clear()

        self._do(put)

    def _made(self, request: Request | str, max_new_tokens: int | None) -> Request:
        if isinstance(request, Request):
            return request if max_new_tokens is None else replace(request, max_new_tokens=max_new_tokens)
        tokens = self._options["max_new_tokens"] if max_new_tokens is None else max_new_tokens
        return Request(prompt=request, max_new_tokens=tokens)

    def abort(self, request_id: int) -> None:
        """End one request; its slot and blocks are free for the next."""

        def take_out() -> None:
            try:
                self.engine.abort(operator.index(request_id))  # a list would end the loop inside the engine
            except TypeError:
                self.notice = f"abort({request_id!r}): a request's id is a whole number, as 0."
            except MinirtError as e:
                self.notice = str(e)

        self._do(take_out)

    def close(self) -> None:
        """Stop, and close the widget."""
        if hasattr(self, "_todo"):  # not where __init__ refused its arguments
            self.stop(translate(self.lang, "live.closed"))
        super().close()

    def __await__(self) -> Generator[Any, None, Trace]:
        """Wait until all requests have ended (or the run was stopped). Raises what the engine raised."""
        return self._wait().__await__()

    async def _wait(self) -> Trace:
        if self._loop is not None:
            await self._finished.wait()
        if self._failure is not None:
            raise self._failure
        return self.trace

    # -- the task that owns the engine ------------------------------------------------------------
    def _do(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._wake.set)

    async def _drive(self, before: list[LiveRun]) -> None:
        loop = asyncio.get_running_loop()
        try:
            for old in before:  # it may still be computing a step with this very engine
                await old._ended()
            self._begin()
            while True:
                self._carry_out()
                if self._stopping:
                    break
                if not self.engine.has_work and self.status == "running":
                    self._finish()
                if self.status == "running" or (self._single and self.engine.has_work):
                    self._single = False
                    due = loop.time() + self.pace
                    await loop.run_in_executor(self._executor, self.engine.step)
                    self._flush()
                    await self._sleep(due - loop.time())
                else:
                    self._flush()
                    await self._wake.wait()
                self._wake.clear()
            self._end("stopped", self._why)
        except asyncio.CancelledError:
            self._end("stopped", self._why)
            raise
        except BaseException as e:
            self._failure = e
            self._end("failed", f"{type(e).__name__}: {e}")
        finally:
            self._executor.shutdown(wait=False)

    async def _ended(self) -> None:
        await asyncio.wait([self._task])

    async def _sleep(self, seconds: float) -> None:
        """Keep the pace, but answer at once when something is asked."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            return
        if not self._todo:
            return

    def _begin(self) -> None:
        if hasattr(self.engine, "reset") and not self.engine.has_work:
            self.engine.reset()
        self.engine.streaming = True
        for request in self.requests:
            self.engine.add(request)
        self._flush()

    def _carry_out(self) -> None:
        while self._todo:
            self._todo.popleft()()

    def _set(self, status: str, only_from: str) -> None:
        if self.status == only_from:
            self.status = status

    def _finish(self) -> None:
        self._flush()
        self.status = "done"
        self._trace = pack(plain(self.trace))
        self._finished.set()

    def _end(self, status: str, words: str) -> None:
        """Nothing of this run is left in the engine, whatever happened."""
        ended = {int(i) for i in self.trace.outputs}
        left = [i for i in self.trace.requests if i not in ended]
        steps = len(self.trace)
        for i in left:
            try:
                self.engine.abort(i, words)
            except TypeError:
                self.engine.abort(i)
            except Exception as e:  # an engine that is broken can't be tidied; say so rather than hide the first error
                words += f"\n{type(e).__name__}: {e}"
        if left and len(self.trace) == steps:  # an engine that could not write down these ends: show them here
            now = self.trace.steps[-1].end if steps else 0.0
            self._closing = StepRecord(steps, now, events=[Event("aborted", i, {"error": words}) for i in left])
        self._flush()
        self.error = words if status == "failed" else ""
        self.notice = words if status == "stopped" else ""
        self.status = status
        self._trace = pack(plain(self.trace))
        if self in _running:
            _running.remove(self)
        if self._loop is not None:
            self._finished.set()

    def _run_through(self) -> None:
        try:
            self._begin()
            while self.engine.has_work:
                self.engine.step()
            self.status = "done"
        except BaseException as e:
            self._end("failed", f"{type(e).__name__}: {e}")
            raise
        self._trace = pack(plain(self.trace))
        _running.remove(self)

    def _is_replaced_by(self, new: LiveRun) -> bool:
        return new.engine is self.engine or new._cell is None or new._cell == self._cell


def _cell_id() -> str | None:
    """Which notebook cell is being run, where the front end says so (JupyterLab does)."""
    try:
        from IPython import get_ipython

        return get_ipython().get_parent()["metadata"].get("cellId")  # type: ignore[union-attr]
    except (ImportError, AttributeError, KeyError, TypeError):
        return None
