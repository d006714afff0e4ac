"""How much memory is free, so that a KV pool that can't fit is refused with numbers."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device, or None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch's own allocator holds and does not use is free to us as well.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    limits = [b for b in (_available(), _cgroup_free()) if b is not None]
    return min(limits) if limits else None


def _available() -> int | None:
    """Free memory of the machine: Linux counts what caches would give back; elsewhere all there is."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _cgroup_free() -> int | None:
    """What a container's limit leaves (cgroup v2), where there is one."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return None
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        used = int((root / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
        return max(int(limit) - used, 0)
    except (OSError, ValueError):
        return None
