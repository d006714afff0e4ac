"""What testers broke: each case ends in the error that says so, or in no error at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minirt import Engine, Request
from minirt.model.sampling import sample
from minirt.request import SamplingParams
from tests.fake_backend import FakeBackend, expected

SIZES: dict[str, Any] = {"max_batch_size": 2, "num_blocks": 16, "block_size": 4}


def asked(count: int = 3, new: int = 4) -> list[Request]:
    return [Request(prompt_ids=[i + 1, 2, 3], max_new_tokens=new, ignore_eos=True) for i in range(count)]


# -- sampling ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-39, 9e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_that_underflows_is_greedy(temperature: float, top_p: float) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature, top_p=top_p), SamplingParams(1.0, seed=3), SamplingParams()]
    tokens = sample(logits, params, [5, 5, 5])
    assert tokens[0] == logits[0].argmax() and tokens[2] == logits[2].argmax() and 0 <= tokens[1] < 40


def test_a_row_of_nan_harms_no_other_row() -> None:
    logits = torch.zeros(2, 40)
    logits[0] = torch.nan
    both = sample(logits, [SamplingParams(1.0, seed=1)] * 2, [3, 3])
    assert 0 <= both[0] < 40 and both[1] == sample(logits[1:], [SamplingParams(1.0, seed=1)], [3])[0]


# -- speculation ------------------------------------------------------------------------------------
class Eraser:
    def propose(self, tokens: list[int], most: int) -> list[int]:
        tokens.clear()
        return []


def test_a_proposer_can_not_change_a_request() -> None:
    run = Engine(FakeBackend(), speculation=Eraser(), **SIZES).run(asked())
    assert [o.token_ids for o in run.outputs] == [expected(list(r.prompt_ids or ()), 4, True) for r in asked()]
