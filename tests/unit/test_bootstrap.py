"""scripts/bootstrap.py: each step once, taken up where it was left, and one clear line where something cannot be had.

No .venv is built and nothing is downloaded here: the slow steps are noted instead of done.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bootstrap
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """bootstrap pointed at an empty checkout, with its slow steps noted instead of done."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    venv = tmp_path / ".venv"
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(bootstrap, "LOG", venv / "setup.log")
    return tmp_path


@pytest.fixture
def steps(clone: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    model = clone / "weights"

    def make_venv() -> None:
        done.append("venv")
        (clone / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        if not bootstrap.PYTHON.exists():
            bootstrap.PYTHON.symlink_to(sys.executable)

    def make_weights(python: Path) -> Path:
        done.append("weights")
        model.mkdir(exist_ok=True)
        (model / "config.json").touch()
        return model

    monkeypatch.setattr(bootstrap, "ensure_venv", make_venv)
    monkeypatch.setattr(bootstrap, "run_pip", lambda python, arguments, step, log: done.append(f"pip {arguments[-1]}"))
    monkeypatch.setattr(bootstrap, "ensure_wheel", lambda python, log: done.append("wheel"))
    monkeypatch.setattr(bootstrap, "ensure_weights", make_weights)
    monkeypatch.setattr(bootstrap, "NEEDED_GB", 0.0)
    return done


def test_setup_does_everything_once_then_nothing(
    clone: Path, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    everything = ["venv", "pip .[dev]", "wheel", "weights"]
    assert bootstrap.main(["setup"]) == 0
    assert steps == everything and "ready" in capsys.readouterr().out
    assert bootstrap.main(["setup"]) == 0
    assert steps == everything and capsys.readouterr().out == ""


def test_setup_goes_on_where_something_changed(clone: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.main(["setup"])
    steps.clear()
    with (clone / "constraints.txt").open("a") as file:
        file.write("# another set\n")
    bootstrap.main(["setup"])
    assert steps == ["venv", "pip .[dev]", "wheel", "weights"]
    steps.clear()
    monkeypatch.setenv("MINIRT_CACHE", str(clone / "elsewhere"))
    bootstrap.main(["setup"])
    assert steps == ["venv", "wheel", "weights"]
    steps.clear()
    (clone / "weights" / "config.json").unlink()
    bootstrap.main(["setup"])
    assert "weights" in steps


def test_an_interrupted_install_is_taken_up_again(
    clone: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "run_pip", interrupted)
        assert bootstrap.main(["setup"]) == 130
    steps.clear()
    assert bootstrap.main(["setup"]) == 0
    assert "pip .[dev]" in steps


def test_too_little_disk_is_said_before_the_download(
    clone: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "NEEDED_GB", 1e9)
    assert bootstrap.main(["setup"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("minirt: no disk space: ") and error.count("\n") == 1
    assert not [step for step in steps if step.startswith("pip")]


def test_a_disk_that_fills_up_ends_in_one_line(
    clone: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bootstrap, "run_pip", full)
    assert bootstrap.main(["setup"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("minirt: no disk space: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "no disk space"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError: [Errno -3] Temporary failure in name "
            "resolution'\nERROR: No matching distribution found for torch>=2.9",
            "no network",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "pip failed: No matching distribution found for t"),
        ("", "pip failed: no output"),
    ],
)
def test_pip_failures_end_in_one_line(output: str, message: str, tmp_path: Path) -> None:
    line = bootstrap.explain_pip(output.splitlines(), tmp_path / "setup.log")
    assert line.startswith(message) and "\n" not in line


def test_pip_is_run_and_its_failure_explained(clone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = clone / "setup.log"
    with pytest.raises(bootstrap.Stop, match="pip failed: .*no-such-file"):
        bootstrap.run_pip(Path(sys.executable), ["--no-index", "-r", "no-such-file.txt"], "testing", log)
    assert "no-such-file.txt" in log.read_text()
    assert capfd.readouterr().out == "", "pip's own output goes to the log, not to the learner"


def test_a_broken_venv_is_made_again(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "pyvenv.cfg").touch()
    bootstrap.PYTHON.write_text("#!/bin/sh\nexit 1\n")
    bootstrap.PYTHON.chmod(0o755)
    commands: list[list[str]] = []
    real = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if "venv" in command:
            commands.append(command)
            return subprocess.CompletedProcess(command, 0, "", "")
        return real(command, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "run", run)
    bootstrap.ensure_venv()
    assert commands == [[sys.executable, "-m", "venv", "--clear", str(clone / ".venv")]]
    assert "broken" in capsys.readouterr().out


@pytest.mark.parametrize(("root", "installs"), [(True, True), (True, False), (False, False)])
def test_a_missing_chromium_is_installed_where_we_may(
    root: bool,
    installs: bool,
    clone: Path,
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    present = {"apt-get"}
    commands: list[str] = []

    def run(command: list[str], **_: object) -> None:
        commands.append(" ".join(command))
        if installs and "chromium" in command:
            present.add("chromium")

    monkeypatch.setattr(shutil, "which", lambda name: name if name in present else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run(command, **options))
    monkeypatch.setattr(bootstrap, "ensure_packages", lambda extras="dev": steps.append(extras))
    assert bootstrap.main(["browser"]) == (0 if installs else 1)
    assert "dev,browser" in steps
    assert bool(commands) == root
    error = capsys.readouterr().err
    assert error == "" if installs else re.match(r"minirt: the browser tests need Chromium.*\n$", error)


def test_what_only_tests_need_comes_with_the_test_command(
    clone: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "ensure_packages", lambda extras="dev": steps.append(extras))
    assert bootstrap.main(["test"]) == 0
    assert "dev,kernels" in steps


def test_the_lab_is_rooted_in_the_repository_and_opens_the_first_chapter(clone: Path) -> None:
    assert f"--ServerApp.root_dir={clone}" in bootstrap.lab_command([])
    assert "--LabApp.default_url=/lab" in bootstrap.lab_command([])
    (clone / "chapters").mkdir()
    (clone / bootstrap.FIRST_CHAPTER).touch()
    command = bootstrap.lab_command(["--port=8899"])
    assert f"--LabApp.default_url=/lab/tree/{bootstrap.FIRST_CHAPTER}" in command and command[-1] == "--port=8899"
    # A bare path would make its folder the root, and ../exercises unreachable from the chapters.
    assert all(word.startswith("--") for word in command[2:])
