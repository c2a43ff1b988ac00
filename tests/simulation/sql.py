"""Registry in SQL: the product's tables in an SQLite database in memory, with copies that can be restored.

All runs of this process share one connection: each run starts from given content. The *fuse* of a program kills it
before a statement, or after a commit.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar
from unittest import mock

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from tests.simulation.lake import Killed
from tests.simulation.registry import Database

T = TypeVar("T")

URL: Final = sa.make_url("sqlite://")
_burning: list[Callable[[], None]] = []
"""Called before each statement and after each commit."""


@cache
def _connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


@cache
def _engine() -> sa.Engine:
    engine = _engine_of(_connection())
    sa.event.listen(engine, "before_cursor_execute", lambda *_: [burn() for burn in _burning])
    return engine


def _engine_of(connection: sqlite3.Connection) -> sa.Engine:
    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    sa.event.listen(engine, "begin", lambda tx: tx.exec_driver_sql("BEGIN"))
    return engine


@cache
def _template(fill: Callable[[sa.Connection], object]) -> bytes:
    """Return a registry after this work, without an id; creating its tables takes a tenth of the time of a run."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with mock.patch.object(secrets, "token_hex", return_value=""), _engine_of(connection).begin() as tx:
        fill(tx)
    return connection.serialize()


def empty(fill: Callable[[sa.Connection], object]) -> bytes:
    """Return a new registry after this work, which begins with `open_schema`."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(_template(fill))
    connection.execute("UPDATE schema_version SET registry_id = ?", (secrets.token_hex(16),))
    return connection.serialize()


class _Burnt(Exception):
    """Raised when a fuse has burnt. SQLAlchemy would close the connection on any exception other than an error."""


class SqlDatabase:
    """Substitute for `cloud.hub.registry.database.Database`; it survives the programs that use it."""

    def __init__(self, database: Database, content: bytes) -> None:
        """Create a database that fails as `database` does."""
        self.in_doubt: list[Callable[[], None]] = []
        self.connections = 1
        self.fuse: Callable[[], bool] = lambda: False
        """Called before each statement and after each commit: True kills the caller."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each commit that changed something."""
        self.copies: list[bytes] = []
        self._database = database
        _connection().deserialize(content)

    def transaction(self, work: Callable[[sa.Connection], T]) -> T:
        fails = self._database.transaction()
        before = _connection().total_changes
        _burning[:] = [self._burn]
        try:
            with _engine().begin() as tx:
                done = work(tx)
            _burning.clear()
            if _connection().total_changes != before:
                self.changed()
            self._burn()
        except _Burnt:
            raise Killed("between two statements") from None
        finally:
            _burning.clear()
        self._database.end(fails)
        return done

    def look(self, work: Callable[[sa.Connection], T]) -> T:
        """Return a view of the content for the checker."""
        with _engine().begin() as tx:
            return work(tx)

    def close(self) -> None:
        """Do nothing: the content stays."""

    def back_up(self) -> None:
        """Keep a copy."""
        self.copies.append(_connection().serialize())

    def put_back(self, choice: int) -> bool:
        """Restore an older copy while no program has the database open; return False without a copy."""
        if self.copies:
            _connection().deserialize(self.copies[choice % len(self.copies)])
        return bool(self.copies)

    def _burn(self) -> None:
        if self.fuse():
            raise _Burnt


def nothing(column: sa.Column[Any]) -> Any:
    """Return the value of a column that has no information."""
    return None if column.nullable else column.type.python_type()
