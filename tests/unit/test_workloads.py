"""Workloads: seeded, the same everywhere, distributed as they say, and clear about what they can't read."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev

import pytest

from minirt import workloads as w
from minirt.errors import ConfigError, RequestError

N = 20_000


def draws(lengths: w.Lengths, n: int = N) -> list[int]:
    rng = Random(7)
    return [lengths(rng) for _ in range(n)]


def gaps(arrivals: w.Arrivals, n: int = N) -> list[float]:
    times = arrivals(Random(7), n)
    assert times == sorted(times)
    return [b - a for a, b in zip([0.0, *times], times)]


def test_the_article() -> None:
    requests = w.article()
    lengths = [r.max_new_tokens for r in requests]
    assert len(lengths) == 60 and sum(lengths) == 510 and set(lengths) <= set(range(4, 13))
    assert all(len(r.prompt_ids or ()) == 1 and r.ignore_eos and r.arrival == 0 for r in requests)
    rng = Random(2024)
    assert lengths == [rng.randint(4, 12) for _ in range(60)]


def test_length_distributions() -> None:
    assert set(draws(w.uniform(3, 6))) == {3, 4, 5, 6}
    assert set(draws(w.constant(9), 10)) == {9}
    e = draws(w.exponential(100))
    assert mean(e) == pytest.approx(100.5, rel=0.05) and median(e) == pytest.approx(100 * math.log(2), rel=0.05)
    assert max(draws(w.exponential(100, cap=128))) == 128
    ln = draws(w.lognormal(50, 1.0))
    assert median(ln) == pytest.approx(50.5, rel=0.05) and mean(ln) == pytest.approx(50 * math.exp(0.5), rel=0.05)
    assert set(draws(w.choice([8, 512], [9, 1]), 100)) == {8, 512}
    assert min(draws(w.exponential(0.01))) == 1


@pytest.mark.parametrize(
    "table", [w.AZURE_CONV_PROMPT, w.AZURE_CONV_OUTPUT, w.AZURE_CODE_PROMPT, w.AZURE_CODE_OUTPUT], ids=lambda t: t.name
)
def test_percentile_tables_come_back_out(table: w.PercentileTable) -> None:
    values = sorted(draws(table, 50_000))
    for percent, tokens in table.points[1:-1]:
        assert table.quantile(percent) == pytest.approx(tokens)
        below = values[int(len(values) * max(0.0, percent - 0.5) / 100)]
        above = values[min(len(values) - 1, int(len(values) * (percent + 0.5) / 100))]
        assert below <= tokens <= above + 1
    assert table.mean is not None and mean(values) == pytest.approx(table.mean, rel=0.03)
    assert table.points[0][1] <= values[0] and values[-1] <= table.points[-1][1]


def test_percentile_tables_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match="must rise"):
        w.PercentileTable("x", ((0, 5), (50, 3), (100, 9)))
    with pytest.raises(ConfigError, match="mean=100"):
        _ = w.PercentileTable("x", ((0, 5), (100, 9)), mean=100).bend
    assert w.PercentileTable("x", ((0, 10), (100, 20))).quantile(50) == 15


def test_arrival_processes() -> None:
    p = gaps(w.poisson(4.0))
    assert mean(p) == pytest.approx(0.25, rel=0.03) and pstdev(p) / mean(p) == pytest.approx(1, rel=0.05)
    b = gaps(w.bursty(4.0, cv=3))
    assert mean(b) == pytest.approx(0.25, rel=0.1) and pstdev(b) / mean(b) == pytest.approx(3, rel=0.1)
    assert gaps(w.evenly(2.0), 4) == [0.0, 0.5, 0.5, 0.5]
    assert w.at_once()(Random(0), 3) == [0.0] * 3
    with pytest.raises(ConfigError, match="rate=0"):
        w.poisson(0)


def test_the_same_on_every_machine() -> None:
    """Pinned: these came out of CPython 3.11 on Linux, and must come out of every other."""
    requests = w.make_requests(4, w.lognormal(20, 1.0), w.exponential(30), w.poisson(2.0), seed=3, vocab_size=50)
    assert [len(r.prompt_ids or ()) for r in requests] == [25, 16, 52, 38]
    assert [r.max_new_tokens for r in requests] == [26, 8, 131, 72]
    assert [r.arrival for r in requests] == [0.247619, 0.679857, 0.884682, 1.214092]
    assert list(requests[0].prompt_ids or ())[:6] == [17, 17, 10, 5, 40, 19]


def test_seeds_and_streams() -> None:
    a = w.make_requests(50, w.uniform(1, 99), w.uniform(1, 99), w.poisson(1.0), seed=1)
    assert a == w.make_requests(50, w.uniform(1, 99), w.uniform(1, 99), w.poisson(1.0), seed=1)
    assert a != w.make_requests(50, w.uniform(1, 99), w.uniform(1, 99), w.poisson(1.0), seed=2)
    other = w.make_requests(50, w.uniform(1, 99), w.uniform(1, 99), w.bursty(1.0), seed=1)
    assert [r.arrival for r in a] != [r.arrival for r in other]
    assert [(r.prompt_ids, r.max_new_tokens) for r in a] == [(r.prompt_ids, r.max_new_tokens) for r in other]


def test_make_requests_takes_lists_numbers_and_options() -> None:
    got = w.make_requests(prompt=[3, 5], output=[7, 9], arrivals=[0.0, 2.5], temperature=0.5, ignore_eos=False)
    assert [(len(r.prompt_ids or ()), r.max_new_tokens, r.arrival) for r in got] == [(3, 7, 0.0), (5, 9, 2.5)]
    assert all(r.temperature == 0.5 and not r.ignore_eos for r in got)
    assert len(w.make_requests(2, 3, 4)) == 2
    with pytest.raises(ConfigError, match="needs n="):
        w.make_requests(prompt=3)
    with pytest.raises(ConfigError, match="output"):
        w.make_requests(3, output=[1, 2])
    with pytest.raises(RequestError, match="max_new_tokens=0"):
        w.make_requests(1, output=0)


def test_shared_prefix() -> None:
    got = w.shared_prefix(5, prefix=40, prompt=8, output=4)
    prompts = [r.prompt_ids or () for r in got]
    assert len({tuple(p[:40]) for p in prompts}) == 1
    assert len({tuple(p[40:]) for p in prompts}) == 5
    assert {len(p) for p in prompts} == {48}


def test_azure_like() -> None:
    got = w.azure_like(300, "code", w.poisson(5.0), seed=2)
    assert len(got) == 300 and median(r.max_new_tokens for r in got) == pytest.approx(13, abs=4)
    with pytest.raises(ConfigError, match="'chat'.*conv, code"):
        w.azure_like(3, "chat")


HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROWS = [
    "2023-11-16 18:15:46.6805900,374,44\r\n",
    "2023-11-16 18:15:47.1805900,5000,109\r\n",
    "2023-11-16 18:16:46.6805900,20,6",  # the published file has no line end here
]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode())
    return path


def test_azure_csv(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "".join(ROWS))
    got = w.read_azure_csv(path)
    shape = [(len(r.prompt_ids or ()), r.max_new_tokens, r.arrival) for r in got]
    assert shape == [(374, 44, 0.0), (5000, 109, 0.5), (20, 6, 60.0)]
    assert [r.arrival for r in w.read_azure_csv(path, time_scale=0.5)] == [0.0, 0.25, 30.0]
    assert [r.max_new_tokens for r in w.read_azure_csv(path, 1)] == [44]
    assert [r.max_new_tokens for r in w.read_azure_csv(path, max_total=4096)] == [44, 6]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n1,2,3\n", r"line 1: columns"),
        ("", r"line 1: columns"),
        (HEAD + ROWS[0] + "2023-11-16 18:15:47,12\n", r"line 3: 2 fields"),
        (HEAD + ROWS[0] + "yesterday,12,3\n", r"line 3: TIMESTAMP 'yesterday'"),
        (HEAD + ROWS[0] + "2023-11-16 18:15:47.1,twelve,3\n", r"line 3: ContextTokens 'twelve'"),
        (HEAD + ROWS[0] + "2023-11-16 18:15:47.1,12,0\n", r"line 3: GeneratedTokens '0'"),
        (HEAD + ROWS[2] + "\n" + ROWS[0], r"line 3: TIMESTAMP .* earlier"),
        (HEAD, r"no requests"),
    ],
)
def test_azure_csv_names_the_line_at_fault(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        w.read_azure_csv(write(tmp_path, text))


def test_azure_csv_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        w.read_azure_csv(tmp_path / "nothing.csv")
