"""The C kernels of the CPU's fast path: compiled once for a model's head size, kept, and loaded.

What it is: a small build step (the compiler that is there, a folder in minirt's cache, a checksum) and the types by which
fast_cpu.py calls what came out. What it is not: needed. Where there is no compiler, no Linux or no room, `kernels`
says why and the plain path runs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .weights import cache_dir

KERNEL_DTYPES = {torch.bfloat16: ["-DBF16"], torch.float32: []}
# Sums may be taken in any order (that is what makes them fast); NaN and infinity keep their meaning.
FLAGS = ["-O3", "-march=native", "-shared", "-fPIC", "-fno-math-errno"]
FLAGS += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
# Scratch comes in multiples of TILE tokens (decode) and KEYS tokens (prompts); FEW_ROWS: what the product kernel takes.
TILE, KEYS, FEW_ROWS = 16, 64, 96
SIZES_AS_FLAGS = [f"-DTILE={TILE}", f"-DKEYS={KEYS}", f"-DFEW_ROWS={FEW_ROWS}"]
PATIENCE = 30.0  # seconds for a compiler that needs one or two


P, N = ctypes.c_void_p, ctypes.c_long


POINTERS = ("x", "normed", "attended", "active", "keys", "values", "cos", "sin", "places", "tables", "lens", "scores")
SIZES = ("rows", "decodes", "hidden", "inner", "kv_heads", "block_size", "width", "stride", "layer_size")
FIELDS: list[tuple[str, Any]] = [(name, P) for name in POINTERS] + [(name, N) for name in SIZES]
FIELDS += [("eps", ctypes.c_float), ("scale", ctypes.c_float), ("threads", ctypes.c_int)]


class Step(ctypes.Structure):
    """What every kernel of one forward is told: Step of fast_cpu.c, which says what each field is."""

    _fields_ = FIELDS


S = ctypes.POINTER(Step)
SIGNATURES: dict[str, list[Any]] = {
    "add_rms_norm": [S, P, P],
    "silu_mul": [S, P],
    "attend": [S, P, N],
    "first_largest": [P, P, N, N, ctypes.c_int],
    "paged_prefill": [S, P, N, N, N, N, P, P],
    "few_rows": [P, P, P, P, N, N, N, ctypes.c_int],
}
WIDE = ("paged_prefill", "few_rows")  # those that only processors with AVX512-BF16 have


class Kernels(NamedTuple):
    """The library, or None and why there is none."""

    library: ctypes.CDLL | None
    why_not: str = ""


@functools.cache
def kernels(dtype: torch.dtype, head_dim: int, group: int) -> Kernels:
    """fast_cpu.c compiled for a dtype, a head size and a number of query heads a key head."""
    if sys.platform != "linux":
        return Kernels(None, f"the kernels are built on Linux only, this is {sys.platform}")
    if dtype not in KERNEL_DTYPES:
        return Kernels(None, f"there are no kernels for {str(dtype).removeprefix('torch.')}")
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if compiler is None:
        return Kernels(None, "there is no C compiler (cc, gcc or clang)")
    flags = [*FLAGS, *KERNEL_DTYPES[dtype], f"-DHEAD_DIM={head_dim}", f"-DGROUP={group}", *SIZES_AS_FLAGS, *_openmp()]
    try:
        library = ctypes.CDLL(str(_built(compiler, flags)))
        for name, types in SIGNATURES.items():
            function = getattr(library, name, None) if name in WIDE else getattr(library, name)
            if function is not None:
                function.argtypes, function.restype = types, None
    except subprocess.CalledProcessError as e:
        lines = e.stderr.decode(errors="replace").strip().splitlines()
        return Kernels(None, f"{compiler} failed: {lines[0] if lines else f'exit status {e.returncode}'}")
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as e:
        return Kernels(None, f"the kernels could not be built with {compiler}: {e}")
    return Kernels(library)


def _built(compiler: str, flags: list[str]) -> Path:
    """The compiled library in minirt's cache, built if it is not there or not what was written."""
    source = Path(__file__).with_name("fast_cpu.c")
    # A home folder may be shared by machines: what -march=native made for one must not run on another.
    key = [*(part.read_text() for part in sorted(source.parent.glob("fast_cpu*.c"))), compiler, *flags, _cpu()]
    name = f"fast_cpu-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.so"
    path = cache_dir() / "kernels" / name
    if _whole(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, name)
        command = [compiler, *flags, str(source), "-o", str(made), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        with made.open("r+b") as file:
            digest = hashlib.sha256(file.read()).digest()
            file.write(digest)  # behind the end, where the loader does not look
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)  # whole or not there, also with two processes at it
    return path


def _whole(path: Path) -> bool:
    """Whether the file is what _built wrote: loading one that was cut short kills the process."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def _openmp() -> list[str]:
    """Threads only if they are torch's: a second OpenMP would keep its own threads, and the two would spin for cores."""
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return []
    return ["-fopenmp"]


def _cpu() -> str:
    """What tells one kind of processor from another: its flags, as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
