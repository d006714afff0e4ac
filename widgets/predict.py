"""predict: commit a guess before the answer is shown; then see both side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets as w
import traitlets as t

from . import _guess
from ._assets import bundle, check_lang, styles, translate
from ._forms import Card, Styled, lines_picture, paragraph, wrap
from ._guess import short as _short


class CurveInput(anywidget.AnyWidget):
    """A curve the learner draws with the pointer (or with the arrow keys) over given x positions."""

    _esm = bundle("curve.js")
    _css = styles()
    x = t.List().tag(sync=True)
    y_max = t.Float(1.0).tag(sync=True)
    guess = t.List().tag(sync=True)  # one value an x, None where nothing was drawn yet
    truth = t.List().tag(sync=True)
    locked = t.Bool(False).tag(sync=True)
    _options = t.Dict().tag(sync=True)


class Prediction(Card):
    """A question with a guess to lock. Made by predict().

    guess: what the learner locked, or None. truth: the answer, once revealed. locked: whether the guess is.
    """

    def __init__(self, question: str, kind: str, options: dict[str, Any]) -> None:
        self.question, self.kind, self.options = question, kind, options
        self.lang: str = options["lang"]
        self.guess: Any = None
        self.truth: Any = None
        self.locked = False
        self._answer: Any = options["answer"]
        self._said = Styled()
        self.result = Styled()
        head = Styled()
        head.show(f'<div class="mrt-question"><b>{self._t("head")}</b>{paragraph(question)}</div>')
        self.input = _make_input(kind, options)
        self._field = _with_unit(self.input, options["unit"]) if kind == "number" else self.input
        self._lock = w.Button(description=self._t("lock"), button_style="primary", layout=w.Layout(width="auto"))
        self._skip = w.Button(description=self._t("skip"), layout=w.Layout(width="auto"))
        self._lock.on_click(lambda _: self.lock())
        self._skip.on_click(lambda _: self.skip())
        self._buttons = w.HBox([self._lock, self._skip])
        super().__init__([head, self._field, self._buttons, self._said, self.result])
        self.add_class("mrt-predict")
        self.layout.padding = "10px 16px"
        self.layout.border_left = "4px solid #1f6feb"

    def _t(self, key: str, **values: object) -> str:
        return translate(self.lang, f"predict.{key}", **values)

    # -- the guess ------------------------------------------------------------------------------
    def lock(self, guess: Any = None) -> None:
        """Commit the guess: the one given here, or what stands in the input. It can't be changed afterwards.

        ValueError where the guess is no answer to such a question; nothing is locked then.
        """
        if self.locked:
            return
        value = guess if guess is not None else self._current()
        if value is None:
            self._said.show(self._t("incomplete" if self.kind == "curve" else "choose"), "mrt-dim")
            return
        self.guess = _guess.check(self.kind, "guess", value, self.options)
        if guess is not None and self.kind == "curve":
            self.input.guess = self.guess
        elif guess is not None:
            self.input.value = self.guess
        self._close()

    def skip(self) -> None:
        """See the answer without a guess."""
        if not self.locked:
            self._close()

    def _close(self) -> None:
        self.locked = True
        if self.kind == "curve":
            self.input.locked = True
        else:
            self.input.disabled = True
            if self.kind == "number" and self.guess is None:  # what stands there is nobody's guess
                self._field.layout.display = "none"
        self._buttons.layout.display = "none"
        if self.guess is None:
            said = self._t("none")
        else:
            said = self._t("locked_curve") if self.kind == "curve" else self._t("locked", guess=self._words(self.guess))
        again = f' <span class="mrt-dim">{paragraph(self.options["again"])}</span>' if self.options["again"] else ""
        self._said.show(f"<b>{escape(said)}</b>{again}")
        self._settle()

    def _current(self) -> Any:
        if self.kind != "curve":
            return self.input.value
        drawn = list(self.input.guess)
        complete = len(drawn) == len(self.options["x"]) and all(v is not None for v in drawn)
        return drawn if complete else None

    # -- the answer -----------------------------------------------------------------------------
    def reveal(self, answer: Any = None) -> Reveal:
        """Give the answer (or use the one given to predict()), and show guess and truth side by side.

        Where the learner has not locked a guess yet, the answer waits until then. Nothing blocks: without a person
        (nbval, a whole notebook run at once) it simply goes on.
        """
        answer = self._answer if answer is None else answer
        if answer is None:
            raise ValueError("there is no answer yet: pass it, as in p.reveal(run.metrics.decode_steps).")
        self.truth = _guess.check(self.kind, "answer", answer() if callable(answer) else answer, self.options)
        self._answer = answer
        self._settle()
        return Reveal(self)

    def _settle(self) -> None:
        if self.locked and self.truth is None and self._answer is not None:
            self.reveal()
            return
        if self.truth is None:
            self.result.show(f'<p class="mrt-dim">{self._t("waiting")}</p>' if self.locked else "")
        elif not self.locked:
            self.result.show(f'<p class="mrt-dim">{self._t("first")}</p>')
        else:
            if self.kind == "curve":
                self.input.truth = self.truth
            self.result.show(self._side_by_side())

    def _side_by_side(self) -> str:
        verdict = self._verdict()
        explain = self.options["explain"]
        tail = f'<div class="mrt-verdict">{escape(verdict)} {paragraph(explain)}</div>'
        if self.kind == "curve":
            return tail
        top = max(abs(self.truth), abs(self.guess or 0)) or 1 if self.kind == "number" else 1

        def row(cls: str, name: str, value: Any) -> str:
            bar = "<span></span>"
            if self.kind == "number" and value is not None:
                bar = f'<u class="{cls}" style="width:{100 * abs(value) / top:.1f}%"></u>'
            words = self._t("none") if value is None else self._words(value)
            return f'<span class="mrt-dim">{name}</span>{bar}<b>{escape(words)}</b>'

        rows = row("is-guess", self._t("yours"), self.guess) + row("is-truth", self._t("truth"), self.truth)
        return f'<div class="mrt-versus">{rows}</div>{tail}'

    def _verdict(self) -> str:
        if self.guess is None:
            return ""
        if self.kind == "choice":
            return self._t("right" if self.guess == self.truth else "wrong")
        if self.kind == "number":
            return self._distance()
        gaps = [abs(a - b) for a, b in zip(self.guess, self.truth)]
        worst = self.options["x"][gaps.index(max(gaps))]
        return self._t("curve_off", diff=_short(sum(gaps) / len(gaps)), x=_short(worst))

    def _distance(self) -> str:
        """How far a number is off: two percentages in points, a factor of two or more as a factor, else in percent."""
        guess, truth = self.guess, self.truth
        if guess == truth:
            return self._t("right")
        if self.options["unit"] == "%":
            return self._t("off_points", diff=_short(abs(guess - truth)))
        diff = self._words(abs(guess - truth))
        if guess * truth <= 0:
            return self._t("off_only", diff=diff)
        times = max(guess / truth, truth / guess)
        if times >= 2:
            factor = f"{times:,.3g}"
            return self._t("too_big", times=factor) if abs(guess) > abs(truth) else self._t("too_small", times=factor)
        return self._t("off", diff=diff, share=f"{guess / truth - 1:+.0%}")

    def _words(self, value: Any) -> str:
        if self.kind == "curve":
            return ", ".join(_short(v) for v in value)
        if self.kind == "choice":
            return str(value)
        unit = self.options["unit"]
        return _short(value) + ("" if unit in ("", "%") else " ") + unit

    def plain(self) -> str:
        return f"Prediction(kind={self.kind}, question={self.question!r})"

    def picture(self) -> str:
        return lines_picture(self._t("head"), [*wrap(self.question), self._t("run")])


class Reveal(Card):
    """Where guess and truth stand side by side; shown by the cell that calls reveal()."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        children = [prediction.result]
        if prediction.kind == "curve":
            children.insert(0, prediction.input)
        super().__init__(children)

    def plain(self) -> str:
        return f"Reveal(truth={self.prediction._words(self.prediction.truth)})"

    def picture(self) -> str:
        p = self.prediction
        lines = wrap(p._t("answer", truth=p._words(p.truth))) + wrap(p.options["explain"])
        return lines_picture(p.question, lines)


