"""predict: nothing is shown before a guess is locked, nothing blocks where nobody guesses."""

from __future__ import annotations

import re

import ipywidgets as w
import numpy as np
import pytest

import widgets
from widgets import _guess

VIEW = "application/vnd.jupyter.widget-view+json"


def test_the_answer_waits_for_the_guess():
    p = widgets.predict("How many steps?", unit="steps")
    p.reveal(110)
    assert "110" not in p.result.value
    p.input.value = 100
    p.lock()
    assert p.guess == 100 and p.truth == 110 and p.locked and p.input.disabled
    assert "100 steps" in p.result.value and "110 steps" in p.result.value and "-9%" in p.result.value
    p.lock(3)  # a second guess comes too late
    assert p.guess == 100


def test_an_answer_given_at_once_shows_when_the_guess_is_locked():
    calls = []
    p = widgets.predict("2 + 2?", lambda: calls.append(1) or 4, lang="en")
    assert not calls and p.truth is None
    p.lock(4)
    assert calls and "You were right" in p.result.value


def test_skipping_shows_the_answer_without_a_guess():
    p = widgets.predict("?", 7)
    p.skip()
    assert p.locked and p.guess is None and "7" in p.result.value


def test_choices():
    p = widgets.predict("Which?", "b", choices=["a", "b"], lang="en")
    p.lock()
    assert not p.locked and "Choose one first" in p._said.value
    with pytest.raises(ValueError, match="'c' is none of the choices"):
        p.lock("c")
    p.input.value = "a"
    p.lock()
    assert p.guess == "a" and "Not what you expected" in p.result.value


def test_a_drawn_curve():
    p = widgets.predict("Draw", x=[1, 2, 3], y_max=10, lang="en")
    p.lock()
    assert not p.locked and "not complete" in p._said.value
    p.input.guess = [1.0, None, 3.0]
    p.lock()
    assert not p.locked
    p.input.guess = [1.0, 2.0, 3.0]
    p.lock()
    assert p.locked and p.input.locked and p.input.truth == []
    with pytest.raises(ValueError, match="3 x positions, but the answer 2 values"):
        p.reveal([1, 2])
    p.reveal([1, 2, 6])
    assert p.input.truth == [1.0, 2.0, 6.0] and "x = 3" in p.result.value


def test_without_a_person_it_runs_through_and_looks_the_same_each_time():
    def cells():
        p = widgets.predict("How many?", unit="steps")
        shown = [p._repr_mimebundle_(), p.reveal(12)._repr_mimebundle_()]
        for bundle in shown:
            bundle.pop(VIEW)
        return shown

    assert cells() == cells()
    assert cells()[0]["text/plain"] == "Prediction(kind=number, question='How many?')"
    assert cells()[1]["text/plain"] == "Reveal(truth=12 steps)"


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="not both"):
        widgets.predict("?", choices=["a", "b"], x=[1])
    with pytest.raises(ValueError, match="at least two"):
        widgets.predict("?", choices=["a"])
    with pytest.raises(ValueError, match="none of the choices"):
        widgets.predict("?", "c", choices=["a", "b"])
    with pytest.raises(ValueError, match="no answer yet"):
        widgets.predict("?").reveal()


NUMBER, CHOICE, CURVE = {"low": 0, "high": 10}, {"choices": ["a", "b"]}, {"x": [1, 2]}


@pytest.mark.parametrize(
    "options, wrong",
    [
        ({"question": None}, "question=None must be a text"),
        ({"unit": 3}, "unit=3 must be a text"),
        ({"low": "a"}, "low='a', high=None: a slider needs both"),
        ({"low": "a", "high": 3}, "low='a' must be a finite number"),
        ({"low": 5, "high": 1}, "low=5, high=1: low must be less than high"),
        ({"low": 0, "high": float("inf")}, "high=inf must be a finite number"),
        ({"choices": "abc"}, "choices='abc' must be a list"),
        ({"choices": [1, 2]}, "choices=1 must be a text"),
        ({"x": [1, "b"]}, "x='b' must be a finite number"),
        ({"x": [1, 2], "y_max": 0}, "y_max=0: the top"),
        ({"answer": "x"}, "answer='x' must be a finite number"),
        ({"answer": True}, "answer=True must be a finite number"),
    ],
)  # fmt: skip
def test_a_question_that_can_not_be_asked_says_what_is_wrong(options, wrong):
    with pytest.raises(ValueError, match=re.escape(wrong)):
        widgets.predict(**{"question": "?", **options})


