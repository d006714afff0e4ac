"""KVCalculator: equation (2): how many requests fit in a batch, and whether memory, compute or latency says so."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import ipywidgets as w

from minirt import roofline as r

from . import _still as still
from ._assets import check_lang, translate
from ._forms import Card, Styled, within
from ._plot import quantity, size, tile
from .explorer import chooser

MOST_TOKENS, MOST_BUDGET, MOST_BLOCK = 131_072, 1_000_000, 1024  # what the controls go up to
STYLE = {"description_width": "160px"}


class KVCalculator(Card):
    """B_max = min(memory, compute, SLO) for requests of given lengths, with every number on the way.

    model, hardware: presets by name, or objects of your own. prompt, output: tokens of a request. tpot_ms: the latency
    limit of a decode step (0: none). budget: prompt tokens a step may compute (0: no limit). block_size: tokens a block.
    Raises ConfigError for a value that its control does not reach.
    """

    def __init__(
        self,
        model: Any = "Qwen2.5-0.5B",
        hardware: Any = "A100-80GB",
        *,
        prompt: int = 512,
        output: int = 256,
        tpot_ms: float = 20.0,
        budget: int = 8192,
        memory_fraction: float = 0.9,
        block_size: int = 16,
        lang: str = "zh",
    ) -> None:
        self.lang = check_lang(lang)
        for name, value, low, high in (
            ("prompt", prompt, 1, MOST_TOKENS),
            ("output", output, 1, MOST_TOKENS),
            ("budget", budget, 0, MOST_BUDGET),
            ("block_size", block_size, 1, MOST_BLOCK),
        ):
            within(name, value, low, high)
        within("tpot_ms", tpot_ms, 0, 1e5, whole=False)
        within("memory_fraction", memory_fraction, 0.3, 1.0, whole=False)
        self.model = chooser(translate(lang, "roof.model"), r.MODELS, r.get_model(model))
        self.hardware = chooser(translate(lang, "roof.hardware"), r.HARDWARE, r.get_hardware(hardware))
        self.prompt = self._int("prompt", prompt, 1, MOST_TOKENS)
        self.output = self._int("output", output, 1, MOST_TOKENS)
        self.budget = self._int("budget", budget, 0, MOST_BUDGET)
        self.block_size = self._int("block", block_size, 1, MOST_BLOCK)
        wide = w.Layout(width="auto")
        self.tpot = w.BoundedFloatText(
            description=self._t("tpot"), value=tpot_ms, min=0, max=1e5, step=1, layout=wide, style=STYLE
        )
        self.fraction = w.FloatSlider(
            description=self._t("fraction"), value=memory_fraction, min=0.3, max=1.0, step=0.05, readout_format=".0%",
            layout=wide, style=STYLE,
        )  # fmt: skip
        self._body = Styled()
        form = w.HBox(
            [
                w.VBox([self.model, self.hardware, self.fraction, self.block_size]),
                w.VBox([self.prompt, self.output, self.tpot, self.budget]),
            ]
        )
        form.add_class("mrt-columns-box")
        head = Styled()
        head.show(f"<h2>{self._t('title')}</h2>")
        super().__init__([head, form, self._body])
        for control in (
            self.model,
            self.hardware,
            self.prompt,
            self.output,
            self.budget,
            self.block_size,
            self.tpot,
            self.fraction,
        ):
            control.observe(lambda _: self._update(), "value")
        self._update()

    def _t(self, key: str, **values: object) -> str:
        return translate(self.lang, f"kv.{key}", **values)

    def _int(self, key: str, value: int, low: int, high: int) -> w.BoundedIntText:
        return w.BoundedIntText(
            description=self._t(key), value=value, min=low, max=high, layout=w.Layout(width="auto"), style=STYLE
        )

    @property
    def limits(self) -> r.BatchLimits:
        """The three bounds, as minirt.roofline.batch_limits gives them."""
        return r.batch_limits(
            self.prompt.value, self.output.value, self.hardware.value, self.model.value,
            tpot=self.tpot.value / 1e3 or None, prefill_budget=self.budget.value or None,
            memory_fraction=self.fraction.value,
        )  # fmt: skip

    def _update(self) -> None:
        self._body.show(self._verdict() + self._bars() + self._tiles() + self._split() + self._equation())

    def _verdict_words(self) -> str:
        limits, model, hw = self.limits, self.model.value, self.hardware.value
        if limits.memory <= 0:
            gb = (f"{model.weight_bytes / 1e9:.1f}", f"{hw.memory / 1e9:.0f}")
            return self._t("too_big", w=gb[0], m=gb[1], f=f"{self.fraction.value:.0%}")
        if limits.max < 1:
            return f"{self._t(limits.binds)}: {self._t('nothing')}"
        return self._t("binds", what=self._t(limits.binds), n=f"{math.floor(limits.max):,}")

    def _verdict(self) -> str:
        return f'<div class="mrt-verdict-line">{escape(self._verdict_words())}</div>'

    def _bars(self) -> str:
        limits = self.limits
        finite = [v for v in (limits.memory, limits.compute, limits.slo) if 0 < v < math.inf]
        top = math.log10(max(finite, default=1) + 1)
        rows = ""
        for key in ("memory", "compute", "slo"):
            v = getattr(limits, key)
            bound = " is-bound" if key == limits.binds else ""
            none = math.isinf(v)
            share = 100 if none else 100 * math.log10(v + 1) / top if v > 0 else 0
            words = self._t("none") if none else f"{math.floor(v):,}"
            rows += (
                f'<span class="{bound}">{self._t(key)}</span>'
                f'<u class="{"is-none" if none else bound}" style="width:{share:.1f}%"></u><b class="{bound}">{words}</b>'
            )
        return f'<div class="mrt-limits">{rows}</div>'

    def _tiles(self) -> str:
        model = self.model.value
        full = self.prompt.value + self.output.value
        blocks = -(-full // self.block_size.value)
        room = max(0.0, self.hardware.value.memory * self.fraction.value - model.weight_bytes)
        total = int(room // (self.block_size.value * model.kv_bytes_per_token))
        tiles = [
            tile(self._t("per_token"), size(model.kv_bytes_per_token)),
            tile(
                self._t("per_request"),
                size(model.kv_bytes(full)),
                f"{full:,} token = {blocks:,} × {self.block_size.value}",
            ),
            tile(self._t("blocks"), f"{total:,}"),
        ]
        return f'<div class="mrt-tiles">{"".join(tiles)}</div>'

    def _shares(self) -> list[tuple[str, float, str, str]]:
        hw, weights = self.hardware.value, self.model.value.weight_bytes
        usable = hw.memory * self.fraction.value
        free = max(0.0, usable - weights)
        return [
            (self._t("weights"), min(weights, hw.memory), "#0072b2", "#fff"),
            (self._t("free"), free, "#009e73", "#fff"),
            (
                self._t("reserve"),
                max(0.0, hw.memory - max(usable, weights)),
                "var(--mrt-line,#d9dee5)",
                "var(--mrt-fg,#1b1f24)",
            ),
        ]

    def _split(self) -> str:
        whole = self.hardware.value.memory
        cells = "".join(
            f'<span style="flex:{v / whole:.4f} 1 0;background:{colour};color:{ink}" title="{name} {size(v)}">'
            f"{f'{name} {size(v)}' if v / whole > 0.09 else ''}</span>"
            for name, v, colour, ink in self._shares()
            if v > 0
        )
        return f'<div class="mrt-dim">{self._t("split")}</div><div class="mrt-split">{cells}</div>'

    def _equation(self) -> str:
        m = self.model.value
        return (
            f'<div class="mrt-equation">kv = {self._t("formula")} = '
            f"2 × {m.layers} × {m.kv_heads} × {m.head_size} × {m.bytes_per_element:g} = "
            f"<b>{m.kv_bytes_per_token:,.0f} B</b> / token</div>"
        )

    def plain(self) -> str:
        limits = self.limits
        return (
            f"KVCalculator(model={self.model.value.name}, hardware={self.hardware.value.name}, "
            f"prompt={self.prompt.value}, output={self.output.value}, binds={limits.binds}, max={quantity(limits.max)})"
        )

    def picture(self) -> str:
        limits = self.limits
        words = (
            f"{self.model.value.name} · {self.hardware.value.name} · {self._t('prompt')} {self.prompt.value} · "
            f"{self._t('output')} {self.output.value} · {self._t('per_token')} {size(self.model.value.kv_bytes_per_token)}"
        )
        parts = []
        finite = [v for v in (limits.memory, limits.compute, limits.slo) if 0 < v < math.inf]
        top = math.log10(max(finite, default=1) + 1)
        for n, key in enumerate(("memory", "compute", "slo")):
            v, y = getattr(limits, key), 6 + 32 * n
            bound = key == limits.binds
            wide = 520 * (1 if math.isinf(v) else math.log10(v + 1) / top if v > 0 else 0)
            fill = 'fill="#d55e00"' if bound else still.SOFT if math.isinf(v) else 'fill="#5b9cc7"'
            parts.append(still.text(0, y + 15, self._t(key), 14, weight=650 if bound else 400))
            parts.append(f'<rect x="210" y="{y}" width="{max(3, wide):.0f}" height="20" rx="4" {fill}/>')
            value = self._t("none") if math.isinf(v) else f"{math.floor(v):,}"
            parts.append(still.text(222 + wide, y + 15, value, 14, weight=650 if bound else 400))
        bars = still.img(still.svg(still.WIDTH, 102, parts), self.plain())
        return still.heading(self._t("title"), words) + bars + still.heading(self._verdict_words())
