"""Commits of the lake: prepared, confirmed or forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.commit_states import CONFIRMED, FORGOTTEN, LEDGER, PREPARED
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.faults import GatewaysMoved, LandingElsewhere
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.lake_check import CommitSeries, LakeCheck, known_in_ledger
from cloud.hub.registry.lineages import Lineages, Reached
from cloud.hub.registry.marks import GatewayMarks, Marks
from cloud.hub.registry.packing import pack_checked, unpack_ranges
from cloud.hub.registry.schema import commits, gateways, ledgered, writers
from cloud.hub.registry.writer import RegistryWriter
from cloud.lake.commits import GatewayStore, Prepared
from cloud.lake.faults import CommitSettled, LakeError, RegistryError, StreamDamaged, StreamElsewhere
from cloud.lake.lake import LandingLake
from cloud.lake.limits import COMMITS_KEPT
from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream, Span

_COUNT: Final = (
    gateways.update()
    .where(gateways.c.tenant == sa.bindparam("whose"), gateways.c.name == sa.bindparam("called"))
    .values(landed=gateways.c.landed + sa.bindparam("more"))
)


class RegistryCommits:
    """Commit log in the registry, implements `cloud.lake.commits.CommitLog`. For the registry's thread. Ids are per
    writer and table."""

    def __init__(
        self, database: Database, registry_id: str, writer: RegistryWriter, generations: Generations, lineages: Lineages
    ) -> None:
        self._database = database
        self._check = LakeCheck(database, registry_id, writer)
        self._writer = writer
        self._generations = generations
        self._lineages = lineages
        self._marks = Marks(database, generations)
        mine = sa.select(commits.c.table_name, sa.func.max(commits.c.id)).where(commits.c.writer == writer.id)
        rows = database.transaction(lambda tx: tx.execute(mine.group_by(commits.c.table_name)).all())
        self._last: dict[str, int] = {row[0]: row[1] for row in rows}
        self._settle_own = False
        """A check was made: in a copy, confirmed commits of this hub may be open again."""

    @property
    def is_older_copy(self) -> bool:
        """True if the lake has had commits that the registry did not know."""
        return self._check.is_older_copy

    def write_to(self, lake: LandingLake, older: Callable[[], None] = lambda: None) -> None:
        """Record the lake of this hub, and check the registry against it; `older` is called when it is an older copy.

        Commits in the lake that the registry does not know show that it is an older copy (restored, or a standby that
        took over). Then numbers continue after the lake's, because a new commit must not be mistaken for an old one,
        and the marks of each gateway are read back from the lake. Raises `RegistryError`, `LakeError`.
        """
        identity = lake.identity

        def found_older() -> None:
            self._marks.forget()
            older()

        self._check.use(lake, found_older)
        self._run_check()
        self._database.transaction(lambda tx: self._writer.write_to(tx, identity))
        self._writer.lake = identity

    def _run_check(self) -> None:
        self._settle_own = True
        for table, last in self._check.run().items():
            self._last[table] = max(last, self._last.get(table, 0))

    def application(self, prepared: Prepared) -> str:
        return self._check.application(CommitSeries(prepared.writer, prepared.table))

    def confirmed_version(self, table: str) -> int:
        """Return the highest version of this hub's table known to be on disk; -1 without one."""
        return self._highest_version(table, commits.c.writer.in_(sorted(self._writer.own)))

    def landed_version(self, table: str) -> int:
        """Return the version of a table of this hub's lake that has all confirmed commits, also of other hubs; -1
        without one."""
        lake = sa.select(writers.c.lake).where(writers.c.id == self._writer.id).scalar_subquery()
        there = sa.select(writers.c.id).where(writers.c.lake == lake)
        return self._highest_version(table, commits.c.writer.in_(there))

    def _highest_version(self, table: str, of: sa.ColumnElement[bool]) -> int:
        query = sa.select(sa.func.max(commits.c.version)).where(of, commits.c.table_name == table)
        found = self._database.transaction(lambda tx: tx.execute(query).scalar_one_or_none())
        return -1 if found is None else int(found)

    def unresolved(self) -> Sequence[Prepared]:
        if self._check.is_due:
            self._run_check()
        found = self._database.transaction(self._unresolved)
        self._marks.forget()  # another hub may have confirmed a commit of this one since
        return found

    def _unresolved(self, tx: sa.Connection) -> Sequence[Prepared]:
        self._writer.require(tx)
        return _prepared(tx, commits.c.writer.in_(sorted(self._writer.own)))

    def take_over(self, gateways: Iterable[Key]) -> Sequence[Prepared]:
        if self._check.is_due:
            self._run_check()
        if self._settle_own:
            own = self.unresolved()
            if own:
                return own
            self._settle_own = False
        new = {key for key in gateways if self._marks.known(key) is None}
        return self._database.transaction(lambda tx: self._take_over(tx, new)) if new else []

    def _take_over(self, tx: sa.Connection, new: set[Key]) -> Sequence[Prepared]:
        """Return the open commits of other hubs of this lake that name one of the gateways; load marks if there are
        none.

        No hub can prepare another one: the connection to this hub has a later generation. A gateway named by a commit
        in another lake is not loaded, because its marks are not known before that lake was looked at.
        """
        self._check.require()
        others = self._open_elsewhere(tx, new)
        of_lake = self._writer.others_of_lake(tx) if others else set()
        found = [prepared for prepared in others if prepared.writer in of_lake]
        if not found:
            self._marks.load(tx, new.difference(*map(_gateways_of, others)))
        return found

    # --- marks ------------------------------------------------------------------------------------------------------

    def landed(self, stream: SequenceStream) -> SequenceSet:
        known = self._marks.known((stream.tenant, stream.gateway))
        if known is None:
            try:
                known = self.marks(stream.tenant, stream.gateway)
            except LandingElsewhere as error:
                raise StreamElsewhere(stream, str(error)) from None
        why = known.unknown_reason(stream)
        if why is not None:
            raise StreamDamaged(stream, why)
        return known.landed.get(stream) or SequenceSet()

    def marks(self, tenant: str, gateway: str) -> GatewayMarks:
        """Return the marks of a gateway, read-only. Raises `RegistryError`, also while another hub lands data of it."""
        if self._check.is_due:
            try:
                self._run_check()
            except LakeError as error:
                raise RegistryError(f"the registry cannot be compared with the lake: {error}") from error
        return self._database.transaction(lambda tx: self._load(tx, (tenant, gateway)))

    def _load(self, tx: sa.Connection, key: Key) -> GatewayMarks:
        """Load the marks of a gateway. If it came from another hub, they are stable once nothing of it is landing
        there: nothing more can be prepared there."""
        known = self._marks.known(key)
        if known is None:
            self._check.require()
            self._require_none_elsewhere(tx, {key})
            known = self._marks.load(tx, [key])[key]
        return known

    def _require_none_elsewhere(self, tx: sa.Connection, who: set[Key]) -> None:
        """Check that no other hub has prepared commits of these gateways. Raises `LandingElsewhere`."""
        for prepared in self._open_elsewhere(tx, who):
            raise LandingElsewhere(
                f"the hub with writer id {prepared.writer} has an unfinished landing of gateway "
                f"{min(_gateways_of(prepared) & who)[1]}; start that hub to finish it"
            )

    def _open_elsewhere(self, tx: sa.Connection, who: set[Key]) -> list[Prepared]:
        """Return the prepared commits of other hubs that name one of these gateways."""
        others = _prepared(tx, commits.c.writer.not_in(sorted(self._writer.own)))
        return [prepared for prepared in others if _gateways_of(prepared) & who]

    def restore(self, tenant: str, gateway: str, landed: Mapping[SequenceStream, SequenceSet]) -> None:
        def work(tx: sa.Connection) -> dict[SequenceStream, SequenceSet]:
            self._writer.require(tx)
            whole = {**landed, **self._load(tx, (tenant, gateway)).landed}
            self._marks.rewrite(tx, (tenant, gateway), whole)
            return whole

        self._marks.keep((tenant, gateway), GatewayMarks(self._database.transaction(work)))

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        asked = list(ranges)

        def work(tx: sa.Connection) -> set[SequenceRange]:
            self._require_none_elsewhere(tx, {(moved.tenant, moved.gateway) for moved in asked})
            return known_in_ledger(tx, asked)

        return self._database.transaction(work)

    def dropped(self, stream: SequenceStream, first: int, last: int, limit: int | None = None) -> list[Span]:
        of_stream = (ledgered.c[name] == value for name, value in zip(stream._fields, stream, strict=True))
        overlaps = (ledgered.c.first <= last, ledgered.c.last >= first)
        query = sa.select(ledgered.c.first, ledgered.c.last).where(*of_stream, *overlaps)
        rows = query.order_by(ledgered.c.first).limit(limit)
        return [(row[0], row[1]) for row in self._database.transaction(lambda tx: tx.execute(rows).all())]

    # --- changes ----------------------------------------------------------------------------------------------------

    def prepare(
        self, table: str, ranges: Sequence[SequenceRange], rows: int, reached: Reached | None = None
    ) -> Prepared:
        prepared = Prepared(self._writer.id, table, self._last.get(table, 0) + 1, ranges)
        self._last[table] = prepared.commit  # also if the transaction fails: it may have happened
        whole = self._database.transaction(lambda tx: self._prepare(tx, prepared, rows, reached or {}))
        self._lineages.remember(whole)
        return prepared

    def _prepare(
        self, tx: sa.Connection, prepared: Prepared, rows: int, reached: Reached
    ) -> dict[GatewayStore, dict[int, int]]:
        self._writer.require(tx)
        self._check.require()
        moved = self._generations.moved(tx, {(moved.tenant, moved.gateway) for moved in prepared.ranges})
        if moved:
            names = ", ".join(sorted(name for _, name in moved)[:3])
            raise GatewaysMoved(f"gateways have connected to another hub: {names}")
        whole = self._lineages.raise_minimum_ends(tx, reached)
        tx.execute(
            commits.insert().values(
                writer=prepared.writer,
                table_name=prepared.table,
                id=prepared.commit,
                state=PREPARED,
                rows=rows,
                ranges=pack_checked(prepared.ranges),
            )
        )
        return whole

    def confirm(self, prepared: Prepared, version: int) -> None:
        self._marks.remember(self._database.transaction(lambda tx: self._confirm(tx, prepared, version)))

    def _confirm(self, tx: sa.Connection, prepared: Prepared, version: int) -> dict[SequenceStream, SequenceSet]:
        self._writer.require(tx)
        changed: dict[SequenceStream, SequenceSet] = {}
        if prepared.table != LEDGER:
            changed = self._marks.add(tx, prepared.ranges, cached=prepared.writer in self._writer.own)
            _count(tx, prepared.ranges)
        elif prepared.ranges:
            tx.execute(ledgered.insert(), [moved._asdict() for moved in prepared.ranges])
        done = commits.update().where(_row_of(prepared), commits.c.state == PREPARED)
        if tx.execute(done.values(state=CONFIRMED, version=version, ranges=b"")).rowcount != 1:
            raise CommitSettled(f"another hub has settled commit {prepared.commit} of table {prepared.table}")
        older = (commits.c.state != PREPARED) & (commits.c.id <= prepared.commit - COMMITS_KEPT)
        tx.execute(commits.delete().where(*_of_table(prepared), older))
        return changed

    def forget(self, prepared: Prepared) -> None:
        def work(tx: sa.Connection) -> None:
            self._writer.require(tx)
            still = _row_of(prepared) & (commits.c.state == PREPARED)
            tx.execute(commits.update().where(still).values(state=FORGOTTEN, ranges=b""))

        self._database.transaction(work)
        if prepared.writer in self._writer.own:
            self._check.repeat()  # another hub may have fenced the next ones too


