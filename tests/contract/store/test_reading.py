"""Reads during publishes: a reader that gets an empty answer can rely on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bridge.message import Stored
from tests.contract.store.memory_log import MemoryLog
from tests.contract.store.rig import DEADLINE_S, Rig, flat, run_of


class Reader:
    """Reads from a position, and gets the answer only on request."""

    def __init__(self, rig: Rig, log: int, position: int) -> None:
        self._rig = rig
        self._answers: list[Sequence[Stored]] = []
        rig.store.logs.read(log, position, 100, self._answers.append)
        self._answer: Callable[[], None] = rig.posted.get(timeout=DEADLINE_S)

    def bodies(self) -> list[bytes]:
        self._answer()
        while not self._answers:
            self._rig.turn()
        return [body for *_, body in flat(self._answers[0])]


@pytest.fixture
def log(rig: Rig) -> int:
    number = rig.store.logs.open("a")
    rig.store.cursors.open("c", number, 0)
    rig.store.logs.append(number, run_of(b"1"))
    rig.commit()
    return number


def test_messages_uncommitted_at_the_answer_are_not_seen(rig: Rig, log: int) -> None:
    reader = Reader(rig, log, 1)
    rig.store.logs.append(log, run_of(b"2"))
    assert rig.store.commits.flush()
    assert reader.bodies() == []
    while rig.store.commits.committing:
        rig.turn()


def test_messages_committed_meanwhile_are_seen(rig: Rig, log: int) -> None:
    reader = Reader(rig, log, 1)
    rig.store.logs.append(log, run_of(b"2"))
    rig.commit()
    assert reader.bodies() == [b"2"]


def test_messages_appended_in_memory_meanwhile_are_seen(rig: Rig) -> None:
    kept = MemoryLog(rig)
    reader = Reader(rig, kept.log, 1)
    kept.take(b"taken")
    assert reader.bodies() == [b"taken"]


def test_messages_that_waited_for_numbers_meanwhile_are_seen(rig: Rig) -> None:
    kept = MemoryLog(rig)
    reader = Reader(rig, kept.log, 1)
    rig.store.logs.append(kept.log, run_of(b"waited", address="another"))
    rig.commit()
    assert reader.bodies() == [b"waited"]


def test_messages_appended_before_the_answer_are_seen(rig: Rig) -> None:
    kept = MemoryLog(rig)
    kept.take(b"1")
    reader = Reader(rig, kept.log, 1)
    kept.take(b"2")
    assert reader.bodies() == [b"1", b"2"]


def test_messages_of_a_log_that_moved_to_the_medium_meanwhile_are_seen(rig: Rig) -> None:
    kept = MemoryLog(rig)
    reader = Reader(rig, kept.log, 1)
    rig.store.logs.keep_in_memory(kept.log, keep=False)
    rig.store.logs.append(kept.log, run_of(b"1"))
    rig.commit()
    assert reader.bodies() == [b"1"]
