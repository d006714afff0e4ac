"""The notebooks hold every task, in order, in both folders; the exercises unsolved, the solutions solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

import taskkit

ROOT = Path(__file__).resolve().parents[2]


def notebook(folder: str, chapter: str) -> Any:
    found = sorted((ROOT / folder).glob(f"{chapter}_*.ipynb"))
    assert len(found) == 1, f"{folder}/{chapter}_*.ipynb: {len(found)} files"
    return nbformat.read(found[0], as_version=4)


def shown(cell: Any) -> str:
    return "".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in cell.get("outputs", []))


@pytest.mark.parametrize("folder", ["exercises", "solutions"])
@pytest.mark.parametrize("chapter", taskkit.chapters())
def test_every_task_stands_in_the_notebook_in_order(folder: str, chapter: str) -> None:
    source = "\n".join(c.source for c in notebook(folder, chapter).cells if c.cell_type == "code")
    places = [source.find(f'taskkit.task("{t.id}")') for t in taskkit.tasks_of(chapter)]
    assert min(places) >= 0 and places == sorted(places)


@pytest.mark.parametrize("chapter", taskkit.chapters())
def test_both_have_the_same_name_and_the_right_state(chapter: str) -> None:
    names = [next((ROOT / f).glob(f"{chapter}_*.ipynb")).name for f in ("exercises", "solutions")]
    assert names[0] == names[1]
    total = len(taskkit.tasks_of(chapter))
    assert f"0 / {total}" in shown(notebook("exercises", chapter).cells[-1])
    assert f"{total} / {total}" in shown(notebook("solutions", chapter).cells[-1])
    solved = "\n".join(shown(c) for c in notebook("solutions", chapter).cells if c.cell_type == "code")
    assert "✗" not in solved and "○" not in solved
