"""Runs a learner's code so that neither an endless loop nor a crash harms the kernel, and says what happened.

Where SIGALRM exists and we are in the main thread (a Jupyter kernel on Linux or macOS runs cells there), a timer
raises TimeLimit inside the learner's code, also in the middle of a sleep. Elsewhere (Windows, other threads) a trace
function looks at the clock on every line: that stops every loop written in Python, but not one long call into C.
What neither can stop is code that catches BaseException around its own endless loop; the kernel's stop button can.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import signal
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRINTED = 8_000  # characters of a call's output that are kept, the last ones
AGAIN_S = 0.05  # a TimeLimit that the learner's `except:` swallows is raised again after this
OURS = tuple(
    str(p) for p in (
        Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent / "minirt",
        Path(__file__).resolve().parent.parent / "widgets", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"),
    )
)  # fmt: skip


class TimeLimit(BaseException):
    """The learner's code ran too long. Not an Exception, so that `except Exception` does not swallow it."""


@dataclass
class Outcome:
    """What came of a call. kind: "ok", "crash", "timeout" or "unwritten" (nothing there yet).

    value: what was returned. error: "ZeroDivisionError: division by zero". line, source: where in the learner's own
    code. printed: what it printed.
    """

    kind: str
    value: Any = None
    error: str = ""
    line: int = 0
    source: str = ""
    printed: str = ""
    exception: BaseException | None = None


class Tail(io.StringIO):
    """Keeps the last PRINTED characters or so: an endless loop may print without end."""

    def write(self, text: str) -> int:
        if self.tell() > 4 * PRINTED:
            kept = self.getvalue()[-PRINTED:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return super().write(text)


def call(fn: Callable[..., Any], *args: Any, limit: float = 5.0, **options: Any) -> Outcome:
    """Call fn(*args) for at most `limit` seconds. Only an interrupt by the learner (the stop button) is let through; a
    KeyboardInterrupt that the code raises itself is a crash like others."""
    if is_empty(fn):
        return Outcome("unwritten")
    out = Tail()
    try:
        with interrupts() as pressed, contextlib.redirect_stdout(out), time_limit(limit):
            value = fn(*args, **options)
    except NotImplementedError as e:
        return Outcome("unwritten", printed=out.getvalue(), exception=e)
    except TimeLimit as e:
        return Outcome("timeout", None, "", *where(e), out.getvalue(), e)
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt) and pressed:
            raise
        words = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        return Outcome("crash", None, words, *where(e), out.getvalue(), e)
    return Outcome("ok", value, printed=out.getvalue())


def is_empty(fn: Any) -> bool:
    """Whether a function's body is still only `...`, `pass` or a docstring."""
    code = getattr(fn, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False
    operations = code.co_code[::2]  # the odd bytes are arguments
    return operations == _nothing.__code__.co_code[::2] and set(code.co_consts) <= {None, ..., fn.__doc__}


def _nothing() -> None: ...


def where(error: BaseException) -> tuple[int, str]:
    """Line number and source of the last frame that is neither ours nor a library's; (0, "") where there is none."""
    found = (0, "")
    at = error.__traceback__
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if not name.startswith((*OURS, "<frozen")):
            found = (at.tb_lineno, linecache.getline(name, at.tb_lineno, at.tb_frame.f_globals).strip())
        at = at.tb_next
    return found


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that is no longer empty once somebody really interrupted the body (SIGINT reaches the main thread only)."""
    pressed: list[int] = []
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(before):
        yield pressed
        return

    def ring(signum: int, frame: types.FrameType | None) -> None:
        pressed.append(signum)
        before(signum, frame)

    signal.signal(signal.SIGINT, ring)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in the body once it has run for so many seconds."""
    in_main = threading.current_thread() is threading.main_thread()
    return_to = _by_alarm(seconds) if in_main and hasattr(signal, "SIGALRM") else _by_trace(seconds)
    with return_to:
        yield


@contextlib.contextmanager
def _by_alarm(seconds: float) -> Iterator[None]:
    def ring(signum: int, frame: types.FrameType | None) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, ring)
    started = time.monotonic()
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's timer (a test's, say) goes on where it was
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)), every)


@contextlib.contextmanager
def _by_trace(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds

    def look(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        if time.monotonic() > until:
            raise TimeLimit
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
