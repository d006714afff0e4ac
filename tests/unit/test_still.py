"""The still pictures of widgets: what a notebook shows where there is no kernel."""

from __future__ import annotations

import base64
import json
import re

import pytest

import minirt
import widgets
from minirt.workloads import article, make_requests
from widgets import _assets as assets
from widgets import _still as still


def pictures(widget: object) -> list[str]:
    """The SVGs in what a widget leaves in a saved notebook."""
    html = widget._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
    return [base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", html)]


def simulate(policy: str, requests: list[minirt.Request], **options: object) -> minirt.Run:
    return minirt.simulate(policy, requests, clock="step", **{"max_batch_size": 8, **options})


def test_the_two_halves_of_compare_have_one_scale() -> None:
    runs = [simulate(p, article()) for p in ("static", "vllm")]
    ground = re.compile(rf'<rect [^>]*width="([\d.]+)" height="\d+" {re.escape(still.SOFT)}')
    halves = [[float(w) for w in ground.findall(svg)] for svg in pictures(widgets.Compare(*runs))]
    assert [len(widths) for widths in halves] == [8, 8] and all(len(set(widths)) == 1 for widths in halves)
    share = len(runs[1].trace) / len(runs[0].trace)
    assert abs(halves[1][0] / halves[0][0] - share) < 0.01 and share < 0.8


def fills(kind: str, i: int) -> list[str]:
    """What a bar of this kind is drawn with, from the bottom up."""
    bars = still.Bars()
    bars.add(100, 20, 60, 16, i, kind)
    return [p for p in bars.parts() if p.startswith("<path")]


def test_a_picture_uses_the_colours_and_the_hatching_of_the_browser() -> None:
    """One table for both: palette.json; and only prefill and wasted rows are hatched, in the same inks."""
    table = assets.palette()
    for name in ("player.js", "compare.js", "live.js"):
        assert f"const PALETTE = {json.dumps(table, separators=(',', ':'))};" in assets.bundle(name)
    timeline = assets.read("gantt.js")
    assert "this.hatch(x, y, w, hgt, ink(id), PALETTE.hatch.prefill)" in timeline
    assert "this.hatch(x, y, w, hgt, PALETTE.grey, PALETTE.hatch.wasted)" in timeline
    for i in range(24):
        colour, ink = table["hues"][i % 8], table["inks"][i % 8]
        assert f"h{ink[1:]})" in fills("prefill", i)[-1] and colour in fills("prefill", i)[0]
        assert f"h{table['grey'][1:]})" in fills("wasted", i)[-1]
        assert f'fill-opacity="{table["tint"]}"' in fills("wasted", i)[0] and colour in fills("wasted", i)[0]
        assert not any("url(#h" in p for p in fills("decode", i) + fills("held", i))
        # from the ninth request on a mark tells it from the first with its colour
        assert any("url(#m" in p for p in fills("decode", i)) == (i >= 8)


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_key_is_the_browsers(lang: str) -> None:
    bars = still.Bars()
    words = still.legend(bars, lang)
    placed = sorted((float(re.search(r'x="([\d.]+)"', w)[1]), re.sub("<.*?>", "", w)) for w in words)  # type: ignore[index]
    key = assets.read("stage.js").split("function ganttKey")[1].split("map(item)")[0]
    kinds = re.findall(r'"(\w+)"', key.split("...")[1])
    assert [name for _, name in placed] == [assets.translate(lang, f"legend.{k}") for k in kinds]
    assert kinds == list(still.KINDS)


def luminance(colour: str) -> float:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def every_widget() -> list[object]:
    runs = [simulate(p, make_requests(12, 20, 24)) for p in ("static", "vllm")]
    live = widgets._link.requests_picture("title", make_requests(20, 8, 8), "zh")
    assert "R15" in live and "R16" not in live and "20" in live
    return [
        widgets.Player(runs[0]), widgets.Compare(*runs), widgets.PolicyLab(n=6), widgets.RooflineExplorer(),
        widgets.KVCalculator(), widgets.predict("Why?\nHow <many>?"),
    ]  # fmt: skip


def test_pictures_are_read_on_a_light_and_on_a_dark_page() -> None:
    """No ground of their own; words outside are the page's, and inside in a grey with contrast on white and on black."""
    for widget in every_widget():
        html = widget._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
        assert "<b>" in html and "color:#" not in html.replace("background-color:#", "")
        for svg in pictures(widget):
            width = re.search(r'<svg [^>]*width="(\d+)"', svg)[1]  # type: ignore[index]
            assert f'<rect x="0" y="0" width="{width}"' not in svg and 'fill="#fff"' not in svg
            names = [f for f in re.findall(r'<text [^>]*?fill="([^"]+)"[^>]*>(?!R\d)', svg) if not f.startswith("var(")]
            for colour in set(names):
                for page in ("#ffffff", "#111111"):
                    low, high = sorted([luminance(colour), luminance(page)])
                    assert (high + 0.05) / (low + 0.05) > 4, (type(widget).__name__, colour, page)
    words = widgets.predict("How <many>?")._repr_mimebundle_()["text/html"]
    assert "How &lt;many&gt;?" in words and "<img" not in words
