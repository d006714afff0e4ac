"""What taskkit shows is read on a light and on a dark page: pictures, and the coloured words of cards."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest

from taskkit import view
from taskkit.drawing import Picture, blocks, curves
from widgets import _still as still

OWNERS = "abcdefgh"
PICTURES = {
    "curves": curves("T(B) < 2", [1, 2, 3], {"应有的": [1.0, 2, 3], "你的": [1.0, 2, 2]}, "batch B", "ms"),
    "decades": curves("gaps", range(20), {"上限": [20.0] * 20, "a": [300.0] * 20, "b": [3.0] * 20}, "token", "ms", log=True),
    "blocks": blocks("held", 9, {"应有的": {o: [i, i + 1] for i, o in enumerate(OWNERS[:-1])}, "你的": {"h": [7]}}),
}  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: Picture) -> ET.Element:
    data = re.search(r"base64,([^\"]+)", picture._repr_mimebundle_()["text/html"])
    assert data
    return ET.fromstring(base64.b64decode(data[1]))


def rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def contrast(one: list[float], two: list[float]) -> float:
    low, high = sorted(
        sum(w * (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4) for w, v in zip((0.2126, 0.7152, 0.0722), c))
        for c in (one, two)
    )  # fmt: skip
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_no_ground_and_its_words_are_inside_it(name: str) -> None:
    picture = PICTURES[name]
    html, root = picture._repr_mimebundle_()["text/html"], drawn(picture)
    assert html.startswith("<div><b>") and "color" not in html.split("<img")[0]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib["width"]) < 40 and rect.attrib["fill"] not in ("#fff", "#ffffff")
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) <= height
    words = list(root.iter(f"{SVG}text"))
    assert words
    for word in words:
        assert 0 <= float(word.attrib["x"]) <= width and 0 <= float(word.attrib["y"]) <= height
    if name != "blocks":  # there the owners' names stand on their colours
        assert {w.attrib["fill"] for w in words} == {still.GREY}


def test_owners_have_the_widgets_colours_and_their_inks() -> None:
    root = drawn(PICTURES["blocks"])
    inks = {w.text: w.attrib["fill"] for w in root.iter(f"{SVG}text")}
    fills = [r.attrib["fill"] for r in root.iter(f"{SVG}rect") if r.attrib["fill"] not in ("none", "#808080")]
    assert list(dict.fromkeys(fills)) == [still.hue(i) for i in range(8)]
    assert inks["a"] == still.ink(0) and inks["a+b"] == still.ink(0)
    assert inks["b+c"] == still.ink(1) and inks["h"] == still.ink(7) and inks["8"] == still.GREY


@pytest.mark.parametrize(("page", "words"), [("#ffffff", "#212121"), ("#111111", "#ffffff"), ("#212121", "#ffffff")])
def test_the_coloured_words_of_a_card_are_read_in_both_themes(page: str, words: str) -> None:
    """The page's colour takes a share of the status's: what the style sheet mixes, mixed here."""
    mixed = re.search(r"\.tk-tag\{[^}]*[;{]\s*color:color-mix\(in srgb,var\(--tk,(#\w+)\) (\d+)%,var\(", view.CSS)
    assert mixed
    colours = {mixed[1], *re.findall(r"--tk:(#\w+)", view.CSS)}
    assert len(colours) > 5
    for colour in colours:
        share = int(mixed[2]) / 100
        seen = [share * a + (1 - share) * b for a, b in zip(rgb(colour), rgb(words))]
        assert contrast(seen, rgb(page)) > 4.5, (colour, page)
