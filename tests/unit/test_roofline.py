"""The roofline equations against hand-derived numbers, and calibration against a machine whose costs are known."""

from __future__ import annotations

import math

import pytest

from minirt.backends.base import BatchDecodeInput, ForwardBatch
from minirt.backends.simulated import SimulatedBackend
from minirt.calibrate import Shape, default_shapes, fit, make_batch, measure
from minirt.errors import ConfigError, RequestError
from minirt.presets import HARDWARE, MODELS, Hardware, ModelShape, get_hardware, get_model
from minirt.roofline import (
    CostModel,
    Work,
    batch_limits,
    decode_time,
    kv_overtakes_weights,
    ridge_batch,
    throughput,
)

QWEN = MODELS["Qwen2.5-0.5B"]


def test_kv_size_counts_the_layers() -> None:
    assert QWEN.kv_bytes_per_token == 12_288
    assert QWEN.kv_bytes(1024) == 12_582_912  # 12.58 MB, not the 0.5 MB of a single layer
    assert QWEN.kv_bytes(2048) == 25_165_824
    assert round(QWEN.weight_bytes / 1e9, 2) == 0.99


def test_kv_overtakes_the_weights_near_79_and_39_rows() -> None:
    assert round(kv_overtakes_weights(1024)) == 79
    assert round(kv_overtakes_weights(2048)) == 39
    at = kv_overtakes_weights(1024)
    t = decode_time(at, 1024)
    assert t.kv == pytest.approx(t.weights)


def test_params_are_the_sum_of_the_weight_matrices() -> None:
    def llama(v: int, h: int, f: int, layers: int, kv: int, bias: int = 0, heads: int = 1) -> int:
        layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h + bias * (h + 2 * kv)
        return heads * v * h + layers * layer + h

    assert QWEN.params == llama(151_936, 896, 4864, 24, 128, bias=1)
    assert MODELS["SmolLM2-135M"].params == llama(49_152, 576, 1536, 30, 192)
    assert MODELS["Llama-3-8B"].params == llama(128_256, 4096, 14_336, 32, 1024, heads=2)
    h, f = 5120, 20_480
    layer = 4 * (h * h + h) + 2 * h * f + f + h + 4 * h
    assert MODELS["OPT-13B"].params == 50_272 * h + 2050 * h + 40 * layer + 2 * h


def test_ridge_is_peak_over_bandwidth() -> None:
    assert round(ridge_batch("A100-80GB")) == 153
    assert ridge_batch("A100-80GB", bytes_per_element=4) == pytest.approx(2 * ridge_batch("A100-80GB"))
    short = decode_time(ridge_batch("A100-80GB"), 0)
    assert short.compute == pytest.approx(short.memory)
    assert decode_time(200, 0).bound == "compute"
    assert decode_time(100, 0).bound == "memory"


def test_at_long_contexts_a_small_model_never_becomes_compute_bound() -> None:
    assert all(decode_time(b, 1024).bound == "memory" for b in (1, 153, 1000, 100_000))


def test_equation_3_by_hand() -> None:
    hw = Hardware("toy", peak_flops=1000.0, bandwidth=10.0, memory=1e6)
    shape = ModelShape("toy", 100, 2, 4, 2, 8, 32, 1, 64, bytes_per_element=2)
    t = decode_time(3, 5, hw, shape)
    assert t.compute == 2 * 100 * 3 / 1000
    assert t.weights == 100 * 2 / 10
    assert t.kv == 3 * 5 * (2 * 2 * 2 * 8 * 2) / 10
    assert t.total == t.memory == t.weights + t.kv
    with_attention = decode_time(3, 5, hw, shape, attention=True)
    assert with_attention.compute == pytest.approx(t.compute + 3 * 5 * 4 * 2 * 4 * 8 / 1000)


def test_throughput_rises_with_the_batch_and_flattens() -> None:
    one, ten, many, twice = (throughput(b, 1024) for b in (1, 10, 2000, 4000))
    assert 8.5 < ten / one < 10  # nearly proportional while the weights dominate
    assert twice / many < 1.05  # flat once KV does


def test_batch_limits_say_what_binds() -> None:
    free = batch_limits(1024, 256)
    assert free.binds == "compute" and free.compute == 8192 * 256 / 1024 and free.slo == math.inf
    assert batch_limits(1024, 256, "RTX 4090", "Llama-3-8B").binds == "memory"
    tight = batch_limits(1024, 256, tpot=0.001)
    assert tight.binds == "slo" and tight.max == tight.slo
    assert decode_time(tight.slo, 1024 + 128).total == pytest.approx(0.001)
    assert batch_limits(1024, 256, tpot=1e-9).max == 0
    with pytest.raises(ConfigError, match="prompt_tokens=0"):
        batch_limits(0, 1)


def test_presets_by_name_or_object() -> None:
    assert get_hardware("a100-80gb") is HARDWARE["A100-80GB"]
    assert get_hardware("rtx4090") is HARDWARE["RTX 4090"]
    assert get_model(QWEN) is QWEN
    with pytest.raises(ConfigError, match="unknown hardware 'B300'.*A100-80GB"):
        get_hardware("B300")
    with pytest.raises(ConfigError, match="bandwidth=0"):
        HARDWARE["H100"].but(bandwidth=0)
    with pytest.raises(ConfigError, match="no room for KV"):
        MODELS["OPT-13B"].num_blocks(HARDWARE["RTX 4090"])


def test_num_blocks_fill_the_memory_beside_the_weights() -> None:
    hw = HARDWARE["A100-40GB"]
    n = MODELS["OPT-13B"].num_blocks(hw, 16)
    block = 16 * MODELS["OPT-13B"].kv_bytes_per_token
    assert n * block <= 0.9 * hw.memory - MODELS["OPT-13B"].weight_bytes < (n + 1) * block


