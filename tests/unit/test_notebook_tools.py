"""The notebook tools: what the check finds, and that cleaning leaves nothing that changes from run to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import check_notebooks
import nbformat
import pytest
import run_notebooks

ROOT = Path(__file__).resolve().parents[2]


def notebook(*sources: str, executed: bool = True) -> nbformat.NotebookNode:
    """A notebook that passes every check, of cells with these sources."""
    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = dict(run_notebooks.KERNEL)
    made.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for count, cell in enumerate(made.cells, 1):
        cell.execution_count = count if executed else None
    return made


def stream(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


def widget(model: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_output("display_data", {run_notebooks.VIEW: {"model_id": model}, "text/plain": "W()"})


# -- checking -------------------------------------------------------------------------------------


def test_a_sound_notebook_has_no_problems() -> None:
    sound = notebook("1 + 1", "# NBVAL_IGNORE_OUTPUT\nclock()", "2", "3")
    sound.cells.insert(0, nbformat.v4.new_markdown_cell("# 标题 https://example.org/home/page"))
    sound.cells.append(nbformat.v4.new_code_cell(""))
    assert check_notebooks.problems(sound) == []


def test_unexecuted_and_out_of_order_cells_are_found() -> None:
    assert "cell 1 was never executed" in check_notebooks.problems(notebook("1", executed=False))[0]
    wrong = notebook("1", "2")
    wrong.cells[1].execution_count = 7
    assert check_notebooks.problems(wrong) == ["cell 2 has execution count 7, in order it is 2 (run `make notebooks`)"]


def test_errors_and_stderr_are_found() -> None:
    wrong = notebook("1", "2")
    wrong.cells[0].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    wrong.cells[1].outputs = [stream("UserWarning: old", "stderr")]
    first, second = check_notebooks.problems(wrong)
    assert first == "cell 1 ended in an error: ValueError: no"
    assert second == "cell 2 left text on stderr: 'UserWarning: old'"


@pytest.mark.parametrize("tag", [True, False])
def test_skipped_cells_are_found(tag: bool) -> None:
    wrong = notebook("1" if tag else "# NBVAL_SKIP\n1")
    if tag:
        wrong.cells[0].metadata["tags"] = ["nbval-skip"]
    assert "kept from running by nbval-skip" in check_notebooks.problems(wrong)[0]


def test_a_third_of_the_cells_ignored_is_too_many() -> None:
    wrong = notebook("# NBVAL_IGNORE_OUTPUT\n1", "2", "3")
    assert check_notebooks.problems(wrong) == ["1 of 3 code cells have their output ignored; fewer than a third may"]
    wrong.cells.append(notebook("4").cells[0])
    wrong.cells[3].execution_count = 4
    assert check_notebooks.problems(wrong) == []


ADMIN = "root"  # put together here: this file names no machine's path itself


@pytest.mark.parametrize("path", ["/home/ada/minirt", "/Users/ada/x", f"/{ADMIN}/.cache/minirt", str(ROOT)])
def test_paths_of_one_machine_are_found_in_sources_and_outputs(path: str) -> None:
    in_source, in_output = notebook(f"open('{path}')"), notebook("p")
    in_output.cells[0].outputs = [stream(f"saved to {path}\n")]
    for wrong in (in_source, in_output):
        (problem,) = check_notebooks.problems(wrong)
        assert problem.startswith("cell 1 names")


def test_a_missing_kernelspec_and_a_trailing_semicolon_are_found() -> None:
    wrong = notebook("plot();")
    del wrong.metadata["kernelspec"]
    first, second = check_notebooks.problems(wrong)
    assert "kernelspec is None" in first and "ends with ';'" in second


def test_the_command_fails_on_a_bad_file_and_passes_without_any(tmp_path: Path) -> None:
    def run(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "check_notebooks.py"), *names]
        return subprocess.run(command, capture_output=True, text=True)

    good, bad, broken = tmp_path / "good.ipynb", tmp_path / "bad.ipynb", tmp_path / "broken.ipynb"
    nbformat.write(notebook("1"), good)
    nbformat.write(notebook("1", executed=False), bad)
    broken.write_text("{")
    assert run(str(good)).returncode == 0
    done = run(str(good), str(bad), str(broken))
    assert done.returncode == 1
    assert [line[:4] for line in done.stdout.splitlines() if not line.startswith(" ")] == ["ok  ", "FAIL", "FAIL"]


# -- cleaning -------------------------------------------------------------------------------------


def test_cleaning_makes_two_runs_the_same() -> None:
    def one_run(first: str, second: str, address: str, when: str, version: str) -> str:
        made = notebook("a", "b")
        made.metadata["language_info"] = {"name": "python", "version": version}
        made.cells[0].id, made.cells[1].id = "first", "second"
        made.cells[0].metadata = nbformat.from_dict({"execution": {"iopub.execute_input": when}, "tags": ["x"]})
        made.cells[0].outputs = [stream(f"<object at {address}>"), widget(first)]
        made.metadata["widgets"] = {
            run_notebooks.STATE: {
                "state": {
                    second: {"model_name": "LayoutModel", "state": {}},
                    "f" * 32: {"model_name": "NobodyShowsThis", "state": {}},
                    first: {"model_name": "PlayerModel", "state": {"layout": f"IPY_MODEL_{second}", "step": 3}},
                },
                "version_major": 2,
                "version_minor": 0,
            }
        }
        return nbformat.writes(run_notebooks.clean(made))

    once = one_run("a" * 32, "b" * 32, "0x7f3a1c2d3e4f", "2026-01-01", "3.11.7")
    again = one_run("d" * 32, "1" * 32, "0x10ab34cd5e", "2026-02-02", "3.12.1")
    assert once == again
    read = json.loads(once)
    assert "widgets" not in read["metadata"]
    assert list(read["cells"][0]["outputs"][1]["data"]) == ["text/plain"], "the still picture stays, the live view goes"
    assert read["cells"][0]["metadata"] == {"tags": ["x"]}
    assert nbformat.writes(run_notebooks.clean(nbformat.reads(once, 4))) == once


def test_cleaning_drops_progress_bars_and_keeps_other_outputs() -> None:
    made = notebook("a")
    bar = "  0%|          | 0/3 [00:00<?, ?it/s]\r100%|██████████| 3/3 [00:00<00:00, 9.1it/s]\n"
    made.cells[0].outputs = [
        stream(bar, "stderr"),
        stream("100% sure\n"),
        stream("a warning", "stderr"),
        widget("a" * 32),
    ]
    made.metadata["widgets"] = {
        run_notebooks.STATE: {
            "state": {
                "a" * 32: {"model_name": "HBoxModel", "state": {"children": [f"IPY_MODEL_{'b' * 32}"]}},
                "b" * 32: {"model_name": "FloatProgressModel", "state": {"value": 3.0}},
            }
        }
    }
    run_notebooks.clean(made)
    assert [output.text for output in made.cells[0].outputs] == ["100% sure\n", "a warning"]
    assert "widgets" not in made.metadata


def test_old_cells_get_ids_that_stay() -> None:
    def without_ids() -> nbformat.NotebookNode:
        made = notebook("a", "b")
        for cell in made.cells:
            del cell["id"]
        return run_notebooks.clean(made)

    ids = [cell.id for cell in without_ids().cells]
    assert ids == [cell.id for cell in without_ids().cells] and len(set(ids)) == 2


def test_executing_writes_only_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "chapter.ipynb"
    nbformat.write(notebook("x = 20 + 1", "x", "import os; os.path.basename(os.getcwd())", executed=False), path)
    assert run_notebooks.execute(path) is None
    done = nbformat.read(path, as_version=4)
    assert done.cells[1].outputs[0].data["text/plain"] == "21"
    assert done.cells[2].outputs[0].data["text/plain"] == repr(tmp_path.name)
    assert check_notebooks.problems(done) == []

    nbformat.write(notebook("1", "undefined_name", executed=False), path)
    before = path.read_bytes()
    wrong = run_notebooks.execute(path)
    assert wrong is not None and "undefined_name" in wrong
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
