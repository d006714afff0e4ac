"""Widgets that animate minirt's runs in JupyterLab. They draw from the Trace alone.

Player(run, *, lang="zh", mode="start", title="", speed=None, at_end=False)
    .to_html(path) -> Path                a page that plays without kernel or network
Compare(a, b, *, names=None, lang="zh", clock="time", title="")
    .to_html(path) -> Path
predict(question, answer=None, *, choices=None, unit="", low=None, high=None, x=None, x_label="", y_label="",
        y_max=None, explain="", guess=None, lang="zh") -> Prediction
    .reveal(answer=None) -> Reveal        in a later cell, when the answer is known
    .lock(guess=None), .skip(), .guess, .truth, .locked
"""

from __future__ import annotations

from .compare import Compare
from .explorer import RooflineExplorer
from .kvcalc import KVCalculator
from .live import LiveRun
from .player import Player
from .policylab import PolicyLab
from .predict import Prediction, predict

__all__ = ["Compare", "KVCalculator", "LiveRun", "Player", "PolicyLab", "Prediction", "RooflineExplorer", "predict"]
