"""PolicyLab: turn the knobs of a scheduler and see at once what breaks, on the step clock, without weights."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets as w

import minirt
from minirt import lengths, workloads

from ._assets import check_lang, translate
from ._forms import Card, Styled
from .player import Player

STYLE = {"description_width": "112px"}
# What the table shows: key, how to get it from metrics, how to write it, and whether less is better (None: neither).
ROWS: list[tuple[str, Any, str, bool | None]] = [
    ("steps", lambda m: m.decode_steps, ",.0f", True),
    ("throughput", lambda m: m.tokens_per_step, ".2f", False),
    ("occupancy", lambda m: m.occupancy, ".1%", False),
    ("wasted", lambda m: m.wasted_rows, ",.0f", True),
    ("ttft", lambda m: m.ttft.mean, ".1f", True),
    ("ttft99", lambda m: m.ttft.p99, ".1f", True),
    ("tpot", lambda m: m.tpot.mean, ".2f", True),
    ("fragmentation", lambda m: m.fragmentation, ".1%", True),
    ("preemptions", lambda m: sum(m.preemptions.values()), ",.0f", True),
    ("failed", lambda m: sum(r.finish_reason in ("rejected", "aborted") for r in m.requests), ",.0f", True),
]


class PolicyLab(Card):
    """Choose a policy, the engine's limits and a workload; every change runs again in well under a second.

    policy: what to begin with: a name, or a class or object of your own, which joins the list. requests: your own
    workload (with prompt_ids), offered beside the built-in ones. Others: what the controls begin with.
    """

    def __init__(
        self,
        policy: Any = "vllm",
        *,
        requests: Iterable[minirt.Request] | None = None,
        max_batch_size: int = 8,
        num_blocks: int = 96,
        block_size: int = 8,
        workload: str | None = None,
        n: int = 24,
        rate: float = 0.0,
        seed: int = 0,
        lang: str = "zh",
    ) -> None:
        self.lang = check_lang(lang)
        self._own = list(requests) if requests is not None else None
        self._policies: dict[str, Any] = {name: name for name in minirt.POLICIES}
        if not isinstance(policy, str):
            self._policies[str(getattr(policy, "name", type(policy).__name__))] = policy
        chosen = policy if isinstance(policy, str) else next(reversed(self._policies))
        if chosen not in self._policies:
            raise ValueError(f"policy={chosen!r} is unknown; known are {', '.join(self._policies)}.")
        wide = w.Layout(width="auto")
        self.policy = w.Dropdown(
            description=self._t("policy"), options=list(self._policies), value=chosen, layout=wide, style=STYLE
        )
        self._options_box = w.VBox([])
        self._options: dict[str, w.Widget] = {}
        self.max_batch_size = self._slider("max_batch_size", max_batch_size, 1, 64)
        self.num_blocks = self._slider("num_blocks", num_blocks, 4, 512)
        self.block_size = self._slider("block_size", block_size, 1, 64)
        kinds = ["mixed", "same", "tail", "prompts", "prefix", "article"] + (["given"] if self._own else [])
        kind = workload or ("given" if self._own else "mixed")
        if kind not in kinds:
            raise ValueError(f"workload={kind!r} is unknown; known are {', '.join(kinds)}.")
        self.workload = w.Dropdown(
            description=self._t("kind"), options=[(self._t(k), k) for k in kinds], value=kind, layout=wide, style=STYLE
        )
        self.n = self._slider(self._t("count"), n, 1, 128)
        rates = sorted({0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, float(rate)})
        self.rate = w.SelectionSlider(
            description=self._t("rate"), options=[(self._t("at_once") if x == 0 else f"{x:g}", x) for x in rates],
            value=float(rate), layout=wide, style=STYLE, continuous_update=False,
        )  # fmt: skip
        self.seed = w.BoundedIntText(description=self._t("seed"), value=seed, min=0, max=9999, layout=wide, style=STYLE)
        self._table, self._error = Styled(), Styled()
        self.run: minirt.Run | None = None
        self.before: minirt.Run | None = None
        self._show_options()
        form = w.HBox(
            [
                self._column("policy", self.policy, self._options_box),
                self._column("engine", self.max_batch_size, self.num_blocks, self.block_size),
                self._column("workload", self.workload, self.n, self.rate, self.seed),
            ]
        )
        form.add_class("mrt-columns-box")
        self.player: Player | None = None
        self._stage = w.VBox([])
        head = Styled()
        head.show(f"<h2>{self._t('title')}</h2>")
        super().__init__([head, form, self._error, self._table, self._stage])
        self.policy.observe(lambda _: self._change_policy(), "value")
        for control in (
            self.max_batch_size,
            self.num_blocks,
            self.block_size,
            self.workload,
            self.n,
            self.rate,
            self.seed,
        ):
            control.observe(lambda _: self.update(), "value")
        self.update()

    # -- the form -------------------------------------------------------------------------------
    def _t(self, key: str, **values: object) -> str:
        return translate(self.lang, f"lab.{key}", **values)

    def _slider(self, description: str, value: int, low: int, high: int) -> w.IntSlider:
        return w.IntSlider(
            description=description, value=value, min=low, max=max(high, value), layout=w.Layout(width="auto"), style=STYLE,
            continuous_update=False,
        )  # fmt: skip

    def _column(self, head: str, *controls: w.Widget) -> w.VBox:
        title = Styled()
        title.show(f"<h4>{self._t(head)}</h4>")
        return w.VBox([title, *controls])

    def _change_policy(self) -> None:
        self._show_options()
        self.update()

    def _show_options(self) -> None:
        """A control for each number, switch and choice that the policy's constructor takes."""
        policy = self._policies[self.policy.value]
        maker = minirt.POLICIES.get(policy) if isinstance(policy, str) else policy if isinstance(policy, type) else None
        self._options = {}
        if maker is not None:
            hints = _hints(maker)
            for name, parameter in inspect.signature(maker).parameters.items():
                control = _control(name, parameter.default, hints.get(name))
                if control is not None:
                    control.observe(lambda _: self.update(), "value")
                    self._options[name] = control
        self._options_box.children = tuple(self._options.values())

    def requests(self) -> list[minirt.Request]:
        """The workload as the controls say."""
        n, seed, kind = self.n.value, self.seed.value, self.workload.value
        arrivals = workloads.poisson(self.rate.value) if self.rate.value else None
        if kind == "given":
            return list(self._own or [])
        if kind == "article":
            return workloads.article()
        prompt: Any = lengths.uniform(8, 40)
        output: Any = lengths.uniform(8, 64)
        extra: dict[str, Any] = {}
        if kind == "same":
            prompt, output = 16, 32
        elif kind == "tail":
            output = lengths.lognormal(16, 1.0, 160)
        elif kind == "prompts":
            prompt = lengths.uniform(128, 384)
        elif kind == "prefix":
            extra["shared_prefix"] = 64
        return workloads.make_requests(n, prompt, output, arrivals, seed=seed, **extra)

    # -- running --------------------------------------------------------------------------------
    def update(self) -> None:
        """Run again with what the controls say."""
        options = {name: control.value for name, control in self._options.items()}
        try:
            run = minirt.simulate(
                self._policies[self.policy.value], self.requests(), max_batch_size=self.max_batch_size.value,
                num_blocks=self.num_blocks.value, block_size=self.block_size.value, clock="step", **options,
            )  # fmt: skip
        except Exception as e:  # a policy of the learner's own may raise anything; the lab goes on with the run before
            self._error.show(f'<div class="mrt-error">{escape(f"{type(e).__name__}: {e}")}</div>')
            return
        self._error.show(self._refused(run))
        self.before, self.run = self.run, run
        self._table.show(self._metrics())
        if self.player is None:
            self.player = Player(run, lang=self.lang, mode="run", at_end=True)
            self._stage.children = (self.player,)
        else:
            self.player.show(run)

    def _refused(self, run: minirt.Run) -> str:
        """What was wrong with requests that the engine refused, where that is more than the run's own story."""
        errors = [out.error for out in run.outputs if out.finish_reason == "rejected" and out.error]
        if not errors or (self.workload.value != "given" and len(errors) < len(run.outputs)):
            return ""
        head = self._t("refused", n=len(errors), all=len(run.outputs))
        return f'<div class="mrt-error">{escape(f"{head}{errors[0]}")}</div>'

    def _metrics(self) -> str:
        assert self.run is not None
        now = self.run.metrics
        old = self.before.metrics if self.before else None
        cells = {"now": "", "before": "", "diff": ""}
        for _, get, form, less in ROWS:
            value = get(now)
            cells["now"] += f"<td>{_write(value, form)}</td>"
            was = get(old) if old else math.nan
            cells["before"] += f"<td>{_write(was, form)}</td>"
            cells["diff"] += self._difference(value - was, form, less)
        head = "".join(f"<th>{self._t(key)}</th>" for key, *_ in ROWS)
        rows = f'<tr class="is-now"><td>{self._t("now")}</td>{cells["now"]}</tr>'
        if old:
            rows += f"<tr><td>{self._t('before')}</td>{cells['before']}</tr>"
            rows += f"<tr><td>{self._t('diff')}</td>{cells['diff']}</tr>"
        return f'<div class="mrt-wide"><table class="mrt-metrics"><tr><th></th>{head}</tr>{rows}</table></div>'

    def _difference(self, d: float, form: str, less: bool | None) -> str:
        words = _write(d, "+" + form)
        if math.isnan(d) or abs(d) < 1e-9 or words.strip("+-0.,%") == "":
            return "<td>=</td>"
        better = (d < 0) == less
        # a sign as well as a colour, and words for who hears the page
        mark, key = ("▲", "better") if better else ("▼", "worse")
        return f'<td class="is-{key}" title="{self._t(key)}">{words} {mark}</td>'

    def plain(self) -> str:
        steps = self.run.metrics.decode_steps if self.run else None
        return (
            f"PolicyLab(policy={self.policy.value}, requests={len(self.run.outputs) if self.run else 0}, steps={steps})"
        )

    def picture(self) -> str | None:
        return self.player.picture() if self.player else None


def _write(value: float, form: str) -> str:
    return "–" if isinstance(value, float) and math.isnan(value) else format(value, form)


def _hints(maker: type) -> dict[str, Any]:
    """The constructor's annotations; where a name in one can't be found, none: the defaults still say enough."""
    try:
        return typing.get_type_hints(maker.__init__)  # type: ignore[misc]
    except Exception:  # annotations are a learner's code, and evaluating them may raise anything
        return {}


def _control(name: str, default: Any, hint: Any) -> w.Widget | None:
    look: dict[str, Any] = {
        "description": name,
        "layout": w.Layout(width="auto"),
        "style": {"description_width": "184px"},
    }
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if choices and default is not inspect.Parameter.empty:
        choices = choices if default in choices else (default, *choices)
        return w.Dropdown(options=choices, value=default, **look)
    if isinstance(default, bool):
        return w.Checkbox(value=default, indent=False, description=name, layout=look["layout"])
    if isinstance(default, int):
        return w.IntText(value=default, **look)  # no bounds: they would change a default outside them
    if isinstance(default, float) and math.isfinite(default):
        return w.FloatText(value=default, step=0.01, **look)
    return None