def _prepared(tx: sa.Connection, of: sa.ColumnElement[bool]) -> list[Prepared]:
    """Return the prepared commits, the oldest first."""
    columns = (commits.c.writer, commits.c.table_name, commits.c.id, commits.c.ranges)
    query = sa.select(*columns).where(of, commits.c.state == PREPARED)
    rows = tx.execute(query.order_by(commits.c.writer, commits.c.table_name, commits.c.id)).all()
    return [Prepared(*row[:3], unpack_ranges(row[3], row[1], row[2])) for row in rows]


def _gateways_of(prepared: Prepared) -> set[Key]:
    return {(moved.tenant, moved.gateway) for moved in prepared.ranges}


def _of_table(prepared: Prepared) -> tuple[sa.ColumnElement[bool], ...]:
    return commits.c.writer == prepared.writer, commits.c.table_name == prepared.table


def _row_of(prepared: Prepared) -> sa.ColumnElement[bool]:
    return sa.and_(*_of_table(prepared), commits.c.id == prepared.commit)


def _count(tx: sa.Connection, ranges: Sequence[SequenceRange]) -> None:
    """Add landed messages to the totals of their gateways."""
    rows: Counter[Key] = Counter()
    for moved in ranges:
        rows[moved.tenant, moved.gateway] += moved.last - moved.first + 1
    if rows:
        more = [{"whose": tenant, "called": name, "more": messages} for (tenant, name), messages in rows.items()]
        execute_many(tx, _COUNT, more)
