"""Every widget in every mode, in both themes, at 1200 and at 800 pixels: it renders, fits, and raises nothing.

So do the pages that to_html writes, and what a saved notebook shows of a widget.

With MINIRT_SHOTS=folder the pictures are kept, for a person to look at.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import command, make_notebook, run_all, settle, view

import minirt
import widgets
from minirt import lengths, workloads

pytestmark = pytest.mark.browser

SHOTS = os.environ.get("MINIRT_SHOTS")
CELLS = [
    """
import minirt, widgets
from minirt import workloads, lengths
def requests():
    prompts, answers, arrivals = lengths.uniform(8, 60), lengths.lognormal(16, 0.9, 80), workloads.poisson(0.6)
    return workloads.make_requests(18, prompts, answers, arrivals, seed=3, shared_prefix=16)
def run(policy, **o):
    r = minirt.simulate(policy, requests(), max_batch_size=6, block_size=8, clock="step", **o)
    words = "连续批处理让车辆永远在补位：谁先到站谁先下车，空位马上被下一位乘客补上。"
    words += "A slot that is free is given away at once. "
    for i, pieces in r.trace.pieces.items():   # the simulator says nothing; a lecture's picture should
        r.trace.pieces[i] = [words[k % len(words)] for k in range(len(pieces))]
    return r
vllm = run("vllm", prefix_caching=True, num_blocks=40)
static = run("static", num_blocks=96)
for r in (vllm, static):
    for i, info in r.trace.requests.items():
        info.prompt = f"第 {i} 个问题：为什么要动态批处理？"
""",
    "widgets.Player(vllm)",
    "widgets.Compare(static, run('vllm', num_blocks=96))",
    "widgets.PolicyLab(max_batch_size=6)",
    "widgets.RooflineExplorer()",
    "widgets.KVCalculator()",
    "p = widgets.predict('静态批处理要走多少步？', unit='步', low=0, high=400, explain='每一批都要等最长的那个。')\np",
    "p.lock(100); p.reveal(static.metrics.decode_steps)",
    "c = widgets.predict('吞吐随批大小怎么变？', x=[1, 2, 4, 8, 16, 32, 64], y_max=100, x_label='批大小',"
    " y_label='token/s')\nc.lock([4, 8, 16, 30, 45, 60, 70]); c",
    "c.reveal([3, 6, 12, 24, 46, 80, 95])",
    """
from minirt.backends.simulated import SimulatedBackend
engine = minirt.ContinuousEngine(SimulatedBackend(), max_batch_size=4, num_blocks=200)
live = widgets.LiveRun(engine, workloads.make_requests(9, 12, 600), pace=0.1)
live""",
    """
from IPython.display import HTML, display
asked = [minirt.Request(f"第 {i} 个问题", max_new_tokens=24) for i in range(4)]
own = [widgets.Player(static), widgets.Player(vllm), widgets.Compare(static, vllm), widgets.RooflineExplorer()]
own += [widgets.KVCalculator(), widgets.predict('静态批处理要走多少步？', unit='步')]
stills = [x._repr_mimebundle_()["text/html"] for x in own]
for html in stills + [widgets._link.requests_picture("实时运行 · vllm", asked, "zh")]:
    display({"text/html": html}, raw=True)""",
]
LIVE_CELL, STILL_CELL = 10, 11


@pytest.fixture(scope="module")
def everything(open_lab_for_module):
    """One page with every widget, run once."""
    page = open_lab_for_module(make_notebook(CELLS), width=1200, height=1900)
    run_all(page)
    page.wait_for_function(
        "n => document.querySelectorAll('.jp-Cell')[n].querySelector('.jp-OutputArea-output img')",
        arg=STILL_CELL,
        timeout=120_000,
    )
    page.wait_for_selector(".mrt-compare")
    page.wait_for_selector(".mrt-live")
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 800])
def test_everything_renders(everything, width, dark):
    page = everything
    theme = "dark" if dark else "light"
    command(page, "apputils:change-theme", {"theme": f"JupyterLab {theme.capitalize()}"})
    page.set_viewport_size({"width": width, "height": 1900})
    settle(page, 800)

    def shoot(name: str, selector: str, nth: int = 0) -> None:
        target = page.locator(selector).nth(nth)
        target.scroll_into_view_if_needed()
        settle(page, 150)
        wide = target.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert wide[0] <= wide[1] + 2, f"{name}: {wide[0]} px of content in {wide[1]} px"
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            settle(page, 900)
            target.screenshot(path=f"{SHOTS}/{name}-{width}-{theme}.png")

    for mode in ("start", "run", "monitor", "done"):
        view(page, f"v.show('{mode}'); v.transport.seek('{mode}' === 'done' ? v.model.length - 1 : 36)")
        shoot(f"player-{mode}", ".mrt[data-mode]")
    page.evaluate("document.querySelector('.mrt-compare').mrtView.transport.seek(48)")
    shoot("compare", ".mrt-compare")
    for n, name in enumerate(["policylab", "roofline", "kvcalc", "predict", "reveal", "curve", "curve-reveal"]):
        shoot(name, f".jp-Cell >> nth={n + 3} >> .jp-OutputArea-output")
    shoot("live", f".jp-Cell >> nth={LIVE_CELL} >> .mrt[data-mode]")
    shoot("still", f".jp-Cell >> nth={STILL_CELL} >> .jp-OutputArea")
    assert not page.mrt_errors


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 800])
def test_exported_pages_render(browser, tmp_path, width, dark):
    """As to_html writes them, in the system's theme; and a phone's width is not too narrow either."""
    runs = [
        minirt.simulate(
            p,
            workloads.make_requests(18, lengths.uniform(8, 60), lengths.uniform(4, 60), workloads.poisson(0.6), seed=3),
            max_batch_size=6, num_blocks=96, block_size=8, clock="step",
        )
        for p in ("static", "vllm")
    ]  # fmt: skip
    theme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))

    def shoot(name: str) -> None:
        for wide in (width, 400):
            page.set_viewport_size({"width": wide, "height": 1000})
            settle(page, 200)
            box = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert box[0] <= box[1], f"{name}: {box[0]} px of content in {box[1]} px"
            if SHOTS and wide == width:
                Path(SHOTS).mkdir(parents=True, exist_ok=True)
                settle(page, 500)
                page.screenshot(path=f"{SHOTS}/page-{name}-{width}-{theme}.png", full_page=True)

    page.goto(widgets.Player(runs[1]).to_html(tmp_path / "p.html").as_uri())
    page.locator(".mrt-go").wait_for()
    for mode in ("start", "run", "monitor", "done"):
        view(page, f"v.show('{mode}'); v.transport.seek('{mode}' === 'done' ? v.model.length - 1 : 36)")
        shoot(mode)
    page.goto(widgets.Compare(*runs).to_html(tmp_path / "c.html").as_uri())
    page.locator(".mrt-half").first.wait_for()
    view(page, "v.transport.seek(48)")
    shoot("compare")
    ground = page.evaluate("getComputedStyle(document.querySelector('.mrt')).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 60) == dark
    assert not errors
    context.close()
