"""A checkpoint goes to the place that is set and no further, whoever else reads; then on from there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge.broker.store.connections import connect_reader, connect_writer
from edge.broker.store.limits import Limits
from edge.broker.store.log_place import LogPlace
from edge.broker.store.wal_index import LogIndex
from tests.support.medium import fast_folder

LIMITS = Limits()
MARKS = 4
"""Readers of the log that may each be at a place of their own."""


class Site:
    """A database whose log has a frame for each commit, which changes the one row there is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.sqlite"
        self._connections: list[sqlite3.Connection] = []
        self._writer = self._kept(connect_writer(self._path, LIMITS))
        self._writer.execute("CREATE TABLE number (value INTEGER)")
        self._writer.execute("INSERT INTO number VALUES (0)")
        self._beside = self._kept(connect_writer(self._path, LIMITS))
        self.index = LogIndex(self._path)
        self.place = LogPlace(connect_reader(self._path, LIMITS), self.index)
        self.commit(1)
        self.checkpoint()
        self.commit(1)

    def commit(self, times: int) -> None:
        for _ in range(times):
            self._writer.execute("UPDATE number SET value = value + 1")

    def checkpoint(self) -> int:
        """How far the log is in the file."""
        self._beside.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return self.index.moved

    def reading(self) -> sqlite3.Connection:
        """Sees what there is now."""
        reader = self._kept(connect_reader(self._path, LIMITS))
        reader.execute("BEGIN")
        self.seen(reader)
        return reader

    @staticmethod
    def seen(reader: sqlite3.Connection) -> int:
        (value,) = reader.execute("SELECT value FROM number").fetchone()
        return int(value)

    def close(self) -> None:
        self.place.leave()
        self.place.close()
        for connection in self._connections:
            connection.close()
        self.index.close()

    def _kept(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        self._connections.append(connection)
        return connection


@pytest.fixture
def site() -> Iterator[Site]:
    with TemporaryDirectory(dir=fast_folder()) as folder:
        made = Site(Path(folder))
        yield made
        made.close()


def test_checkpoints_go_from_place_to_place_and_to_its_end(site: Site) -> None:
    site.commit(9)
    site.place.take()
    assert site.place.end == site.index.frames == 10
    site.commit(5)
    for place in (3, 7, 10, 12):
        site.place.set(place)
        assert site.checkpoint() == min(place, 10)


def test_who_has_left_holds_nobody_and_the_log_is_begun_anew(site: Site) -> None:
    site.commit(9)
    site.place.take()
    site.place.set(4)
    site.place.leave()
    assert site.checkpoint() == 10
    site.commit(1)
    assert site.index.frames == 1


def test_another_reader_at_the_same_place_sees_what_it_saw(site: Site) -> None:
    site.commit(9)
    before = site.reading()
    site.place.take()
    after = site.reading()
    site.commit(5)
    for place in (2, 6, 10):
        site.place.set(place)
        later = site.reading()
        assert site.checkpoint() == place
        assert site.seen(before) == site.seen(after) == 11
        assert site.seen(later) == 16
        later.close()
    site.place.leave()
    assert site.checkpoint() == 10, "they read on"
    assert site.seen(before) == site.seen(after) == 11


def test_where_every_mark_is_taken_readers_hold_checkpoints_and_nobody_else(site: Site) -> None:
    readers = []
    for _ in range(MARKS):
        site.commit(2)
        readers.append(site.reading())
    site.commit(2)
    site.place.take()
    site.place.set(1)
    assert site.checkpoint() == 3, "where the first of them is"
    for number, reader in enumerate(readers):
        assert site.seen(reader) == 4 + 2 * number
        reader.close()
    site.place.leave()
    assert site.checkpoint() == site.index.frames
