"""Executes notebooks in place and cleans what changes from run to run, so that a diff shows only what changed.

Each runs in its own folder, in a fresh kernel of this Python. On an error the file stays as it was, and the cell and
the traceback are printed. Cleaned: timestamps and other execution metadata, kernel and language versions, memory
addresses, progress bars, and the live views of widgets with their state: what stays of a widget is its still picture,
which shows on any page without a kernel and does not grow stale when a script changes.

    python scripts/run_notebooks.py [NOTEBOOK …]      without names: all of the course
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from check_notebooks import CELL_LIMIT_S, find_notebooks, short
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
SAME_ADDRESS = "at 0x000000000000"
BAR = re.compile(r"\d+%\|.*\||\d+(\.\d+)?(it|s|B)/(s|it)\b")
# What a cell's author or nbval may want; everything else in a cell's metadata was put there by a tool.
KEEP = {"tags", "jupyter", "slideshow"}


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Removes, in place, what would differ if the notebook were run again."""
    widgets = notebook.metadata.get("widgets", {}).get(STATE, {})
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    taken = {cell.get("id") for cell in notebook.cells if cell.get("id")}
    for at, cell in enumerate(notebook.cells):
        if not cell.get("id"):
            cell["id"] = next(name for n in range(len(taken) + 1) if (name := f"cell-{at}-{n}") not in taken)
            taken.add(cell["id"])
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in sorted(KEEP & set(cell.metadata))})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress(output, widgets.get("state", {}))]
            for output in cell.outputs:
                clean_output(output)
    return notebook


def is_progress(output: nbformat.NotebookNode, state: dict[str, Any]) -> bool:
    """A progress bar, as text on stderr or as a widget: gone once the work is done."""
    if output.output_type == "stream" and output.name == "stderr":
        lines = [line for line in re.split(r"[\r\n]", output.text) if line.strip()]
        return all(BAR.search(line) for line in lines)
    root = output.get("data", {}).get(VIEW, {}).get("model_id")
    return any(state[m].get("model_name") == "FloatProgressModel" for m in reachable([root], state))


def clean_output(output: nbformat.NotebookNode) -> None:
    """Drops the live view of one output, and gives addresses in it one that stays."""
    output.metadata = nbformat.from_dict({}) if "metadata" in output else None
    if output.metadata is None:
        del output["metadata"]
    if output.output_type == "stream":
        output.text = ADDRESS.sub(SAME_ADDRESS, output.text)
    data = output.get("data", {})
    for kind in ("text/plain", "text/html"):
        if isinstance(data.get(kind), str):
            data[kind] = ADDRESS.sub(SAME_ADDRESS, data[kind])
    data.pop(VIEW, None)


def reachable(roots: list[str | None], state: dict[str, Any]) -> list[str]:
    """The widget models that some are made of, themselves first, each once."""
    found: list[str] = []
    todo = [root for root in roots if root in state]
    while todo:
        model = todo.pop(0)
        if model not in found:
            found.append(model)
            inside = re.findall(r"IPY_MODEL_([0-9a-f]{32})", json.dumps(state[model], sort_keys=True))
            todo += [other for other in inside if other in state]
    return found


def execute(path: Path) -> str | None:
    """Runs one notebook and writes it back; None, or what went wrong, for a reader."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["kernelspec"] = nbformat.from_dict(KERNEL)
    os.environ["TASKKIT_FRESH"] = "1"  # exercises: nothing solved yet, whoever worked in this folder before
    client = NotebookClient(
        notebook, timeout=CELL_LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    try:
        client.execute()
    except CellTimeoutError:
        return f"a cell ran longer than {CELL_LIMIT_S} s"
    except (CellExecutionError, DeadKernelError) as error:
        return str(error)
    temporary = path.with_suffix(".tmp")
    nbformat.write(clean(notebook), temporary)
    os.replace(temporary, path)
    return None


def main(names: list[str]) -> int:
    """Runs them one after the other; the exit status is 1 if one ended in an error."""
    paths = find_notebooks(names)
    if not paths:
        print("minirt: no notebooks yet")
    failed = []
    for at, path in enumerate(paths, 1):
        print(f"[{at}/{len(paths)}] {short(path)} …", flush=True)
        started, before = time.monotonic(), path.read_bytes()
        if wrong := execute(path):
            failed.append(short(path))
            print(f"    failed, file left as it was:\n{wrong}", flush=True)
        else:
            change = "unchanged" if path.read_bytes() == before else "updated"
            print(f"    {change}, {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        print(f"minirt: {len(failed)} of {len(paths)} notebooks failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
