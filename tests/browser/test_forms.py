"""The widgets with forms, used as a learner uses them: PolicyLab, the explorers, and the three kinds of guess."""

from __future__ import annotations

import pytest
from conftest import make_notebook, run_all, settle

pytestmark = pytest.mark.browser

CELLS = [
    "import widgets",
    "widgets.PolicyLab(n=10, lang='en')",
    "widgets.RooflineExplorer(lang='en')",
    "widgets.KVCalculator(lang='en')",
    "steps = widgets.predict('How many steps?', unit='steps', lang='en')\nsteps",
    "steps.reveal(110)",
    "widgets.predict('Which is faster?', 'vllm', choices=['static', 'vllm'], lang='en')",
    "widgets.predict('Draw it', [1, 2, 4, 8, 9, 9.5], x=[1, 2, 4, 8, 16, 32], y_max=10, lang='en')",
    "widgets.predict('How many?', 70, unit='steps', low=0, high=240, lang='en')",
]


@pytest.fixture(scope="module")
def page(open_lab_for_module):
    """A page on which all of them have been run."""
    page = open_lab_for_module(make_notebook(CELLS))
    run_all(page)
    page.wait_for_selector(".mrt-curve canvas", timeout=120_000)
    return page


def cell(page, n):
    return page.locator(".jp-Cell").nth(n)


def test_a_change_of_policy_runs_again_and_shows_the_difference(page):
    lab = cell(page, 1)
    lab.locator(".mrt-slot").first.wait_for()
    assert lab.locator("tr.is-now").count() == 1 and lab.get_by_text("Before", exact=True).count() == 0
    lab.locator("select").first.select_option("static")
    lab.get_by_text("Before", exact=True).wait_for()
    assert lab.locator("td.is-worse").count() >= 1
    lab.locator(".mrt-head h2", has_text="static").wait_for()
    assert lab.locator(".mrt-slot").count() == 8


def test_sliders_of_the_explorer_move_the_point(page):
    explorer = cell(page, 2)
    point = explorer.locator("circle").first
    before = point.get_attribute("cx")
    explorer.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([e, was]) => e.isConnected === false || e.getAttribute('cx') !== was", arg=[point.element_handle(), before]
    )
    assert explorer.locator("circle").first.get_attribute("cx") != before
    assert "memory-bound" in explorer.inner_text()


def test_the_calculator_says_what_binds(page):
    calc = cell(page, 3)
    assert "binds: B is at most 4,096" in calc.inner_text()
    budget = calc.locator("input[type=number]").last
    budget.fill("64")
    budget.press("Enter")
    calc.get_by_text("B is at most 32").wait_for()


def test_a_number_is_locked_before_it_is_revealed(page):
    question, reveal = cell(page, 4), cell(page, 5)
    assert "110" not in question.locator(".jp-OutputArea-output").inner_text()
    assert "Lock your guess above" in reveal.locator(".jp-OutputArea-output").inner_text()
    question.locator("input[type=number]").fill("100")
    question.locator("input[type=number]").press("Tab")
    question.get_by_role("button", name="Lock my guess").click()
    for place in (question, reveal):
        place.get_by_text("110 steps").wait_for()
        assert "100 steps" in place.inner_text()
    assert question.locator("input[type=number]").is_disabled()


def test_a_slider_shows_its_unit_and_goes_when_the_guess_is_skipped(page):
    question = cell(page, 8)
    output = question.locator(".jp-OutputArea-output")
    value, unit = (question.locator(s) for s in (".widget-readout", ".widget-label:not([style*='display: none'])"))
    assert value.inner_text() == "120" and unit.last.inner_text() == "steps"
    left, right = value.bounding_box(), unit.last.bounding_box()
    assert 0 <= right["x"] - (left["x"] + left["width"]) < 20 and abs(right["y"] - left["y"]) < 12
    question.get_by_role("button", name="Skip the guess").click()
    question.get_by_text("70 steps").wait_for()
    assert not value.is_visible() and "120" not in output.inner_text()
    assert question.locator("u.is-guess").count() == 0 and question.locator("u.is-truth").count() == 1


def test_a_choice_is_locked(page):
    question = cell(page, 6)
    question.locator("label", has_text="static").click()
    question.get_by_role("button", name="Lock my guess").click()
    question.get_by_text("Not what you expected").wait_for()


def test_a_curve_is_drawn_with_the_pointer(page):
    question = cell(page, 7)
    canvas = question.locator(".mrt-curve canvas")
    canvas.scroll_into_view_if_needed()
    question.get_by_role("button", name="Lock my guess").click()
    question.get_by_text("not complete").wait_for()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 58, box["y"] + 200)
    page.mouse.down()
    for k in range(1, 15):
        page.mouse.move(box["x"] + 58 + k * 45, box["y"] + 200 - k * 8)
    page.mouse.up()
    settle(page)
    question.get_by_role("button", name="Lock my guess").click()
    question.get_by_text("on average").wait_for()
    curve = "document.querySelector('.mrt-curve').mrtView.model"
    guess = page.evaluate(f"{curve}.get('guess')")
    assert len(guess) == 6 and all(b >= a for a, b in zip(guess, guess[1:]))
    assert page.evaluate(f"{curve}.get('truth')") == [1, 2, 4, 8, 9, 9.5]
    assert not page.mrt_errors
