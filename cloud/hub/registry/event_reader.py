"""Pages of the events in the registry, and the deletion of old ones. Times are UTC microseconds since 1970.

`event_gaps` has the last deleted number of each tenant, so a reader that was away too long learns that it has missed
some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import EVENTS_SEARCHED_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import FleetEvent
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.retention import delete_old
from cloud.hub.registry.schema import event_gaps, events


class NumberedEvent(NamedTuple):
    """Event with its number."""

    number: int
    event: FleetEvent


class EventFilter(NamedTuple):
    """Filter of events; None and empty values match everything."""

    tenant: str | None = None
    types: frozenset[str] = frozenset()
    """Types, or their nouns."""
    gateways: frozenset[str] = frozenset()

    def matches(self, event: FleetEvent) -> bool:
        """Return whether an event is wanted."""
        return (
            (self.tenant is None or event.tenant == self.tenant)
            and (not self.types or event.type in self.types or event.type.partition(".")[0] in self.types)
            and (not self.gateways or event.gateway in self.gateways)
        )


class EventPage(NamedTuple):
    """Events after a number, in order."""

    events: Sequence[NumberedEvent]
    reached: int
    """Number up to which events were read: the page after it begins there."""
    more: bool
    """Further events were there when it was read."""
    missed: int | None = None
    """Events up to this number may be missing, as they are not kept any more; None if none are."""


_EVENT: Final = [events.c[name] for name in FleetEvent._fields]


class EventLog:
    """Deletes old events, for the thread that creates it. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database

    def close(self) -> None:
        self._database.close()

    def clean_up(self, before_us: int, most: int, all_most: int) -> int:
        """Delete events of before a time, and all but the latest `most` of each tenant and `all_most` of all; return
        their number."""

        def work(tx: sa.Connection) -> int:
            deleted = delete_old(tx, events, before_us, most, all_most)
            _store_gaps(tx, deleted.last)
            return deleted.rows

        return self._database.transaction(work)


class EventReader:
    """Reads the events of an existing registry, for the thread that creates it. It delays no writer. Every method is
    one transaction; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        self._database = Database(url, reading=True)

    def close(self) -> None:
        self._database.close()

    def newest(self) -> int:
        """Return the number of the latest event; 0 without any."""
        return self._database.transaction(_newest)

    def page(self, after: int, wanted: EventFilter, limit: int) -> EventPage:
        """Return up to `limit` events after a number. It reads `EVENTS_SEARCHED_MAX` events at most."""
        return self._database.transaction(lambda tx: _page(tx, after, wanted, limit))

    def latest(self, wanted: EventFilter, limit: int) -> int:
        """Return the number after which the latest `limit` events that match begin, among `EVENTS_SEARCHED_MAX`."""

        def work(tx: sa.Connection) -> int:
            first = sa.select(events.c.number).order_by(events.c.number.desc())
            begin = tx.execute(first.offset(EVENTS_SEARCHED_MAX).limit(1)).scalar() or 0
            query = sa.select(events.c.number).where(events.c.number > begin, *_conditions(wanted))
            found = tx.execute(query.order_by(events.c.number.desc()).limit(limit)).scalars().all()
            return int(found[-1]) - 1 if found else _newest(tx)

        return self._database.transaction(work)


def _newest(tx: sa.Connection) -> int:
    return tx.execute(sa.select(sa.func.max(events.c.number))).scalar() or 0


def _page(tx: sa.Connection, after: int, wanted: EventFilter, limit: int) -> EventPage:
    newest = _newest(tx)
    missed = _missed(tx, after, newest, wanted.tenant)
    if after > newest:  # a client that began again would react a second time to what it has seen
        return EventPage([], newest, more=False, missed=missed)
    later = sa.select(events.c.number).where(events.c.number > after).order_by(events.c.number)
    until = tx.execute(later.offset(EVENTS_SEARCHED_MAX - 1).limit(1)).scalar() or newest
    query = sa.select(events.c.number, *_EVENT).where(
        events.c.number > after, events.c.number <= until, *_conditions(wanted)
    )
    rows = tx.execute(query.order_by(events.c.number).limit(limit)).all()
    found = [NumberedEvent(row[0], FleetEvent(*row[1:])) for row in rows]
    reached = found[-1].number if len(found) == limit else max(until, after)
    return EventPage(found, reached, reached < newest, missed)


def _missed(tx: sa.Connection, after: int, newest: int, tenant: str | None) -> int | None:
    """Return the number up to which events after `after` may be missing; None if none are."""
    if after > newest:  # a number of another registry, or of one that was restored from a backup
        return after
    query = sa.select(sa.func.max(event_gaps.c.number))
    if tenant is not None:
        query = query.where(event_gaps.c.tenant == tenant)
    deleted = tx.execute(query).scalar() or 0
    return deleted if after < deleted else None


def _conditions(wanted: EventFilter) -> Iterable[Any]:
    if wanted.tenant is not None:
        yield events.c.tenant == wanted.tenant
    if wanted.types:
        nouns = (events.c.type.startswith(f"{each}.", autoescape=True) for each in sorted(wanted.types))
        yield sa.or_(events.c.type.in_(sorted(wanted.types)), *nouns)
    if wanted.gateways:
        yield events.c.gateway.in_(sorted(wanted.gateways))


def _store_gaps(tx: sa.Connection, last: Mapping[str, int]) -> None:
    known = {row.tenant: row.number for row in tx.execute(sa.select(event_gaps))}
    for tenant, number in last.items():
        if tenant not in known:
            tx.execute(event_gaps.insert().values(tenant=tenant, number=number))
        elif number > known[tenant]:
            tx.execute(event_gaps.update().where(event_gaps.c.tenant == tenant).values(number=number))
