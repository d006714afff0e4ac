"""predict: nothing is shown before a guess is locked, nothing blocks where nobody guesses."""

from __future__ import annotations

import pytest

import widgets

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
