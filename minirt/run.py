"""Serving a list of requests from start to end, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, PolicyError
from .intake import Intake
from .policies.base import StepPlan
from .request import Output, Request
from .trace import StepRecord, Trace

if TYPE_CHECKING:
    from .metrics import RunMetrics


@dataclass
class Run:
    """The outputs in the order the requests were given, and the trace everything else is computed from."""

    outputs: list[Output]
    trace: Trace

    @cached_property
    def metrics(self) -> RunMetrics:
        """Metrics of the run, from the trace alone."""
        from .metrics import RunMetrics

        return RunMetrics.from_trace(self.trace)

    def __repr__(self) -> str:
        reasons = [o.finish_reason for o in self.outputs]
        ends = ", ".join(f"{reasons.count(r)} {r}" for r in dict.fromkeys(reasons))
        return f"Run(policy={self.trace.meta.get('policy')}, requests={len(reasons)} ({ends}), steps={len(self.trace)})"


class RunLoop(Intake):
    """The whole-run half of Engine."""

    last_run: Run | None
    speculation: Any

    def run(
        self,
        requests: Iterable[Request],
        *,
        progress: bool | Callable[[StepRecord], Any] = False,
        keep_cache: bool = False,
    ) -> Run:
        """Serve all requests to their end. One that can't be served is "rejected" with an error; the others go on.

        progress: True shows a bar; a function is called with every StepRecord. keep_cache: keep cached prefixes
        of earlier runs (default: every run starts with an empty pool, so that runs can be repeated exactly).
        An interrupt or an error aborts what is running, frees every block, leaves what there is in `last_run` (a
        PolicyError has it as `run`), and is raised again; the engine can be used on.
        """
        requests = list(requests)
        for i, r in enumerate(requests):
            if not isinstance(r, Request):
                raise ConfigError(f"run() takes minirt.Request objects; item {i} is a {type(r).__name__}.")
        self.reset(keep_cache)
        bar, tell = None, progress if callable(progress) else None
        if progress is True:
            from tqdm.auto import tqdm

            bar = tqdm(total=sum(r.max_new_tokens for r in requests), unit="tok", desc=self.policy.name)
        try:
            for r in requests:
                self._join(r, r.arrival)
            self.clock.reset()  # reading prompts is not part of the run
            self._settle()
            while self.has_work:
                record = self.step()
                if bar is not None:
                    bar.update(len(record.emitted))
                if tell is not None:
                    tell(record)
        except BaseException as e:
            self._abandon(f"the run was interrupted ({type(e).__name__})")
            if isinstance(e, PolicyError):
                e.run = self._so_far()
            raise
        finally:
            if bar is not None:
                bar.close()
            self.last_run = self._so_far()
        return self.last_run

    def _so_far(self) -> Run:
        return Run([self.outputs[i] for i in sorted(self.outputs)], self.trace)

    def step(self) -> StepRecord:
        raise NotImplementedError

    def reset(self, keep_cache: bool = False) -> None:
        raise NotImplementedError

    def _abandon(self, why: str) -> None:
        """Abort whatever has not ended, wherever an error struck."""
        for i in self._seqs.keys() - self.trace.requests.keys():
            del self._seqs[i]  # the interrupt struck before it had joined
        between = self._record is None
        if self._record is None:
            self._record = StepRecord(self.step_count, self.clock.now(), events=self._pending_events)
            self._pending_events = []
        record = self._record
        for seq in list(self._seqs.values()):
            if seq in self.waiting or (seq.table is None and seq.id not in self.swapped):
                self._end_unserved(seq, "aborted", why)
        self._recover(why)
        if between and not (record.events or record.freed):
            self.trace.steps.pop()

    def _close(self, record: StepRecord, plan: StepPlan) -> None:
        if plan.blocked_need:
            record.external = self.pool.free_in_short_runs(plan.blocked_need)
        self._finish_record(record)

    def _describe(self) -> dict[str, Any]:
        settings = {k: v for k, v in vars(self.policy).items() if isinstance(v, (int, float, str, bool, type(None)))}
        settings = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in settings.items()}
        return {
            "policy": getattr(self.policy, "name", type(self.policy).__name__),
            "policy_settings": {k: v for k, v in settings.items() if not k.startswith("_")},
            "max_batch_size": self.limits.max_batch_size,
            "num_blocks": self.limits.num_blocks,
            "block_size": self.limits.block_size,
            "max_model_len": self.limits.max_model_len,
            "prefix_caching": self.prefix_caching,
            "returns_together": self.returns_together,
            **({"speculation": repr(self.speculation)} if self.speculation is not None else {}),
            "clock": self.clock.name,
            "unit": self.clock.unit,
            **self.backend.describe(),
        }
