"""Versions of the schema: created, migrated, refused, and downgraded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.store import schema
from edge.broker.store.errors import StoreDamaged, StoreTooNew

NEXT = (*schema.MIGRATIONS, "ALTER TABLE log ADD COLUMN quota INTEGER NOT NULL DEFAULT 0;\n")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    yield opened
    opened.close()


def names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")}


def test_made_once_with_an_epoch_that_stays(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection)
    assert schema.prepare(connection) == epoch
    assert names(connection) == {
        *("meta", "boot", "log", "segment", "cursor", "address", "state", "ledger", "thinned", "wear"),
        *("opening", "epoch", "epoch_start"),
        *("segments", "logs", "backlog", "losses"),
    }
    assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


def test_migrates_forward_and_keeps_what_is_there(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection)
    connection.execute("INSERT INTO log VALUES (1, 'a', 0, 5, 10)")
    assert schema.prepare(connection, NEXT) == epoch
    assert connection.execute("SELECT name, next, quota FROM log").fetchall() == [("a", 5, 0)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(connection: sqlite3.Connection) -> None:
    schema.prepare(connection)
    broken = (*schema.MIGRATIONS, "ALTER TABLE log ADD COLUMN quota INTEGER;\nALTER TABLE nowhere ADD COLUMN x;\n")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        schema.prepare(connection, broken)
    assert [row[1] for row in connection.execute("PRAGMA table_info(log)")][-1] == "bytes"
    schema.prepare(connection)


def test_the_previous_program_opens_what_its_successor_migrated_compatibly(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection, NEXT, compatible_from=1)
    assert schema.prepare(connection) == epoch


def test_programs_from_the_version_that_is_named_open_the_newest_store_and_none_before(
    connection: sqlite3.Connection,
) -> None:
    epoch = schema.prepare(connection)
    assert schema.prepare(connection, schema.MIGRATIONS[: schema.COMPATIBLE_FROM]) == epoch
    ours = schema.COMPATIBLE_FROM - 1
    with pytest.raises(StoreTooNew, match=f"schema {len(schema.MIGRATIONS)}, this program supports up to {ours}:"):
        schema.prepare(connection, schema.MIGRATIONS[:ours])


def test_what_the_previous_program_cannot_work_with_is_refused(connection: sqlite3.Connection) -> None:
    schema.prepare(connection, NEXT, compatible_from=len(NEXT))
    with pytest.raises(StoreTooNew, match="start the newer program"):
        schema.prepare(connection)


def test_somebody_elses_database_is_left_alone(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreDamaged, match="not a store"):
        schema.prepare(connection)
    assert names(connection) == {"theirs"}


def test_a_store_without_epoch_is_damaged(connection: sqlite3.Connection) -> None:
    schema.prepare(connection)
    connection.execute("DELETE FROM meta WHERE key = 'epoch'")
    with pytest.raises(StoreDamaged, match="epoch"):
        schema.prepare(connection)
