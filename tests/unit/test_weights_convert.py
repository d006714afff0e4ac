"""From .gguf to a folder: the same numbers, made once, whole or not at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
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

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def write_tiny_gguf(path: Path, architecture: str = "llama") -> Path:
    """A whole, random, one-layer model with a byte-level tokenizer of 101 tokens, as llama.cpp would write it."""
    rng = np.random.default_rng(0)
    hidden, inner = 32, 64
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "he", "ll"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(tokens), hidden), "output_norm": (hidden,)}
    block = {
        "attn_q": (hidden, hidden),
        "attn_k": (16, hidden),
        "attn_v": (16, hidden),
        "attn_output": (hidden, hidden),
    }
    block |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    block |= {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
    for name, shape in {**shapes, **{f"blk.0.{name}": shape for name, shape in block.items()}}.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_write(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the slow reading of a GGUF: writes a small valid folder, and notes every call."""
    calls: list[Path] = []

    def write(source: Path, staging: Path) -> None:
        calls.append(source)
        write_small_folder(staging)

    monkeypatch.setattr(weights, "_write_converted", write)
    return calls


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


def test_a_gguf_becomes_a_folder_that_gives_the_same_logits(tiny: Path, cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights.convert_gguf(tiny)
    assert folder.parent == cache and not list(cache.glob(".tmp-*"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.model_max_length) == (1, 2, 128)
    ids = tokenizer("hello<|im_end|>", return_tensors="pt").input_ids
    assert ids[0, -1] == 2
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tiny.parent, gguf_file=tiny.name, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert ours.config.architectures == ["LlamaForCausalLM"]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    shared = (folder / "config.json").stat().st_mode
    assert (folder / "model.safetensors").stat().st_mode == shared


def test_an_unknown_architecture_names_the_file(tmp_path: Path, cache: Path) -> None:
    path = write_tiny_gguf(tmp_path / "strange.gguf", architecture="strangenet")
    with pytest.raises(ModelLoadError, match=r"strange\.gguf could not be converted.*architecture"):
        weights.convert_gguf(path)
    assert not list(cache.iterdir())


def test_a_truncated_gguf_names_the_file(tiny: Path, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny.read_bytes()[:-4000])
    with pytest.raises(ModelLoadError, match=r"short\.gguf could not be converted.*truncated"):
        weights.convert_gguf(path)


def test_what_is_no_gguf_is_refused_at_once(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>")
    with pytest.raises(ModelLoadError, match=r"page\.gguf is not a GGUF file: it starts with b'<htm'"):
        weights.resolve(path)
    with pytest.raises(ModelLoadError, match="No such file"):
        weights.convert_gguf(tmp_path / "absent.gguf")


def test_converted_once_for_the_same_content(tiny: Path, tmp_path: Path, cache: Path, fake_write: list[Path]) -> None:
    first = weights.resolve(tiny)
    copy = tmp_path / tiny.name
    copy.write_bytes(tiny.read_bytes())
    assert weights.resolve(copy) == first and len(fake_write) == 1
    copy.write_bytes(tiny.read_bytes() + b"\0")
    assert weights.resolve(copy) != first and len(fake_write) == 2


@pytest.mark.parametrize("damage", ["truncate", "remove", "config"])
def test_a_damaged_cache_heals_itself(
    damage: str, tiny: Path, cache: Path, fake_write: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = weights.resolve(tiny)
    if damage == "truncate":
        truncate(folder / "model.safetensors")
    elif damage == "remove":
        (folder / "model.safetensors").unlink()
    else:
        (folder / "config.json").write_text("{]")
    assert weights.resolve(tiny) == folder and len(fake_write) == 2
    check_folder(folder)
    assert str(folder) in capsys.readouterr().err
    assert not list(cache.glob(".tmp-*"))


def test_a_folder_that_is_not_ours_is_never_replaced(tiny: Path, tmp_path: Path, fake_write: list[Path]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelLoadError, match="not empty and was not written by minirt"):
        weights.convert_gguf(tiny, mine)
    assert (mine / "thesis.txt").exists() and not fake_write
    empty = tmp_path / "empty"
    empty.mkdir()
    assert weights.convert_gguf(tiny, empty) == empty and len(fake_write) == 1


def test_two_processes_at_once_both_get_a_whole_folder(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[Path] = []

    def write(source: Path, staging: Path) -> None:
        write_small_folder(staging)
        if not inside:  # while the first is about to publish, a second one runs from start to end
            inside.append(staging)
            inside.append(weights.convert_gguf(source))

    monkeypatch.setattr(weights, "_write_converted", write)
    folder = weights.convert_gguf(tiny)
    assert inside[1] == folder and not inside[0].exists()
    check_folder(folder)
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_an_interrupted_conversion_leaves_nothing(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Path, staging: Path) -> None:
        (staging / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "_write_converted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weights.convert_gguf(tiny)
    assert not list(cache.iterdir())


def test_what_killed_processes_left_is_swept_and_what_runs_is_not(
    tiny: Path, cache: Path, fake_write: list[Path]
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    names = {
        "dead": f".tmp-{host}-{ended.pid}-aaaa",
        "running": f".tmp-{host}-{os.getpid()}-bbbb",
        "elsewhere": ".tmp-another-host-1-cccc",
        "old": ".tmp-another-host-1-dddd",
    }
    for name in names.values():
        (cache / name).mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(cache / names["old"], (two_days_ago, two_days_ago))
    weights.convert_gguf(tiny)
    left = {path.name for path in cache.glob(".tmp-*")}
    assert left == {names["running"], names["elsewhere"]}


def test_no_space_and_no_permission_say_which_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, staging: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "_write_converted", full)
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelLoadError, match=r"No space left.*MINIRT_CACHE"):
        weights.convert_gguf(tiny)
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINIRT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ModelLoadError, match=r"Cannot write to the cache folder.*Set MINIRT_CACHE"):
        weights.convert_gguf(tiny)
