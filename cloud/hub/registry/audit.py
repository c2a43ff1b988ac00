"""Audit in the registry: one line for each change that a person or program made at a hub.

For the hub, in a thread of its own. Times are UTC microseconds since 1970. Lines are never changed; old ones are
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import AUDIT_CLOCK_LINES, AUDIT_READS_MAX, AUDIT_ROWS_MAX, AUDIT_SEARCHED_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.retention import delete_old
from cloud.hub.registry.schema import audit


class AuditEntry(NamedTuple):
    """Line of the audit."""

    at: int
    user: str
    """Empty without authentication."""
    remote: str
    """Address of the client."""
    tenant: str
    """Tenant of what was changed; empty for the hub itself."""
    action: str
    """Noun and verb, as in ``token.create``."""
    subject: str
    """Name of what was changed."""
    before: str | None
    """JSON; None if it is not known, or was too large."""
    after: str | None
    status: int
    """Status of the answer over HTTP."""
    error: str
    """Reason why it was refused or failed; empty when it was done."""


class NumberedEntry(NamedTuple):
    """Line of the audit with its number."""

    number: int
    entry: AuditEntry


class AuditFilter(NamedTuple):
    """Filter of the audit; None and empty values match everything."""

    tenant: str | None = None
    user: str = ""
    action: str = ""
    """An action, or its noun."""
    done: bool | None = None
    """Only changes that were done, or only those that were not."""
    text: str = ""
    """Part of user, subject, address of the client or error, case ignored."""
    since: int | None = None
    until: int | None = None
    before: int | None = None
    """Number of the last line of the page before."""


class FoundEntries(NamedTuple):
    """Page of lines that match a filter."""

    entries: list[NumberedEntry]
    """The latest first."""
    following: int | None
    """`before` of the next page; None on the last one."""
    total: int
    """Number of lines that match among the latest `AUDIT_SEARCHED_MAX` of the tenant."""
    searched_to: int | None = None
    """Time of the oldest line that was read; None if all were."""


_NUMBER_MAX: Final = (1 << 63) - 1
_ENTRY: Final = [audit.c[name] for name in AuditEntry._fields]


class Audit:
    """Audit in the registry, for the thread that creates it. Every method is one transaction, durable on return; raises
    `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database

    def close(self) -> None:
        self._database.close()

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Append lines."""
        rows = [each._asdict() for each in entries]
        self._database.transaction(lambda tx: tx.execute(audit.insert(), rows))

    def clean_up(self, before_us: int, most: int, all_most: int = AUDIT_ROWS_MAX) -> int:
        """Delete lines of before a time, and all but the latest `most` of each tenant and `all_most` of all; return
        their number."""

        def work(tx: sa.Connection) -> int:
            return delete_old(tx, audit, before_us, most, all_most).rows

        return self._database.transaction(work)


class AuditReader:
    """Reads the audit of an existing registry, for the thread that creates it. It delays no writer. Every
    method is one transaction; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        self._database = Database(url, reading=True)

    def close(self) -> None:
        self._database.close()

    def page(self, wanted: AuditFilter, limit: int) -> FoundEntries:
        """Return up to `limit` lines that match.

        Of a large audit a page reads `AUDIT_SEARCHED_MAX` lines, and goes on with older ones while it has found none,
        `AUDIT_READS_MAX` times. It may have fewer than `limit` then, and others follow.
        """
        conditions = list(_conditions(wanted))

        def work(tx: sa.Connection) -> FoundEntries:
            newest = None if wanted.until is None else _last_before(tx, wanted.until)
            latest = _read(tx, wanted.tenant, newest)
            older = None if wanted.before is None else wanted.before - 1
            read = (
                latest if older is None else _read(tx, wanted.tenant, older if newest is None else min(newest, older))
            )
            first_since = 0 if wanted.since is None else _first_since(tx, wanted.since)
            rows = _rows(tx, read, wanted.tenant, conditions, limit)
            for _ in range(AUDIT_READS_MAX - 1):
                if rows or read.following is None or read.first <= first_since:
                    break
                read = _read(tx, wanted.tenant, read.following - 1)
                rows = _rows(tx, read, wanted.tenant, conditions, limit)
            counted = sa.select(sa.func.count()).select_from(audit).where(*_within(latest, wanted.tenant), *conditions)
            entries = [NumberedEntry(row[0], AuditEntry(*row[1:])) for row in rows[:limit]]
            following = read.following
            if len(rows) > limit:
                following = entries[-1].number
            elif read.first <= first_since:
                following = None
            searched_to = None if following is None else _time_of(tx, following)
            return FoundEntries(entries, following, tx.execute(counted).scalar_one(), searched_to)

        return self._database.transaction(work)


class _Read(NamedTuple):
    """Lines that a page reads: those of one tenant, or of all."""

    first: int
    last: int
    following: int | None
    """`before` of the lines that are left; None if there are none."""


def _read(tx: sa.Connection, tenant: str | None, last: int | None) -> _Read:
    """Return the latest `AUDIT_SEARCHED_MAX` lines, up to number `last`; an index has them."""
    numbers = sa.select(audit.c.number).order_by(audit.c.number.desc()).offset(AUDIT_SEARCHED_MAX - 1).limit(2)
    if tenant is not None:
        numbers = numbers.where(audit.c.tenant == tenant)
    if last is not None:
        numbers = numbers.where(audit.c.number <= last)
    found = tx.execute(numbers).scalars().all()
    first = found[0] if found else 0
    return _Read(first, _NUMBER_MAX if last is None else last, first if len(found) > 1 else None)


def _rows(tx: sa.Connection, read: _Read, tenant: str | None, conditions: Sequence[Any], limit: int) -> Sequence[Any]:
    """Return the latest lines that match among those to read, one more than the limit."""
    return tx.execute(
        sa.select(audit.c.number, *_ENTRY)
        .where(*_within(read, tenant), *conditions)
        .order_by(audit.c.number.desc())
        .limit(limit + 1)
    ).all()


def _time_of(tx: sa.Connection, number: int) -> int | None:
    """Return the time of a line."""
    return tx.execute(sa.select(audit.c.at).where(audit.c.number == number)).scalar_one_or_none()


def _within(read: _Read, tenant: str | None) -> Iterable[Any]:
    yield audit.c.number.between(read.first, read.last)
    if tenant is not None:
        yield audit.c.tenant == tenant


def _last_before(tx: sa.Connection, until: int) -> int:
    """Return the highest number of a line before a time, or 0."""
    latest = sa.select(audit.c.number).where(audit.c.at < until).order_by(audit.c.at.desc()).limit(AUDIT_CLOCK_LINES)
    return tx.execute(sa.select(sa.func.max(latest.subquery().c.number))).scalar() or 0


def _first_since(tx: sa.Connection, since: int) -> int:
    """Return the lowest number of a line from a time on, or `_NUMBER_MAX`."""
    earliest = sa.select(audit.c.number).where(audit.c.at >= since).order_by(audit.c.at).limit(AUDIT_CLOCK_LINES)
    return tx.execute(sa.select(sa.func.min(earliest.subquery().c.number))).scalar() or _NUMBER_MAX


def _conditions(wanted: AuditFilter) -> Iterable[Any]:
    if wanted.user:
        yield audit.c.user == wanted.user
    if wanted.action:
        yield (audit.c.action == wanted.action) | audit.c.action.startswith(f"{wanted.action}.", autoescape=True)
    if wanted.done is not None:
        yield audit.c.status < 400 if wanted.done else audit.c.status >= 400
    if wanted.since is not None:
        yield audit.c.at >= wanted.since
    if wanted.until is not None:
        yield audit.c.at < wanted.until
    if wanted.text:
        part = f"%{wanted.text.lower().replace('~', '~~').replace('%', '~%').replace('_', '~_')}%"
        columns = (audit.c.user, audit.c.subject, audit.c.remote, audit.c.error)
        yield sa.or_(*(sa.func.lower(each).like(part, escape="~") for each in columns))
