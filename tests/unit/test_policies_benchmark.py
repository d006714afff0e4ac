"""The comparison of policies runs as its docstring says, and the simulator decides what the engine decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "benchmarks/scenarios/policies.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": ".", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, SCRIPT, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_five_policies_real_and_simulated() -> None:
    sizes = ["--requests", "6", "--slots", "3", "--longest", "8", "--blocks", "48", "--max-model-len", "512"]
    done = run(*sizes, "--dtype", "float32", "--simulate", "H100", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    rows = {r["policy"]: r for r in report["results"]}
    assert list(rows) == ["static", "orca max", "orca oracle", "tgi", "mini-runtime", "vllm"]
    assert len({r["tokens"] for r in rows.values()}) == 1 and all(r["served"] == 6 for r in rows.values())
    assert all(r["same_decisions"] for r in rows.values())
    assert all(r["tokens_per_s"] == pytest.approx(r["tokens"] / r["seconds"]) for r in rows.values())
    assert all(r["simulated_tokens_per_s"] > 10 * r["tokens_per_s"] for r in rows.values())  # a CPU is no H100
    assert rows["static"]["wasted"] > 0 and all(r["wasted"] == 0 for k, r in rows.items() if k != "static")
    assert rows["orca max"]["decode_steps"] > rows["orca oracle"]["decode_steps"]  # its reservations leave 1 slot of 3
    assert rows["orca max"]["kv_valid"] < rows["orca oracle"]["kv_valid"] < rows["vllm"]["kv_valid"]
    assert "static:" in done.stderr and "vllm:" in done.stderr  # progress bars


def test_settings_that_make_no_sense() -> None:
    done = run("--slots", "0")
    assert done.returncode == 2 and "--slots must be at least 1" in done.stderr
    done = run("--requests", "1", "--longest", "2", "--simulate", "abacus", "--quiet")
    assert done.returncode == 1 and "unknown hardware 'abacus'" in done.stderr and "Traceback" not in done.stderr
