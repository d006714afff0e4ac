"""The peer comparison's workload and table, without running any engine."""

from __future__ import annotations

from benchmarks import peers


def test_workload_is_what_it_says() -> None:
    prompts, lengths = peers.workload()
    assert len(prompts) == len(lengths) == 48
    assert sum(lengths) == 2081 and min(lengths) >= 8 and max(lengths) <= 192
    assert all(16 <= len(p) <= 96 for p in prompts)
    assert peers.workload() == (prompts, lengths)


def test_table_takes_medians_and_the_floor_of_our_own_steps() -> None:
    def round_of(seconds: float, floor: float | None = None) -> dict[str, object]:
        out: dict[str, object] = {"seconds": seconds, "tokens": 100, "ttft": 0.1, "tpot": 0.02}
        out |= {"peak_mb": 500.0, "load": 1.0}
        return out if floor is None else {**out, "floor": floor, "own": floor / 2}

    results = {"minirt": [round_of(2.0, 1.0), round_of(1.0, 0.8), round_of(4.0, 0.5)], "hf-static": [round_of(10.0)]}
    rows, text = peers.table(results)
    assert [r["tokens_per_s"] for r in rows] == [50.0, 10.0]
    assert (rows[0]["least"], rows[0]["most"]) == (25.0, 100.0)
    assert rows[0]["of_floor"] == 0.4 and rows[1]["of_floor"] == 0.08
    assert "| minirt, vllm policy | 50 (25 to 100) | 100 | 20.0 | 500 | 1.0 | 0.40 |" in text
    assert "floor: oneDNN's packed linears alone, over minirt's steps | 125 | | | | | 1.00 |" in text.splitlines()[-2]
    assert "minirt's own linears alone, over the same steps | 250 | | | | | 2.00 |" in text.splitlines()[-1]
