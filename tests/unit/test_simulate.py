"""simulate(): the article's numbers exactly, virtual time that obeys the cost model, and clear refusals."""

from __future__ import annotations

import pytest

import minirt
from minirt.errors import ConfigError
from minirt.metrics import compare
from minirt.presets import MODELS
from minirt.request import Request
from minirt.roofline import CostModel
from minirt.simulation import simulate
from minirt.workloads import article, azure_like, exponential, make_requests, poisson

STEP = {"clock": "step", "max_batch_size": 8, "num_blocks": 512}


def test_the_article_s_numbers_exactly() -> None:
    static = simulate("static", article(), **STEP).metrics
    assert (static.tokens, static.decode_steps, static.static_total, static.lower_bound) == (510, 91, 91, 64)
    assert round(static.tokens_per_step, 2) == round(static.throughput, 2) == 5.60
    for policy in ("vllm", "mini-runtime"):
        continuous = simulate(policy, article(), **STEP).metrics
        assert (continuous.tokens, continuous.decode_steps) == (510, 69)
        assert round(continuous.tokens_per_step, 2) == round(continuous.throughput, 2) == 7.39
        assert round(compare(static, continuous).speedup, 2) == 1.32
        assert continuous.occupancy == pytest.approx(510 / (69 * 8))


def test_static_wastes_rows_when_one_is_long() -> None:
    """The chapter's {512, 8, 8, 8}: 26 % of the row-steps are useful, 74 % are waste."""
    requests = make_requests(prompt=1, output=[512, 8, 8, 8])
    m = simulate("static", requests, clock="step", max_batch_size=4, num_blocks=512).metrics
    assert m.decode_steps == m.static_total == 512 and m.occupancy == pytest.approx(536 / 2048)
    assert m.wasted_rows == 3 * (512 - 8)


def test_equal_lengths_leave_continuous_batching_nothing_to_save() -> None:
    requests = make_requests(32, 1, 20)
    a, b = (simulate(p, requests, **STEP).metrics for p in ("static", "vllm"))
    assert a.decode_steps == b.decode_steps == b.lower_bound == 80


def test_static_falls_behind_as_the_spread_of_lengths_grows() -> None:
    """The shape of Anyscale's figure (2023): caps on exponential output lengths from narrow to wide."""
    speedups = []
    for cap in (32, 128, 512, 1536):
        requests = make_requests(96, 512, exponential(max(16, cap / 4), cap), seed=1)
        a, b = (simulate(p, requests, model="OPT-13B", max_batch_size=16).metrics for p in ("static", "vllm"))
        speedups.append(compare(a, b).speedup)
    assert speedups == sorted(speedups) and speedups[-1] > 1.5 * speedups[0]


def test_one_request_takes_what_the_cost_model_says() -> None:
    cost = CostModel.of("H100", "Llama-3-8B")
    [request] = make_requests(1, 100, 3)
    m = simulate("vllm", [request], "H100", "Llama-3-8B").metrics
    prefill = cost.step_time(prefill_tokens=100)
    decodes = [cost.step_time(decode_rows=1, context_tokens=c) for c in (101, 102)]
    assert m.ttft.mean == pytest.approx(prefill)
    assert m.duration == pytest.approx(prefill + sum(decodes))
    assert m.tpot.mean == pytest.approx(sum(decodes) / 2)


def test_idle_gaps_are_jumped_and_arrivals_honoured() -> None:
    requests = make_requests(2, 8, 4, arrivals=[0.0, 1000.0])
    run = simulate("vllm", requests)
    assert len(run.trace) == 8 and 1000 < run.metrics.duration < 1001
    assert run.metrics.ttft.max < 0.1


def test_more_load_means_longer_waits() -> None:
    waits = []
    for rate in (5.0, 50.0, 500.0):
        requests = azure_like(200, "conv", poisson(rate), seed=3)
        m = simulate("vllm", requests, model="Llama-3-8B", max_batch_size=32).metrics
        assert m.completed + sum(r.finish_reason == "rejected" for r in m.requests) == 200
        assert m.littles_law.error < 1e-9
        waits.append(m.ttft.p90)
    assert waits == sorted(waits) and waits[-1] > 10 * waits[0]


def test_faster_hardware_is_faster() -> None:
    requests = make_requests(64, 200, 100)
    rates = [simulate("vllm", requests, hw, "Llama-3-8B").metrics.throughput for hw in ("A100-80GB", "H100", "H200")]
    assert rates == sorted(rates) and rates[2] > 1.2 * rates[0]


def test_a_fitted_cost_model_and_a_shape_of_one_s_own() -> None:
    shape = MODELS["SmolLM2-135M"].but(name="mine", max_len=64)
    cost = CostModel(forward_s=1.0, combine="sum", source="made up")
    run = simulate("vllm", make_requests(3, 8, 5), model=shape, cost_model=cost, num_blocks=64)
    assert run.metrics.duration == pytest.approx(5.0)
    assert run.trace.meta["cost_model"] == "made up" and run.trace.meta["model"] == "mine"
    assert run.trace.meta["unit"] == "s"


def test_outputs_have_the_length_asked_for() -> None:
    run = minirt.simulate("vllm", make_requests(prompt=4, output=[1, 5, 9]))
    assert [len(o.token_ids) for o in run.outputs] == [1, 5, 9]
    assert {o.finish_reason for o in run.outputs} == {"length"}


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="unknown clock 'wall'"):
        simulate("vllm", [], clock="wall")
    with pytest.raises(ConfigError, match="unknown model"):
        simulate("vllm", [], model="GPT-5")
    run = simulate("vllm", [Request(prompt="hello"), *make_requests(1, 4, 2), *make_requests(1, 40_000, 2)])
    assert [o.finish_reason for o in run.outputs] == ["rejected", "length", "rejected"]
    assert "no tokenizer" in (run.outputs[0].error or "") and "32768" in (run.outputs[2].error or "")
