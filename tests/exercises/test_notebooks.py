"""The notebooks hold every task, in order, in both folders; the exercises unsolved, the solutions solved."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

import taskkit
from taskkit.guess import Predict

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


def code_cells(folder: str, chapter: str) -> list[Any]:
    return [c for c in notebook(folder, chapter).cells if c.cell_type == "code"]


PREDICTIONS = [t for chapter in taskkit.chapters() for t in taskkit.tasks_of(chapter) if isinstance(t, Predict)]


@pytest.mark.parametrize("folder", ["exercises", "solutions"])
@pytest.mark.parametrize("task", PREDICTIONS, ids=lambda t: t.id)
def test_what_gives_a_prediction_away_waits_for_the_guess(folder: str, task: Any) -> None:
    cells = code_cells(folder, task.id[:2])
    at, run, end = (
        next(i for i, c in enumerate(cells) if f"{task.var}.{what}(" in c.source) for what in ("predict", "run", "check")
    )
    # Nothing else is run between the card and the verdict; and unsolved, that one cell shows only what to do first.
    assert (run, end) == (at + 1, at + 2) and cells[run].source.endswith(f"\n{task.var}.run(experiment)")
    assert ("先不运行" in shown(cells[run])) == (folder == "exercises")
    if folder == "exercises":
        assert len(cells[run].outputs) == 1 and cells[run].outputs[0].output_type == "display_data"


@pytest.mark.parametrize("chapter", taskkit.chapters())
def test_a_cell_uses_what_was_written_for_one_task_only(chapter: str) -> None:
    owner: dict[str, str] = {}  # what a learner writes -> the task it was last written for
    for cell in code_cells("exercises", chapter):
        tree = ast.parse(cell.source)
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        bound = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        bound |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
        bound |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        used = {owner[n.id] for n in names if n.id in owner and n.id not in bound}
        task = re.search(r"^(t\d+)\.(check|show|race)\(", cell.source, re.M)
        assert len(used) <= 1, cell.source
        if task:
            assert used <= {task[1]}, cell.source
        if task and task[2] == "check":
            written = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
            written |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
            owner.update(dict.fromkeys(written, task[1]))
