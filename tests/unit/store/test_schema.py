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


def test_schema_is_created_once_with_a_constant_epoch(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection)
    assert schema.prepare(connection) == epoch
    assert names(connection) == {
        *("meta", "boot", "log", "segment", "cursor", "address", "state", "ledger", "thinned", "wear"),
        *("opening", "epoch", "epoch_start"),
        *("segments", "logs", "backlog", "losses"),
    }
    assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


def test_migration_keeps_the_content(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection)
    connection.execute("INSERT INTO log VALUES (1, 'a', 0, 5, 10)")
    assert schema.prepare(connection, NEXT) == epoch
    assert connection.execute("SELECT name, next, quota FROM log").fetchall() == [("a", 5, 0)]


def test_failed_migration_leaves_the_file_unchanged(connection: sqlite3.Connection) -> None:
    schema.prepare(connection)
    broken = (*schema.MIGRATIONS, "ALTER TABLE log ADD COLUMN quota INTEGER;\nALTER TABLE nowhere ADD COLUMN x;\n")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        schema.prepare(connection, broken)
    assert [row[1] for row in connection.execute("PRAGMA table_info(log)")][-1] == "bytes"
    schema.prepare(connection)


def test_previous_program_opens_a_compatible_schema(connection: sqlite3.Connection) -> None:
    epoch = schema.prepare(connection, NEXT, compatible_from=1)
    assert schema.prepare(connection) == epoch


def test_only_programs_from_the_stated_version_open_the_newest_store(
    connection: sqlite3.Connection,
) -> None:
    epoch = schema.prepare(connection)
    assert schema.prepare(connection, schema.MIGRATIONS[: schema.COMPATIBLE_FROM]) == epoch
    ours = schema.COMPATIBLE_FROM - 1
    with pytest.raises(StoreTooNew, match=f"schema {len(schema.MIGRATIONS)}, .* {ours}:"):
        schema.prepare(connection, schema.MIGRATIONS[:ours])


def test_incompatible_schema_is_refused_by_the_previous_program(connection: sqlite3.Connection) -> None:
    schema.prepare(connection, NEXT, compatible_from=len(NEXT))
    with pytest.raises(StoreTooNew):
        schema.prepare(connection)


def test_foreign_database_is_unchanged(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreDamaged, match="not a store"):
        schema.prepare(connection)
    assert names(connection) == {"theirs"}


def test_store_without_epoch_is_damaged(connection: sqlite3.Connection) -> None:
    schema.prepare(connection)
    connection.execute("DELETE FROM meta WHERE key = 'epoch'")
    with pytest.raises(StoreDamaged, match="epoch"):
        schema.prepare(connection)
