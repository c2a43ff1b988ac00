"""Hubs of a registry: which there are, what they run, and which gateways are connected to each.

For a thread of its own. A hub writes at intervals that it is there, in a table that no landing reads. That time serves
display and housekeeping only: nothing about landings depends on it (``cloud/decisions/0011-takeover-settles.md``).
Times are UTC microseconds since 1970, by the clock of the hub that wrote them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import disconnect_gateways
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import SCHEMA_VERSION, alerts, gateways, hubs, schema_version


class HubState(enum.Enum):
    """State of a hub, as it wrote it itself, or another one about it."""

    SERVING = "serving"
    DRAINING = "draining"
    """Closes its connections, and takes no new ones."""
    STOPPED = "stopped"
    GONE = "gone"
    """Silent for long: another hub has counted its gateways as disconnected."""


class HubRecord(NamedTuple):
    """Hub that has written that it is there."""

    id: str
    """Writer id."""
    name: str
    """Machine and port of its listener for gateways."""
    version: str
    state: str
    started_at: int
    seen_at: int
    connections: int


_HUB = [hubs.c[name] for name in HubRecord._fields]


class Hubs:
    """Hubs in the registry, for the thread that creates it. Every method is one transaction, durable on return; raises
    `RegistryError`."""

    def __init__(self, url: sa.URL, hub: str) -> None:
        """Open the registry; create a missing one. `hub`: writer id of this hub."""
        self._hub = hub
        self._written = False
        """`write` has written the row of this hub."""
        self._database = open_registry(url).database
        self._reading = Database(url, reading=True)
        """Reads all gateways, and would conflict with each landing otherwise."""

    def close(self) -> None:
        self._reading.close()
        self._database.close()

    def write(self, record: HubRecord) -> bool:
        """Write that this hub is there. Return whether another one has counted its gateways as disconnected."""
        mine = hubs.c.id == self._hub

        def work(tx: sa.Connection) -> bool:
            before = tx.execute(sa.select(hubs.c.state).where(mine)).scalar()
            if before != record.state:
                notify(tx, NoticeTopic.CONNECTIONS)
            if before is None:
                tx.execute(hubs.insert().values(**record._asdict(), schema=SCHEMA_VERSION))
            else:
                tx.execute(hubs.update().where(mine).values(**record._asdict(), schema=SCHEMA_VERSION))
            return bool(before == HubState.GONE.value or (before is None and self._written))

        gone = self._database.transaction(work)
        self._written = True
        return gone

    def stop(self) -> None:
        """Write that this hub has stopped, and that its gateways are disconnected."""

        def work(tx: sa.Connection) -> None:
            tx.execute(hubs.update().where(hubs.c.id == self._hub).values(state=HubState.STOPPED.value))
            notify(tx, NoticeTopic.CONNECTIONS)
            _disconnect(tx, self._hub, "its hub has stopped")

        self._database.transaction(work)

    def count_gone(self, hub: str, seen_at: int) -> int:
        """Count the gateways of a silent hub as disconnected, unless it has written since then; return their number.

        A hub that was only suspended learns it from `write`, and writes its connections again.
        """
        silent = (hubs.c.id == hub, hubs.c.seen_at == seen_at)
        states = [HubState.SERVING.value, HubState.DRAINING.value]

        def work(tx: sa.Connection) -> int:
            changed = hubs.update().where(*silent, hubs.c.state.in_(states)).values(state=HubState.GONE.value)
            return _disconnect(tx, hub, "its hub is silent") if tx.execute(changed).rowcount else 0

        return self._database.transaction(work)

    def clean_up(self, before_us: int, most: int) -> int:
        """Delete the rows of hubs that have stopped, or are gone, and wrote last before a time: the oldest ones, at
        most `most`; return their number. A hub with an open alert stays, and one that comes back learns it from
        `write`."""
        silent = hubs.c.state.in_((HubState.STOPPED.value, HubState.GONE.value))
        about = sa.exists().where(alerts.c.hub == hubs.c.id, alerts.c.tenant == "", alerts.c.resolved_at.is_(None))
        old = sa.select(hubs.c.id).where(silent, hubs.c.seen_at < before_us, hubs.c.id != self._hub, ~about)
        oldest = old.order_by(hubs.c.seen_at).limit(most)

        def work(tx: sa.Connection) -> int:
            found = [row.id for row in tx.execute(oldest)]
            if found:
                tx.execute(hubs.delete().where(hubs.c.id.in_(found)))
            return len(found)

        return self._database.transaction(work)

    def hubs(self) -> list[HubRecord]:
        """Return the hubs that have written that they are there, by name."""
        query = sa.select(*_HUB).order_by(hubs.c.name, hubs.c.id)
        return [HubRecord(*row) for row in self._reading.transaction(lambda tx: tx.execute(query).all())]

    def schema(self) -> int:
        """Return the schema version of the registry; 0 if it has none any more."""
        query = sa.select(schema_version.c.version)
        return self._reading.transaction(lambda tx: tx.execute(query).scalar()) or 0


def _disconnect(tx: sa.Connection, hub: str, why: str) -> int:
    count = disconnect_gateways(tx, gateways.c.writer == hub, why)
    if count:
        notify(tx, NoticeTopic.CONNECTIONS)
    return count
