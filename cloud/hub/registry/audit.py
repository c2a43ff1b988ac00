"""Audit in the registry: one line for each change that a person or program made at a hub.

For the hub, in a thread of its own. Times are UTC microseconds since 1970. Lines are never changed; old ones are
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.opening import open_registry
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

    def page(self, wanted: AuditFilter, limit: int) -> tuple[list[NumberedEntry], int]:
        """Return lines, the latest first, and the number of all that match."""
        conditions = list(_conditions(wanted))
        query = sa.select(audit.c.number, *_ENTRY).where(*conditions).order_by(audit.c.number.desc()).limit(limit)
        if wanted.before is not None:
            query = query.where(audit.c.number < wanted.before)
        counting = sa.select(sa.func.count()).select_from(audit).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[NumberedEntry], int]:
            found = [NumberedEntry(row[0], AuditEntry(*row[1:])) for row in tx.execute(query)]
            return found, tx.execute(counting).scalar() or 0

        return self._database.transaction(work)

    def clean_up(self, before_us: int, most: int) -> int:
        """Delete lines of before a time, and all but the latest `most`; return their number."""
        last = sa.select(audit.c.number).order_by(audit.c.number.desc()).offset(most).limit(1)

        def work(tx: sa.Connection) -> int:
            number = tx.execute(last).scalar() or 0
            return tx.execute(audit.delete().where((audit.c.at < before_us) | (audit.c.number <= number))).rowcount

        return self._database.transaction(work)


def _conditions(wanted: AuditFilter) -> Iterable[Any]:
    if wanted.tenant is not None:
        yield audit.c.tenant == wanted.tenant
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
