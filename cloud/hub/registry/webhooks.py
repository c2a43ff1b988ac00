"""Webhooks in the registry: their settings, how far each has got in the events, and which hub sends them.

A hub claims a webhook, sends events, and writes how far it has got. Every such write requires the number of the write
before, so two hubs never go on from the same place (``cloud/decisions/0030-webhooks-go-on-from-a-number.md``). Changes
by people leave that number alone: the sending hub sees them at its next write. Times are UTC microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.registry.database import Database
from cloud.hub.registry.event_reader import EventFilter
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import events, webhooks
from cloud.hub.registry.tenant_state import require_tenant
from cloud.lake.faults import RegistryError


class TooManyWebhooks(RegistryError):
    """A limit of webhooks is reached; the message says which."""


class WebhookState(StrEnum):
    """State of a webhook. Only an active one gets events; the others keep their place."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Paused by a person."""
    FAILED = "failed"
    """Paused by a hub, as nothing could be delivered for days."""
    GONE = "gone"
    """Ended by its server, which has answered 410."""


@hides("secret", "older_secret", "url")
class WebhookRecord(NamedTuple):
    """Webhook."""

    id: str
    tenant: str
    """Tenant of its events; empty: it gets those of all tenants and of the hubs."""
    url: str
    types: str
    """Types of events that it gets, or their nouns, a JSON list; empty: all."""
    gateways: str
    """Names of gateways, a JSON list; empty: all, and events without a gateway."""
    selector: str
    """Labels of gateways; empty: all, and events without a gateway."""
    secret: str
    older_secret: str | None
    """Secret before the last change of it; None without one."""
    older_until: int | None
    """Time until which requests are signed with both secrets."""
    made_at: int
    changed_at: int
    """Time of the last change of its settings or state by a person."""
    changed_by: str
    state: str
    number: int
    """Number of writes by sending hubs."""
    holder: str | None
    """Writer id of the hub that sends now; None if none does."""
    reached: int
    """Number of the event up to which everything was delivered, or was not wanted."""
    gap_told: int
    """Number up to which its server knows that events may be missing."""
    attempts: int
    """Failed attempts since the last delivery."""
    due_at: int
    """Time of the next attempt."""
    failing_since: int | None
    """First failed attempt since the last delivery; None if the last one succeeded."""
    failure: str
    delivered_at: int | None

    @property
    def wanted(self) -> EventFilter:
        """Filter of its events; the selector comes in addition."""
        types, gateways = (frozenset(msgspec.json.decode(each, type=list[str])) for each in (self.types, self.gateways))
        return EventFilter(self.tenant or None, types, gateways)

    def secrets(self, now_us: int) -> Sequence[str]:
        """Return the secrets that requests are signed with now, the latest first."""
        both = self.older_secret is not None and self.older_until is not None and now_us < self.older_until
        return (self.secret, self.older_secret) if both and self.older_secret is not None else (self.secret,)


class WebhookProgress(NamedTuple):
    """Progress of a webhook, which the sending hub writes; the fields are those of `WebhookRecord`."""

    reached: int
    gap_told: int
    attempts: int = 0
    due_at: int = 0
    failing_since: int | None = None
    failure: str = ""
    delivered_at: int | None = None


class WatchedWebhooks(NamedTuple):
    """Webhooks that hubs look at."""

    sendable: list[WebhookRecord]
    failed: list[WebhookRecord]
    """Paused by a hub."""


_RECORD: Final = [webhooks.c[name] for name in WebhookRecord._fields]


