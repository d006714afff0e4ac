"""Loading: what can't be loaded is refused with the file, the tensor and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minirt.backends.base import ForwardBatch
from minirt.backends.native import NativeBackend
from minirt.errors import ConfigError, ModelLoadError, RequestError
from minirt.model.decoder import Linear
from minirt.model.loading import load_model, pick_device, pick_dtype, random_model
from minirt.request import Request, Sequence

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": [3, 4],
}


def write(folder: Path, change: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Path:
    """A checkpoint folder; `change` overrides config entries, `tensors` replaces (or with None drops) tensors."""
    from transformers import AutoConfig

    from minirt.model.config import from_transformers, tensor_shapes

    (folder / "config.json").write_text(json.dumps({**CONFIG, **(change or {})}))
    shapes = tensor_shapes(from_transformers(AutoConfig.for_model(**CONFIG)))
    made: dict[str, Any] = {n: torch.randn(s) for n, s in shapes.items()}
    made.update(tensors or {})
    save_file({n: t for n, t in made.items() if t is not None}, folder / "model.safetensors")
    return folder


def first_logits(lm: Any) -> torch.Tensor:
    backend = NativeBackend(lm)
    backend.start(8, 4, 0)
    seq = Sequence(0, Request(prompt_ids=[1, 2, 3]), [1, 2, 3], 3, 0.0, slot=0)
    return backend.logits_for(ForwardBatch([seq], [0], [3], [0], 0, [0], np.zeros((1, 8), np.int32), 4))


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    lm = load_model(write(tmp_path), device="cpu", dtype="float32")
    assert lm.tokenizer is None and lm.eos_ids == {3, 4} and lm.name == tmp_path.name
    assert lm.decode([1, 2]) == ""
    with pytest.raises(RequestError, match="no tokenizer.*prompt_ids"):
        NativeBackend(lm).encode("hello")
    assert NativeBackend(lm).pieces([1, 2]) == ["", ""]


def test_eos_of_the_generation_config_counts_too(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert load_model(tmp_path, device="cpu").eos_ids == {3, 4, 9}


def test_sharded(tmp_path: Path) -> None:
    whole = first_logits(load_model(write(tmp_path), device="cpu", dtype="float32"))
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({n: tensors[n] for n in part}, tmp_path / file)
    index = {"weight_map": {n: f for f, part in files.items() for n in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(first_logits(load_model(tmp_path, device="cpu", dtype="float32")), whole)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"b\.safetensors"):
        load_model(tmp_path, device="cpu")


def test_missing_tensor(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    write(tmp_path, tensors={name: None})
    with pytest.raises(ModelLoadError, match=f"{name}.*missing"):
        load_model(tmp_path, device="cpu")


def test_unexpected_tensor(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    write(tmp_path, tensors={name: torch.zeros(16)})
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors.*unexpected tensor.*{name}"):
        load_model(tmp_path, device="cpu")


def test_old_frequency_buffers_are_no_surprise(tmp_path: Path) -> None:
    write(tmp_path, tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    load_model(tmp_path, device="cpu")


def test_a_tied_model_may_store_its_head(tmp_path: Path) -> None:
    lm = load_model(write(tmp_path, {"tie_word_embeddings": True}), device="cpu", dtype="float32")
    x = torch.randn(3, 16)
    torch.testing.assert_close(lm.decoder.head(x), torch.nn.functional.linear(x, lm.decoder.embed))


def test_wrong_shape(tmp_path: Path) -> None:
    write(tmp_path, tensors={"model.norm.weight": torch.ones(17)})
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight.*\[17\].*\[16\]"):
        load_model(tmp_path, device="cpu")


def test_quantised_storage(tmp_path: Path) -> None:
    write(tmp_path, tensors={"model.norm.weight": torch.ones(16, dtype=torch.int8)})
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight.*I8"):
        load_model(tmp_path, device="cpu")


def test_truncated_file(tmp_path: Path) -> None:
    file = write(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_model(tmp_path, device="cpu")


def test_missing_weights(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gemma2"}, r"model_type='gemma2'.*llama.*mistral.*qwen2.*qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "4 query heads.*3 key heads"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [1.0] * 4,
                    "original_max_position_embeddings": 32,
                }
            },
            "rope_type='longrope'.*llama3",
        ),
    ],
)
def test_unsupported_configuration(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=says):
        load_model(write(tmp_path, change), device="cpu")


def test_damaged_config(tmp_path: Path) -> None:
    (write(tmp_path) / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model(tmp_path, device="cpu")


def test_sliding_window_caps_the_length(tmp_path: Path) -> None:
    lm = load_model(write(tmp_path, {"model_type": "mistral", "sliding_window": 32}), device="cpu")
    assert lm.config.max_model_len == 32 and "sliding window" in lm.notes[0]


def test_dynamic_scaling_is_noted(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    lm = load_model(write(tmp_path, {"rope_parameters": rope}), device="cpu")
    assert lm.config.max_model_len == 64 and "dynamic" in lm.notes[0]


def test_device_and_dtype_are_checked() -> None:
    with pytest.raises(ConfigError, match="'gpu'"):
        pick_device("gpu")
    with pytest.raises(ConfigError, match="There is: .*cpu"):
        pick_device("xla")
    with pytest.raises(ConfigError, match="dtype='int8'.*float32"):
        pick_dtype("int8", torch.device("cpu"))
    with pytest.raises(ConfigError, match="float32"):
        pick_dtype(torch.int32, torch.device("cpu"))
    assert pick_dtype("bf16", torch.device("cpu")) is torch.bfloat16
    assert pick_dtype(None, torch.device("cpu")) in (torch.bfloat16, torch.float32)


def test_a_pool_that_does_not_fit() -> None:
    backend = NativeBackend(random_model())
    with pytest.raises(ConfigError, match=r"num_blocks=1000000000 .*KV pool of [\d,]+ bytes.*[\d,]+ bytes are free"):
        backend.start(10**9, 16, 0)
    with pytest.raises(ConfigError, match="start"):
        first = Sequence(0, Request(prompt_ids=[1]), [1], 1, 0.0, slot=0)
        backend.execute(ForwardBatch([first], [0], [1], [0], 1, [0], np.zeros((1, 1), np.int32), 16))


def test_swapped_blocks_come_back_elsewhere() -> None:
    backend = NativeBackend(random_model())
    backend.start(8, 4, 4)
    assert backend.kv is not None
    data = backend.kv.data
    data.copy_(torch.randn(data.shape))
    kept = data[:, :, [1, 5, 2]].clone()
    backend.copy_out(7, [1, 5, 2])
    data.zero_()
    backend.copy_in(7, [0, 3])  # fewer: the last block had been found by its prefix
    assert torch.equal(data[:, :, [0, 3]], kept[:, :, :2])
    backend.copy_out(8, [0])
    backend.drop(8)
    backend.drop(8)


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
def test_random_models_repeat_and_spread(arch: str) -> None:
    a, b = (first_logits(random_model(arch=arch, seed=5)) for _ in range(2))
    assert torch.equal(a, b) and a.std() > 0.5
    assert not torch.equal(a, first_logits(random_model(arch=arch, seed=6)))


def test_every_linear_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIRT_PLAIN", "1")  # a model with linears of one's own takes the plain path: compare with that
    lm = random_model(arch="qwen2")
    want = first_logits(lm)
    seen: list[tuple[int, ...]] = []

    def make(linear: Linear) -> Any:
        seen.append(tuple(linear.weight.shape))
        return lambda x: torch.nn.functional.linear(x, linear.weight, linear.bias)

    lm.decoder.replace_linears(make)
    assert len(seen) == 4 * lm.config.num_layers + 1
    assert torch.equal(first_logits(lm), want)
