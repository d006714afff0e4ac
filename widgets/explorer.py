"""RooflineExplorer: equation (3) with sliders: both terms, the ridge, and where KV overtakes the weights."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

from minirt import roofline as r

from . import _still as still
from ._assets import check_lang, translate
from ._forms import Card, Styled, within
from ._plot import Plot, quantity, size, tile

BLUE, AMBER, GREEN = "var(--mrt-blue,#0072b2)", "var(--mrt-amber,#e69f00)", "var(--mrt-green,#009e73)"
RED, PURPLE = "var(--mrt-red,#d55e00)", "var(--mrt-purple,#7a68b3)"
BATCHES: list[float] = [2 ** (k / 8) for k in range(0, 8 * 12 + 1)]  # 1 to 4096


class RooflineExplorer(Card):
    """How long a decode step takes, and which of computing and memory sets it.

    model, hardware: presets by name, or objects of your own (ModelShape, Hardware).
    batch, context: where to begin (batch up to 4096).
    Raises ConfigError where they are below 1 or not whole.
    """

    def __init__(
        self,
        model: Any = "Qwen2.5-0.5B",
        hardware: Any = "A100-80GB",
        *,
        batch: int = 16,
        context: int = 1024,
        lang: str = "zh",
    ) -> None:
        self.lang = check_lang(lang)
        within("batch", batch, 1, BATCHES[-1])
        within("context", context, 1, 10_000_000)
        wide = w.Layout(width="auto")
        self.model = chooser(self._t("model"), r.MODELS, r.get_model(model))
        self.hardware = chooser(self._t("hardware"), r.HARDWARE, r.get_hardware(hardware))
        self.batch = w.SelectionSlider(
            description=self._t("batch"), options=sorted({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, batch}),
            value=batch, layout=wide, style=STYLE, continuous_update=True,
        )  # fmt: skip
        self.context = w.SelectionSlider(
            description=self._t("context"), options=sorted({128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, context}),
            value=context, layout=wide, style=STYLE, continuous_update=True,
        )  # fmt: skip
        self._body = Styled()
        controls = [w.VBox([self.model, self.hardware]), w.VBox([self.batch, self.context])]
        form = w.HBox(controls)
        form.add_class("mrt-columns-box")
        head = Styled()
        head.show(f"<h2>{self._t('title')}</h2>")
        super().__init__([head, form, self._body])
        for control in (self.model, self.hardware, self.batch, self.context):
            control.observe(lambda _: self._update(), "value")
        self._update()

    def _t(self, key: str, **values: object) -> str:
        return translate(self.lang, f"roof.{key}", **values)

    def _update(self) -> None:
        self._body.show(
            self._tiles() + f'<div class="mrt-plots">{self._time().svg()}{self._rate().svg()}</div>' + self._equation()
        )

    def _now(self) -> Any:
        return r.decode_time(self.batch.value, self.context.value, self.hardware.value, self.model.value)

    def _tiles(self) -> str:
        now, hw, model = self._now(), self.hardware.value, self.model.value
        rate = r.throughput(self.batch.value, self.context.value, hw, model)
        ridge = r.ridge_batch(hw, model.bytes_per_element)
        over = r.kv_overtakes_weights(self.context.value, model)
        tiles = [
            tile(self._t("step"), f"{quantity(now.total * 1e3)} ms", self._t(f"bound_{now.bound}")),
            tile(self._t("compute"), f"{quantity(now.compute * 1e3)} ms"),
            tile(
                self._t("memory"), f"{quantity(now.memory * 1e3)} ms", f"{self._t('kv_step')} {now.kv / now.memory:.1%}"
            ),
            tile(self._t("tps"), quantity(rate)),
            tile(self._t("ridge"), quantity(ridge), self._t("rows")),
            tile(self._t("overtakes"), f"B = {quantity(over)}", f"L = {self.context.value:,}"),
        ]
        return f'<div class="mrt-tiles">{"".join(tiles)}</div>'

    def _curves(self) -> list[Any]:
        return [r.decode_time(b, self.context.value, self.hardware.value, self.model.value) for b in BATCHES]

    def _marks(self) -> list[tuple[str, float, str, int]]:
        ridge = r.ridge_batch(self.hardware.value, self.model.value.bytes_per_element)
        over = r.kv_overtakes_weights(self.context.value, self.model.value)
        return [
            (f"{self._t('ridge')} = {quantity(ridge)}", ridge, RED, 0),
            (f"{self._t('overtakes')} {quantity(over)}", over, PURPLE, 1),
        ]

    def _time(self) -> Plot:
        curves = self._curves()
        plot = Plot(
            self._t("ms"), BATCHES, self._t("batch"), marks=self._marks(), floor=min(c.weights for c in curves) * 1e2
        )
        plot.curves = [
            ("", "var(--mrt-fg,#1b1f24)", 7, "", [c.total * 1e3 for c in curves]),
            (self._t("compute"), AMBER, 2, "", [c.compute * 1e3 for c in curves]),
            (self._t("memory"), BLUE, 2, "", [c.memory * 1e3 for c in curves]),
            (self._t("weights"), BLUE, 1.5, "2 3", [c.weights * 1e3 for c in curves]),
            (self._t("kv"), BLUE, 1.5, "7 3", [c.kv * 1e3 for c in curves]),
        ]
        name, _, width, dash, ys = plot.curves[0]
        plot.curves[0] = (name, "var(--mrt-line,#d9dee5)", width, dash, ys)
        plot.point = (self.batch.value, self._now().total * 1e3)
        return plot

    def _rate(self) -> Plot:
        curves = self._curves()
        plot = Plot(self._t("tps"), BATCHES, self._t("batch"), marks=self._marks())
        plot.curves = [("", GREEN, 2.5, "", [b / c.total for b, c in zip(BATCHES, curves)])]
        plot.point = (self.batch.value, self.batch.value / self._now().total)
        return plot

    def _equation(self) -> str:
        hw, m, b, length = self.hardware.value, self.model.value, self.batch.value, self.context.value
        now = self._now()
        return (
            '<div class="mrt-equation"><i>T</i>(<i>B</i>, <i>L</i>) = max( 2<i>N B</i> / peak, '
            "(<i>N</i>·bytes + <i>B L</i>·kv) / bandwidth )<br>"
            f"= max( 2 × {m.params:,} × {b:,} / {hw.peak_flops / 1e12:g}T, "
            f"({size(m.weight_bytes)} + {b:,} × {length:,} × {size(m.kv_bytes_per_token)}) / {size(hw.bandwidth)}/s )<br>"
            f"= max( <b>{quantity(now.compute * 1e3)} ms</b>, <b>{quantity(now.memory * 1e3)} ms</b> ) "
            f"= <b>{quantity(now.total * 1e3)} ms</b></div>"
        )

    def plain(self) -> str:
        return (
            f"RooflineExplorer(model={self.model.value.name}, hardware={self.hardware.value.name}, "
            f"batch={self.batch.value}, context={self.context.value})"
        )

    def picture(self) -> str:
        now = self._now()
        words = (
            f"{self.model.value.name} · {self.hardware.value.name} · B = {self.batch.value} · L = {self.context.value} · "
            f"{self._t('step')} {quantity(now.total * 1e3)} ms · {self._t(f'bound_{now.bound}')}"
        )
        plots = ((self._time(), 0), (self._rate(), 450))
        parts = [f'<g transform="translate({x} 4) scale(.97)">{plot.svg()}</g>' for plot, x in plots]
        return still.heading(self._t("title"), words) + still.img(still.svg(still.WIDTH, 290, parts), self.plain())


STYLE = {"description_width": "112px"}


def chooser(description: str, presets: dict[str, Any], value: Any) -> w.Dropdown:
    """A dropdown over presets, and the object given where it is none of them."""
    options = dict(presets) if value in presets.values() else {value.name: value, **presets}
    return w.Dropdown(
        description=description, options=list(options.items()), value=value, layout=w.Layout(width="auto"), style=STYLE
    )
