"""A torn or damaged first page: all other pages and all messages survive, and the gateway continues."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.message import Run
from edge.appliance.store.recovery.verification import verify
from edge.broker.store import schema, segment
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import FILE_NAME, open_store
from tests.contract.store.rig import sqlite_rig
from tests.fault.store.repairs import Lost, messages, repaired
from tests.support.stores import AT, QUEUE, Made, change, key, make

PAGES = (1024, 4096)
LARGE = (500, 3_000, 90_000, 1_500_000)
"""Bodies: in a page, larger than any page, a segment of many pages, larger than any segment."""


@pytest.fixture(params=PAGES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def add_large(data: Path, *, crash_to: Path | None = None) -> None:
    """Add messages that do not fit into a page; copy the files of the open store to `crash_to`, with the log."""
    rig = sqlite_rig(data)
    dice = random.Random(1)
    for number, count in enumerate(LARGE):
        rig.store.logs.append(
            rig.store.logs.open(QUEUE), Run("jobs", "d", 1, b"", [dice.randbytes(count)], AT + number)
        )
        rig.commit()
    if crash_to is not None:
        shutil.copytree(data, crash_to)
    rig.store.close()


def stored(data: Path, size: int) -> Made:
    """Make a closed store with small and large messages."""
    made = make(data, 60, limits=StoreLimits(page_bytes=size))
    add_large(data)
    return made._replace(messages=made.messages + len(LARGE))


def zeroed(path: Path, size: int, _: bytes) -> None:
    write(path, bytes(size))


def ruined(path: Path, size: int, _: bytes) -> None:
    write(path, random.Random(2).randbytes(size))


def half_zeroed(path: Path, _size: int, _: bytes) -> None:
    write(path, bytes(512))


def half_of_before(path: Path, _size: int, before: bytes) -> None:
    write(path, before[:512])


def second_half_ruined(path: Path, size: int, _: bytes) -> None:
    write(path, random.Random(3).randbytes(size - 512), 512)


def other_size(path: Path, _size: int, _: bytes) -> None:
    write(path, (2048).to_bytes(2), 16)


WAYS = (other_size, zeroed, ruined, half_zeroed, half_of_before, second_half_ruined)
Way = Callable[[Path, int, bytes], None]


def write(path: Path, content: bytes, offset: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def page_size_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:18])


def logged_pages(path: Path, size: int) -> list[int]:
    """Return the pages in the log of a store."""
    log = path.with_name(path.name + "-wal").read_bytes()
    return [struct.unpack_from(">I", log, at)[0] for at in range(32, len(log), size + 24)]


@pytest.mark.parametrize("way", WAYS)
def test_damaged_first_page_loses_nothing(tmp_path: Path, size: int, way: Way) -> None:
    data = tmp_path / "data"
    made = make(data, 6, limits=StoreLimits(page_bytes=size))
    before = made.path.read_bytes()[:size]
    shutil.rmtree(data)
    made = stored(data, size)
    expected = messages(data)
    assert len(expected) == made.messages
    epoch = made.epoch
    way(made.path, size, before)
    if way is not half_of_before:  # that one may be read, but not later changes
        assert verify(made.path).damaged
    done = repaired(made)
    assert (done.messages, done.lost_messages, done.epoch, done.new_epoch) == (made.messages, 0, epoch, False)
    assert messages(data) == expected
    assert Lost(data).rows == []
    assert page_size_of(made.path) == size
    with contextlib.closing(open_store(data, post=lambda _: None)) as store:
        assert {(cursor.name, cursor.position) for cursor in store.cursor_records()} >= {("queue", 55)}


@pytest.mark.parametrize("way", WAYS)
def test_first_page_is_restored_from_the_log(tmp_path: Path, size: int, way: Way) -> None:
    """A copy of the page in the log is enough, after a cut while page 1 was moved into the file."""
    data, first = tmp_path / "data", tmp_path / "first"
    make(first, 60, limits=StoreLimits(page_bytes=size))
    add_large(first, crash_to=data)
    made = Made(data / FILE_NAME, "", 0)
    assert 1 in logged_pages(made.path, size)
    shutil.copytree(data, tmp_path / "sound")
    expected = messages(tmp_path / "sound")
    way(made.path, size, made.path.read_bytes())
    shutil.copytree(data, tmp_path / "again")
    assert messages(data) == expected  # opened normally
    done = repaired(Made(tmp_path / "again" / FILE_NAME, "", 0))
    assert (done.messages, done.new_epoch) == (len(expected), False)
    assert messages(tmp_path / "again") == expected


@pytest.mark.parametrize("way", WAYS)
def test_log_without_the_first_page_is_kept(tmp_path: Path, size: int, way: Way) -> None:
    data = tmp_path / "data"
    source = stored(tmp_path / "source", size)
    expected = messages(source.path.parent)
    with contextlib.closing(sqlite3.connect(source.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("UPDATE state SET value = x'77' WHERE kind = 'session'")
        shutil.copytree(source.path.parent, data)
    made = source._replace(path=data / FILE_NAME)
    pages = logged_pages(made.path, size)
    assert pages
    assert 1 not in pages
    way(made.path, size, made.path.read_bytes())
    done = repaired(made)
    assert (done.messages, done.lost_messages, done.new_epoch) == (made.messages, 0, False)
    with contextlib.closing(sqlite3.connect(made.path)) as connection:
        assert connection.execute("SELECT value FROM state WHERE kind = 'session'").fetchall() == [(b"\x77",)]
    assert messages(data) == expected


def test_store_of_an_older_schema_is_restored(tmp_path: Path, size: int) -> None:
    """A store of an older schema is restored.

    Its later tables begin after its messages: in small pages the schema's other pages contain their locations.
    """
    data = tmp_path / "data"
    data.mkdir()
    run = segment.Stored(0, 0, Run("jobs", "d", 1, b"", [os.urandom(20_000)], AT))
    with contextlib.closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        schema.prepare(connection, schema.MIGRATIONS[:1], 1)
        connection.execute("INSERT INTO log VALUES (1, 'queue jobs', 0, 1, 20000)")
        connection.execute("INSERT INTO address VALUES ('jobs', 1)")
        connection.execute("INSERT INTO boot VALUES (1, 'b', 0)")
        connection.execute(segment.INSERT, segment.encode(key(1, 0), 1, 0, [run]))
    rig = sqlite_rig(data)
    rig.store.cursors.open("queue", rig.store.logs.open(QUEUE), 0)
    rig.settle()
    rig.store.close()
    add_large(data)
    expected = messages(data)
    change(data / FILE_NAME, "INSERT INTO ledger VALUES (1, 'queue', 'x', 0, 1, 2, 2, 'expired', 5)")
    zeroed(data / FILE_NAME, size, b"")
    done = repaired(Made(data / FILE_NAME, "", 0))
    assert (done.messages, done.lost_messages) == (1 + len(LARGE), 0)
    assert messages(data) == expected
    with contextlib.closing(sqlite3.connect(data / FILE_NAME)) as connection:
        kept = connection.execute("SELECT address FROM ledger").fetchall()
    if size == 1024:
        assert kept == [("x",)]
    else:
        assert kept == [("x",)] or "table ledger is damaged: 0 of its rows are kept" in done.notes


def test_messages_are_found_in_a_packed_file(tmp_path: Path, size: int) -> None:
    """Messages are found by going through every page, after another tool has packed the file."""
    made = stored(tmp_path / "data", size)
    change(made.path, "DELETE FROM segment WHERE key = ?", key(1, 0))  # none: it was acknowledged
    expected = messages(made.path.parent)
    with contextlib.closing(sqlite3.connect(made.path, isolation_level=None)) as connection:
        connection.execute("VACUUM")
    zeroed(made.path, size, b"")
    done = repaired(made)
    assert done.messages == made.messages
    assert messages(made.path.parent) == expected


def test_acknowledged_messages_do_not_return(tmp_path: Path, size: int) -> None:
    """Acknowledged messages do not return, although free pages still contain them."""
    made = stored(tmp_path / "data", size)
    rig = sqlite_rig(made.path.parent)
    (cursor,) = (cursor for cursor in rig.store.cursor_records() if cursor.name == "queue")
    rig.store.cursors.acknowledge(cursor.cursor, 0, 299)
    rig.settle()
    rig.store.close()
    expected = messages(made.path.parent)
    assert not {("jobs", number) for number in range(290)} & expected.keys()
    with contextlib.closing(sqlite3.connect(made.path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'segment'").fetchone()
    write(made.path, b"\xff" * size, (root - 1) * size)
    zeroed(made.path, size, b"")
    done = repaired(made)
    assert done.new_epoch
    assert messages(made.path.parent) == expected
    assert done.lost_messages == 0
