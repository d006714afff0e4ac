"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import taskkit
from taskkit.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty progress store in memory, for taskkit while the test runs."""
    kept = Store(None)
    taskkit.use(kept)
    taskkit.reset("all")  # a prediction that another test locked
    yield kept
    taskkit.use(None)
