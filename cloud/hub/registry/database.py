"""Database of the registry: one connection, for one thread, one transaction at a time."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from cloud.hub.limits import REGISTRY_ATTEMPTS_MAX, REGISTRY_RETRY_S_MAX
from cloud.hub.registry.dialects import SqlDialect, dialect_of
from cloud.hub.registry.faults import RowsRefused
from cloud.hub.registry.location import redact_url
from cloud.hub.registry.schema import NameType
from cloud.lake.faults import RegistryError

T = TypeVar("T")


class WrongThread(RuntimeError):
    """The registry was used by another thread, or within its own transaction: an internal error."""


class Database:
    """Open database for the thread that opened it: every method raises `WrongThread` in another one."""

    def __init__(self, url: sa.URL, *, reading: bool = False) -> None:
        """The connection is made with the first transaction. `reading`: it changes nothing, and delays no writer."""
        self.where = redact_url(url)
        self.in_doubt: list[Callable[[], None]] = []
        """Called after a transaction with an unknown result, or an error of the connection: cached rows may be wrong.
        After a conflict, or an exception of the work itself, nothing has happened."""
        self.dialect: SqlDialect = dialect_of(url)
        self.connections = 0
        """Connections made so far: a new one may be to another database than before."""
        self._password = str(url.password or "")
        self._engine = (self.dialect.reading_engine if reading else self.dialect.engine)(url)
        sa.event.listen(self._engine, "connect", self._count_connection)
        self._thread = threading.get_ident()
        self._busy = False

    def open(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the first transaction, while other hubs cannot open the registry.

        Raises `RegistryError` with advice for the operator; then close the database.
        """

        def fault(words: str) -> RegistryError:
            return self.dialect.opening_error(words, self.where)

        self._once(self.dialect.lock_opening, fault)
        done = self._once(work, fault)
        self._once(self.dialect.unlock_opening, fault)
        return done

    def connect(self) -> None:
        """Make the connection. Raises `RegistryError` with advice for the operator; then close the database."""
        self._once(lambda tx: tx.execute(sa.select(1)), lambda words: self.dialect.opening_error(words, self.where))

    @contextlib.contextmanager
    def repairing(self) -> Iterator[None]:
        """Repair the registry in the body while no other hub does; wait for one that does. Raises `RegistryError`."""
        self._once(self.dialect.lock_repair, _cannot_be_used)
        try:
            yield
        finally:
            with contextlib.suppress(RegistryError):  # the end of the connection unlocks it too
                self._once(self.dialect.unlock_repair, _cannot_be_used)

    def transaction(self, work: Callable[[sa.Connection], T], *, attempts: int = REGISTRY_ATTEMPTS_MAX) -> T:
        """Run `work` in one transaction, durable on return.

        It may run several times, because PostgreSQL aborts one of two conflicting transactions; so it must change
        nothing but the database. Raises `RegistryError`, and what `work` raises. Then the transaction did not happen,
        or the connection broke at its end and the result is unknown. `attempts`: after this many conflicts it fails.
        """
        return self._once(work, _cannot_be_used, REGISTRY_ATTEMPTS_MAX + 1 - attempts)

    def _once(self, work: Callable[[sa.Connection], T], fault: Callable[[str], RegistryError], attempt: int = 1) -> T:
        self.require_thread()
        if self._busy:
            raise WrongThread("nested transaction: it would wait for itself")
        self._busy = True
        try:
            return self._attempt(work, fault, attempt)
        finally:
            self._busy = False

    def _attempt(
        self, work: Callable[[sa.Connection], T], fault: Callable[[str], RegistryError], attempt: int = 1
    ) -> T:
        committing = False
        try:
            with self._engine.begin() as tx:
                result = work(tx)
                committing = True
        except SQLAlchemyError as error:
            conflict = self.dialect.is_conflict(error)
            if not conflict:
                self._doubt()
            if isinstance(error, DataError | IntegrityError) and (not conflict or attempt >= REGISTRY_ATTEMPTS_MAX):
                raise RowsRefused(f"the registry refuses what would be stored: {self.words(error)}") from error
            if not conflict or attempt >= REGISTRY_ATTEMPTS_MAX:
                raise fault(self.words(error)) from error
        except BaseException:
            if committing:
                self._doubt()
            raise
        else:
            return result
        time.sleep(random.uniform(0, attempt * REGISTRY_RETRY_S_MAX))  # noqa: S311 - two hubs are to try at different times
        return self._attempt(work, fault, attempt + 1)

    def now_us(self, tx: sa.Connection) -> int:
        """Return the time of the database, UTC microseconds: the one clock that all hubs of a registry share."""
        return int(self.dialect.utc_s(tx) * 1_000_000)

    def words(self, error: SQLAlchemyError) -> str:
        """Return the database's error text on one line, without the password."""
        text = " ".join(self.dialect.error_text(error).split())
        return text.replace(self._password, "***") if self._password else text

    def close(self) -> None:
        """Close the file or the connection; idempotent."""
        self.require_thread()
        self._engine.dispose()

    def require_thread(self) -> None:
        """Check the calling thread. Raises `WrongThread`."""
        if threading.get_ident() != self._thread:
            raise WrongThread("the registry belongs to the thread that opened it")

    def _count_connection(self, _connection: Any, _record: Any) -> None:
        self.connections += 1

    def _doubt(self) -> None:
        for forget in self.in_doubt:
            forget()


def execute_many(tx: sa.Connection, statement: sa.Update, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run ``tx.execute(statement, rows)`` without SQLAlchemy's processing of values, which takes longer than the
    database. Only names are encoded."""
    compiled = statement.compile(dialect=tx.dialect)
    names = {key: bind.type for key, bind in compiled.binds.items() if isinstance(bind.type, NameType)}
    if names and tx.dialect.name == "postgresql":
        encoded = (
            (row, {key: kind.process_bind_param(row[key], tx.dialect) for key, kind in names.items()}) for row in rows
        )
        rows = [{**row, **instead} for row, instead in encoded]
    places: Sequence[str] | None = compiled.positiontup
    values = [tuple(map(row.__getitem__, places)) for row in rows] if places is not None else rows
    tx.exec_driver_sql(str(compiled), values)


def _cannot_be_used(words: str) -> RegistryError:
    return RegistryError(f"the registry cannot be used: {words}")
