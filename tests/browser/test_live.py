"""LiveRun in JupyterLab: the engine steps while the page draws, and what is asked in the page reaches the engine."""

from __future__ import annotations

import io
import json

import pytest
from conftest import command, make_notebook, settle, view
from PIL import Image

pytestmark = pytest.mark.browser

ENGINE = """
import asyncio, minirt, widgets
from minirt import workloads
from minirt.backends.simulated import SimulatedBackend
def engine(**options):
    return minirt.ContinuousEngine(SimulatedBackend(), max_batch_size=3, num_blocks=800, **options)
def ids(n, out=40):
    return workloads.make_requests(n, 12, out)
"""
LIVE = "() => { const e = document.querySelector('.mrt'); return e && e.mrtView && e.mrtView.model.length"


def wait_for_steps(page, n):
    page.wait_for_function(f"{LIVE} >= {n}; }}", timeout=60_000)


def cell_text(page, n):
    return page.locator(".jp-Cell").nth(n).locator(".jp-OutputArea-output").all_inner_texts()


def run_cell(page, source):
    """Add a cell at the end, run it, and return what it printed."""
    before = page.locator(".jp-Cell").count()
    page.evaluate(
        """async (source) => { const nb = jupyterapp.shell.currentWidget.content; const cells = nb.model.sharedModel;
        cells.insertCell(cells.cells.length, {cell_type: 'code', source, metadata: {}});
        nb.activeCellIndex = nb.widgets.length - 1; }""",
        source,
    )
    command(page, "notebook:run-cell")
    page.wait_for_function("n => document.querySelectorAll('.jp-Cell').length > n", arg=before)
    output = page.locator(".jp-Cell").nth(before).locator(".jp-OutputArea-output")
    output.first.wait_for()
    return output.first.inner_text().strip()


