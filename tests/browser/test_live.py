"""LiveRun in JupyterLab: the real engine steps, the page follows, and the controls reach the engine."""

from __future__ import annotations

import pytest
from conftest import settle, view

pytestmark = pytest.mark.browser

ENGINE = """
import minirt, widgets
from minirt import workloads
from minirt.backends.simulated import SimulatedBackend
def engine(**options):
    return minirt.ContinuousEngine(SimulatedBackend(), max_batch_size=3, num_blocks=64, **options)
def ids(n, out=30, start=0):
    return workloads.make_requests(n, 12, out)
"""


def test_live_run_shows_steps_as_they_happen(notebook):
    page = notebook([ENGINE, "eng = engine()\nlive = widgets.LiveRun(eng, ids(5), pace=0.05)\nlive"])
    page.wait_for_selector(".mrt-live")
    page.wait_for_function("document.querySelector('.mrt').mrtView.model.length > 5")
    first = view(page, "return v.model.length")
    settle(page, 600)
    assert view(page, "return v.model.length") > first
    assert view(page, "return v.transport.at === v.model.length - 1")
    page.locator(".mrt").click(position={"x": 300, "y": 20})
    page.keyboard.press("Space")
    page.wait_for_selector("[data-status=paused]")
    assert not page.mrt_errors
