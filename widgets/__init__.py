"""Widgets that animate minirt's runs in JupyterLab. They draw from the Trace alone.

Player(run, *, lang="zh", mode="start", title="", speed=4)
    .to_html(path) -> Path                a page that plays without kernel or network
Compare(a, b, *, names=None, lang="zh", clock="time", title="")
    .to_html(path) -> Path
"""

from __future__ import annotations

from .compare import Compare
from .player import Player

__all__ = ["Compare", "Player"]
