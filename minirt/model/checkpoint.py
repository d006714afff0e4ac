"""Is this folder a whole model? Is this file a GGUF? Answered before anything is loaded.

What it is: looks at file sizes and headers, in milliseconds, so that a truncated download ends with the file's name
and what to do, not with an error from deep inside a tensor library.
What it is not: a checksum. Flipped bits inside the data pass.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError

# Written into every folder that minirt converted: its format, its source, and the size of each file.
MANIFEST = "minirt.json"


def check_folder(folder: Path) -> None:
    """Raises ModelLoadError, naming the file and what to do, unless `folder` can be read as a whole model.

    Finds missing and truncated files: each safetensors header must agree with its file's size, and in a folder that
    minirt converted every file must have the size it was written with.
    """
    manifest = folder / MANIFEST
    remedy = (
        f"Delete the folder {folder}; minirt then converts it again."
        if manifest.exists()
        else f"Copy or download the model into {folder} again."
    )
    read_json(folder / "config.json", remedy)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index, remedy).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"]
    if not index.exists() and not (folder / names[0]).exists() and (folder / "pytorch_model.bin").exists():
        raise ModelLoadError(f"{folder} holds pytorch_model.bin; minirt reads only safetensors. Convert it first.")
    for name in names:
        _check_safetensors(folder / name, remedy)
    if manifest.exists():
        for name, size in read_json(manifest, remedy).get("files", {}).items():
            have = (folder / name).stat().st_size if (folder / name).exists() else None
            if have != size:
                what = "is missing" if have is None else f"has {have} bytes, {size} were written"
                raise ModelLoadError(f"Damaged weights: {folder / name} {what}. {remedy}")


def _check_safetensors(path: Path, remedy: str) -> None:
    """A safetensors file is 8 bytes of header length, a JSON header, then the data; the header tells the data's end."""
    if not path.exists():
        raise ModelLoadError(f"Weights file missing: {path}. {remedy}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length + 8 > size:
            raise ModelLoadError(f"Damaged weights: {path} has {size} bytes, too few for its own header. {remedy}")
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"Damaged weights: {path} has no readable header ({error}). {remedy}") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ModelLoadError(f"Damaged weights: {path} has {size} bytes, its header says {expected}. {remedy}")


def check_gguf(path: Path) -> None:
    """Raises ModelLoadError unless `path` is a file that starts as every GGUF does."""
    if not path.is_file():
        raise ModelLoadError(f"No such file: {path}. Pass the path of an existing .gguf file.")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'. Get it again.")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelLoadError that ends with `remedy`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"File missing: {path}. {remedy}") from None
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"Damaged file: {path} ({error}). {remedy}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"Damaged file: {path} holds {type(content).__name__}, not a JSON object. {remedy}")
    return content
