"""The waiting queue: by priority, then in order of arrival; preempted requests come back to the front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .request import Sequence


class WaitingQueue:
    """First come, first served within a priority (lower is sooner). Adding and removing are O(1)."""

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[int, Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Sequence]:
        # Nothing is copied, so that planning stays O(admitted); the engine changes the queue only between plans.
        for priority in sorted(self._lanes):
            yield from self._lanes[priority].values()

    def __contains__(self, seq: object) -> bool:
        lane = self._lanes.get(seq.priority) if isinstance(seq, Sequence) else None
        return lane is not None and isinstance(seq, Sequence) and lane.get(seq.id) is seq

    def push(self, seq: Sequence) -> None:
        """Join at the end of its priority."""
        self._lanes.setdefault(seq.priority, OrderedDict())[seq.id] = seq

    def push_front(self, seq: Sequence) -> None:
        """Join at the front of its priority."""
        lane = self._lanes.setdefault(seq.priority, OrderedDict())
        lane[seq.id] = seq
        lane.move_to_end(seq.id, last=False)

    def oldest(self) -> Sequence | None:
        """The front of the first lane."""
        return next(iter(self), None)

    def remove(self, seq: Sequence) -> None:
        """Leave the queue."""
        lane = self._lanes[seq.priority]
        del lane[seq.id]
        if not lane:
            del self._lanes[seq.priority]


class QueueView:
    """A WaitingQueue that can only be read: what a policy gets."""

    __slots__ = ("_queue",)

    def __init__(self, queue: WaitingQueue) -> None:
        self._queue = queue

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def __contains__(self, seq: object) -> bool:
        return seq in self._queue

    def __bool__(self) -> bool:
        return len(self._queue) > 0
