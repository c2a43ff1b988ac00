"""SQL dialects of SQLite and PostgreSQL: durable connections, and the meaning of errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cloud.hub.limits import (
    REGISTRY_CONNECT_S_MAX,
    REGISTRY_IDLE_S_MAX,
    REGISTRY_SILENCE_S_MAX,
    REGISTRY_STATEMENT_S_MAX,
)
from cloud.hub.registry.faults import RegistryRefused, RegistryUnreachable
from cloud.hub.registry.location import SQLITE
from cloud.lake.faults import RegistryError

BUSY_S: Final = 5
"""Seconds to wait for another process that holds the file."""
BUSY_RETRY_S: Final = 0.01
"""Seconds between two attempts: entering the write-ahead log takes a few milliseconds."""
ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0}
_JULIAN_DAY_1970: Final = 2_440_587.5
"""Days from the begin of SQLite's calendar."""
OPENING_LOCK = 0x57505247
"""Number of the advisory lock of PostgreSQL that serializes the opening of a registry."""

REPAIR_LOCK = OPENING_LOCK + 1
"""Number of the lock that serializes repairs of a registry that is older than its lake."""

EXCLUDED = ("40001", "40P01", "23505")
"""SQLSTATE serialization_failure, deadlock_detected and unique_violation: the transaction was rolled back and may be
retried. Two transactions that find no row and insert it may get the last one (PostgreSQL 15, section 13.5)."""


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Use a write-ahead log. SQLite does not wait by itself while another connection enters it. Raises
    sqlite3.OperationalError after `BUSY_S`.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until_s:
                raise
            time.sleep(BUSY_RETRY_S)
        else:
            return


class SqlDialect(Protocol):
    """Differences between the databases."""

    def engine(self, url: sa.URL) -> sa.Engine:
        """Return an engine with one connection, durable commits and serializable transactions."""
        ...

    def reading_engine(self, url: sa.URL) -> sa.Engine:
        """Return an engine with one connection that only reads, and delays no writer."""
        ...

    def lock_opening(self, tx: sa.Connection) -> None:
        """Lock the opening of the registry until `unlock_opening` or the end of the connection.

        Runs in a transaction of its own: the next one must begin after other hubs are done, to see their tables.
        """
        ...

    def unlock_opening(self, tx: sa.Connection) -> None:
        """Release the lock after the registry was opened."""
        ...

    def lock_repair(self, tx: sa.Connection) -> None:
        """Lock the repair of the registry until `unlock_repair` or the end of the connection."""
        ...

    def unlock_repair(self, tx: sa.Connection) -> None:
        """Release the lock after the repair."""
        ...

    def limit_statements(self, tx: sa.Connection, seconds: float) -> None:
        """Limit the time of each statement of this transaction, where the database is a server."""
        ...

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        """Return whether a transaction was aborted because of another one."""
        ...

    def size(self, tx: sa.Connection) -> int:
        """Return the bytes of the database."""
        ...

    def utc_s(self, tx: sa.Connection) -> float:
        """Return UTC seconds on the clock of the database, which all hubs share."""
        ...

    def continue_numbers(self, tx: sa.Connection, tables: Iterable[sa.Table]) -> None:
        """Let numbers that the database gives continue after those in the rows."""
        ...

    def error_text(self, error: SQLAlchemyError) -> str:
        """Return the database's error text, without quoted row values."""
        ...

    def opening_error(self, words: str, where: str) -> RegistryError:
        """Return the error for the operator; `words`: error text of the database."""
        ...


def dialect_of(url: sa.URL) -> SqlDialect:
    """Return the dialect of a URL from `cloud.hub.registry.location.parse`."""
    return Sqlite() if url.drivername == SQLITE else Postgresql()


def connection_limits(url: sa.URL) -> dict[str, int]:
    """Return the limits of a connection to PostgreSQL that the URL does not set itself."""
    limits = {
        "connect_timeout": REGISTRY_CONNECT_S_MAX,
        "keepalives_idle": REGISTRY_SILENCE_S_MAX // 2,
        "keepalives_interval": REGISTRY_SILENCE_S_MAX // 6,
        "keepalives_count": 3,
        "tcp_user_timeout": REGISTRY_SILENCE_S_MAX * 1_000,
    }
    return {name: value for name, value in limits.items() if name not in url.query}