class RegisteredWebhooks:
    """Webhooks in the registry, for the thread that creates it. Every method is one transaction, durable on return;
    raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database
        self._reading = Database(url, reading=True)
        """Looks for work each second, and delays no landing."""

    def close(self) -> None:
        self._reading.close()
        self._database.close()

    # --- for people -------------------------------------------------------------------------------------------------

    def page(self, tenant: str | None, after: str, limit: int) -> tuple[list[WebhookRecord], int]:
        """Return webhooks by id behind `after`, and the number of all. `tenant`: None for those of all tenants."""
        mine = [] if tenant is None else [webhooks.c.tenant == tenant]
        query = sa.select(*_RECORD).where(webhooks.c.id > after, *mine).order_by(webhooks.c.id).limit(limit)
        counting = sa.select(sa.func.count()).select_from(webhooks).where(*mine)
        return self._reading.transaction(
            lambda tx: ([WebhookRecord(*row) for row in tx.execute(query)], int(tx.execute(counting).scalar_one()))
        )

    def get(self, identifier: str) -> WebhookRecord | None:
        """Return a webhook; None if it is unknown."""
        return self._reading.transaction(lambda tx: _read(tx, identifier))

    def add(self, new: WebhookRecord, after: int | None, tenant_most: int, most: int) -> WebhookRecord:
        """Add a webhook that begins behind an event, and return it; None: it begins with the next event. Raises
        `TooManyWebhooks`."""

        def work(tx: sa.Connection) -> WebhookRecord:
            require_tenant(tx, new.tenant)
            counts = sa.select(sa.func.count()).select_from(webhooks)
            if tx.execute(counts.where(webhooks.c.tenant == new.tenant)).scalar_one() >= tenant_most:
                whose = f"tenant {new.tenant}" if new.tenant else "the fleet"
                raise TooManyWebhooks(f"{whose} has {tenant_most} webhooks, which is the maximum")
            if tx.execute(counts).scalar_one() >= most:
                raise TooManyWebhooks(f"the hub has {most} webhooks, which is the maximum")
            newest = int(tx.execute(sa.select(sa.func.max(events.c.number))).scalar() or 0)
            made = new._replace(reached=newest if after is None else min(after, newest))
            tx.execute(webhooks.insert().values(**made._asdict()))
            return made

        return self._database.transaction(work)

    def change(self, identifier: str, change: Callable[[WebhookRecord], WebhookRecord]) -> WebhookRecord | None:
        """Change settings or state of a webhook, and return it; None if it is unknown. `change` may raise; the number,
        the holder and the place in the events stay."""

        def work(tx: sa.Connection) -> WebhookRecord | None:
            before = _read(tx, identifier)
            if before is None:
                return None
            after = change(before)
            tx.execute(webhooks.update().where(webhooks.c.id == identifier).values(**after._asdict()))
            return after

        return self._database.transaction(work)

    def remove(self, identifier: str, check: Callable[[WebhookRecord], None] = lambda _before: None) -> bool:
        """Remove a webhook; return False if it is unknown. `check` gets it in the same transaction, and may raise."""

        def work(tx: sa.Connection) -> bool:
            before = _read(tx, identifier)
            if before is None:
                return False
            check(before)
            return bool(tx.execute(webhooks.delete().where(webhooks.c.id == identifier)).rowcount)

        return self._database.transaction(work)

    # --- for sending hubs -------------------------------------------------------------------------------------------

    def sendable(self) -> list[WebhookRecord]:
        """Return the webhooks that get events, those first that have waited longest for a delivery."""
        return self.watched().sendable

    def watched(self) -> WatchedWebhooks:
        """Return the webhooks that get events, and those that a hub has paused."""
        states = (WebhookState.ACTIVE.value, WebhookState.FAILED.value)
        query = sa.select(*_RECORD).where(webhooks.c.state.in_(states)).order_by(webhooks.c.id)
        found = self._reading.transaction(lambda tx: [WebhookRecord(*row) for row in tx.execute(query)])
        active = [each for each in found if each.state == WebhookState.ACTIVE.value]
        active.sort(key=lambda each: each.delivered_at or 0)
        return WatchedWebhooks(active, [each for each in found if each.state == WebhookState.FAILED.value])

    def claim(self, seen: WebhookRecord, hub: str) -> WebhookRecord | None:
        """Claim a webhook for a hub, and return it; None if it was written or paused since it was seen."""

        def work(tx: sa.Connection) -> WebhookRecord | None:
            found = _read(tx, seen.id)
            if found is None or found.state != WebhookState.ACTIVE.value:
                return None
            return _write(tx, seen, {"holder": hub})

        return self._database.transaction(work)

    def write(
        self,
        before: WebhookRecord,
        progress: WebhookProgress,
        hub: str | None,
        ended: WebhookState | None = None,
        *,
        delivered: int | None = None,
    ) -> WebhookRecord | None:
        """Write the progress of a webhook that a hub has claimed, and return what it is now; None if another hub has
        claimed it, or it was removed.

        `hub`: None leaves it to any hub; `ended`: new state; `delivered`: number up to which events were delivered or
        not wanted by any filter, None: as before. If a person has changed the webhook since, the place is that one,
        and the state and the attempts stay: what was passed over may be wanted now, and the next attempt is due.
        """

        def work(tx: sa.Connection) -> WebhookRecord | None:
            found = _read(tx, before.id)
            if found is None or found.number != before.number:
                return None
            values = {"holder": hub, **progress._asdict()}
            if found.changed_at != before.changed_at:
                sure = before.reached if delivered is None else delivered
                kept = {name: getattr(found, name) for name in ("attempts", "due_at", "failing_since", "failure")}
                values = {**values, **kept, "reached": min(progress.reached, sure)}
            elif ended is not None and found.state == WebhookState.ACTIVE.value:
                values["state"] = ended.value
            return _write(tx, before, values)

        return self._database.transaction(work)

    def labels(self, gateways: Collection[Key]) -> Mapping[Key, Mapping[str, str]]:
        """Return the labels of gateways; those without labels are left out."""

        def work(tx: sa.Connection) -> Mapping[Key, Mapping[str, str]]:
            found: dict[Key, Mapping[str, str]] = {}
            for tenant in {each for each, _ in gateways}:
                names = {name for of, name in gateways if of == tenant}
                found.update({(tenant, name): mine for name, mine in labels_of(tx, tenant, names).items()})
            return found

        return self._reading.transaction(work)


def _read(tx: sa.Connection, identifier: str) -> WebhookRecord | None:
    row = tx.execute(sa.select(*_RECORD).where(webhooks.c.id == identifier)).one_or_none()
    return None if row is None else WebhookRecord(*row)


def _write(tx: sa.Connection, before: WebhookRecord, values: Mapping[str, object]) -> WebhookRecord | None:
    """Write values with the next number, if the number is still the one before; return the webhook then."""
    same = (webhooks.c.id == before.id, webhooks.c.number == before.number)
    changed = tx.execute(webhooks.update().where(*same).values(**values, number=before.number + 1)).rowcount
    return _read(tx, before.id) if changed else None
