"""Schema of the store: its versions, the migrations between them, and views for people."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreDamaged, StoreTooNew
from edge.broker.store.limits import KIB, LOG_TIMES_MAX, POSITION_BITS, POSITION_MAX, StoreLimits

NOT_A_STORE: Final = "the file is a database, but not a store: move it away, or give another data directory"
APPLICATION_ID: Final = 0x57_41_59_50  # "WAYP": shown by `file`, and distinguishes a store from other databases

_TABLES: Final = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE boot (boot INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, opened_at INTEGER NOT NULL) STRICT;
CREATE TABLE log (
    log INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, first INTEGER NOT NULL, next INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE segment (
    key INTEGER PRIMARY KEY, messages INTEGER NOT NULL, body_bytes INTEGER NOT NULL, boot INTEGER NOT NULL,
    monotonic_ns INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE TABLE cursor (
    cursor INTEGER PRIMARY KEY, name TEXT NOT NULL, log INTEGER NOT NULL, position INTEGER NOT NULL,
    acknowledged BLOB NOT NULL, UNIQUE (name, log)
) STRICT;
CREATE TABLE address (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE state (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
CREATE VIEW segments AS
    SELECT log.name AS log, key & {POSITION_MAX} AS first_position,
        (key & {POSITION_MAX}) + messages - 1 AS last_position, messages, body_bytes, length(data) AS stored_bytes,
        boot_id, monotonic_ns
    FROM segment JOIN log ON log.log = key >> {POSITION_BITS} LEFT JOIN boot USING (boot);
CREATE VIEW logs AS
    SELECT name, first AS first_position,
        max(next, coalesce((SELECT (key & {POSITION_MAX}) + messages FROM segment
            WHERE key >= log.log << {POSITION_BITS} AND key < (log.log + 1) << {POSITION_BITS}
            ORDER BY key DESC LIMIT 1), 0)) AS next_position
    FROM log;
CREATE VIEW backlog AS
    SELECT cursor.name AS cursor, logs.name AS log, position, next_position, max(0, next_position - position) AS behind
    FROM cursor JOIN log USING (log) JOIN logs ON logs.name = log.name;
"""  # noqa: S608 - two constants of ours

_LEDGER: Final = """
CREATE TABLE ledger (
    entry INTEGER PRIMARY KEY, subscription TEXT NOT NULL, address TEXT NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, messages INTEGER NOT NULL, bytes INTEGER NOT NULL, reason TEXT NOT NULL,
    decided_at INTEGER NOT NULL
) STRICT;
CREATE VIEW losses AS
    SELECT subscription, address, reason, sum(messages) AS messages, sum(bytes) AS bytes, min(first) AS first,
        max(last) AS last, datetime(max(decided_at) / 1000000000, 'unixepoch') AS latest
    FROM ledger GROUP BY subscription, address, reason;
"""

_THINNED: Final = """
CREATE TABLE thinned (key INTEGER PRIMARY KEY, level INTEGER NOT NULL) STRICT;
"""

_WEAR: Final = """
CREATE TABLE wear (
    hour INTEGER PRIMARY KEY, seconds REAL NOT NULL, payload_bytes INTEGER NOT NULL, process_bytes INTEGER NOT NULL,
    device_bytes INTEGER NOT NULL
) STRICT;
"""
"""Totals since the store was created, by hours of running. Segments may be compressed from this version on."""

_EPOCHS: Final = """
CREATE TABLE opening (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, opened_at INTEGER NOT NULL, ends TEXT NOT NULL
) STRICT;
CREATE TABLE epoch (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, began_at INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE epoch_start (
    address TEXT NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL, PRIMARY KEY (address, epoch)
) STRICT, WITHOUT ROWID;
"""

MIGRATIONS: Final[Sequence[str]] = (_TABLES, _LEDGER, _THINNED, _WEAR, _EPOCHS)
"""``MIGRATIONS[n]`` migrates version n to n + 1; version 0 is an empty file. Only append, never edit."""

COMPATIBLE_FROM: Final = 4
"""Oldest schema version of a program that can use a store after the newest migration. So a gateway that returned to its
previous image can open a migrated store. Stored in ``meta`` as ``<version>:<compatible from>``, so that it applies only
to the version it was written with."""


_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_SCHEMA_COOKIE: Final = slice(40, 44)
_APPLICATION_ID: Final = slice(68, 72)
"""Offsets in the header of a database file (sqlite.org/fileformat2.html, section 1.3)."""


def check_ours(path: Path) -> None:
    """Check the header of a file before SQLite opens it and changes settings of another program's database.

    Raises StoreDamaged.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return  # new, or SQLite reports the error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return  # empty, or SQLite reports what it is
    if any(header[_SCHEMA_COOKIE]) and int.from_bytes(header[_APPLICATION_ID], "big") != APPLICATION_ID:
        raise StoreDamaged(NOT_A_STORE)


def prepare(
    connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS, compatible_from: int = COMPATIBLE_FROM
) -> str:
    """Create or migrate the schema in one transaction, and return the epoch of the store.

    Raises StoreTooNew, StoreDamaged, or sqlite3.Error, without changing the file.
    """
    version = _number(connection, "user_version")
    application = _number(connection, "application_id")
    tables = _number(connection, "schema_version")
    if tables and (application != APPLICATION_ID or not version):
        raise StoreDamaged(NOT_A_STORE)
    if version > len(migrations):
        _check_compatible(connection, version, len(migrations))
    if version < len(migrations):
        _migrate(connection, version, migrations, compatible_from)
    row = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    if row is None:
        raise StoreDamaged("the store has no epoch: run `waypost store verify`")
    return str(row[0])


def configure(connection: sqlite3.Connection, limits: StoreLimits) -> None:
    """Set the pragmas of the writing connection (`decisions/0006` explains each). Raises sqlite3.Error."""
    for pragma in (
        f"page_size = {limits.page_bytes}",  # applies to a new file only
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 0",  # `checkpointer` runs checkpoints, never within a commit
        f"journal_size_limit = {LOG_TIMES_MAX * limits.checkpoint_bytes}",  # applies when the log is reset
        "secure_delete = OFF",  # Debian's default of ON writes every deleted page again
        "temp_store = MEMORY",
        f"cache_size = -{limits.cache_bytes // KIB}",
        f"cache_spill = {limits.commit_cache_bytes // limits.page_bytes}",
        "cell_size_check = ON",
        "trusted_schema = OFF",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def page_bytes(connection: sqlite3.Connection) -> int:
    """Return the page size of the file. Raises sqlite3.Error."""
    return _number(connection, "page_size")


def _check_compatible(connection: sqlite3.Connection, version: int, ours: int) -> None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'compatible'").fetchone()
    written_with, _, compatible_from = str(row[0] if row is not None else "").partition(":")
    if written_with != str(version) or not compatible_from.isdecimal() or int(compatible_from) > ours:
        raise StoreTooNew(
            f"the store has schema {version}, this program supports up to {ours}: "
            "start the newer program again, or export the store with it"
        )


def _migrate(connection: sqlite3.Connection, version: int, migrations: Sequence[str], compatible_from: int) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for script in migrations[version:]:
            for statement in script.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("INSERT INTO meta VALUES ('epoch', ?)", (uuid.uuid4().hex,))
        compatible = f"{len(migrations)}:{compatible_from}"
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('compatible', ?)", (compatible,))
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite rolls back by itself when the medium fails
            connection.execute("ROLLBACK")
        raise


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
