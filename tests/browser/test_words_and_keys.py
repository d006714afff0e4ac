"""What the player says at each step, how fast it plays, and that it works by keyboard alone. On pages of to_html."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import settle, view

import minirt
import widgets
from minirt import lengths, workloads

pytestmark = pytest.mark.browser
MODES = ("start", "run", "monitor", "done")


def simulate(policy: str, requests: list[minirt.Request], **options: Any) -> minirt.Run:
    return minirt.simulate(
        policy, requests, clock="step", **{"max_batch_size": 4, "num_blocks": 96, "block_size": 8, **options}
    )


def lecture() -> minirt.Run:
    """One long and six short answers, all at once: the first chapter's example."""
    return simulate("static", workloads.make_requests(prompt=1, output=[512] + [8] * 6), num_blocks=400)


def queueing() -> minirt.Run:
    requests = workloads.make_requests(
        20, lengths.uniform(4, 30), lengths.uniform(4, 30), workloads.poisson(0.8), seed=3
    )
    return simulate("vllm", requests)


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a widget as a page: open_page(widget, **options of the browser's context)."""
    contexts: list[Any] = []

    def open_(widget: Any, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.goto(widget.to_html(tmp_path / "w.html").as_uri())
        page.locator(".mrt-transport").wait_for()
        return page

    yield open_
    for context in contexts:
        context.close()


def names(page: Any, inside: str) -> list[str]:
    return list(page.locator(f"{inside} .mrt-wait:not(.is-none) b").all_inner_texts())


def test_before_the_first_step_all_requests_are_listed_in_order(open_page):
    page = open_page(widgets.Player(lecture(), mode="run"))
    assert names(page, ".mrt-coming") == [f"R{i}" for i in range(7)]
    assert names(page, ".mrt-queue-list") == []
    words = page.locator(".mrt-queue").inner_text()
    assert words.startswith("还没有请求到达") and "还没到：7 个" in words and "队列为空" not in words
    page.click(".mrt-next")
    assert names(page, ".mrt-queue-list") == ["R4", "R5", "R6"] and names(page, ".mrt-coming") == []
    assert "队头" in page.locator(".mrt-queue-list .mrt-wait").first.inner_text()
    assert "队列为空" not in page.locator(".mrt-queue").inner_text()
    page.click(".mrt-last")
    assert page.locator(".mrt-queue").inner_text().strip() == "队列为空"


def test_the_queue_is_the_engines_head_first_and_who_comes_next_stands_behind_it(open_page):
    run = queueing()
    page = open_page(widgets.Player(run, mode="run"))
    room = len(page.locator(".mrt-queue-list .mrt-wait").all())
    seen = 0
    for t in range(0, len(run.trace), 7):
        view(page, f"v.transport.seek({t})")
        waiting, ahead = view(
            page,
            "const t = v.transport.at; const r = [...v.model.requests.values()].filter(x => v.model.life.get(x.id)"
            ".arrived > t).sort((a, b) => a.arrival - b.arrival); return [v.model.stateAt(t).waiting, r.map(x => x.id)]",
        )
        assert names(page, ".mrt-queue-list") == [f"R{i}" for i in waiting[:room]]
        listed = names(page, ".mrt-coming")
        assert listed == [f"R{i}" for i in ahead[: len(listed)]] and len(listed) >= min(3, len(ahead))
        words = page.locator(".mrt-queue").inner_text()
        assert (f"还没到：{len(ahead)} 个" in words) == bool(ahead)
        seen += bool(waiting) and bool(ahead)
    assert seen


def test_the_start_tab_speaks_of_the_step_that_is_shown(open_page):
    page = open_page(widgets.Player(lecture()))
    count = page.locator(".mrt-start h4 > span").first
    assert count.inner_text() == "7 个请求即将到来"
    view(page, "v.transport.seek(8)")
    assert count.inner_text() == "7 个请求 · 第 9 步之后：已结束 3，在批 1，等待 3"
    page.click(".mrt-last")
    assert count.inner_text() == "7 个请求 · 第 520 步之后：已结束 7"
    assert page.locator(".mrt-words").first.inner_text() == "1 个 token", "without a text the prompt is its length"
    settings = page.locator(".mrt-pairs").inner_text()
    assert "max_wait" in settings and "不限" in settings
    for run in (lecture(), queueing()):
        page = open_page(widgets.Player(run, lang="en"))
        assert not re.search(r"\b(null|undefined|true|false|NaN)\b", page.locator(".mrt-start").inner_text())


def test_what_only_gives_back_slots_is_no_step(open_page):
    page = open_page(widgets.Player(lecture(), mode="run"))
    tile = page.locator(".mrt-run [data-kpi=step] b, [data-kpi=step] b").first
    seen = {}
    for t in (-1, 0, 519, 520):
        view(page, f"v.transport.seek({t})")
        seen[t] = (page.locator(".mrt-readout").inner_text(), tile.inner_text())
    assert seen == {
        -1: ("开始前", "–"),
        0: ("第 1 步 / 520", "1"),
        519: ("第 520 步 / 520", "520"),
        520: ("结束后",) * 2,
    }
    page = open_page(widgets.Player(queueing(), mode="run"))
    page.click(".mrt-last")
    last = view(page, "return v.model.length")
    assert page.locator(".mrt-readout").inner_text() == f"第 {last} 步 / {last}", (
        "a run without such a record ends with its step"
    )


def test_slots_change_hands_as_late_as_finished_requests_hold_them(open_page):
    """Counted here from the engine's own events: from a request's end to the next one's first step in its slot."""
    for run in (lecture(), queueing()):
        done, slots, gaps = {}, {}, []
        for t, step in enumerate(run.trace.steps):
            for kind, i, data in step.events:
                if kind == "finished":
                    done[i] = t
                elif kind == "admitted":
                    if data["slot"] in slots:
                        gaps.append(t - done[slots[data["slot"]]] - 1)
                    slots[data["slot"]] = i
        page = open_page(widgets.Player(run, mode="done"))
        said = page.locator(".mrt-lessons").inner_text()
        assert f"slot 换手 {len(gaps)} 次，其中 {gaps.count(0)} 次在上一个请求结束后的下一步" in said
        assert f"中间平均隔 {round(sum(gaps) / len(gaps), 1):g} 步，最多 {max(gaps)} 步" in said or not max(gaps)
    page = open_page(widgets.Player(lecture(), mode="done"))
    said = page.locator(".mrt-lessons").inner_text()
    wasted = sum(len(s.wasted) for s in lecture().trace.steps)
    rows = wasted + sum(s.batch_size for s in lecture().trace.steps)
    assert f"算过的 {rows:,} 个行步里，{wasted:,} 个（占这 {rows:,} 个的 {wasted / rows:.1%}）" in said
    assert "座位被已经说完的人占着" in said and "空着" not in said


def test_padding_is_not_called_waste(open_page):
    requests = workloads.make_requests(prompt=[3, 9, 9, 9, 9, 5], output=[20, 4, 6, 6, 4, 4])
    run = simulate("static", requests)
    page = open_page(widgets.Player(run, mode="run"))
    note, seen = page.locator("[data-kpi=tokens] small").first, set()
    for t, step in enumerate(run.trace.steps):
        view(page, f"v.transport.seek({t})")
        spare = sum(f[0] for f in step.forwards) - len(step.decode) - sum(p.n for p in step.prefill) - len(step.wasted)
        parts = [f"+{n} {name}" for n, name in ((len(step.wasted), "空算"), (spare, "补齐")) if n > 0]
        assert note.inner_text() == " ".join(parts), t
        seen |= {p.split()[-1] for p in parts}
    assert seen == {"空算", "补齐"}
    key = page.locator(".mrt-key i").all_inner_texts()
    assert "空算（陪跑）" in key and {"prefill", "decode"} <= set(key)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_of_what_is_still_to_come_can_be_read(open_page, scheme):
    page = open_page(widgets.Player(queueing(), mode="run"), color_scheme=scheme)
    lowest = view(
        page,
        """
        const g = v.views.run.gantt, dpr = g.canvas.width / g.width, out = [];
        const lin = (n) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4);
        for (const [id, x, y, w, h] of g.names.values()) {
          const d = g.canvas.getContext("2d").getImageData(x * dpr, y * dpr, w * dpr, h * dpr).data;
          const lum = [];
          for (let i = 0; i < d.length; i += 4) {
            lum.push(0.2126 * lin(d[i]) + 0.7152 * lin(d[i + 1]) + 0.0722 * lin(d[i + 2]));
          }
          out.push((Math.max(...lum) + 0.05) / (Math.min(...lum) + 0.05));
        }
        return [out.length, Math.min(...out)];
        """,
    )
    assert lowest[0] >= 4 and lowest[1] > 4.5, lowest


@pytest.mark.parametrize("make", [lecture, queueing])
def test_every_percentage_has_one_digit_behind_the_point(open_page, make):
    run = make()
    page = open_page(widgets.Player(run))
    found = 0
    for mode in MODES:
        view(page, f"v.show('{mode}'); v.transport.seek(20)")
        shares = re.findall(r"[\d.]+%", page.locator(".mrt").inner_text())
        assert all(re.fullmatch(r"\d+\.\d%", share) for share in shares), shares
        found += len(shares)
    assert found >= 6
    tile = page.locator(".mrt-done .mrt-kpi").filter(has_text="平均占用率").inner_text()
    assert f"{run.metrics.occupancy:.1%}" in tile and f"{run.metrics.occupancy:.1%}" in widgets.Player(run).picture()


@pytest.mark.parametrize("answer", [60, 150, 512, 900, 3000])
def test_a_whole_run_plays_in_about_25_seconds(open_page, answer):
    run = simulate("vllm", workloads.make_requests(2, 1, answer), num_blocks=1000)
    for widget in (widgets.Player(run, mode="run"), widgets.Compare(run, run)):
        page = open_page(widget)
        seconds = view(page, "return v.transport.count() / +v.transport.speed.value")
        assert 20 <= seconds <= 31, (answer, seconds)
    assert view(open_page(widgets.Player(run, speed=64)), "return +v.transport.speed.value") == 64


def test_everything_is_reached_by_tab_and_a_focused_button_answers_space(open_page):
    page = open_page(widgets.Player(queueing()))
    reached: list[str] = []
    for _ in range(20):
        page.keyboard.press("Tab")
        name, ring = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.dataset.tab || e.className, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0]; })()"
        )
        if name == "" or name in reached:  # out of the page, or round again
            break
        assert ring, f"{name} has the focus and does not show it"
        reached.append(name)
    want = ["mrt", *MODES]
    want += [f"mrt-btn mrt-{b}" for b in ("first", "back", "play", "next", "last")] + [
        "mrt-scrub",
        "mrt-speed",
        "mrt-go",
    ]
    assert [x for x in reached if "scroll" not in x] == want
    page.focus("[data-tab=monitor]")
    page.keyboard.press("Space")
    assert view(page, "return [v.mode, v.transport.playing]") == ["monitor", False]
    page.focus(".mrt-next")
    page.keyboard.press("Space")
    assert view(page, "return [v.transport.at, v.transport.playing]") == [0, False]
    page.focus(".mrt-scrub")
    page.keyboard.press("ArrowRight")
    assert view(page, "return v.transport.at") == 1
    page.focus(".mrt-speed")
    page.keyboard.press("ArrowDown")
    assert view(page, "return v.transport.at") == 1, "arrows choose a speed there"
    # one that was clicked leaves the space bar to play and pause
    page.click(".mrt-next")
    page.keyboard.press("Space")
    assert view(page, "return v.transport.playing") is True


