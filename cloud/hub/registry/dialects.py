"""SQLite and PostgreSQL: how each is opened so that a commit is on disk, and what its errors mean."""

from __future__ import annotations

import sqlite3
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cloud.hub.limits import (
    REGISTRY_CONNECT_S_MAX,
    REGISTRY_SILENCE_S_MAX,
    REGISTRY_STATEMENT_S_MAX,
)
from cloud.hub.registry.faults import RegistryRefused, RegistryUnreachable
from cloud.hub.registry.location import SQLITE
from cloud.lake.faults import RegistryError

ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0}
OPENING_LOCK = 0x57505247
"""Of PostgreSQL's advisory locks: hubs that open a registry at once make its tables one after the other."""

EXCLUDED = ("40001", "40P01")
"""SQLSTATE: serialization_failure, deadlock_detected. The transaction is rolled back and may be done again."""


class Dialect(Protocol):
    """What differs between the databases."""

    def engine(self, url: sa.URL) -> sa.Engine:
        """An engine with one connection, whose commits are on disk and whose transactions are serializable."""
        ...

    def lock_opening(self, tx: sa.Connection) -> None:
        """Keep others from opening the registry, until `unlock_opening` or the end of the connection. In a transaction
        of its own: one sees what was there when it began, so the next is to begin when the others are done."""
        ...

    def unlock_opening(self, tx: sa.Connection) -> None:
        """The registry is open."""
        ...

    def excluded(self, error: SQLAlchemyError) -> bool:
        """True when a transaction has not happened because of another one."""
        ...

    def said(self, error: SQLAlchemyError) -> str:
        """What the database said, without what it quotes of rows."""
        ...

    def why_not_opened(self, words: str, where: str) -> RegistryError:
        """What to tell the one who starts a hub; `words`: what the database said."""
        ...


def dialect_of(url: sa.URL) -> Dialect:
    """Of a URL `cloud.hub.registry.location.parse` has let through."""
    return Sqlite() if url.drivername == SQLITE else Postgresql()


class Sqlite:
    """One file: WAL, ``synchronous=FULL``."""

    def engine(self, url: sa.URL) -> sa.Engine:
        engine = sa.create_engine(url, **ONE_CONNECTION)
        sa.event.listen(engine, "connect", self._connected)
        sa.event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    @staticmethod
    def _connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where the engine's do, not with the first change
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")  # damage is for us to notice
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}").close()

    def lock_opening(self, tx: sa.Connection) -> None:
        """`BEGIN IMMEDIATE` does it."""

    def unlock_opening(self, tx: sa.Connection) -> None:
        """The end of the transaction does it."""

    def excluded(self, error: SQLAlchemyError) -> bool:
        return False

    def said(self, error: SQLAlchemyError) -> str:
        return str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__

    def why_not_opened(self, words: str, where: str) -> RegistryError:
        steps = {
            "readonly": "let this user write the file and its folder",
            "unable to open": "its folder must be there, and this user must be able to write there",
            "locked": "another program has it; stop that one",
        }
        step = next((step for sign, step in steps.items() if sign in words), "name a registry's file, or restore it")
        return RegistryRefused(f"the registry {where} cannot be opened: {words}; {step}")


class Postgresql:
    """A server, through psycopg 3: serializable transactions."""

    def engine(self, url: sa.URL) -> sa.Engine:
        silence = {"keepalives_idle": REGISTRY_SILENCE_S_MAX // 2, "keepalives_interval": REGISTRY_SILENCE_S_MAX // 6}
        limits = {
            "connect_timeout": REGISTRY_CONNECT_S_MAX,
            "keepalives_count": 3,
            "tcp_user_timeout": REGISTRY_SILENCE_S_MAX * 1_000,
            **silence,
        }
        arguments = {name: value for name, value in limits.items() if name not in url.query}
        engine = sa.create_engine(url, isolation_level="SERIALIZABLE", connect_args=arguments, **ONE_CONNECTION)
        sa.event.listen(engine, "connect", self._connected)
        return engine

    @staticmethod
    def _connected(connection: Any, _record: Any) -> None:
        """Of a server that says "committed" before it is on disk nothing may be acknowledged."""
        cursor = connection.cursor()
        if cursor.execute("SHOW fsync").fetchone()[0] == "off":
            raise RegistryRefused("PostgreSQL runs with fsync = off and loses what it has stored; set it on")
        if cursor.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            cursor.execute("SET synchronous_commit TO on")
        cursor.execute(f"SET statement_timeout TO '{REGISTRY_STATEMENT_S_MAX}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout TO '{REGISTRY_STATEMENT_S_MAX}s'")
        connection.commit()
        cursor.close()

    def lock_opening(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_lock(OPENING_LOCK)))

    def unlock_opening(self, tx: sa.Connection) -> None:
        tx.execute(sa.select(sa.func.pg_advisory_unlock(OPENING_LOCK)))

    def excluded(self, error: SQLAlchemyError) -> bool:
        return isinstance(error, DBAPIError) and self._sqlstate(error.orig) in EXCLUDED

    def said(self, error: SQLAlchemyError) -> str:
        if not isinstance(error, DBAPIError):
            return type(error).__name__
        lines = str(error.orig).splitlines() or [type(error.orig).__name__]
        return lines[0] if self._sqlstate(error.orig) is not None else " ".join(lines)

    @staticmethod
    def _sqlstate(error: Any) -> str | None:
        """Of an error of psycopg; None when it is about the connection."""
        return error.sqlstate  # type: ignore[no-any-return]

    def why_not_opened(self, words: str, where: str) -> RegistryError:
        what = f"the registry {where} cannot be opened: {words}"
        refused = {
            "password": "correct the user or the password (of the URL, PGPASSWORD or a passfile)",
            "pg_hba.conf": "let this user in from this machine in the server's pg_hba.conf",
            "role": "make the user, or correct its name: createuser USER",
            "does not exist": "make the database: createdb -O USER DATABASE",
            "permission denied": "let the user make tables there: GRANT CREATE, USAGE ON SCHEMA public TO USER",
            "read-only": "name the primary server: a standby, or a user who may only read, cannot keep a registry",
        }
        for sign, step in refused.items():
            if sign in words:
                return RegistryRefused(f"{what}; {step}")
        return RegistryUnreachable(f"{what}; start the server, or correct its address")