def predict(
    question: str,
    answer: Any | Callable[[], Any] = None,
    *,
    choices: Sequence[str] | None = None,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    x: Sequence[float] | None = None,
    x_label: str = "",
    y_label: str = "",
    y_max: float | None = None,
    explain: str = "",
    guess: Any = None,
    again: str = "",
    lang: str = "zh",
) -> Prediction:
    """Ask before you show.

    A number: predict("how many steps?", unit="steps"); low= and high= make it a slider. A choice: choices=[...].
    A drawn curve: x=[...] (and y_max=, the axis). answer: the truth, or a function that works it out when it is
    needed, or nothing, and p.reveal(truth) in a later cell. explain: a sentence shown with the truth. guess: lock this
    one at once (for a notebook that shows how it works). again: what to do to guess anew, shown once a guess is locked.
    """
    check_lang(lang)
    for name, text in (("question", question), ("unit", unit), ("explain", explain), ("again", again)):
        _guess.words(name, text)
    if choices is not None and x is not None:
        raise ValueError("give choices= for a choice or x= for a curve, not both.")
    kind = "choice" if choices is not None else "curve" if x is not None else "number"
    low, high = _guess.slider(low, high)
    names = [_guess.words("choices", c) for c in _guess.several("choices", choices)] if choices is not None else []
    at = [float(_guess.number("x", v)) for v in _guess.several("x", x)] if x is not None else []
    if y_max is not None and _guess.number("y_max", y_max) <= 0:
        raise ValueError(f"y_max={y_max!r}: the top of the axis must be above 0.")
    options: dict[str, Any] = {
        "answer": answer, "choices": names, "unit": unit, "low": low, "high": high,
        "x": at, "x_label": x_label, "y_label": y_label, "y_max": y_max,
        "explain": explain, "again": again, "lang": lang,
    }  # fmt: skip
    if answer is not None and not callable(answer):
        _guess.check(kind, "answer", answer, options)
    p = Prediction(question, kind, options)
    if guess is not None:
        p.lock(guess)
    return p


def _make_input(kind: str, o: dict[str, Any]) -> w.Widget:
    if kind == "choice":
        return w.RadioButtons(options=o["choices"], value=None, layout=w.Layout(width="max-content", margin="6px 0"))
    if kind == "curve":
        labels = {"lang": o["lang"], "x_label": o["x_label"], "y_label": o["y_label"]}
        return CurveInput(x=o["x"], y_max=float(o["y_max"] or 1.0), guess=[None] * len(o["x"]), _options=labels)
    if o["low"] is not None and o["high"] is not None:
        low, high = o["low"], o["high"]
        step = 1.0 if high - low >= 10 else (high - low) / 100
        return w.FloatSlider(
            min=low,
            max=high,
            step=step,
            value=(low + high) / 2,
            readout_format=".0f" if step == 1 else ".3g",
            layout=w.Layout(width="420px"),
        )
    return w.FloatText(value=0.0, layout=w.Layout(width="160px", margin="6px 0"))


def _with_unit(field: w.Widget, unit: str) -> w.Widget:
    """The field with its unit beside it."""
    if not unit:
        return field
    return w.HBox([field, w.Label(unit)], layout=w.Layout(align_items="center"))
