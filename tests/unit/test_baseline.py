"""The baseline benchmark runs as its docstring says, and what it says of each engine adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "benchmarks/scenarios/baseline.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": ".", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, SCRIPT, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_four_engines_on_the_same_requests() -> None:
    done = run("--requests", "4", "--slots", "2", "--longest", "12", "--dtype", "float32", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    static, continuous, their_static, their_continuous = report["results"]
    tokens = report["workload"]["output_tokens"]
    assert {r["tokens"] for r in report["results"]} == {tokens}
    assert static["decode_steps"] == their_static["decode_steps"] == report["workload"]["static_total"]
    assert report["workload"]["lower_bound"] <= continuous["decode_steps"] <= static["decode_steps"]
    assert static["occupancy"] == pytest.approx(tokens / (2 * static["decode_steps"]))
    assert static["occupancy"] == pytest.approx(their_static["occupancy"])
    assert 0 < continuous["kv_fragmentation"] < static["kv_fragmentation"] < 1
    for r in report["results"]:
        assert r["tokens_per_s"] == pytest.approx(r["tokens"] / r["seconds"])
        for name in ("ttft", "tpot"):
            assert 0 < r[name]["p50"] <= r[name]["p90"] <= r[name]["p99"] < r["seconds"]
    # In float32 all four say the same, so all have done the same work.
    assert set(report["same_answers"].values()) == {1.0}
    assert their_continuous["engine"] == "transformers continuous"
    assert report["speedup"]["continuous_over_static"] == pytest.approx(
        continuous["tokens_per_s"] / static["tokens_per_s"]
    )
    for name in ("static:", "vllm:", "transformers generate:", "transformers continuous:"):  # progress bars, on stderr
        assert name in done.stderr


def test_settings_that_make_no_sense() -> None:
    done = run("--requests", "0")
    assert done.returncode == 2 and "--requests must be at least 1" in done.stderr
    done = run("--no-peers", "--quiet", "--policy", "vlm", "--requests", "1", "--longest", "2")
    assert done.returncode == 1 and "unknown policy 'vlm'; known are" in done.stderr
    assert "Traceback" not in done.stderr
