"""Text as it comes: no broken character, nothing of a stop string, and what was shown is never taken back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirt import ContinuousEngine, Engine, Request, load_model
from minirt.backends.base import ForwardBatch
from minirt.model.loading import random_model
from minirt.stopping import StoppingDetokenizer
from tests.fake_backend import FakeBackend
from tests.unit.test_detokenizer import byte_level


class Script(FakeBackend):
    """Says the given text, a token of a byte-level vocabulary at a time; an emoji is several tokens."""

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(**options)
        self.tokenizer = byte_level()
        self.ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        self.vocab_size = len(self.tokenizer)

    def execute(self, batch: ForwardBatch) -> list[int | None]:
        super().execute(batch)
        at = [batch.seqs[row].num_generated for row in batch.sampled]
        return [self.ids[n] if n < len(self.ids) else None for n in at]

    def detokenizer(self) -> Any:
        from minirt.detokenizer import IncrementalDetokenizer

        return IncrementalDetokenizer(self.tokenizer)

    def pieces(self, token_ids: Any) -> list[str]:
        d = self.detokenizer()
        return [d.push(t) for t in token_ids]


def served(text: str, streaming: bool = True, **values: Any) -> tuple[Engine, list[str]]:
    """Serve one request by hand; the engine, and what text() showed after each step."""
    engine = Engine(Script(text), "vllm", streaming=streaming)
    values.setdefault("max_new_tokens", 400)
    i = engine.add(Request(prompt_ids=[1, 2], **values))
    shown = []
    while engine.has_work:
        engine.step()
        shown.append(engine.text(i))
    return engine, shown


STORY = "Hi 🙂, 你好! 👩🏽‍🚀 流式输出 é\u0301 — done 🇨🇳"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("stop", [None, "never said"])
def test_no_broken_character_is_ever_shown(streaming: bool, stop: str | None) -> None:
    engine, shown = served(STORY, streaming, stop=stop)
    assert len(shown) > len(STORY)  # characters that are several tokens
    assert not any("\ufffd" in s for s in shown)
    assert all(later.startswith(earlier) for earlier, later in zip(shown, shown[1:]))
    assert engine.outputs[0].text == shown[-1] == STORY
    assert "".join(engine.trace.pieces[0]) == STORY


@pytest.mark.parametrize("streaming", [True, False])
def test_an_answer_cut_inside_a_character_reads_as_decode_has_it(streaming: bool) -> None:
    for n in range(1, 14):
        engine, shown = served("a🙂b你c", streaming, max_new_tokens=n)
        assert not any("\ufffd" in s for s in shown[:-1])
        assert engine.outputs[0].text == byte_level().decode(engine.outputs[0].token_ids)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("text", "stop", "answer"),
    [
        ("One. Two. Three.", "Two", "One. "),
        ("One. Two. Three.", ["Three", " Two"], "One."),
        ("One. Two. Three.", "On", ""),
        ("Thought: x\nObservation: y", "\nObservation:", "Thought: x"),
        ("Obs is not Observation", "Observation", "Obs is not "),
        ("aaab", "aab", "a"),
        ("你好🙂再见", "🙂", "你好"),
        ("你好🙂再见", "好🙂再", "你"),
        ("ends with the start of a stop: \nObs", "\nObservation:", "ends with the start of a stop: \nObs"),
        ("abcabd", ["abd", "zzz"], "abc"),
    ],
)
def test_a_stop_string_ends_the_answer_and_is_never_seen(
    streaming: bool, text: str, stop: Any, answer: str
) -> None:
    engine, shown = served(text, streaming, stop=stop)
    out = engine.outputs[0]
    assert out.text == answer and out.finish_reason == "stop"
    assert "".join(engine.trace.pieces[0]) == answer and len(engine.trace.pieces[0]) == len(out.token_ids)
    assert all(answer.startswith(s) for s in shown)  # not even the beginning of a stop string was shown
    if answer != text:  # it ended with the very token that completed the stop string
        stops = [stop] if isinstance(stop, str) else stop
        whole, before = (byte_level().decode(out.token_ids[:n]) for n in (None, -1))
        assert any(x in whole for x in stops) and not any(x in before for x in stops)


def test_what_was_held_back_is_shown_where_the_answer_ends_by_length() -> None:
    engine, shown = served("abc\nObservation: later", stop="\nObservation:", max_new_tokens=7)
    out = engine.outputs[0]
    assert out.finish_reason == "length"
    assert out.text == byte_level().decode(out.token_ids) and out.text.startswith("abc\nObs")
    assert shown[-2] == "abc"


class Letters:
    """Token ids are code points."""

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def finish(self) -> str:
        return ""


def reference(text: str, stop: Iterable[str]) -> str:
    """The answer ends with the first character at which some stop string is complete."""
    for end in range(1, len(text) + 1):
        at = [i for s in stop if (i := text[:end].find(s)) >= 0]
        if at:
            return text[: min(at)]
    return text


@settings(max_examples=400, deadline=None)
@given(st.text("ab\n", max_size=25), st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=3))
def test_stop_strings_against_a_plain_search(text: str, stop: list[str]) -> None:
    d = StoppingDetokenizer(Letters(), stop)
    pieces = []
    for c in text:
        pieces.append(d.push(ord(c)))
        if d.found:
            break
    pieces.append(d.finish())
    assert "".join(pieces) == reference(text, stop)
    assert d.found == (any(s in text for s in stop))
    assert not any(s in "".join(pieces) for s in stop)


def test_eos_ends_an_answer_unless_it_is_told_not_to() -> None:
    lm = random_model(vocab=12, eos_ids=[3, 4], seed=2)
    engine = ContinuousEngine(lm, num_blocks=64)
    prompts = [[i, 5, 1] for i in range(12)]
    stopping = engine.run([Request(prompt_ids=p, max_new_tokens=30) for p in prompts]).outputs
    going_on = engine.run([Request(prompt_ids=p, max_new_tokens=30, ignore_eos=True) for p in prompts]).outputs
    reasons = {o.finish_reason for o in stopping}
    assert "stop" in reasons
    for a, b in zip(stopping, going_on):
        assert b.finish_reason == "length" and len(b.token_ids) == 30
        ends = [i for i, t in enumerate(b.token_ids) if t in (3, 4)]
        assert a.token_ids == b.token_ids[: ends[0] if ends else 30]
        assert a.finish_reason == ("stop" if ends else "length")


def test_the_default_model_streams_chinese_and_stops() -> None:
    lm = load_model(device="cpu", dtype="float32")
    engine = ContinuousEngine(lm, max_batch_size=2, num_blocks=64, streaming=True)
    one = engine.add(Request("把“你好，世界”抄写三遍。", max_new_tokens=20, ignore_eos=True))
    two = engine.add(Request("Count: one two three four", max_new_tokens=20, stop=["three", "3"]))
    shown: dict[int, list[str]] = {one: [], two: []}
    while engine.has_work:
        engine.step()
        for i in (one, two):
            shown[i].append(engine.text(i))
    for texts in shown.values():
        assert not any("\ufffd" in t for t in texts[:18])
        assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    assert engine.outputs[one].text == lm.decode(engine.outputs[one].token_ids)
    assert not any(s in t for t in shown[two] for s in ("three", "3"))


# -- sampled answers --------------------------------------------------------------------------------
def sampled(seed: int, prompt: list[int], n: int = 12) -> Request:
    return Request(prompt_ids=prompt, max_new_tokens=n, temperature=0.9, top_p=0.95, top_k=40, seed=seed)


@pytest.mark.parametrize("policy", ["static", "mini-runtime", "vllm"])
def test_draws_do_not_depend_on_companions_policy_or_preemption(policy: str) -> None:
    lm = random_model(vocab=90)
    mine = [sampled(seed, [7, 8, 9, seed]) for seed in range(5)]
    alone = [ContinuousEngine(lm, num_blocks=16).run([r]).outputs[0].token_ids for r in mine]
    assert len({tuple(a) for a in alone}) == 5
    others = [sampled(50 + i, [i] * (3 + 5 * i), 20) for i in range(4)]
    greedy = [Request(prompt_ids=[i, i], max_new_tokens=9) for i in range(3)]
    crowd = [others[0], mine[0], greedy[0], mine[1], others[1], mine[2], others[2], mine[3], greedy[1], mine[4], others[3]]
    blocks = 100 if policy == "static" else 26 if policy == "mini-runtime" else 12
    engine = Engine(lm, policy, max_batch_size=4, num_blocks=blocks, block_size=4)
    run = engine.run(crowd)
    for r, want in zip(mine, alone):
        assert run.outputs[crowd.index(r)].token_ids == want
    if policy == "vllm":
        assert run.metrics.preemptions["recompute"] > 0


def test_the_same_seed_draws_the_same_and_another_draws_another() -> None:
    engine = ContinuousEngine(random_model(vocab=90), num_blocks=32)
    a, b, c, d = engine.run([sampled(1, [5, 6]), sampled(1, [5, 6]), sampled(2, [5, 6]), sampled(0, [5, 6])]).outputs
    none = engine.run([Request(prompt_ids=[5, 6], max_new_tokens=12, temperature=0.9, top_p=0.95, top_k=40)]).outputs[0]
    assert a.token_ids == b.token_ids != c.token_ids
    assert none.token_ids == d.token_ids  # no seed is seed 0
