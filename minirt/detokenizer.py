"""Token ids to text, one token at a time, without ever showing half a character.

A token is a run of bytes, and a character such as 你 or 🙂 may be spread over several tokens. Decoding
each token alone would show U+FFFD for every part. So what is not whole is held back until it is.
"""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Any

# A run that is still not a character after so many tokens never will be one (a character has 4 bytes).
MAX_HELD = 16


class IncrementalDetokenizer:
    """Turns a stream of ids into a stream of text. tokenizer: a transformers tokenizer.

    The joined results of push() and finish() equal tokenizer.decode(ids, skip_special_tokens=True) without clean-up
    of spaces. Each token costs the same however long the text already is.

    Byte-level vocabularies (GPT-2's scheme: Llama 3, SmolLM2, Qwen) name the bytes of every token, so theirs is a
    plain incremental UTF-8 decoder. For others (SentencePiece with byte fallback: Llama 2, Mistral) a small window
    of tokens is decoded twice, with and without the new ones, and the difference is the new text: spaces depend on
    the neighbour, so a token can't be decoded alone (the method of TGI and vLLM). There bytes that are no valid
    UTF-8 may come out as another number of U+FFFD than decode() gives, since what was shown can't be taken back.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if is_byte_level(tokenizer) else None
        self._window: list[int] = []  # context whose text has been shown, then what is held back
        self._shown = 0  # how many ids of the window have been shown

    def push(self, token_id: int) -> str:
        """The text that is certain now that this token has come; often one piece, sometimes empty."""
        if token_id in self._special:
            return ""
        if self._utf8 is not None:
            return self._utf8.decode(token_bytes(self._tokenizer, token_id))
        self._window.append(token_id)
        return self._new_text(final=len(self._window) - self._shown > MAX_HELD)

    def finish(self) -> str:
        """What was held back; a character that was never completed becomes U+FFFD. Starts over."""
        if self._utf8 is not None:
            rest = self._utf8.decode(b"", final=True)
            self._utf8.reset()
            return rest
        rest = self._new_text(final=True)
        self._window, self._shown = [], 0
        return rest

    def _new_text(self, final: bool) -> str:
        before, after = self._decode(self._window[: self._shown]), self._decode(self._window)
        if len(after) <= len(before) or (after.endswith("\ufffd") and not final):
            return ""
        self._window = self._window[self._shown :]  # what was just shown is the next context
        self._shown = len(self._window)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether the tokenizer's text is its tokens' bytes one after another and nothing else."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that decode(skip_special_tokens=True) leaves out."""
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if added:
        return frozenset(i for i, token in added.items() if token.special)
    return frozenset(getattr(tokenizer, "all_special_ids", ()))


def token_bytes(tokenizer: Any, token_id: int) -> bytes:
    """The bytes a token of a byte-level vocabulary stands for; none for an id outside the vocabulary."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token is None:
        return b""
    table = _byte_of_char()
    try:
        return bytes(table[c] for c in token)
    except KeyError:  # an added token is kept as it was written
        return token.encode("utf-8")


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted: bytes that print stand for themselves, the others
    (space, control, 0x80 to 0xA0, 0xAD) for the characters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    table.update({chr(0x100 + n): b for n, b in enumerate(others)})
    return table
