"""Are the notebooks fit to be read and tested? Looks at the files; with --nbval also runs them and compares.

A notebook passes when every code cell was executed, in order and without an error; no cell is kept from nbval by
nbval-skip; fewer than a third of its code cells have their output ignored; nothing in it names a path of the machine
it was made on; nothing was left on stderr; and it asks for the kernel "python3".

    python scripts/check_notebooks.py [--nbval] [NOTEBOOK …]      without names: all of the course
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("chapters", "exercises", "solutions")
SANITIZE = ROOT / "tests" / "nbval_sanitize.cfg"
CELL_LIMIT_S = 300
IGNORED_AT_MOST = 1 / 3
# Where people and CI keep their checkouts and homes. A URL's path has a host before it, hence the look-behind.
MACHINE_PATH = re.compile(
    r"(?<![\w./:-])(?:/(?:home|Users|root|work|workspace|mnt|private|var/folders)/\S+|[A-Z]:\\\\?Users)"
)


def find_notebooks(names: list[str] | None = None) -> list[Path]:
    """The notebooks named, else all of the course in reading order."""
    if names:
        return [Path(name).resolve() for name in names]
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.ipynb")))
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def short(path: Path) -> str:
    """The path as seen from the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def outputs_text(cell: nbformat.NotebookNode) -> str:
    """All text a cell shows: streams, text and HTML. Pictures and widget state are left out."""
    parts = []
    for output in cell.outputs:
        parts.append(str(output.get("text", "")))
        data = output.get("data", {})
        parts += [str(data[kind]) for kind in ("text/plain", "text/html", "text/markdown") if kind in data]
    return "\n".join(parts)


def is_ignored(cell: nbformat.NotebookNode) -> bool:
    """Is this cell's output kept from comparison, by a tag or by a comment, as nbval reads them?"""
    tags = cell.metadata.get("tags", [])
    return "nbval-ignore-output" in tags or re.search(r"^\s*#\s*NBVAL_IGNORE_OUTPUT", cell.source, re.M) is not None


def is_skipped(cell: nbformat.NotebookNode) -> bool:
    """Is this cell kept from being run at all?"""
    return (
        "nbval-skip" in cell.metadata.get("tags", []) or re.search(r"^\s*#\s*NBVAL_SKIP", cell.source, re.M) is not None
    )


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Everything wrong with a notebook, a line each; cells are counted from 1, as they stand in the file."""
    found: list[str] = []
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        found.append(f"not a valid notebook: {str(error).splitlines()[0]}")
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        found.append(f"its kernelspec is {kernel!r}, must be 'python3' (run `make notebooks`)")
    code = [(at, c) for at, c in enumerate(notebook.cells, 1) if c.cell_type == "code" and c.source.strip()]
    for expected, (at, cell) in enumerate(code, 1):
        count = cell.execution_count
        if count != expected:
            state = "was never executed" if count is None else f"has execution count {count}, in order it is {expected}"
            found.append(f"cell {at} {state} (run `make notebooks`)")
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"cell {at} ended in an error: {output.ename}: {output.evalue}")
            elif output.output_type == "stream" and output.name == "stderr":
                found.append(f"cell {at} left text on stderr: {output.text.strip()[:100]!r}")
        if cell.source.rstrip().endswith(";") and not is_ignored(cell):
            found.append(f"cell {at} ends with ';', which nbval does not honour: it shows the value; write `_ = …`")
        if is_skipped(cell):
            found.append(f"cell {at} is kept from running by nbval-skip; ignore its output instead, if it must be")
    for at, cell in enumerate(notebook.cells, 1):
        text = cell.source + ("\n" + outputs_text(cell) if cell.cell_type == "code" else "")
        if path := MACHINE_PATH.search(text):
            found.append(f"cell {at} names a path of one machine: {path[0][:80]!r}")
        elif str(ROOT) in text:
            found.append(f"cell {at} names this checkout's folder: {str(ROOT)!r}")
    ignored = sum(is_ignored(cell) for _, cell in code)
    if code and ignored >= IGNORED_AT_MOST * len(code):
        found.append(f"{ignored} of {len(code)} code cells have their output ignored; fewer than a third may")
    return found


def main() -> int:
    """Prints each problem with its notebook; the exit status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nbval", action="store_true", help="then run them and compare what they print")
    parser.add_argument("--jobs", type=int, default=1, help="notebooks run at once (default 1)")
    parser.add_argument("notebooks", nargs="*")
    options = parser.parse_args()
    paths = find_notebooks(options.notebooks)
    if not paths:
        print("minirt: no notebooks yet")
        return 0
    failed = False
    for path in paths:
        try:
            found = problems(nbformat.read(path, as_version=4))
        except (OSError, ValueError) as error:  # nbformat's own errors are ValueErrors
            found = [f"cannot be read: {error}"]
        failed = failed or bool(found)
        print(f"{'FAIL' if found else 'ok  '} {short(path)}")
        for line in found:
            print(f"       {line}")
    if failed:
        return 1
    if options.nbval:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--nbval",
            "--nbval-current-env",
            f"--nbval-sanitize-with={SANITIZE}",
        ]
        if options.jobs > 1:  # a notebook's cells belong together: one worker runs them all
            command += ["-n", str(options.jobs), "--dist", "loadfile"]
        command += [f"--nbval-cell-timeout={CELL_LIMIT_S}", "-p", "no:cacheprovider", *map(str, paths)]
        return subprocess.run(command, cwd=ROOT).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
