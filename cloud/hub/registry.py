"""The registry: tenants, gateways, what has landed of each, and the commits that landed it.

SQLAlchemy Core on SQLite (one file, WAL, ``synchronous=FULL``) or PostgreSQL. Every public method is one transaction,
durable when it returns. Callers: the landing thread only, but for `open` and `close`; readers of the API get copies
from `cloud.hub.service`, never this object. The schema is made whole by `create_all` and carries a version number in
a row of its own: a newer one is refused, so that an older program never writes what it does not understand.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from cloud.hub.groups import Key, Lineage, Presence
from cloud.hub.limits import LOGS_KEPT
from cloud.hub.marks import GatewayMarks, MarkDamaged, pack, unpack
from cloud.hub.packing import pack_checked, unpack_ends, unpack_openings, unpack_ranges
from cloud.hub.schema import (
    SCHEMA_VERSION,
    commits,
    gateways,
    ledgered,
    lineages,
    marks,
    metadata,
    migrate,
    schema_version,
    tenants,
)
from cloud.lake.commits import GatewayStore, Prepared
from cloud.lake.faults import RegistryError, StreamDamaged
from cloud.lake.limits import COMMITS_KEPT, HOLES_MAX
from cloud.lake.sequences import SequenceRange, SequenceSet, Stream

log = logging.getLogger(__name__)

PARAMETERS_MAX = 900
"""Bound parameters in one statement: SQLite before 3.32 takes 999."""

PREPARED, CONFIRMED = "prepared", "confirmed"


class GatewayRecord(NamedTuple):
    """A gateway as the registry knows it. Times are UTC microseconds since 1970."""

    tenant: str
    name: str
    first_seen: int
    last_seen: int
    connected: bool
    remote: str
    generation: int
    landed: int
    """Messages of it that are in the lake."""


class RegistryTooNew(RegistryError):
    """The registry was made by a newer program."""


def _set_pragmas(connection: Any, _record: Any) -> None:
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")  # damaged text is for us to notice
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class Registry:
    """One open registry; implements `cloud.lake.commits.CommitLog`."""

    def __init__(self, url: str) -> None:
        """Open (or make) the registry at a SQLAlchemy URL; raises `RegistryError`, `RegistryTooNew`."""
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _set_pragmas)
        self._marks: dict[Key, GatewayMarks] = {}
        self._reached: dict[GatewayStore, dict[int, int]] = {}
        self._given: dict[Key, int] = {}
        """The generation of each gateway's newest connection to this hub."""
        try:
            with self._transaction() as tx:
                self.registry_id = self._check_version(tx)
                rows = tx.execute(
                    sa.select(commits.c.table_name, sa.func.max(commits.c.id)).group_by(commits.c.table_name)
                )
                self._last_commit: dict[str, int] = {row[0]: row[1] for row in rows}
        except RegistryError:
            self._engine.dispose()
            raise

    def _check_version(self, tx: sa.Connection) -> str:
        if sa.inspect(tx).has_table(schema_version.name):
            row = tx.execute(sa.select(schema_version)).one_or_none()
            if row is not None and row.version > SCHEMA_VERSION:
                raise RegistryTooNew(
                    f"the registry has schema version {row.version}, this program knows {SCHEMA_VERSION}: "
                    "it was made by a newer program; use that one"
                )
            if row is not None:
                if row.version < SCHEMA_VERSION:
                    migrate(tx)
                    tx.execute(schema_version.update().values(version=SCHEMA_VERSION))
                return str(row.registry_id)
        metadata.create_all(tx)
        registry_id = secrets.token_hex(16)
        tx.execute(schema_version.insert().values(version=SCHEMA_VERSION, registry_id=registry_id))
        return registry_id

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as tx:
                yield tx
        except SQLAlchemyError as error:
            self._marks.clear()
            self._reached.clear()
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            raise RegistryError(f"the registry cannot be used: {cause}") from error

    def close(self) -> None:
        """Close the file or the connections; idempotent."""
        self._engine.dispose()

    # --- gateways -----------------------------------------------------------------------------------------------

    def presence(self, changes: Mapping[Key, Presence]) -> None:
        """Connections of gateways that came and went; each one that came is a generation, and fences those before."""
        if not changes:
            return
        with self._transaction() as tx:
            known = self._generations(tx, changes)
            for (tenant, name), presence in changes.items():
                if (tenant, name) not in known:
                    self._add_gateway(tx, tenant, name, presence)
                    known[tenant, name] = 0
            rows = [self._presence_row(key, presence, known[key]) for key, presence in changes.items()]
            tx.execute(
                gateways.update()
                .where(gateways.c.tenant == sa.bindparam("at_tenant"), gateways.c.name == sa.bindparam("at_name"))
                .values(
                    {name: sa.bindparam(f"at_{name}") for name in ("last_seen", "connected", "remote", "generation")}
                ),
                rows,
            )
        for key, presence in changes.items():
            if presence.connects:
                self._given[key] = known[key] + presence.connects
                self._marks.pop(key, None)

    @staticmethod
    def _add_gateway(tx: sa.Connection, tenant: str, name: str, presence: Presence) -> None:
        if tx.execute(sa.select(tenants.c.name).where(tenants.c.name == tenant)).first() is None:
            tx.execute(tenants.insert().values(name=tenant, created_at=presence.at_us))
        times = {"first_seen": presence.at_us, "last_seen": presence.at_us}
        row = {**times, "connected": False, "remote": presence.remote, "generation": 0, "landed": 0}
        tx.execute(gateways.insert().values(tenant=tenant, name=name, **row))

    @staticmethod
    def _presence_row(key: Key, presence: Presence, generation: int) -> dict[str, Any]:
        return {
            "at_tenant": key[0],
            "at_name": key[1],
            "at_last_seen": presence.at_us,
            "at_connected": presence.connected,
            "at_remote": presence.remote,
            "at_generation": generation + presence.connects,
        }

    def seen(self, when: Mapping[tuple[str, str], int]) -> None:
        """Set when each (tenant, gateway) was last heard of."""
        with self._transaction() as tx:
            for (tenant, name), last_seen in when.items():
                tx.execute(
                    gateways.update()
                    .where(gateways.c.tenant == tenant, gateways.c.name == name)
                    .values(last_seen=last_seen)
                )

    def nobody_connected(self) -> None:
        """At start: whoever was connected to a hub that died is not any more."""
        with self._transaction() as tx:
            tx.execute(gateways.update().where(gateways.c.connected.is_(True)).values(connected=False))

    def gateways(self) -> list[GatewayRecord]:
        """Every gateway, by name."""
        with self._transaction() as tx:
            rows = tx.execute(sa.select(gateways).order_by(gateways.c.tenant, gateways.c.name)).all()
        return [GatewayRecord(*row) for row in rows]

    def fenced(self, who: Iterable[Key]) -> set[Key]:
        """Those of these gateways that have connected to another hub of this registry since they last did here."""
        with self._transaction() as tx:
            current = self._generations(tx, who)
        return {key for key, generation in current.items() if self._given.get(key, generation) != generation}

    @staticmethod
    def _generations(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, int]:
        names = sorted(set(who))
        found: dict[Key, int] = {}
        for start in range(0, len(names), PARAMETERS_MAX // 2):
            part = names[start : start + PARAMETERS_MAX // 2]
            mine = sa.tuple_(gateways.c.tenant, gateways.c.name).in_(part)
            rows = tx.execute(sa.select(gateways.c.tenant, gateways.c.name, gateways.c.generation).where(mine))
            found.update({(row.tenant, row.name): row.generation for row in rows})
        return found

    def marks(self, tenant: str, name: str) -> GatewayMarks:
        """What has landed of a gateway; the cached object itself."""
        known = self._marks.get((tenant, name))
        if known is None:
            with self._transaction() as tx:
                rows = tx.execute(sa.select(marks).where(marks.c.tenant == tenant, marks.c.gateway == name)).all()
            known = self._marks[tenant, name] = GatewayMarks()
            for row in rows:
                stream = Stream(row.tenant, row.gateway, row.epoch, row.address)
                try:
                    known.landed[stream] = unpack(stream, row.mark, row.spans, row.checksum)
                except MarkDamaged as error:
                    log.error("registry: the row of %r of gateway %s is damaged: %s", row.address, name, error)  # noqa: TRY400
                    known.damage[stream] = str(error)
        return known

    def lineage(self, store: GatewayStore, told: Lineage) -> str | None:
        """Compare a gateway's store with what is known of it. None, and it is remembered, when it is the one known, or
        what became of that; else it is an older copy: the last opening both know, or an empty text."""
        mine = _row_of(store)
        with self._transaction() as tx:
            row = tx.execute(sa.select(lineages.c.openings, lineages.c.ends).where(mine)).first()
            known = [] if row is None else unpack_openings(row.openings, store.gateway)
            if known and known[-1] not in told.openings:
                return next((opening for opening in reversed(told.openings) if opening in known), "")
            if row is not None and known and _went_further(known[-1], unpack_ends(row.ends, store.gateway), told):
                return known[-1]
            packed = msgspec.msgpack.encode(told.openings)
            if row is None:
                tx.execute(lineages.insert().values(**store._asdict(), openings=packed))
            elif known != told.openings:
                tx.execute(lineages.update().where(mine).values(openings=packed))
        return None

    def _reach(self, tx: sa.Connection, store: GatewayStore, ends: Mapping[int, int]) -> dict[int, int]:
        """Remember how far the logs of a store reach at least; returns what is remembered now."""
        known = self._reached.get(store)
        if known is None:
            row = tx.execute(sa.select(lineages.c.ends).where(_row_of(store))).first()
            known = {} if row is None else unpack_ends(row.ends, store.gateway)
        further = {log: end for log, end in ends.items() if end > known.get(log, 0)}
        if not further:
            return known
        whole = {**{log: end for log, end in known.items() if log not in further}, **further}
        for log in list(islice(whole, max(0, len(whole) - LOGS_KEPT))):
            del whole[log]  # the one that was moved longest ago
        tx.execute(lineages.update().where(_row_of(store)).values(ends=pack_checked(list(whole.items()))))
        return whole

    # --- commits ------------------------------------------------------------------------------------------------

    def application(self, table: str) -> str:
        """Names this registry too: a lake that outlives its registry must not mistake new commit ids for old."""
        return f"waypost/{self.registry_id}/{table}"

    def unresolved(self) -> Sequence[Prepared]:
        query = sa.select(commits.c.table_name, commits.c.id, commits.c.ranges).where(commits.c.state == PREPARED)
        with self._transaction() as tx:
            rows = tx.execute(query.order_by(commits.c.table_name, commits.c.id)).all()
        return [Prepared(row[0], row[1], unpack_ranges(row[2], row[0], row[1])) for row in rows]

    def confirmed_version(self, table: str) -> int:
        """The highest table version known to be on disk; -1 when there is none."""
        query = sa.select(sa.func.max(commits.c.version)).where(commits.c.table_name == table)
        with self._transaction() as tx:
            found = tx.execute(query).scalar_one_or_none()
        return -1 if found is None else int(found)

    def landed(self, stream: Stream) -> SequenceSet:
        known = self.marks(stream.tenant, stream.gateway)
        why = known.why_unknown(stream)
        if why is not None:
            raise StreamDamaged(stream, why)
        return known.landed.get(stream) or SequenceSet()

    def restore(self, tenant: str, gateway: str, landed: Mapping[Stream, SequenceSet]) -> None:
        whole = {**landed, **self.marks(tenant, gateway).landed}
        with self._transaction() as tx:
            tx.execute(marks.delete().where(marks.c.tenant == tenant, marks.c.gateway == gateway))
            if whole:
                tx.execute(marks.insert(), [self._mark_row(stream, found) for stream, found in whole.items()])
        self._marks[tenant, gateway] = GatewayMarks(whole)

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        asked, columns = list(ranges), [ledgered.c[name] for name in SequenceRange._fields]
        at_once = PARAMETERS_MAX // len(columns)
        known: set[SequenceRange] = set()
        with self._transaction() as tx:
            for start in range(0, len(asked), at_once):
                some = asked[start : start + at_once]
                found = tx.execute(sa.select(*columns).where(sa.tuple_(*columns).in_(some)))
                known |= {SequenceRange(*row) for row in found}
        return known

    def prepare(
        self,
        table: str,
        ranges: Sequence[SequenceRange],
        rows: int,
        reached: Mapping[GatewayStore, Mapping[int, int]] | None = None,
    ) -> int:
        commit = self._last_commit.get(table, 0) + 1
        with self._transaction() as tx:
            whole = {store: self._reach(tx, store, ends) for store, ends in (reached or {}).items() if ends}
            tx.execute(
                commits.insert().values(
                    table_name=table, id=commit, state=PREPARED, rows=rows, ranges=pack_checked(ranges)
                )
            )
        self._last_commit[table] = commit
        self._reached.update(whole)
        return commit

    def confirm(self, prepared: Prepared, version: int) -> None:
        for tenant, name in {(moved.tenant, moved.gateway) for moved in prepared.ranges}:
            self.marks(tenant, name)  # loaded now: a transaction inside the one below would wait for itself
        with self._transaction() as tx:
            if prepared.table == "ledger":
                self._apply_ledger(tx, prepared.ranges)
                changed = {}
            else:
                changed = self._apply_marks(tx, prepared.ranges)
            here = (commits.c.table_name == prepared.table) & (commits.c.id == prepared.commit)
            tx.execute(commits.update().where(here).values(state=CONFIRMED, version=version, ranges=b""))
            tx.execute(
                commits.delete().where(
                    commits.c.table_name == prepared.table,
                    commits.c.state == CONFIRMED,
                    commits.c.id <= prepared.commit - COMMITS_KEPT,
                )
            )
        for stream, landed in changed.items():
            self.marks(stream.tenant, stream.gateway).landed[stream] = landed

    def forget(self, prepared: Prepared) -> None:
        with self._transaction() as tx:
            tx.execute(commits.delete().where(commits.c.table_name == prepared.table, commits.c.id == prepared.commit))

    def _apply_marks(self, tx: sa.Connection, ranges: Sequence[SequenceRange]) -> dict[Stream, SequenceSet]:
        changed: dict[Stream, SequenceSet] = {}
        new: set[Stream] = set()
        for moved in ranges:
            stream = moved.stream
            known = self.marks(stream.tenant, stream.gateway)
            if known.why_unknown(stream) is not None:
                continue  # it is in the lake, from which the row is made again
            landed = changed.get(stream)
            if landed is None:
                if stream not in known.landed:
                    new.add(stream)
                landed = changed[stream] = known.landed[stream].copy() if stream in known.landed else SequenceSet()
            landed.add(moved.first, moved.last, HOLES_MAX)
        rows: Counter[tuple[str, str]] = Counter()
        for moved in ranges:
            rows[moved.tenant, moved.gateway] += moved.last - moved.first + 1
        for (tenant, name), messages in rows.items():
            mine = (gateways.c.tenant == tenant) & (gateways.c.name == name)
            tx.execute(gateways.update().where(mine).values(landed=gateways.c.landed + messages))
        inserts = [self._mark_row(stream, changed[stream]) for stream in new]
        updates = [self._mark_row(stream, changed[stream], "at_") for stream in changed if stream not in new]
        if inserts:
            tx.execute(marks.insert(), inserts)
        if updates:
            same = [marks.c[name] == sa.bindparam(f"at_{name}") for name in Stream._fields]
            values: dict[str, Any] = {name: sa.bindparam(f"at_{name}") for name in ("mark", "spans", "checksum")}
            tx.execute(marks.update().where(*same).values(values), updates)
        return changed

    @staticmethod
    def _mark_row(stream: Stream, landed: SequenceSet, prefix: str = "") -> dict[str, Any]:
        row = {**stream._asdict(), **pack(stream, landed)}
        return {prefix + name: value for name, value in row.items()}

    @staticmethod
    def _apply_ledger(tx: sa.Connection, ranges: Sequence[SequenceRange]) -> None:
        if ranges:
            tx.execute(ledgered.insert(), [moved._asdict() for moved in ranges])


def _row_of(store: GatewayStore) -> sa.ColumnElement[bool]:
    return sa.and_(*(lineages.c[name] == value for name, value in store._asdict().items()))


def _went_further(last: str, reached: Mapping[int, int], told: Lineage) -> bool:
    """True when the store went on, after its opening `last`, beyond where it ended at the next one it tells of: then
    this is a copy, taken before that."""
    after = told.openings.index(last) + 1
    first = len(told.openings) - len(told.ends)
    following = next((ends for ends in told.ends[max(0, after - first) :] if ends is not None), None)
    return following is not None and any(end > following.get(log, 0) for log, end in reached.items())


def sqlite_url(path: str) -> str:
    """The URL of a registry in a file."""
    return sa.URL.create("sqlite", database=path).render_as_string(hide_password=False)