def test_cost_model_agrees_with_equation_3_where_they_should() -> None:
    cost = CostModel.of("A100-80GB", QWEN).but(step_s=0.0)
    for b in (1, 32, 256):
        t = decode_time(b, 1024)
        assert cost.step_time(decode_rows=b, context_tokens=b * 1024) == pytest.approx(t.memory, rel=1e-3)
    # Compute-bound: a long prompt costs its FLOPs, attention's included; only one row is sampled.
    p = 8192
    flops = 2 * QWEN.body_params * p + QWEN.attention_flops_per_pair * p * (p + 1) / 2 + 2 * QWEN.head_params
    assert cost.step_time(prefill_tokens=p) == pytest.approx(flops / 312e12)


def test_two_forwards_read_the_weights_twice() -> None:
    cost = CostModel.of("A100-80GB", QWEN)
    mixed = cost.step_time(prefill_tokens=16, decode_rows=8, context_tokens=800)
    apart = cost.step_time(prefill_tokens=16, decode_rows=8, context_tokens=800, forwards=2)
    assert apart - mixed == pytest.approx(cost.weights_s)
    with pytest.raises(ConfigError, match="forwards=3"):
        cost.step_time(decode_rows=1, forwards=3)


def test_efficiency_scales_the_peaks() -> None:
    full, half = CostModel.of(), CostModel.of(compute_efficiency=0.5, bandwidth_efficiency=0.5)
    assert half.weights_s == pytest.approx(2 * full.weights_s)
    assert half.prefill_token_s == pytest.approx(2 * full.prefill_token_s)
    with pytest.raises(ConfigError, match="compute_efficiency=2"):
        CostModel.of(compute_efficiency=2)


def test_work_counts_a_mixed_batch() -> None:
    batch, blocks = make_batch(Shape(2, 10, ((0, 4), (32, 3))))
    batch.pads[2] = 5
    work = Work.of(batch)
    assert work == Work(
        prefill_tokens=4 + 5 + 3,
        prefill_rows=2,
        decode_rows=2,
        context_tokens=2 * 10 + 9 + 35,
        pairs=2 * 10 + 9 * 10 / 2 + 3 * 32 + 3 * 4 / 2,
        sampled_rows=4,
    )
    assert blocks == 4 * 3  # 35 tokens need three blocks of 16, and every table has that width


def test_simulated_backend_charges_forwards_and_swaps() -> None:
    backend = SimulatedBackend(QWEN, "A100-80GB")
    backend.start(100, 32, 100)
    decode, _ = make_batch(Shape(4, 100))
    prompt, _ = make_batch(Shape(chunks=((0, 64),)))
    cost = backend.cost_model
    one, two = cost.forward_time(Work.of(decode)), cost.forward_time(Work.of(prompt))
    assert backend.step_cost([decode]) == pytest.approx(cost.step_s + one)
    assert backend.step_cost([decode, prompt]) == pytest.approx(cost.step_s + one + two)
    swap = 3 * 32 * QWEN.kv_bytes_per_token / HARDWARE["A100-80GB"].host_bandwidth
    assert backend.step_cost([decode], 3) - backend.step_cost([decode]) == pytest.approx(swap)
    assert backend.step_cost([], 0) == 0.0
    assert backend.execute(decode) == [0] * 4
    with pytest.raises(RequestError, match="no tokenizer"):
        backend.encode("hello")


class KnownMachine:
    """A backend whose time is a clock of its own, moved by a cost model."""

    name, vocab_size, max_model_len, needs_arrays = "known", 100, 4096, True

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.now, self.calls, self.blocks = cost, 0.0, 0, 0

    def start(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self.blocks = num_blocks

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        assert batch.tables is not None and int(batch.tables.max()) < self.blocks
        assert batch.arrays().input_ids.size == batch.num_tokens  # it can be laid out flat
        assert isinstance(batch, BatchDecodeInput) == (batch.num_decode == batch.num_rows)
        # Every eleventh forward is held up, as on a machine with other things to do.
        self.calls += 1
        self.now += self.cost.forward_time(Work.of(batch)) * (3.0 if self.calls % 11 == 0 else 1.0)
        return [1] * len(batch.sampled)


TRUE = CostModel(
    forward_s=0.01,
    prefill_token_s=0.0008,
    prefill_row_s=0.002,
    decode_row_s=0.0011,
    pair_s=3e-7,
    context_s=2e-6,
    sample_s=0.0004,
    combine="sum",
)


def test_calibration_finds_the_terms_of_a_known_machine() -> None:
    machine = KnownMachine(TRUE)
    works, seconds = measure(machine, default_shapes(), budget=20.0, now=lambda: machine.now)  # type: ignore[arg-type]
    found = fit(works, seconds)
    for name in ("forward_s", "prefill_token_s", "prefill_row_s", "decode_row_s", "pair_s", "context_s", "sample_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6), name
    assert machine.now < 60  # it keeps to its budget, but for the rounds it must make


def test_fit_has_no_negative_term_whatever_the_noise() -> None:
    works = [Work.of(make_batch(s)[0]) for s in default_shapes()]
    true = [TRUE.forward_time(w) for w in works]
    noisy = [t * (1.25 if i % 2 else 0.8) for i, t in enumerate(true)]
    found = fit(works, noisy)
    assert min(found.forward_s, found.prefill_token_s, found.decode_row_s, found.pair_s, found.context_s) >= 0
    assert all(0.6 < found.forward_time(w) / t < 1.6 for w, t in zip(works, true))
    with pytest.raises(ConfigError, match="2 measurements"):
        fit(works[:2], true[:2])
