"""The READMEs tell the truth: their code runs, their links lead somewhere, and both say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minirt import POLICIES

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh-CN.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", read(name), re.S)


def run(code: str, where: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=where, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_ten_lines_run(tmp_path: Path) -> None:
    code = blocks("README.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    answer, steps = run(code, tmp_path).strip().splitlines()
    assert "5" in answer and answer.endswith("stop")
    static, continuous = map(int, re.findall(r"\d+", steps))
    assert continuous < static
    assert (tmp_path / "compare.html").stat().st_size > 10_000


def test_the_policy_of_one_s_own_runs(tmp_path: Path) -> None:
    out = run(blocks("README.md")[1], tmp_path)
    assert out.startswith("shortest-first: 60 of 60 requests, 510 tokens")


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", read(name)) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", READMES)
def test_every_chapter_policy_and_make_target_named_is_there_and_none_is_missing(name: str) -> None:
    text = read(name)
    chapters = {f"chapters/{p.name}" for p in (ROOT / "chapters").glob("*.ipynb")}
    assert set(re.findall(r"\]\((chapters/[^)]+)\)", text)) == chapters
    assert {p for p in POLICIES if f'| `"{p}"` |' in text} == set(POLICIES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake (lab|test|help|bench|[a-z]+-[a-z]+)\b", text)) <= targets


def test_both_have_the_same_code_and_the_same_parts() -> None:
    def bare(name: str) -> list[str]:
        return [re.sub(r"  # .*", "", block) for block in blocks(name)]

    assert bare("README.md") == bare("README.zh-CN.md")
    for mark in (r"^#+ ", r"^\| ", r"^```"):
        assert len(re.findall(mark, read(READMES[0]), re.M)) == len(re.findall(mark, read(READMES[1]), re.M))
