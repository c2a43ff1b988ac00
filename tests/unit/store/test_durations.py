"""The histogram of commit times."""

from __future__ import annotations

import queue
from pathlib import Path

from bridge.message import Run
from edge.broker.store.durations import BOUNDS_S, Durations
from edge.broker.store.sqlite import open_store


def test_empty_histogram_has_every_bucket() -> None:
    histogram = Durations().histogram()
    assert (histogram.total, histogram.seconds) == (0, 0.0)
    assert histogram.buckets == [(end, 0) for end in BOUNDS_S]


def test_upper_bound_belongs_to_the_bucket() -> None:
    durations = Durations()
    for seconds in (BOUNDS_S[3], BOUNDS_S[3] * 1.0001, BOUNDS_S[-1], 1000.0):
        durations.add(seconds)
    histogram = durations.histogram()
    counts = [count for _, count in histogram.buckets]
    assert counts[:6] == [0, 0, 0, 1, 2, 2]
    assert (counts[-2], counts[-1], histogram.total) == (2, 3, 4)
    assert histogram.seconds > 1000


def test_every_commit_is_counted(tmp_path: Path) -> None:
    posted: queue.SimpleQueue = queue.SimpleQueue()  # type: ignore[type-arg]
    store = open_store(tmp_path, post=posted.put)
    log = store.logs.open("log")
    for _ in range(5):
        store.logs.append(log, Run("address", "device", 1, b"", [b"body"], 1))
        store.commits.flush()
        posted.get(timeout=30)()
    histogram = store.medium.commits
    assert histogram.total == 5
    assert 0 < histogram.seconds < 30
    store.close()
