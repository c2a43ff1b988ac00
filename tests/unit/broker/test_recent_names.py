"""Names of recent messages: how many are known, also after a restart, and the memory they take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.limits import INBOX_NAMES_MAX
from edge.broker.router.recent_names import DIGEST_BYTES, SLOT_NAMES, SLOTS, RecentNames, digest

AGAIN = 32_768 + 500
"""RabbitMQ's `queue_index_max_journal_entries`, and messages that may be on their way to it."""


def names(count: int) -> list[bytes]:
    return [digest(b"%d" % i) for i in range(count)]


def parts(every: list[bytes], at_once: int) -> Iterator[list[bytes]]:
    return (every[start : start + at_once] for start in range(0, len(every), at_once))


@pytest.mark.parametrize("at_once", [1, 500])
def test_all_repeats_of_a_killed_broker_are_recognised(at_once: int) -> None:
    known, kept, every = RecentNames(), dict[int, bytes](), names(5 * INBOX_NAMES_MAX // 4)
    for part in parts(every, at_once):
        known.add(part)
        kept.update(known.changed())
        known.confirm(part)
    restarted = RecentNames(kept.values())
    for one in (known, restarted):
        assert all(one.is_duplicate(name, unique=True) for name in every[-AGAIN:])
        assert not one.is_duplicate(every[0], unique=True), "the oldest are forgotten"
        assert len(one._names) <= INBOX_NAMES_MAX
    assert set(kept) <= set(range(SLOTS))
    assert sum(map(len, kept.values())) < DIGEST_BYTES * (INBOX_NAMES_MAX + 2 * (500 + SLOT_NAMES)) + 8 * SLOTS


def test_restart_continues_at_its_position() -> None:
    kept, every = dict[int, bytes](), names(10_000)
    for start in range(0, len(every), 1_000):
        known = RecentNames(kept.values())
        for part in parts(every[start : start + 1_000], 70):
            known.add(part)
            kept.update(known.changed())
    restarted = RecentNames(kept.values())
    assert all(restarted.is_duplicate(name, unique=True) for name in every)