@pytest.mark.parametrize(
    "options, junk, wrong",
    [
        ({}, "猫", "='猫' must be a finite number"),
        ({}, True, "=True must be a finite number"),
        ({}, [1], "=[1] must be a finite number"),
        ({}, float("nan"), "=nan must be a finite number"),
        ({}, 10**400, "=about 1e+400 must be a finite number"),
        (CHOICE, ["a"], "=['a'] is none of the choices: 'a', 'b'"),
        (CURVE, 3, "=3 must be a list of 2 numbers"),
        (CURVE, ["a", 1], "[0]='a' must be a finite number"),
    ],
)  # fmt: skip
def test_junk_as_a_guess_or_an_answer_is_named_and_changes_nothing(options, junk, wrong):
    p = widgets.predict("?", **options)
    for act, name in ((p.lock, "guess"), (p.reveal, "answer")):
        with pytest.raises(ValueError, match=re.escape(name + wrong)):
            act(junk)
    assert not p.locked and p.guess is None and p.truth is None
    with pytest.raises(ValueError, match="no answer yet"):
        p.reveal()


def test_a_guess_off_the_slider_is_named():
    p = widgets.predict("?", 70, **NUMBER)
    with pytest.raises(ValueError, match=re.escape("guess=50 is off the slider, which goes from 0 to 10.")):
        p.lock(50)
    with pytest.raises(ValueError, match=re.escape("guess=1e+99 is off the slider")):
        p.lock(1e99)
    p.lock(np.int64(7))
    assert p.guess == 7 and p.truth == 70


def test_large_numbers_stay_short():
    p = widgets.predict("?", 12, unit="steps", lang="en")
    p.lock(1e99)
    assert "Locked: 1e+99 steps" in p._said.value and "0000" not in p._said.value + p._verdict()
    assert _guess.short(123456) == "123,456" and _guess.short(1e15) == "1e+15" and _guess.short(2.345678) == "2.346"


def test_a_guess_that_was_skipped_leaves_no_bar_and_no_slider():
    p = widgets.predict("?", 7, unit="步", **NUMBER)
    assert isinstance(p.children[2], w.HBox) and p.children[2].children[1].value == "步"  # the unit beside the slider
    p.skip()
    assert "is-guess" not in p.result.value and "is-truth" in p.result.value and "没有猜" in p.result.value
    assert p.children[2].layout.display == "none"
    q = widgets.predict("?", 7, guess=3, unit="步", **NUMBER)
    assert "is-guess" in q.result.value and q.children[2].layout.display is None


def test_a_guess_of_the_author_is_locked_at_once():
    p = widgets.predict("?", 10, guess=9)
    assert p.locked and p.truth == 10


@pytest.mark.parametrize(
    "unit, guess, truth, said",
    [("%", 40, 26, "Off by 14 percentage points."), ("%", 26, 26, "You were right."),
     ("%", 1, 90, "Off by 89 percentage points."),
     ("steps", 100, 110, "Off by 10 steps (-9%)."), ("steps", 150, 110, "Off by 40 steps (+36%)."),
     ("ms", 1247, 110, "Your guess is 11.3 times the truth."), ("ms", 10, 431, "The truth is 43.1 times your guess."),
     ("", 0, 5, "Off by 5."), ("", -3, 5, "Off by 8."), ("", 3, 0, "Off by 3.")],
)  # fmt: skip
def test_how_far_a_number_is_off(unit, guess, truth, said):
    p = widgets.predict("?", truth, unit=unit, guess=guess, lang="en")
    assert p._verdict() == said


def test_how_to_guess_anew_is_said_once_a_guess_is_locked():
    p = widgets.predict("?", again="reset, then guess <again>")
    assert "reset" not in p._said.value
    p.lock(3)
    assert "reset, then guess &lt;again&gt;" in p._said.value


def test_a_narrow_slider_can_be_shown():
    """A range below 10 moves in hundredths of itself, with a number format that ipywidgets accepts."""
    p = widgets.predict("How many times?", 2.4, low=1, high=4, lang="en")
    p._repr_mimebundle_()
    p.lock(2.5)
    assert p.locked
