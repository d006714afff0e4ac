"""Writes constraints.txt: the exact version of everything that minirt and its extras pull in, as installed right here.

For maintainers, after trying newer releases: .venv/bin/python scripts/freeze.py > constraints.txt
A package that no longer supports the lowest Python we admit is pinned for newer Pythons only (a marker says so);
there pip picks, inside pyproject.toml's ranges, the last release that still does.
"""

from __future__ import annotations

import importlib.metadata as metadata
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOWEST = "3.10.0"
HEAD = """\
# The set this course is tested with, written by scripts/freeze.py. pyproject.toml holds the ranges.
# On Linux this torch comes from PyPI as a CUDA build; on macOS it is the build with MPS.
"""


def closure(requirements: list[str]) -> list[metadata.Distribution]:
    """Every installed distribution that the requirements pull in on this machine, by name."""
    found: dict[str, metadata.Distribution] = {}
    todo = [r for r in map(Requirement, requirements) if r.marker is None or r.marker.evaluate()]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        found[name] = distribution = metadata.distribution(requirement.name)
        for text in distribution.requires or []:
            needed = Requirement(text)
            wanted = extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in wanted):
                todo.append(needed)
    return [found[name] for name in sorted(found)]


def pin(distribution: metadata.Distribution) -> str:
    """One line of constraints.txt. A local version (torch's +cpu) names a build, not a release, and is left off."""
    name, version = canonicalize_name(distribution.name), distribution.version.split("+")[0]
    needs = distribution.metadata.get("Requires-Python")
    if needs and not SpecifierSet(needs).contains(LOWEST):
        return f'{name}=={version}; python_version >= "3.11"'
    return f"{name}=={version}"


def main() -> None:
    """Prints the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [r for group in project["optional-dependencies"].values() for r in group]
    print(HEAD + "\n".join(pin(distribution) for distribution in closure(wanted)))


if __name__ == "__main__":
    main()
