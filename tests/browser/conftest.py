"""A real JupyterLab in a real browser, for the widgets. Chromium comes from the system, nothing is downloaded.

`lab` is one server for the whole session, on a free port of the loopback interface, with configuration of its own.
`notebook(cells)` opens a fresh notebook with these cells and runs them all; it returns the page.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "test"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")


def chromium_path() -> str | None:
    """Debian's Chromium, or what another system calls it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on PATH: make test-browser")
    with sync_api.sync_playwright() as p:
        b = p.chromium.launch(executable_path=path, args=FLAGS)
        yield b
        b.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """JupyterLab's address and its folder."""
    home = tmp_path_factory.mktemp("lab")
    (home / "work").mkdir()
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab"
    for plugin, values in {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"autoStartDefaultKernel": True},
    }.items():
        path = settings / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ)
    env.update(
        JUPYTER_CONFIG_DIR=str(home / "config"), JUPYTER_DATA_DIR=str(home / "data"), JUPYTER_RUNTIME_DIR=str(home / "run"),
        IPYTHONDIR=str(home / "ipython"), PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1",
    )  # fmt: skip
    log = (home / "lab.log").open("w")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--IdentityProvider.token={TOKEN}", "--ServerApp.port_retries=0", "--expose-app-in-browser"]
    command += [
        f"--ServerApp.root_dir={home / 'work'}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, server, home / "lab.log")
        yield url, home / "work"
    finally:
        ask = urllib.request.Request(f"{url}/api/shutdown?token={TOKEN}", method="POST")
        try:
            urllib.request.urlopen(ask, timeout=5).close()
            server.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            server.kill()
        log.close()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/api/status?token={TOKEN}", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def make_notebook(cells: list[str]) -> dict[str, Any]:
    """A notebook document with these code cells."""
    code = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": c, "outputs": [], "execution_count": None}
        for i, c in enumerate(cells)
    ]
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": code, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}


@contextmanager
def _opener(browser: Any, lab: tuple[str, Path]) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    url, folder = lab
    pages: list[Any] = []

    def open_(document: dict[str, Any], width: int = 1200, height: int = 900, dark: bool = False) -> Any:
        name = f"n{time.monotonic_ns()}.ipynb"
        (folder / name).write_text(json.dumps(document))
        page = browser.new_context(viewport={"width": width, "height": height}).new_page()
        pages.append(page)
        page.set_default_timeout(30_000)
        page.mrt_errors = []
        page.on("pageerror", lambda e: page.mrt_errors.append(str(e)))
        page.goto(f"{url}/lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_function("window.jupyterapp && document.querySelector('.jp-NotebookPanel-toolbar')")
        page.evaluate(
            "async () => { try { await jupyterapp.commands.execute('application:toggle-left-area'); } catch {} }"
        )
        command(page, "apputils:change-theme", {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"})
        return page

    yield open_, pages
    for page in pages:
        # a kernel that no page uses any more should not slow the next test down
        page.evaluate("async () => { try { await jupyterapp.serviceManager.sessions.shutdownAll(); } catch {} }")
        page.context.close()


@pytest.fixture
def open_lab(browser: Any, lab: tuple[str, Path], request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a notebook document in JupyterLab: open_lab(document, width=1200, dark=False) -> page."""
    with _opener(browser, lab) as (open_, pages):
        yield open_
        if getattr(request.node, "failed", False):
            out = ROOT / "test-results"
            out.mkdir(exist_ok=True)
            for n, page in enumerate(pages):
                page.screenshot(path=out / f"{request.node.name}-{n}.png")


@pytest.fixture(scope="module")
def open_lab_for_module(browser: Any, lab: tuple[str, Path]) -> Iterator[Callable[..., Any]]:
    """The same for a page that several tests share."""
    with _opener(browser, lab) as (open_, _):
        yield open_


@pytest.fixture
def notebook(open_lab: Callable[..., Any]) -> Callable[..., Any]:
    """Open a notebook with these cells and run them all."""

    def run(cells: list[str], **options: Any) -> Any:
        page = open_lab(make_notebook(cells), **options)
        run_all(page)
        return page

    return run


def command(page: Any, name: str, args: dict[str, Any] | None = None) -> Any:
    """One of JupyterLab's own commands."""
    return page.evaluate("([n, a]) => jupyterapp.commands.execute(n, a).then(() => null)", [name, args or {}])


def run_all(page: Any) -> None:
    """Run every cell, once the kernel is there. Does not wait for the end."""
    page.wait_for_function(
        "() => { const w = jupyterapp.shell.currentWidget; const k = w && w.sessionContext && w.sessionContext.session"
        " && w.sessionContext.session.kernel; return k && k.connectionStatus === 'connected' && k.status === 'idle'; }",
        timeout=90_000,
    )
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")


def view(page: Any, js: str, nth: int = 0) -> Any:
    """Evaluate JavaScript with `v` being the nth widget's view."""
    return page.evaluate(f"() => {{ const v = document.querySelectorAll('.mrt')[{nth}].mrtView; {js} }}")


def settle(page: Any, ms: int = 250) -> None:
    """Let animation frames and layouts come to rest."""
    page.wait_for_timeout(ms)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Lets a fixture know that its test failed, so that it can keep a screenshot."""
    outcome = yield
    if outcome.get_result().when == "call":
        item.failed = outcome.get_result().failed
