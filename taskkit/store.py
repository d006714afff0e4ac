"""What the learner has solved, in .progress.json beside the notebook.

Each change reads the file again before it writes, so that two open notebooks do not undo each other, and replaces it
in one move, so that a kernel that dies half-way leaves the old file. A run by a machine (pytest, or with the variable
TASKKIT_FRESH set, as scripts/run_notebooks.py does) starts with nothing solved and writes nothing: what a notebook
shows then can't depend on who worked in the folder before.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = ".progress.json"
VERSION = 1
STATES = ("solved", "wrong", "noted", "seen")


def is_fresh() -> bool:
    """Whether progress is to be neither read nor written."""
    return bool(os.environ.get("TASKKIT_FRESH") or os.environ.get("PYTEST_VERSION"))


def is_entry(entry: dict[str, Any]) -> bool:
    """Whether what a file says of a task is what this module writes; another shape counts as nothing."""
    counts = [entry.get("tries", 0), entry.get("hints", 0)]
    words = [entry.get("answer", 0), entry.get("guess", 0)]
    return (
        entry.get("state", "wrong") in STATES
        and all(type(n) is int and n >= 0 for n in counts)
        and all(isinstance(w, (str, int, float)) for w in words)
    )


def keepable(value: Any) -> Any:
    """What JSON in UTF-8 can hold: no half surrogate pairs, no int of thousands of digits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"2^{value.bit_length()}" if isinstance(value, int) and value.bit_length() > 1024 else value


class Store:
    """Task id -> {"state": solved | wrong | noted, …}. path: the file; None keeps everything in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem = self.set_aside = ""  # set_aside: the name that a damaged file got; whoever says so empties it
        self._tasks: dict[str, dict[str, Any]] = self._read()

    @classmethod
    def here(cls) -> Store:
        """The one beside the notebook: kernels are started in its folder."""
        return cls(None if is_fresh() else Path.cwd() / FILE)

    def get(self, task_id: str) -> dict[str, Any]:
        """What is known of a task; empty where nothing is."""
        return dict(self._tasks.get(task_id, {}))

    def update(self, task_id: str, **values: Any) -> None:
        """Note something. A solved task stays solved, whatever is tried afterwards."""
        if self.path is not None:
            self._tasks = {**self._tasks, **self._read()}
        old = self._tasks.get(task_id, {})
        if old.get("state") == "solved":
            values.pop("state", None)
        self._tasks[task_id] = {**old, **{k: keepable(v) for k, v in values.items()}}
        self._write()

    def clear(self, task_ids: Iterable[str]) -> list[str]:
        """Forget these tasks; which of them were known."""
        self._tasks = {**self._tasks, **self._read()}
        known = [i for i in task_ids if self._tasks.pop(i, None) is not None]
        self._write()
        return known

    def _read(self) -> dict[str, dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return {}
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            tasks = data["tasks"]
            return {str(k): dict(v) for k, v in tasks.items() if is_entry(dict(v))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            # Nothing a learner wrote is in there that can't be had again by running the cell: start anew, keep the old.
            try:
                os.replace(self.path, self.path.with_name(FILE + ".bad"))
                self.set_aside = FILE + ".bad"
            except OSError:
                self.problem = type(e).__name__
            return {}

    def _write(self) -> None:
        if self.path is None:
            return
        text = json.dumps({"version": VERSION, "tasks": self._tasks}, ensure_ascii=False, indent=1, sort_keys=True)
        try:
            fd, name = tempfile.mkstemp(dir=self.path.parent, prefix=".progress.", suffix=".json.tmp")
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                f.write(text + "\n")
            os.replace(name, self.path)
            self.problem = ""
        except OSError as e:  # a folder that can't be written: go on in memory, and say so in progress()
            self.problem = type(e).__name__