class Sqlite:
    """SQLite file: WAL, ``synchronous=FULL``."""

    def engine(self, url: sa.URL) -> sa.Engine:
        engine = self._engine(url)
        sa.event.listen(engine, "connect", self._connected)
        sa.event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def reading_engine(self, url: sa.URL) -> sa.Engine:
        """Deferred transactions: readers of a write-ahead log take no lock that a writer waits for."""
        engine = self._engine(url)
        sa.event.listen(engine, "connect", self._connected)
        sa.event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA query_only=ON"))
        sa.event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("BEGIN DEFERRED"))
        return engine

    @staticmethod
    def _engine(url: sa.URL) -> sa.Engine:
        return sa.create_engine(url, **ONE_CONNECTION)

    @staticmethod
    def _connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the engine begins transactions, not the first change
        connection.text_factory = lambda text: text.decode(
            "utf-8", "surrogateescape"
        )  # damaged text must not raise here
        for pragma in (f"busy_timeout={BUSY_S * 1_000}", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()
        _enter_wal(connection)

    def lock_opening(self, tx: sa.Connection) -> None:
        """Do nothing: `BEGIN IMMEDIATE` locks the file."""

    def unlock_opening(self, tx: sa.Connection) -> None:
        """Do nothing: the end of the transaction unlocks the file."""

    def lock_repair(self, tx: sa.Connection) -> None:
        """Do nothing: one hub uses the file."""

    def unlock_repair(self, tx: sa.Connection) -> None:
        """Do nothing: nothing is locked."""

    def limit_statements(self, tx: sa.Connection, seconds: float) -> None:
        """Do nothing: no other program holds up a reader of the file."""

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        return False

    def size(self, tx: sa.Connection) -> int:
        pages, page_bytes = (tx.exec_driver_sql(f"PRAGMA {each}").scalar_one() for each in ("page_count", "page_size"))
        return int(pages) * int(page_bytes)

    def utc_s(self, tx: sa.Connection) -> float:
        return (float(tx.exec_driver_sql("SELECT julianday('now')").scalar_one()) - _JULIAN_DAY_1970) * 86_400

    def continue_numbers(self, tx: sa.Connection, tables: Iterable[sa.Table]) -> None:
        """Do nothing: SQLite continues after the highest number."""

    def error_text(self, error: SQLAlchemyError) -> str:
        return str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__

    def opening_error(self, words: str, where: str) -> RegistryError:
        steps = {
            "readonly": "give this user write access to the file and its folder",
            "unable to open": "create its folder, and give this user write access",
            "locked": "another program uses it; stop that program",
        }
        step = next(
            (step for sign, step in steps.items() if sign in words),
            "check that the file is a registry, or restore it from a backup",
        )
        return RegistryRefused(f"the registry {where} cannot be opened: {words}; {step}")


class Postgresql:
    """PostgreSQL server, through psycopg 3: serializable transactions."""

    def engine(self, url: sa.URL) -> sa.Engine:
        return self._engine(url, "SERIALIZABLE")

    def reading_engine(self, url: sa.URL) -> sa.Engine:
        """One snapshot for each transaction, which conflicts with none that writes."""
        engine = self._engine(url, "REPEATABLE READ")
        sa.event.listen(engine, "connect", self._only_reads)
        return engine

    def _engine(self, url: sa.URL, isolation: Literal["SERIALIZABLE", "REPEATABLE READ"]) -> sa.Engine:
        arguments = connection_limits(url)
        engine = sa.create_engine(url, isolation_level=isolation, connect_args=arguments, **ONE_CONNECTION)
        sa.event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connected(connection: Any, _record: Any) -> None:
        """Refuse a server that confirms commits before they are on disk."""
        cursor = connection.cursor()
        if cursor.execute("SHOW fsync").fetchone()[0] == "off":
            raise RegistryRefused("PostgreSQL runs with fsync = off and may lose committed data; set it to on")
        if cursor.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            cursor.execute("SET synchronous_commit TO on")
        cursor.execute(f"SET statement_timeout TO '{REGISTRY_STATEMENT_S_MAX}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout TO '{REGISTRY_IDLE_S_MAX}s'")
        connection.commit()
        cursor.close()

    @staticmethod
    def _only_reads(connection: Any, _record: Any) -> None:
        connection.execute("SET default_transaction_read_only TO on")
        connection.commit()

    def lock_opening(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_lock(OPENING_LOCK)))

    def unlock_opening(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_unlock(OPENING_LOCK)))

    def lock_repair(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_lock(REPAIR_LOCK)))

    def unlock_repair(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_unlock(REPAIR_LOCK)))

    def limit_statements(self, tx: sa.Connection, seconds: float) -> None:
        tx.exec_driver_sql(f"SET LOCAL statement_timeout TO {int(seconds * 1_000)}")

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        return isinstance(error, DBAPIError) and self._sqlstate(error.orig) in EXCLUDED

    def size(self, tx: sa.Connection) -> int:
        return int(tx.execute(sa.select(sa.func.pg_database_size(sa.func.current_database()))).scalar_one())

    def utc_s(self, tx: sa.Connection) -> float:
        return float(tx.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())

    def continue_numbers(self, tx: sa.Connection, tables: Iterable[sa.Table]) -> None:
        for table in tables:
            column = table.autoincrement_column
            highest = None if column is None else tx.execute(sa.select(sa.func.max(column))).scalar()
            if column is not None and highest is not None:
                sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
                tx.execute(sa.select(sa.func.setval(sequence, highest)))

    def error_text(self, error: SQLAlchemyError) -> str:
        if not isinstance(error, DBAPIError):
            return type(error).__name__
        lines = str(error.orig).splitlines() or [type(error.orig).__name__]
        return lines[0] if self._sqlstate(error.orig) is not None else " ".join(lines)

    @staticmethod
    def _sqlstate(error: Any) -> str | None:
        """Return the SQLSTATE of an error of psycopg; None for an error of the connection."""
        return error.sqlstate  # type: ignore[no-any-return]

    def opening_error(self, words: str, where: str) -> RegistryError:
        what = f"the registry {where} cannot be opened: {words}"
        refused = {
            "password": "correct the user or the password (of the URL, PGPASSWORD or a passfile)",
            "pg_hba.conf": "allow this user from this machine in the server's pg_hba.conf",
            "role": "create the user, or correct its name: createuser USER",
            "does not exist": "create the database: createdb -O USER DATABASE",
            "permission denied": "allow the user to create tables: GRANT CREATE, USAGE ON SCHEMA public TO USER",
            "read-only": "use the primary server and a user with write access",
        }
        for sign, step in refused.items():
            if sign in words:
                return RegistryRefused(f"{what}; {step}")
        return RegistryUnreachable(f"{what}; start the server, or correct its address")
