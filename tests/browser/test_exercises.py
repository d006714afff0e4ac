"""Exercises in JupyterLab as a learner meets them: a wrong answer, a right one, an endless loop, and both themes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT, run_all, settle

pytestmark = pytest.mark.browser

WRONG = "def static_steps(lengths, batch_size):\n    return max(lengths)\n\n\nt2.check(static_steps)"
RIGHT = (
    "def static_steps(lengths, batch_size):\n"
    "    return sum(max(lengths[i : i + batch_size]) for i in range(0, len(lengths), batch_size))\n\n\n"
    "t2.check(static_steps)"
)
ENDLESS = (
    "t2.limit = 1\n\ndef static_steps(lengths, batch_size):\n    while True:\n        pass\n\n\nt2.check(static_steps)"
)
ANSWER = "def static_steps"


def answer(page, source: str) -> str:
    """Replace the answer's cell by what the learner types, run it, and return what it shows."""
    cell = page.locator(".jp-CodeCell").filter(has_text=ANSWER).first
    before = cell.locator(".jp-OutputArea").inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        "([c, b]) => { const n = [...document.querySelectorAll('.jp-CodeCell')].find(x => x.innerText.includes(c));"
        " const o = n && n.querySelector('.jp-OutputArea'); return o && o.innerText.trim() && o.innerText !== b; }",
        arg=[ANSWER, before],
    )
    settle(page)
    return str(cell.locator(".jp-OutputArea").inner_text())


def open_first_exercise(open_lab, first="01.1", end="01.3", **options):
    """The notebook as it is handed out, some of its tasks only, in a kernel that keeps progress."""
    document = json.loads((ROOT / "exercises" / "01_motivation.ipynb").read_text(encoding="utf-8"))
    tasks = {t: i for i, c in enumerate(document["cells"]) for t in (first, end) if f'task("{t}")' in "".join(c["source"])}
    document["cells"] = [*document["cells"][:2], *document["cells"][tasks[first] : tasks[end]], document["cells"][-1]]
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    document["metadata"].pop("widgets", None)
    setup = "import os\nos.environ.pop('PYTEST_VERSION', None)"  # this kernel's parent is a test; a learner's is not
    document["cells"].insert(0, {"cell_type": "code", "id": "setup", "metadata": {}, "source": setup, "outputs": [],
                                 "execution_count": None})  # fmt: skip
    page = open_lab(document, **options)
    run_all(page)
    page.wait_for_selector("text=0 / 6")
    return page


def test_wrong_and_right_answers_show_their_verdicts(open_lab, lab: tuple[str, Path]):
    progress = lab[1] / ".progress.json"
    progress.unlink(missing_ok=True)
    page = open_first_exercise(open_lab)
    page.wait_for_selector(".tk mjx-container, .tk .MathJax")  # the card's formulas are set
    wrong = answer(page, WRONG)
    assert "还不对" in wrong and "全体的最大值" in wrong and "应该是" in wrong
    stopped = answer(page, ENDLESS)
    assert "超时" in stopped and "while True" in stopped
    right = answer(page, RIGHT)
    assert "通过" in right and "23" in right
    assert json.loads(progress.read_text(encoding="utf-8"))["tasks"]["01.2"]["state"] == "solved"

    # Kept over a restart of the kernel, and shown by the summary.
    page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }")
    run_all(page)
    page.wait_for_selector("text=1 / 6")
    assert not page.mrt_errors
    progress.unlink()


def test_cards_follow_the_dark_theme(open_lab, lab: tuple[str, Path]):
    page = open_first_exercise(open_lab, dark=True)
    colours = page.evaluate(
        "() => { const s = getComputedStyle(document.querySelector('.tk')); return [s.backgroundColor, s.color]; }"
    )
    light = [sum(int(v) for v in c[c.index("(") + 1 : -1].split(",")[:3]) / 765 for c in colours]
    assert light[0] < 0.3 and light[1] > 0.6
    (lab[1] / ".progress.json").unlink(missing_ok=True)


def test_the_answer_to_a_prediction_shows_once_a_guess_is_locked(open_lab, lab: tuple[str, Path]):
    (lab[1] / ".progress.json").unlink(missing_ok=True)
    page = open_first_exercise(open_lab, "01.4", "01.5")

    def outputs() -> str:
        return "\n".join(page.locator(".jp-OutputArea-output").all_inner_texts())

    assert "先不运行" in outputs() and "未作答" in outputs() and "tpot_charged 73" not in outputs()
    page.locator(".mrt-predict input[type=radio]").nth(1).click()
    page.get_by_role("button", name="锁定我的猜测").click()
    page.wait_for_selector('text=taskkit.reset("01.4")')
    card = page.evaluate("() => jupyterapp.shell.currentWidget.content.widgets.findIndex(w => w.model.sharedModel"
                         ".getSource().includes('t4.predict()'))")  # fmt: skip
    page.evaluate(f"() => {{ jupyterapp.shell.currentWidget.content.activeCellIndex = {card + 1}; }}")
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-below')")
    page.wait_for_selector("text=1 / 6")
    found = outputs()
    assert "tpot_charged 73" in found and found.count("◐ 已揭晓") >= 2 and "✗" not in found
    assert not page.mrt_errors
    (lab[1] / ".progress.json").unlink(missing_ok=True)
