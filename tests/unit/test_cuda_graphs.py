"""Buckets and padding of the CUDA graphs, on the CPU: captured graphs are replaced by plain calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minirt import ContinuousEngine, Request
from minirt.backends.native import NativeBackend
from minirt.model.attention import paged_attention
from minirt.model.cuda_graphs import BUCKETS, GraphForward, graph_forward
from minirt.model.loading import random_model


class Recorded(GraphForward):
    """Where there is no CUDA: a replay runs the forward over the buffers and copies the result to its fixed place."""

    def _capture(self, bucket: int) -> tuple[Callable[[], object], torch.Tensor]:
        hidden = torch.empty(bucket, self.decoder.config.hidden_size, dtype=self.decoder.dtype)
        return (lambda: hidden.copy_(self._run(bucket))), hidden


def test_buckets_cover_every_batch_up_to_the_largest() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS)) and BUCKETS[0] == 1 and BUCKETS[-1] == 256


def test_no_graphs_without_cuda() -> None:
    assert graph_forward(random_model().decoder) is None


@pytest.mark.parametrize("policy", ["vllm", "static"])
def test_padding_changes_nothing(policy: str) -> None:
    """Batches of 1 to 6 rows through buckets of 4 and 5 (6 rows: as they are), and a second run in the same pool."""
    lm = random_model(vocab=97, hidden=48, heads=6, kv_heads=2, head_dim=16, max_model_len=64)
    requests = [Request(prompt_ids=list(range(1, 3 + 4 * i)), max_new_tokens=3 + 2 * i) for i in range(7)]

    def serve(backend: NativeBackend) -> list[list[int]]:
        engine = ContinuousEngine(backend, policy, max_batch_size=6, num_blocks=60, block_size=4)
        return [[t for o in engine.run(requests).outputs for t in o.token_ids] for _ in range(2)]

    plain, padded = NativeBackend(lm), NativeBackend(lm)
    plain.forward = lm.decoder.forward
    padded.forward = graphs = Recorded(lm.decoder, paged_attention, buckets=(4, 5))
    want = serve(plain)
    assert serve(padded) == want and want[0] == want[1]
    assert set(graphs._graphs) == ({4} if policy == "static" else {4, 5})  # static: 6 rows to the end, then 1
    assert padded.kv is not None and padded.kv.keys[0].shape[0] == 61
    assert padded.kv.data[:, :, :60].isfinite().all()
