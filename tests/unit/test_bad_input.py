"""Bad input: each case ends in an error that names the value and the limit, and nothing else is lost by it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minirt
from minirt import (
    ConfigError,
    ContinuousEngine,
    Engine,
    MinirtError,
    ModelLoadError,
    PolicyError,
    Request,
    RequestError,
    StaticEngine,
)
from minirt.model.loading import random_model
from tests.fake_backend import VOCAB, FakeBackend, expected


def good(n: int = 5) -> Request:
    return Request(prompt_ids=[1, 2, 3], max_new_tokens=n, ignore_eos=True)


# -- what a request can't be ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": ""}, "prompt= is empty"),
        ({"prompt": " \n\t"}, "prompt= is empty"),
        ({"prompt_ids": []}, "prompt_ids= is empty"),
        ({}, "exactly one of prompt="),
        ({"prompt": "a", "prompt_ids": [1]}, "exactly one of prompt="),
        ({"prompt": 3}, "must be a string, not int"),
        ({"prompt": "half \ud83d"}, "half of a surrogate pair"),
        ({"prompt_ids": [1, -4]}, "negative id -4"),
        ({"prompt_ids": [1, 2.7]}, "whole numbers"),
        ({"prompt_ids": "123"}, "whole numbers"),
        ({"prompt_ids": 5}, "whole numbers"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens=0 must be a whole number of at least 1"),
        ({"prompt": "a", "max_new_tokens": -3}, "max_new_tokens=-3"),
        ({"prompt": "a", "max_new_tokens": 2.5}, "max_new_tokens=2.5"),
        ({"prompt": "a", "max_new_tokens": True}, "max_new_tokens=True"),
        ({"prompt": "a", "max_new_tokens": None}, "max_new_tokens=None"),
        ({"prompt": "a", "arrival": -1}, "arrival=-1 must be 0 or later"),
        ({"prompt": "a", "arrival": float("inf")}, "arrival=inf must be 0 or later, and finite"),
        ({"prompt": "a", "arrival": float("nan")}, "arrival=nan"),
        ({"prompt": "a", "temperature": -0.1}, "temperature=-0.1 must be 0"),
        ({"prompt": "a", "temperature": "hot"}, "temperature='hot'"),
        ({"prompt": "a", "top_p": 0}, "top_p=0 must be above 0"),
        ({"prompt": "a", "top_p": 1.01}, "top_p=1.01"),
        ({"prompt": "a", "top_k": -1}, "top_k=-1"),
        ({"prompt": "a", "seed": 1.5}, "seed=1.5"),
        ({"prompt": "a", "priority": "high"}, "priority='high'"),
        ({"prompt": "a", "stop": ""}, "stop=''"),
        ({"prompt": "a", "stop": ["x", ""]}, "not empty"),
        ({"prompt": "a", "name": 3}, "name=3"),
    ],
)
def test_a_request_that_makes_no_sense(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as e:
        Request(**values)
    assert said in str(e.value)


def test_numbers_from_numpy_are_numbers() -> None:
    r = Request(
        prompt_ids=np.array([1, 2, 3]), max_new_tokens=np.int64(4), arrival=np.float32(2), temperature=np.float64(0.5)
    )
    assert r.prompt_ids == (1, 2, 3)
    assert [type(v) for v in (r.prompt_ids[0], r.max_new_tokens, r.arrival, r.temperature)] == [int, int, float, float]


# -- what an engine can't serve: refused with the numbers, the others go on ---------------------------
@pytest.mark.parametrize("policy", ["static", "mini-runtime", "vllm"])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Request(prompt_ids=[1] * 60, max_new_tokens=5), ["60 prompt tokens", "make 65", "serves is 64"]),
        (Request(prompt_ids=[1] * 20, max_new_tokens=30), ["need 13 KV blocks of 4", "whole pool has 10"]),
        (Request(prompt_ids=[1, VOCAB]), [f"token id {VOCAB}", f"0 to {VOCAB - 1}"]),
        (Request(prompt_ids=[1], stop="x"), ["stop=['x']", "no tokenizer"]),
    ],
    ids=["model", "pool", "vocabulary", "stop"],
)
def test_a_request_that_can_never_be_served(policy: str, bad: Request, said: list[str]) -> None:
    engine = Engine(FakeBackend(max_model_len=64), policy, max_batch_size=2, num_blocks=10, block_size=4)
    requests = [good(), bad, good(7), good(3)]
    run = engine.run(requests)
    assert [o.finish_reason for o in run.outputs] == ["length", "rejected", "length", "length"]
    refused = run.outputs[1]
    assert refused.error is not None and all(part in refused.error for part in said)
    assert refused.token_ids == [] and refused.text == ""
    for r, out in zip(requests, run.outputs):
        if out is not refused:
            assert out.token_ids == expected([1, 2, 3], r.max_new_tokens, True) and out.error is None
    assert engine.pool.num_used == 0


def test_the_trace_knows_of_refusals_even_where_nothing_was_served() -> None:
    engine = Engine(FakeBackend(max_model_len=64), "vllm", num_blocks=4, block_size=4)
    run = engine.run([Request(prompt_ids=[1] * 70), Request(prompt_ids=[1] * 30)])
    assert [o.finish_reason for o in run.outputs] == ["rejected", "rejected"]
    assert [(e.kind, e.id) for s in run.trace for e in s.events] == [("rejected", 0), ("rejected", 1)]
    assert [r.finish_reason for r in run.metrics.requests] == ["rejected", "rejected"]
    assert run.metrics.decode_steps == 0 and run.metrics.throughput == 0


def test_a_prompt_that_comes_to_no_tokens() -> None:
    class Silent(FakeBackend):
        def encode(self, prompt: str) -> list[int]:
            return []

    run = Engine(Silent(), "vllm").run([Request("something"), good()])
    assert run.outputs[0].finish_reason == "rejected" and "no tokens" in str(run.outputs[0].error)
    assert run.outputs[1].finish_reason == "length"


def test_text_for_a_model_without_a_tokenizer() -> None:
    run = ContinuousEngine(random_model(), num_blocks=8).run([Request("hello"), good()])
    assert run.outputs[0].finish_reason == "rejected" and "pass prompt_ids" in str(run.outputs[0].error)
    assert run.outputs[1].finish_reason == "length" and len(run.outputs[1].token_ids) == 5


def test_a_static_batch_reserves_no_more_than_the_model_serves() -> None:
    """A long prompt and a long answer in one batch: each fits, their sum does not."""
    requests = [
        Request(prompt_ids=[1] * 50, max_new_tokens=10, ignore_eos=True),
        Request(prompt_ids=[2] * 5, max_new_tokens=55, ignore_eos=True),
    ]
    run = StaticEngine(FakeBackend(max_model_len=64), max_batch_size=2, num_blocks=64, block_size=4).run(requests)
    for r, out in zip(requests, run.outputs):
        assert out.token_ids == expected(list(r.prompt_ids or ()), r.max_new_tokens, True)


# -- settings ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_batch_size": 0}, "max_batch_size=0 must be a whole number of at least 1"),
        ({"max_batch_size": -2}, "max_batch_size=-2"),
        ({"max_batch_size": 2.0}, "max_batch_size=2.0"),
        ({"block_size": 0}, "block_size=0 must be a whole number of at least 1"),
        ({"num_blocks": 0}, "num_blocks=0 must be a whole number of at least 1"),
        ({"num_blocks": None}, "num_blocks=None"),
        ({"max_model_len": 1}, "max_model_len=1"),
        ({"max_model_len": 10_000}, "from 2 to the model's own 512"),
        ({"policy": "vlm"}, "unknown policy 'vlm'; known are 'static'"),
        ({"policy": "fcfs"}, "'mini-runtime', 'vllm'"),
        ({"policy": object()}, "object is not a policy: it needs a method plan(state)"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be a whole number of at least 1"),
        ({"no_such_option": 1}, "no option 'no_such_option'"),
        ({"preemption": "drop"}, 'must be "recompute" or "swap"'),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as e:
        Engine(FakeBackend(), **settings)
    assert said in str(e.value)


def test_an_unknown_policy_is_told_every_known_one_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as e:
        minirt.simulate("mini_runtime", [good()])
    assert all(repr(name) in str(e.value) for name in minirt.POLICIES)
    assert "Did you mean 'mini-runtime'?" in str(e.value)


def test_what_is_no_model_and_no_request() -> None:
    with pytest.raises(ConfigError, match="load_model"):
        Engine("SmolLM2-135M")
    with pytest.raises(ConfigError, match="item 1 is a str"):
        Engine(FakeBackend()).run([good(), "hello"])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="not str"):
        Engine(FakeBackend()).add("hello")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="always runs the 'static' policy"):
        StaticEngine(FakeBackend(), policy="vllm")
    with pytest.raises(ConfigError, match="device='abacus'"):
        random_model(device="abacus")


def test_a_pool_larger_than_memory_is_refused_with_the_bytes() -> None:
    with pytest.raises(ConfigError, match=r"num_blocks=10000000000 blocks of [\d,]+ bytes .* Use at most \d+ blocks"):
        ContinuousEngine(random_model(), num_blocks=10**10)


# -- weights ----------------------------------------------------------------------------------------
def folder(path: Path, **config: Any) -> Path:
    """A folder that looks like a model: a config and a whole safetensors file with one tensor."""
    path.mkdir()
    whole = {
        "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64, **config,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(whole))
    header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(32))
    return path


def test_an_unsupported_architecture_names_itself_and_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as e:
        minirt.load_model(str(folder(tmp_path / "m", model_type="mamba")), device="cpu")
    assert "mamba" in str(e.value) and all(a in str(e.value) for a in ("llama", "mistral", "qwen2", "qwen3"))


def test_a_missing_weights_file_is_named(tmp_path: Path) -> None:
    where = folder(tmp_path / "m")
    (where / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"missing: .*model\.safetensors"):
        minirt.load_model(str(where), device="cpu")
    with pytest.raises(ModelLoadError, match="neither an existing folder"):
        minirt.load_model(str(tmp_path / "elsewhere"), device="cpu")
    with pytest.raises(ModelLoadError, match=r"neither an existing folder, nor a \.gguf"):
        minirt.load_model(str(tmp_path / "gone.gguf"), device="cpu")


def test_a_truncated_weights_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    where = folder(tmp_path / "m") / "model.safetensors"
    whole = where.read_bytes()
    for kept in (len(whole) - 1, 20, 3, 0):
        where.write_bytes(whole[:kept])
        with pytest.raises(ModelLoadError, match=rf"Damaged weights: .*model\.safetensors has {kept} bytes"):
            minirt.load_model(str(where.parent), device="cpu")


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="tensor 'lm_head.weight' is missing"):
        minirt.load_model(str(folder(tmp_path / "m")), device="cpu")


# -- policies that break the rules ------------------------------------------------------------------
class Greedy:
    """Admits everyone, whether there is room or not."""

    name = "greedy"

    def plan(self, state: Any) -> Any:
        plan = minirt.StepPlan()
        plan.admit = [minirt.policies.Admission(s) for s in state.waiting]
        plan.prefill = [minirt.policies.Chunk(s, s.remaining) for s in state.waiting]
        plan.decode = list(state.running)
        return plan


class Lazy:
    name = "lazy"

    def plan(self, state: Any) -> Any:
        return minirt.StepPlan()


class Forgetful:
    name = "forgetful"

    def plan(self, state: Any) -> Any:
        minirt.Planner(state)  # and no return


class Reserver:
    name = "reserver"

    def plan(self, state: Any) -> Any:
        p = minirt.Planner(state)
        for seq in state.waiting:
            p.admit(seq, reserve=10**6)
        return p.plan


class Broken:
    name = "broken"

    def plan(self, state: Any) -> Any:
        raise ZeroDivisionError("in the learner's own code")


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (Greedy(), PolicyError, "2 free slots of 2|0 free slots of 2"),
        (Lazy(), PolicyError, r"stalls in step 1 \(state.step=0\): its plan is empty while 3 requests wait"),
        (Forgetful(), PolicyError, "must return a StepPlan, not NoneType"),
        (Reserver(), PolicyError, "reserves 1000000 tokens; none can grow beyond 512"),
        (Broken(), ZeroDivisionError, "learner's own code"),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_a_policy_that_breaks_the_rules_ends_the_run_and_leaves_nothing(policy: Any, error: type, said: str) -> None:
    engine = Engine(FakeBackend(), policy, max_batch_size=2, num_blocks=20, block_size=4)
    with pytest.raises(error, match=said):
        engine.run([good(), good(), good()])
    assert engine.last_run is not None
    assert [o.finish_reason for o in engine.last_run.outputs] == ["aborted"] * 3
    engine.pool.check([])
    assert engine.pool.num_used == 0 and not engine.has_work


def test_every_error_is_a_minirt_error() -> None:
    for kind in (RequestError, ConfigError, PolicyError, ModelLoadError, minirt.TraceError):
        assert issubclass(kind, MinirtError)