def test_up_and_down_point_at_the_slots(open_page):
    page = open_page(widgets.Player(queueing(), mode="run"))
    page.focus(".mrt")
    page.keyboard.press("ArrowDown")
    assert view(page, "return v.views.run.lit") is None, "nobody sits there before the first step"
    view(page, "v.transport.seek(12)")
    ids = [i for i in view(page, "return [...v.model.rows[12].ids]") if i >= 0]
    pointed = []
    for key in ["ArrowDown"] * (len(ids) + 1) + ["ArrowUp"]:
        page.keyboard.press(key)
        pointed.append(view(page, "return v.views.run.lit"))
    assert pointed == [*ids, None, ids[-1]]
    assert page.locator(".mrt-table-head").inner_text().startswith(f"R{ids[-1]} 的 block table")
    assert view(page, "return v.transport.at") == 12
    page.focus(".mrt-speed")
    page.keyboard.press("ArrowUp")
    assert view(page, "return v.views.run.lit") == ids[-1], "arrows choose a speed there"


def test_who_wants_no_motion_gets_none(open_page):
    for motion in ("no-preference", "reduce"):
        page = open_page(widgets.Player(queueing(), mode="run"), reduced_motion=motion)
        moved = 0
        for t in range(0, 40):
            view(page, f"v.transport.seek({t})")
            settle(page, 20)
            moved += page.evaluate("document.getAnimations().length")
        pulse = page.evaluate(
            "(() => { const e = document.createElement('span'); e.className = 'mrt-state'; e.dataset.status = 'running';"
            " document.querySelector('.mrt').append(e); return getComputedStyle(e, '::before').animationName; })()"
        )
        assert (moved == 0 and pulse == "none") == (motion == "reduce"), (motion, moved, pulse)
