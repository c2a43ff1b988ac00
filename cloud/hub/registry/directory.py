"""Directory of tenants and gateways, with the connections of the gateways."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key, Presence, StoredState
from cloud.hub.registry.danger_columns import danger_change, danger_row, seen_change, still_judged
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event, utc_us
from cloud.hub.registry.gateway_admission import GatewayAdmission, known_gateways
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.generations import GatewayConnection, Generations, connections_of
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import certificates, gateways, tenants
from cloud.hub.registry.writer import RegistryWriter


class GatewayRecord(NamedTuple):
    """Gateway in the directory. Times are UTC microseconds since 1970."""

    tenant: str
    name: str
    first_seen: int
    last_seen: int
    connected: bool
    remote: str
    generation: int
    landed: int
    """Messages of the gateway in the lake."""
    writer: str | None = None
    """Hub of its last connection."""
    connected_at: int | None = None
    observed: str | None = None
    """Observations of that hub, JSON (`cloud.hub.observed.ObservedState`)."""


RECORD = [gateways.c[name] for name in GatewayRecord._fields]
_NOTHING_OBSERVED: Mapping[Key, str] = {}
_ONLY_LEFT = sa.bindparam("at_connects", type_=sa.BigInteger) == 0
"""True if the change has no connect, only a disconnect."""


class Directory:
    """Directory for the registry's thread. Every method is one transaction, durable on return; raises
    `RegistryError`."""

    def __init__(
        self, database: Database, writer: RegistryWriter, generations: Generations, admission: GatewayAdmission
    ) -> None:
        self.admission = admission
        self._database = database
        self._writer = writer
        self._generations = generations

    def presence(self, changes: Mapping[Key, Presence]) -> dict[Key, StoredState]:
        """Store connects and disconnects. Each connect is a generation, and fences earlier ones. A forgotten gateway
        that connects is known again. The end of a connection changes nothing if the gateway has moved to another hub.
        Nothing is stored of a new gateway that its tenant has no room for (`refused`), or that is `undecided`. Return
        what the registry has of those that connected.
        """
        refused = self.admission.decide(changes, self._known_of) | self.admission.refused(changes)
        if refused:
            self._generations.drop(refused)  # one from before the refusal admits nothing
        left_out = refused | self.undecided
        changes = {key: presence for key, presence in changes.items() if key not in left_out}
        if not changes:
            return {}
        try:
            known, stored = self._database.transaction(lambda tx: self._write_presence(tx, changes))
        except BaseException:
            self.admission.forget_counts()  # they have the gateways of this call, which come again
            raise
        self._generations.give(
            {key: known[key] + presence.connects for key, presence in changes.items() if presence.connects}
        )
        self._generations.leave(key for key, presence in changes.items() if not presence.connected)
        return stored

    @property
    def undecided(self) -> frozenset[Key]:
        """New gateways of the last change that could not be counted: they are to be changed again."""
        return self.admission.undecided

    def _known_of(self, keys: Sequence[Key]) -> set[Key]:
        return self._database.transaction(lambda tx: known_gateways(tx, keys))

    def _write_presence(
        self, tx: sa.Connection, changes: Mapping[Key, Presence]
    ) -> tuple[dict[Key, int], dict[Key, StoredState]]:
        """Return the generations before the change, and what is stored of gateways that connected."""
        known = connections_of(tx, changes)
        new = {key: presence for key, presence in changes.items() if key not in known and self._may_add(key, presence)}
        if new:
            _add_gateways(tx, new)
            known.update(dict.fromkeys(new, GatewayConnection(0, None)))
        mine = (gateways.c.tenant == sa.bindparam("at_tenant"), gateways.c.name == sa.bindparam("at_name"))
        columns = ("last_seen", "connected", "remote", "generation", "writer")
        statement = (
            gateways.update()
            .where(*mine)
            .values({name: sa.bindparam(f"at_{name}") for name in columns})
            .values(forgotten_at=sa.case((_ONLY_LEFT, gateways.c.forgotten_at), else_=sa.null()))
            .values(connected_at=sa.case((_ONLY_LEFT, gateways.c.connected_at), else_=sa.bindparam("at_last_seen")))
            .values(still_judged(sa.bindparam("at_last_seen", type_=sa.BigInteger)))
        )
        rows = [
            self._presence_row(key, presence, known[key].generation)
            for key, presence in changes.items()
            if key in known and self._may_change(key, presence, known[key])
        ]
        if rows:
            tx.execute(statement, rows)
            notify(tx, NoticeTopic.CONNECTIONS)
            written = [(row["at_tenant"], row["at_name"]) for row in rows]
            append_events(
                tx, (each for key in written for each in _presence_events(key, changes[key], self._writer.id))
            )
        before = {key: each.generation for key, each in known.items()}
        return before, _stored(tx, [key for key, presence in changes.items() if presence.connects])

    def _may_add(self, key: Key, presence: Presence) -> bool:
        """Return whether a change may add a gateway: the end of a refused connection does not."""
        return presence.connects > 0 or self._generations.of(key) is not None or not self.admission.is_limited

    def _may_change(self, key: Key, presence: Presence, newest: GatewayConnection) -> bool:
        """Return whether a change may be written into a row with this connection. A disconnect or a repeated presence
        may not if the gateway has connected to another hub since: also if its connection here was refused, which has no
        generation."""
        if presence.connects or self._generations.is_newest(key, newest):
            return True
        return self._generations.of(key) is None and not self.admission.is_limited

    def _presence_row(self, key: Key, presence: Presence, generation: int) -> dict[str, Any]:
        return {
            "at_tenant": key[0],
            "at_name": key[1],
            "at_last_seen": presence.at_us,
            "at_connected": presence.connected,
            "at_remote": presence.remote,
            "at_generation": generation + presence.connects,
            "at_writer": self._writer.id,
            "at_connects": presence.connects,
        }

    def seen(self, when: Mapping[Key, int], observed: Mapping[Key, str] = _NOTHING_OBSERVED) -> None:
        """Store last-seen times by (tenant, gateway), UTC microseconds, and new observations of some of them. A gateway
        that has moved to another hub keeps those of that hub."""
        if not when:
            return
        mine = (gateways.c.writer == self._writer.id) & gateways.c.forgotten_at.is_(None)
        only_seen = [
            {"at_tenant": key[0], "at_name": key[1], "at_last_seen": last}
            for key, last in when.items()
            if key not in observed
        ]
        judged = [danger_row(key, last, observed[key]) for key, last in when.items() if key in observed]

        def work(tx: sa.Connection) -> None:
            for statement, rows in ((seen_change(mine), only_seen), (danger_change(mine), judged)):
                if rows:
                    tx.execute(statement, rows)

        self._database.transaction(work)

    def mark_all_disconnected(self) -> None:
        """Mark all gateways of this hub as disconnected, at its start."""
        mine = gateways.c.writer.is_(None) | gateways.c.writer.in_(sorted(self._writer.own))
        self._database.transaction(
            lambda tx: disconnect_gateways(tx, mine, "its hub was started again without having been stopped")
        )

    def gateways(self) -> list[GatewayRecord]:
        """Return every known gateway that has connected, by name."""
        query = sa.select(*RECORD).where(gateways.c.forgotten_at.is_(None)).order_by(gateways.c.tenant, gateways.c.name)
        return [GatewayRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def refused(self, who: Iterable[Key]) -> set[Key]:
        """Return which of these gateways their tenants had no room for when they connected last. Nothing may land for
        them, nor for those that are `undecided`: without an admitted connection no generation fences it."""
        keys = set(who)
        unadmitted = {key for key in keys if self._generations.of(key) is None} if self.admission.is_limited else set()
        return (self.admission.refused(keys) | unadmitted) - self.undecided

    def drop_left(self) -> Sequence[Key]:
        """Drop what only connected gateways need in memory, of those that left a while ago; return them.

        Without a limit nothing is dropped: then entries may land without a generation, and only the generation fences
        late ones.
        """
        return self._generations.drop_left() if self.admission.is_limited else []

    def fenced(self, who: Iterable[Key]) -> set[Key]:
        """Return the gateways that have connected to another hub of this registry since they last connected here."""
        return self._database.transaction(lambda tx: self._generations.moved(tx, who))


def disconnect_gateways(tx: sa.Connection, which: sa.ColumnElement[bool], why: str) -> int:
    """Mark gateways that are connected as disconnected; return their number. `why`: reason, for the events."""
    there = (gateways.c.connected.is_(True), which)
    found = tx.execute(sa.select(gateways.c.tenant, gateways.c.name, gateways.c.writer).where(*there)).all()
    if not found:
        return 0
    tx.execute(gateways.update().where(*there).values(connected=False))
    at_us, gone = utc_us(), EventType.GATEWAY_DISCONNECTED
    append_events(tx, (make_event(at_us, gone, row.tenant, row.name, hub=row.writer, why=why) for row in found))
    return len(found)


def _presence_events(key: Key, presence: Presence, hub: str) -> Iterable[FleetEvent]:
    """Yield the events of a change: a gateway that came and went between two writes has both."""
    if presence.connects or presence.connected:
        yield make_event(presence.at_us, EventType.GATEWAY_CONNECTED, *key, hub=hub, remote=presence.remote)
    if not presence.connected:
        yield make_event(presence.at_us, EventType.GATEWAY_DISCONNECTED, *key, hub=hub)


def waiting_gateways(
    tx: sa.Connection, most: int, tenant: str | None = None, gateway: str | None = None
) -> dict[Key, int]:
    """Return enrolled gateways that have never connected, with the time of their first certificate: the `most` that
    enrolled last, of a tenant and of a name if given."""
    scope = () if tenant is None else (certificates.c.tenant == tenant,)
    named = () if gateway is None else (certificates.c.gateway == gateway,)
    seen = sa.exists().where(gateways.c.tenant == certificates.c.tenant, gateways.c.name == certificates.c.gateway)
    enrolled_at = sa.func.min(certificates.c.begins_at)
    query = (
        sa.select(certificates.c.tenant, certificates.c.gateway, enrolled_at)
        .where(~seen, certificates.c.revoked_at.is_(None), certificates.c.gateway != "")  # that of the hub has no name
        .where(*scope, *named)
        .group_by(certificates.c.tenant, certificates.c.gateway)
        .order_by(enrolled_at.desc())
        .limit(most)
    )
    return {(row[0], row[1]): row[2] for row in tx.execute(query)}


def _stored(tx: sa.Connection, keys: Collection[Key]) -> dict[Key, StoredState]:
    if not keys:
        return {}
    rows = tx.execute(select_gateways(tx, keys, gateways.c.landed, gateways.c.observed))
    return {(row.tenant, row.name): StoredState(row.landed, row.observed) for row in rows}


def _add_gateways(tx: sa.Connection, new: Mapping[Key, Presence]) -> None:
    made = {tenant: presence.at_us for (tenant, _), presence in new.items()}
    there = set(tx.execute(sa.select(tenants.c.name).where(tenants.c.name.in_(sorted(made)))).scalars())
    rows = [{"name": tenant, "created_at": at_us} for tenant, at_us in made.items() if tenant not in there]
    if rows:
        tx.execute(tenants.insert(), rows)
    tx.execute(gateways.insert(), [_new_row(key, presence) for key, presence in new.items()])


def _new_row(key: Key, presence: Presence) -> dict[str, Any]:
    times = {"first_seen": presence.at_us, "last_seen": presence.at_us}
    row = {"tenant": key[0], "name": key[1], **times, "connected": False, "remote": presence.remote}
    return {**row, "generation": 0, "landed": 0, "judged_at": presence.at_us, "figures_at": presence.at_us}
