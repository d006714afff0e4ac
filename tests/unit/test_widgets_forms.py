"""PolicyLab, RooflineExplorer and KVCalculator: the controls reach the model, and the numbers are minirt's own."""

from __future__ import annotations

import math
import time

import pytest

import minirt
import widgets
from minirt import roofline, workloads
from minirt.policies import Planner

VIEW = "application/vnd.jupyter.widget-view+json"


class OneAtATime:
    """A learner's policy: one request from start to end, then the next."""

    name = "one at a time"

    def plan(self, state):
        p = Planner(state)
        for seq in state.running:
            p.decode(seq)
        for seq in state.prefilling:
            p.prefill(seq, 64)
        if not state.running and not state.prefilling and len(state.waiting):
            p.admit(next(iter(state.waiting)))
        return p.plan


class Broken:
    name = "broken"

    def plan(self, state):
        raise KeyError("what a learner may forget")


def test_lab_runs_on_every_change_and_shows_the_difference():
    lab = widgets.PolicyLab(n=12)
    first = lab.run
    assert first is not None and str(first.metrics.decode_steps) in lab._table.value
    start = time.perf_counter()
    lab.policy.value = "static"
    assert time.perf_counter() - start < 1.0
    assert lab.before is first and lab.run is not first and "▼" in lab._table.value
    assert lab.player is not None and lab.player.trace is lab.run.trace
    lab.max_batch_size.value = 2
    assert lab.run.trace.meta["max_batch_size"] == 2


@pytest.mark.parametrize("workload", ["mixed", "same", "tail", "prompts", "prefix", "article"])
@pytest.mark.parametrize("policy", sorted(minirt.POLICIES))
def test_lab_serves_every_workload_under_every_policy(policy, workload):
    lab = widgets.PolicyLab(policy, workload=workload, rate=0.5)
    assert lab._error.value.count("mrt-error") == 0
    assert lab.run is not None and len(lab.run.trace) > 0


def test_lab_offers_what_the_policy_takes():
    lab = widgets.PolicyLab("vllm")
    assert {"max_num_batched_tokens", "preemption", "enable_chunked_prefill"} <= set(lab._options)
    lab._options["max_num_batched_tokens"].value = 16
    assert lab.run.trace.meta["policy_settings"]["max_num_batched_tokens"] == 16


def test_lab_takes_a_policy_and_requests_of_ones_own():
    lab = widgets.PolicyLab(OneAtATime(), requests=workloads.make_requests(3, 8, 4))
    assert lab.policy.value == "one at a time" and lab.workload.value == "given"
    assert max(s.batch_size for s in lab.run.trace) == 1 and len(lab.run.outputs) == 3


def test_lab_shows_an_error_and_goes_on():
    lab = widgets.PolicyLab(Broken())
    assert "KeyError" in lab._error.value and "what a learner may forget" in lab._error.value
    lab.policy.value = "vllm"
    assert "mrt-error" not in lab._error.value and lab.run is not None
    with pytest.raises(ValueError, match="'nope' is unknown; known are"):
        widgets.PolicyLab("nope")


def test_explorer_shows_equation_3():
    explorer = widgets.RooflineExplorer(batch=64, context=2048)
    want = roofline.decode_time(64, 2048, "A100-80GB", "Qwen2.5-0.5B")
    assert f"{want.total * 1e3:.3g} ms" in explorer._body.value
    assert "153" in explorer._body.value  # the ridge of an A100
    explorer.batch.value = 4096
    explorer.hardware.value = roofline.HARDWARE["H100"]
    assert "H100" in repr(explorer) and "batch=4096" in repr(explorer)


def test_calculator_shows_equation_2():
    calc = widgets.KVCalculator(prompt=1024, output=512)
    assert "12,288 B" in calc._body.value
    limits = roofline.batch_limits(1024, 512, "A100-80GB", "Qwen2.5-0.5B", tpot=0.02, prefill_budget=8192)
    assert calc.limits == limits and f"{math.floor(limits.max):,}" in calc._body.value
    calc.tpot.value, calc.budget.value = 0, 0
    assert calc.limits.binds == "memory" and "不限制" in calc._body.value
    calc.model.value = roofline.MODELS["OPT-13B"]
    calc.hardware.value = roofline.HARDWARE["RTX 4090"]
    assert "放不进" in calc._body.value


@pytest.mark.parametrize("make", [widgets.PolicyLab, widgets.RooflineExplorer, widgets.KVCalculator])
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_text_and_picture_are_stable(make, lang):
    one, two = make(lang=lang)._repr_mimebundle_(), make(lang=lang)._repr_mimebundle_()
    one.pop(VIEW), two.pop(VIEW)
    assert one == two and "data:image/svg+xml" in one["text/html"]


def test_own_model_and_hardware_join_the_list():
    shape = roofline.MODELS["Qwen2.5-0.5B"].but(name="mine", layers=12)
    explorer = widgets.RooflineExplorer(shape, roofline.HARDWARE["H200"])
    assert explorer.model.value is shape


class Weighted(OneAtATime):
    """Defaults outside any usual bounds, and an annotation that names nothing."""

    seen: dict[str, float] = {}

    def __init__(self, weight: float = -0.5, budget: int = 2_000_000, other: Missing = 3):  # type: ignore[name-defined]  # noqa: F821
        self.seen.update(weight=weight, budget=budget, other=other)


def test_lab_leaves_the_defaults_of_a_policy_alone():
    lab = widgets.PolicyLab(Weighted, requests=workloads.make_requests(2, 8, 4))
    assert lab.run is not None and Weighted.seen == {"weight": -0.5, "budget": 2_000_000, "other": 3}
    assert {k: c.value for k, c in lab._options.items()} == Weighted.seen


def test_lab_says_why_requests_were_refused():
    lab = widgets.PolicyLab(requests=[minirt.Request("hi")])
    assert "no tokenizer" in lab._error.value and "1 个" in lab._error.value
    lab.workload.value = "mixed"
    assert "mrt-error" not in lab._error.value


@pytest.mark.parametrize(
    "make, name, value",
    [
        (widgets.RooflineExplorer, "batch", 0),
        (widgets.RooflineExplorer, "batch", 1.5),
        (widgets.RooflineExplorer, "context", 0),
        (widgets.KVCalculator, "prompt", 0),
        (widgets.KVCalculator, "output", 10**6),
        (widgets.KVCalculator, "block_size", 0),
        (widgets.KVCalculator, "tpot_ms", -1),
        (widgets.KVCalculator, "memory_fraction", 2),
    ],
)
def test_values_out_of_range_are_named(make, name, value):
    with pytest.raises(minirt.ConfigError, match=f"{name}={value} must be a"):
        make(**{name: value})
