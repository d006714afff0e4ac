"""The still pictures of widgets: what a notebook shows where there is no kernel."""

from __future__ import annotations

import base64
import re

import minirt
import widgets
from minirt.workloads import article


def picture(compare: widgets.Compare) -> str:
    html = compare._repr_mimebundle_()["text/html"]
    return base64.b64decode(re.search(r"base64,([^\"]+)", html)[1]).decode()  # type: ignore[index]


def test_the_two_halves_of_compare_have_one_scale() -> None:
    runs = [minirt.simulate(p, article(), clock="step", max_batch_size=8) for p in ("static", "vllm")]
    svg = picture(widgets.Compare(*runs))
    widths = [float(w) for w in re.findall(rf'<rect [^>]*width="([\d.]+)" height="\d+" fill="{widgets._still.SOFT}"', svg)]
    static, continuous = set(widths[:8]), set(widths[8:])
    assert len(widths) == 16 and len(static) == len(continuous) == 1
    share = len(runs[1].trace) / len(runs[0].trace)
    assert abs(continuous.pop() / static.pop() - share) < 0.01 and share < 0.8
