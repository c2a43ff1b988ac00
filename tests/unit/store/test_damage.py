"""A segment is damaged while the gateway runs: the loss of each subscription enters the ledger, in the commit that
moves its cursor."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.message import Run
from edge.broker.store import segment
from edge.broker.store.limits import NEIGHBOURS
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.rig import Rig, sqlite_rig
from tests.support.stores import change, key, rot

Entry = tuple[str, str, int, int, int, int]


def run(address: str, *bodies: bytes) -> Run:
    return Run(address, "d", 1, b"", list(bodies), 1)


def fill(rig: Rig, log: int, commits: int) -> None:
    """Append 3 messages of a and 2 of b in each commit."""
    for _ in range(commits):
        rig.store.logs.append(log, run("a", b"1", b"22", b"333"))
        rig.store.logs.append(log, run("b", b"4444", b"5"))
        rig.commit()


def losses(rig: Rig) -> list[Entry]:
    """Return (subscription, address, first, last, messages, bytes) of the damaged entries in the ledger."""
    rig.settle()
    assert all(entry.reason == "damaged" for entry in rig.store.ledger.entries(0, 100))
    return [
        (entry.subscription, entry.address, entry.first, entry.last, entry.messages, entry.bytes)
        for entry in rig.store.ledger.entries(0, 100)
    ]


def behead(path: Path, position: int) -> None:
    """Overwrite the content of a segment with zeros, including its addresses."""
    change(path, "UPDATE segment SET data = zeroblob(length(data)) WHERE key = ?", key(1, position))


def rename(path: Path, position: int, before: bytes, after: bytes) -> None:
    connection = sqlite3.connect(path)
    with connection:
        (data,) = connection.execute("SELECT data FROM segment WHERE key = ?", (key(1, position),)).fetchone()
        assert before in data
        rotten = data.replace(before, after)
        connection.execute("UPDATE segment SET data = ? WHERE key = ?", (rotten, key(1, position)))
    connection.close()


class Store:
    def __init__(self, folder: Path) -> None:
        self.rig = sqlite_rig(folder)
        self.path = folder / FILE_NAME
        self.log = self.rig.store.logs.open("topic #")
        self.one = self.rig.store.cursors.open("one", self.log, 0)

    def names(self) -> list[tuple[str, int]]:
        """Return (address, sequence) of all delivered messages."""
        return [(address, sequence) for _, address, sequence, _ in self.rig.read_all(self.log)]

    def reopen(self) -> None:
        """Reopen the store: all messages are counted and memory is empty."""
        self.rig.reopen()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    fill(made.rig, made.log, 4)
    made.reopen()
    yield made
    made.rig.store.close()


def test_damaged_body_is_recorded(made: Store) -> None:
    two = made.rig.store.cursors.open("two", made.log, 0)
    made.rig.store.cursors.acknowledge(two, 0, 5)
    rot(made.path, 1, 5)
    assert len(made.names()) == 15
    assert losses(made.rig) == [
        ("one", "a", 3, 5, 3, 6), ("one", "b", 2, 3, 2, 5),
        ("two", "a", 4, 5, 2, 5), ("two", "b", 2, 3, 2, 5),
    ]  # fmt: skip
    assert made.rig.store.cursors.record(made.one).acknowledged == [(5, 9)]
    assert made.rig.store.cursors.record(two).position == 10


def test_ledger_is_written_once_with_the_cursor(made: Store) -> None:
    rot(made.path, 1, 5)
    made.names()
    made.names()
    assert len(losses(made.rig)) == 2
    made.reopen()
    made.names()
    assert len(losses(made.rig)) == 2


def test_damaged_names_are_recorded(made: Store) -> None:
    behead(made.path, 5)
    assert len(made.names()) == 15
    assert losses(made.rig) == [("one", "a", 3, 5, 3, 0), ("one", "b", 2, 3, 2, 0)]


def test_damaged_name_that_becomes_another_is_not_trusted(made: Store) -> None:
    rename(made.path, 5, b"adbd", b"bdbd")
    made.names()
    assert losses(made.rig) == [("one", "a", 3, 5, 3, 0), ("one", "b", 2, 3, 2, 0)]


def test_newest_segment_with_damaged_names_is_recorded(made: Store) -> None:
    behead(made.path, 15)
    assert len(made.names()) == 15
    assert losses(made.rig) == [("one", "a", 9, 11, 3, 0), ("one", "b", 6, 7, 2, 0)]


def test_messages_without_names_are_recorded(made: Store) -> None:
    behead(made.path, 0)  # no segment is before it
    made.names()
    assert losses(made.rig) == [("one", "$log/topic #", 0, 4, 5, 0)]


def test_group_that_consumed_all_loses_nothing(made: Store) -> None:
    made.rig.store.cursors.acknowledge(made.one, 0, 9)
    rot(made.path, 1, 5)
    made.rig.read_all(made.log, 5)
    assert losses(made.rig) == []


def test_loss_is_recorded_for_the_groups_that_select_it(made: Store) -> None:
    made.rig.store.cursors.set_filter(made.one, lambda run: run.address == "b")
    behead(made.path, 5)
    made.names()
    assert losses(made.rig) == [("one", "b", 2, 3, 2, 0)]


def test_damaged_count_affects_nothing_else(made: Store) -> None:
    change(made.path, "UPDATE segment SET messages = 4000 WHERE key = ?", key(1, 5))
    names = made.names()
    assert len(names) == 15
    assert made.rig.store.cursors.record(made.one).acknowledged == [(5, 9)]
    assert losses(made.rig) == [("one", "a", 3, 5, 3, 0), ("one", "b", 2, 3, 2, 0)]


def test_damaged_messages_evicted_unread_are_recorded(made: Store) -> None:
    rot(made.path, 1, 0)
    made.rig.store.retention.evict(made.log, 12)
    made.rig.settle()
    found = [(*entry[1:7], entry.reason) for entry in made.rig.store.ledger.entries(0, 100)]
    assert found == [
        ("one", "a", 0, 2, 3, 6, "damaged"), ("one", "b", 0, 1, 2, 5, "damaged"),
        ("one", "a", 3, 5, 3, 6, "evicted"), ("one", "b", 2, 3, 2, 5, "evicted"),
    ]  # fmt: skip


def test_examined_neighbours_are_bounded(tmp_path: Path) -> None:
    """Address a appears next `NEIGHBOURS` segments later, which is beyond the search, so its loss is unknown."""
    for between, expected in ((NEIGHBOURS - 2, "a"), (NEIGHBOURS, "$log/topic #")):
        made = Store(tmp_path / str(between))
        for address in ("a", "a", *("b" for _ in range(between)), "a"):
            made.rig.store.logs.append(made.log, run(address, b"x"))
            made.rig.commit()
        made.reopen()
        behead(made.path, 1)
        made.names()
        assert [entry[1] for entry in losses(made.rig)] == [expected]
        made.rig.store.close()


def test_inconsistent_remains_are_recorded() -> None:
    stored = [segment.Stored(0, 0, run("a", b"1", b"22"))]
    row = segment.encode(0, 1, 1, stored)
    assert [part.sequence for part in segment.decode_damaged(row._replace(crc=0), 0)] == [0]
    nothing = row._replace(data=None)  # type: ignore[arg-type]  # as SQLite reads a row that is cut off
    for rotten in (row._replace(body_bytes=4), row._replace(messages=3), row._replace(data=row.data[:-1]), nothing):
        with pytest.raises(segment.SegmentDamaged):
            segment.decode_damaged(rotten, 0)