def test_pause_step_resume_insert_abort(notebook):
    page = notebook([ENGINE, "eng = engine()\nlive = widgets.LiveRun(eng, ids(4, 2000), pace=0.03)\nlive"])
    wait_for_steps(page, 5)
    assert view(page, "return v.transport.at === v.model.length - 1")
    page.locator(".mrt").click(position={"x": 300, "y": 20})
    page.keyboard.press("Space")
    page.wait_for_selector("[data-status=paused]")
    settle(page, 300)
    n = view(page, "return v.model.length")
    page.keyboard.press("ArrowRight")
    wait_for_steps(page, n + 1)
    settle(page, 300)
    assert view(page, "return v.model.length") == n + 1
    # back through what has happened, while the engine stands still; then live again
    page.keyboard.press("ArrowLeft")
    assert view(page, "return v.transport.live") is False
    page.click(".mrt-live .mrt-plain >> nth=0")
    page.keyboard.press("Space")
    page.wait_for_selector("[data-status=running]")
    wait_for_steps(page, n + 5)
    # the kernel answers while the run goes on
    assert run_cell(page, "print(live.status, len(eng.trace) > 5)") == "running True"
    # one in slot 0 is aborted by its button; the one that waits takes the slot in the next step
    page.locator(".mrt-slot").first.hover()
    page.locator(".mrt-slot .mrt-abort").first.click()
    page.wait_for_function("() => document.querySelector('.mrt-slot .mrt-chip').textContent === 'R3'")
    # a request that can't be served (the simulator has no tokenizer) is named, and the run goes on
    page.fill(".mrt-prompt", "hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(".mrt-error:not([hidden])")
    assert "tokenizer" in page.locator(".mrt-error").inner_text()
    assert run_cell(page, "live.add(ids(1, 5)[0])\nprint(1)") == "1"
    page.wait_for_function("() => document.querySelector('.mrt').mrtView.model.requests.size >= 6")
    page.click(".mrt-stop")
    page.wait_for_selector("[data-status=stopped]")
    assert run_cell(page, "print(eng.has_work, eng.pool.num_used, live._task.done())") == "False 0 True"
    assert not page.mrt_errors


def test_an_engine_that_fails_is_shown_and_leaves_nothing_running(notebook):
    code = """eng = engine()
real, calls = eng.backend.execute, []
def execute(batch):
    calls.append(1)
    if len(calls) == 6:
        raise RuntimeError("the backend broke at call 6")
    return real(batch)
eng.backend.execute = execute
live = widgets.LiveRun(eng, ids(5), pace=0.02)
live"""
    page = notebook([ENGINE, code])
    page.wait_for_selector("[data-status=failed]", timeout=60_000)
    assert "the backend broke at call 6" in page.locator(".mrt-error").inner_text()
    assert run_cell(page, "print(eng.has_work, eng.pool.num_used, live._task.done())") == "False 0 True"
    assert view(page, "return v.model.stateAt(v.model.length - 1).slots.every((id) => id < 0)")


def test_running_the_cell_again_or_clearing_its_output_stops_the_old_run(notebook):
    keep = "runs = globals().get('runs', [])\n"
    code = keep + "live = widgets.LiveRun(engine(), ids(3, 2000), pace=0.05)\nruns.append(live)\nlive"
    page = notebook([ENGINE, code])
    wait_for_steps(page, 3)
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    command(page, "notebook:run-cell")
    settle(page, 1500)
    wait_for_steps(page, 3)
    assert run_cell(page, "print([r.status for r in runs])") == "['stopped', 'running']"
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    command(page, "notebook:clear-cell-output")
    settle(page, 5000)
    assert run_cell(page, "print([r.status for r in runs])") == "['stopped', 'stopped']"


def test_a_page_that_is_loaded_again_finds_its_run(notebook):
    page = notebook([ENGINE, "live = widgets.LiveRun(engine(), ids(3, 3000), pace=0.05)\nlive"])
    wait_for_steps(page, 4)
    command(page, "docmanager:save")
    settle(page, 1000)
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_selector("[data-status=running]", timeout=60_000)
    wait_for_steps(page, 10)


@pytest.mark.slow
def test_the_real_model_streams_and_answers_an_inserted_request(notebook):
    pytest.importorskip("torch")
    code = """import minirt, widgets
lm = minirt.load_model()
eng = minirt.ContinuousEngine(lm, policy="vllm", max_batch_size=2, num_blocks=128)
live = widgets.LiveRun(eng, [
    minirt.Request(prompt="What is the capital of France?", max_new_tokens=80, ignore_eos=True),
    minirt.Request(prompt="Write one sentence about the sea.", max_new_tokens=120, ignore_eos=True)], pace=0)
live"""
    page = notebook([code])
    page.wait_for_selector(".mrt-slot.is-decode", timeout=150_000)
    page.fill(".mrt-prompt", "Name three colours.")
    page.fill(".mrt-live input[type=number]", "12")
    page.click(".mrt-insert")
    page.wait_for_function(
        "() => { const m = document.querySelector('.mrt').mrtView.model; const l = m.life.get(2); return l && l.reason; }",
        timeout=90_000,
    )
    texts = view(page, "return [0, 1, 2].map((i) => v.model.text(i, 1000))")
    assert all(len(text) > 10 for text in texts), texts
    page.wait_for_selector("[data-status=done]", timeout=90_000)
    said = run_cell(page, "import json\nprint(json.dumps([eng.text(i) for i in range(3)]))")
    texts = view(page, "return [0, 1, 2].map((i) => v.model.text(i, 1000))")
    assert json.loads(said) == texts
    # nobody left a slot idle while somebody waited
    life = view(page, "return [0, 1, 2].map((i) => v.model.life.get(i))")
    assert life[2]["admitted"] <= min(life[0]["done"], life[1]["done"]) + 1
    assert not page.mrt_errors


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_cleaned_notebook_shows_a_still_picture(open_lab, dark):
    """As scripts/run_notebooks.py saves it: without a live view. No kernel is asked for anything.

    The notebook is not trusted, so JupyterLab strips what it does not trust; the ground stays that of its theme.
    """
    import minirt
    import widgets
    from minirt import workloads

    run = minirt.simulate("vllm", workloads.make_requests(6, 12, 20), max_batch_size=2, num_blocks=64, clock="step")
    document = make_notebook(["widgets.Player(run)"])
    data = {k: v for k, v in widgets.Player(run)._repr_mimebundle_().items() if k.startswith("text/")}
    document["cells"][0]["outputs"] = [
        {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}
    ]
    page = open_lab(document, dark=dark)
    output = page.locator(".jp-OutputArea-output")
    picture = output.locator("img")
    picture.wait_for()
    assert picture.evaluate("e => e.complete && e.naturalWidth") == 900
    assert output.locator("b").inner_text() == "策略 vllm" and "6 个请求" in output.locator("small").inner_text()
    settle(page, 500)
    shot = Image.open(io.BytesIO(picture.screenshot())).convert("L")
    ground = shot.getpixel((2, 2))
    assert (ground < 60) == dark, "no box of another tone behind the picture"
    key = shot.crop((shot.width // 2, 0, shot.width, 20))
    darkest, lightest = key.getextrema()
    assert lightest - darkest > 90, "the key is read on this ground"
