"""Player and Compare on the Python side: what is sent, what is shown without a kernel, what is written."""

from __future__ import annotations

import base64
import gzip
import json
import re
from xml.etree import ElementTree

import pytest

import minirt
import widgets
from minirt import lengths, workloads
from widgets import _assets as assets
from widgets import _payload as payload
from widgets import _still as still
from widgets import player

VIEW = "application/vnd.jupyter.widget-view+json"


def make_run(policy: str = "vllm", **options) -> minirt.Run:
    requests = workloads.make_requests(
        10, lengths.uniform(4, 30), lengths.uniform(2, 20), workloads.poisson(0.7), seed=1
    )
    options = {"max_batch_size": 3, "num_blocks": 40, "block_size": 4, "clock": "step", **options}
    return minirt.simulate(policy, requests, **options)


def image_of(html: str) -> ElementTree.Element:
    data = re.search(r"base64,([^\"]+)", html)
    assert data
    return ElementTree.fromstring(base64.b64decode(data[1]))


def test_the_payload_is_the_trace_and_the_same_bytes_each_time():
    run = make_run()
    packed = payload.pack(payload.plain(run.trace))
    assert packed == payload.pack(payload.plain(make_run().trace))
    data = json.loads(gzip.decompress(packed))
    assert len(data["steps"]) == len(run.trace)
    whole = run.trace.to_dict()
    for sent, step in zip(data["steps"], whole["steps"]):
        for key, value in step.items():
            if key != "tokens":
                assert sent.get(key, value if not value else None) == json.loads(json.dumps(value)), key
    assert data["requests"] == json.loads(json.dumps(whole["requests"]))


def test_what_is_shown_without_a_kernel_is_stable():
    a, b = widgets.Player(make_run()), widgets.Player(make_run())
    assert repr(a) == f"Player(policy=vllm, requests=10, steps={make_run().metrics.decode_steps})"
    one, two = a._repr_mimebundle_(), b._repr_mimebundle_()
    assert one.pop(VIEW) != two.pop(VIEW)  # the random id; nbval leaves this kind out
    assert one == two and set(one) == {"text/plain", "text/html"}
    image_of(one["text/html"])
    assert re.match(r"<div><b>[^<]*vllm</b><br><small>10 个请求 · [^<]*占用率 \d+\.\d%", one["text/html"])


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("policy", ["static", "vllm"])
def test_the_still_picture_shows_who_sat_where(policy, lang):
    run = make_run(policy)
    rows = still.seats(run.trace)
    assert len(rows) == 3 and all(len(row) == len(run.trace) for row in rows)
    useful = sum(kind in ("prefill", "decode") for row in rows for _, kind in row)
    assert useful == sum(len({*s.decode, *(r.id for r in s.prefill)}) for s in run.trace)
    assert sum(kind == "wasted" for row in rows for _, kind in row) == sum(len(s.wasted) for s in run.trace)
    image_of(widgets.Player(run, lang=lang).picture())


def test_large_runs_have_a_picture_of_moderate_size():
    requests = workloads.make_requests(400, 20, lengths.uniform(2, 60), seed=1)
    run = minirt.simulate("vllm", requests, max_batch_size=64, num_blocks=4000, clock="step")
    assert len(widgets.Player(run).picture()) < 400_000


@pytest.mark.parametrize("kind", ["player", "compare"])
def test_a_page_is_self_contained(tmp_path, kind):
    static, vllm = make_run("static"), make_run()
    widget = widgets.Player(vllm, title="</script><b>") if kind == "player" else widgets.Compare(static, vllm)
    path = widget.to_html(tmp_path / "x.html")
    page = path.read_text(encoding="utf-8")
    assert "http://" not in page and "https://" not in page
    assert page.count("<script") == 1 and page.count("</script") == 1
    assert not re.search(r"\{\{\w+\}\}", page)
    assert path.stat().st_size < 400_000
    with pytest.raises(IsADirectoryError, match=r"run\.html"):
        widget.to_html(tmp_path)


def test_a_trace_or_an_engine_will_do(tmp_path):
    run = make_run()
    run.trace.save(tmp_path / "t.jsonl")
    loaded = minirt.Trace.load(tmp_path / "t.jsonl")
    assert widgets.Player(loaded)._trace == widgets.Player(run)._trace
    with pytest.raises(TypeError, match="int holds no trace"):
        widgets.Player(3)


def test_wrong_arguments_are_named():
    run = make_run()
    with pytest.raises(ValueError, match="mode='play'"):
        widgets.Player(run, mode="play")
    with pytest.raises(ValueError, match=r"speed=5: .* 1, 2, 3, 4, .* 128, or None"):
        widgets.Player(run, speed=5)
    assert f"SPEEDS = {list(player.SPEEDS)};" in assets.read("transport.js")
    with pytest.raises(ValueError, match="lang='de'"):
        widgets.Player(run, lang="de")
    with pytest.raises(ValueError, match="clock='wall'"):
        widgets.Compare(run, run, clock="wall")
    with pytest.raises(ValueError, match="no clock in common"):
        widgets.Compare(run, make_run(clock="model"))
    with pytest.raises(ValueError, match="should be two"):
        widgets.Compare(run, run, names=("a",))
    with pytest.raises(ValueError, match="should be two"):
        widgets.Compare(run, run, names="ab")


def test_compare_describes_both():
    both = widgets.Compare(make_run("static"), make_run())
    assert re.fullmatch(r"Compare\(a=\(policy=static, .*\), b=\(policy=vllm, .*\)\)", repr(both))
    html = both._repr_mimebundle_()["text/html"]
    assert html.count("<img") == 2 and "<b>static</b>" in html and "<b>vllm</b>" in html


def test_steps_are_counted_as_the_metrics_count_them():
    """Static ends with a record that gives back slots and computes nothing: not a step."""
    runs = [
        minirt.simulate(
            p, workloads.make_requests(prompt=1, output=[4, 1, 1, 4]), clock="step", max_batch_size=2, num_blocks=16
        )
        for p in ("static", "vllm")
    ]
    assert [still.work(r.trace) for r in runs] == [r.metrics.decode_steps for r in runs] == [8, 6]
    assert len(runs[0].trace) == 9
    assert "steps=8)" in repr(widgets.Compare(*runs)) and "steps=6)" in repr(widgets.Compare(*runs))


def test_a_title_is_only_a_title(tmp_path):
    player = widgets.Player(make_run(), title="{{code}} {{call}}")
    page = player.to_html(tmp_path / "x.html").read_text(encoding="utf-8")
    assert "<title>{{code}} {{call}}</title>" in page and page.count("class TraceModel") == 1
    assert widgets.Player(make_run(), title=3)._options["title"] == "3"
    assert "<title>3</title>" in widgets.Compare(make_run(), make_run(), title=3).to_html(
        tmp_path / "y.html"
    ).read_text(encoding="utf-8")
