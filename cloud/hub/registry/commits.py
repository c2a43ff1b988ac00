"""Commits of the lake: prepared, landed, folded or forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.commit_states import FORGOTTEN, PREPARED, TELEMETRY
from cloud.hub.registry.damaged_commits import DamagedCommits
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import GatewaysMoved, LandingElsewhere
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.lake_check import CommitSeries, LakeCheck, known_in_ledger
from cloud.hub.registry.marks import GatewayMarks, Marks, read_marks
from cloud.hub.registry.packing import pack_checked
from cloud.hub.registry.reached import Reached, pack_reached, raise_minimum_ends, unpack_reached
from cloud.hub.registry.schema import commits, ledgered, writers
from cloud.hub.registry.unfolded import OpenCommit, UnfoldedCommits, gateways_of
from cloud.hub.registry.writer import RegistryWriter
from cloud.lake.commits import Prepared
from cloud.lake.faults import CommitSettled, LakeError, RegistryError, StreamDamaged, StreamElsewhere
from cloud.lake.lake import LandingLake
from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream, Span


class RegistryCommits:
    """Commit log in the registry, implements `cloud.lake.commits.CommitLog`. For the registry's thread. Ids are per
    writer and table."""

    def __init__(
        self,
        database: Database,
        registry_id: str,
        writer: RegistryWriter,
        generations: Generations,
        unfolded: UnfoldedCommits,
    ) -> None:
        self._database = database
        self._check = LakeCheck(database, registry_id, writer)
        self._writer = writer
        self._generations = generations
        self._unfolded = unfolded
        self._marks = Marks(database, generations)
        self._damaged = DamagedCommits(database, writer, self._check)
        self.landed_since_fold = 0
        """Ranges that have landed here since the last fold."""
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
        found = self._damaged.transaction(self._unresolved)
        self._marks.forget()  # another hub may have confirmed a commit of this one since
        self.landed_since_fold = 0
        return found

    def _unresolved(self, tx: sa.Connection) -> Sequence[Prepared]:
        self._writer.require(tx)
        mine = self._unfolded.of_writers(tx, self._writer.own)
        self._unfolded.fold(tx, mine)
        return self._unfolded.prepared(tx, [each for each in mine if each.version is None])

    def fold(self) -> None:
        """Fold the landed commits of this hub. Raises `RegistryError`; then the next fold takes them."""

        def work(tx: sa.Connection) -> None:
            self._writer.require(tx)
            self._unfolded.fold(tx, self._unfolded.of_writers(tx, self._writer.own))

        try:
            self._damaged.transaction(work)
        except LakeError as error:
            raise RegistryError(str(error)) from error
        self.landed_since_fold = 0

    def take_over(self, gateways: Iterable[Key]) -> Sequence[Prepared]:
        if self._check.is_due:
            self._run_check()
        if self._settle_own:
            own = self.unresolved()
            if own:
                return own
            self._settle_own = False
        new = {key for key in gateways if self._marks.known(key) is None}
        if not new:
            return []
        left_open, found = self._damaged.transaction(lambda tx: self._take_over(tx, new))
        for key, of_gateway in found.items():
            self._marks.keep(key, of_gateway)
        return left_open

    def _take_over(self, tx: sa.Connection, new: set[Key]) -> tuple[Sequence[Prepared], Mapping[Key, GatewayMarks]]:
        """Return the open commits of other hubs of this lake that name one of the gateways and may not have landed.
        If there are none, fold the landed ones, and return the marks.

        No hub can prepare another one: the connection to this hub has a later generation. A gateway named by a commit
        in another lake is not loaded, because its marks are not known before that lake was looked at.
        """
        self._check.require()
        named = self._unfolded.naming(tx, new)
        others = self._unknown_elsewhere(named)
        of_lake = self._writer.others_of_lake(tx) if others else set()
        found = [each for each in others if each.writer in of_lake]
        if found:
            return self._unfolded.prepared(tx, found), {}
        self._unfolded.fold(tx, _landed(named))
        elsewhere = (gateways_of(each.ranges) for each in self._unfolded.prepared(tx, others))
        return [], read_marks(tx, new.difference(*elsewhere))

    def _unknown_elsewhere(self, named: Iterable[OpenCommit]) -> list[OpenCommit]:
        """Return those of other hubs with an unknown outcome."""
        return [each for each in named if each.version is None and each.writer not in self._writer.own]

    # --- marks ------------------------------------------------------------------------------------------------------

    def landed(self, stream: SequenceStream) -> SequenceSet:
        key = stream.tenant, stream.gateway
        known = self._marks.known(key)
        if known is None:
            try:
                known = self._load(key)
            except LandingElsewhere as error:
                raise StreamElsewhere(stream, str(error)) from None
        why = known.unknown_reason(stream)
        if why is not None:
            raise StreamDamaged(stream, why, (self._generations.of(key), self._database.connections))
        return known.landed.get(stream) or SequenceSet()

    def marks(self, tenant: str, gateway: str) -> GatewayMarks:
        """Return the marks of a gateway, read-only. Raises `RegistryError`, also while another hub lands data of it."""
        if self._check.is_due:
            try:
                self._run_check()
            except LakeError as error:
                raise RegistryError(f"the registry cannot be compared with the lake: {error}") from error
        return self._damaged.transaction(lambda tx: self._view(tx, (tenant, gateway)))

    def _view(self, tx: sa.Connection, key: Key) -> GatewayMarks:
        """Return the marks of a gateway at any hub."""
        here = self._marks.known(key) if self._is_here(tx, key) else None
        return self._read(tx, key) if here is None else here

    def _is_here(self, tx: sa.Connection, key: Key) -> bool:
        return self._generations.of(key) is not None and not self._generations.moved(tx, {key})

    def _load(self, key: Key) -> GatewayMarks:
        """Return the marks of a gateway, and cache them if it is connected here. If it came from another hub, they are
        stable once nothing of it is landing there: nothing more can be prepared there."""
        found, is_here = self._damaged.transaction(lambda tx: self._read_stable(tx, key))
        return self._marks.keep(key, found) if is_here else found

    def _read_stable(self, tx: sa.Connection, key: Key) -> tuple[GatewayMarks, bool]:
        """Return the marks of a gateway, and whether it is connected here."""
        known = self._marks.known(key)
        if known is not None:
            return known, True
        self._check.require()
        if not self._is_here(tx, key):
            return self._read(tx, key), False
        named = self._unfolded.naming(tx, {key})
        self._require_none_elsewhere(tx, named, {key})
        self._unfolded.fold(tx, _landed(named))
        return read_marks(tx, [key])[key], True

    def _read(self, tx: sa.Connection, key: Key) -> GatewayMarks:
        """Return the marks of a gateway by its rows and the commits that are not folded yet; change nothing."""
        named = self._unfolded.naming(tx, {key})
        self._require_none_elsewhere(tx, named, {key})
        found = read_marks(tx, {key})[key]
        for prepared in self._unfolded.prepared(tx, _landed(named)):
            if prepared.table == TELEMETRY:
                found.add(moved for moved in prepared.ranges if (moved.tenant, moved.gateway) == key)
        return found

    def _require_none_elsewhere(self, tx: sa.Connection, named: Iterable[OpenCommit], who: set[Key]) -> None:
        """Check that no other hub has a commit of these gateways with an unknown outcome. Raises `LandingElsewhere`."""
        for prepared in self._unfolded.prepared(tx, self._unknown_elsewhere(named)):
            if names := gateways_of(prepared.ranges) & who:
                raise LandingElsewhere(
                    f"the hub with writer id {prepared.writer} has an unfinished landing of gateway "
                    f"{min(names)[1]}; start that hub to finish it"
                )

    def restore(self, tenant: str, gateway: str, landed: Mapping[SequenceStream, SequenceSet]) -> None:
        def work(tx: sa.Connection) -> dict[SequenceStream, SequenceSet]:
            self._writer.require(tx)
            whole = {**landed, **self._read_stable(tx, (tenant, gateway))[0].landed}
            self._marks.rewrite(tx, (tenant, gateway), whole)
            return whole

        self._marks.keep((tenant, gateway), GatewayMarks(self._damaged.transaction(work)))

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        asked = list(ranges)

        def work(tx: sa.Connection) -> set[SequenceRange]:
            who = gateways_of(asked)
            self._require_none_elsewhere(tx, self._unfolded.naming(tx, who), who)
            return known_in_ledger(tx, asked)

        return self._damaged.transaction(work)

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
        self._database.transaction(lambda tx: self._prepare(tx, prepared, rows, reached or {}))
        return prepared

    def _prepare(self, tx: sa.Connection, prepared: Prepared, rows: int, reached: Reached) -> None:
        """Record a commit: two statements, whatever the number of gateways."""
        self._check.require()
        who = gateways_of(prepared.ranges) | {(store.tenant, store.gateway) for store in reached}
        moved = self._generations.moved(tx, who)
        if moved:
            names = ", ".join(sorted(name for _, name in moved)[:3])
            raise GatewaysMoved(f"gateways have connected to another hub: {names}")
        row = {
            commits.c.writer: prepared.writer,
            commits.c.table_name: prepared.table,
            commits.c.id: prepared.commit,
            commits.c.state: PREPARED,
            commits.c.rows: rows,
            commits.c.ranges: pack_checked(prepared.ranges),
            commits.c.reached: pack_reached(reached),
        }
        values = sa.select(*(sa.literal(value, column.type) for column, value in row.items()))
        insert = commits.insert().from_select(list(row), values.where(self._writer.is_latest))
        if tx.execute(insert.execution_options(preserve_rowcount=True)).rowcount != 1:
            self._writer.require(tx)

    def confirm(self, prepared: Prepared, version: int) -> None:
        own = prepared.writer in self._writer.own and prepared.table == TELEMETRY
        try:
            self._damaged.transaction(lambda tx: self._confirm(tx, prepared, version, fold=not own))
        except CommitSettled:
            self._marks.forget()  # it may have landed, by the word of another hub
            raise
        if own:
            self._marks.remember(prepared.ranges)
            self.landed_since_fold += len(prepared.ranges)

    def _confirm(self, tx: sa.Connection, prepared: Prepared, version: int, *, fold: bool) -> None:
        """Record that a commit has landed: one statement, and more if it is folded at once."""
        still = _row_of(prepared) & (commits.c.state == PREPARED) & commits.c.version.is_(None)
        done = tx.execute(commits.update().where(still, self._writer.is_latest).values(version=version))
        if done.rowcount != 1:
            self._writer.require(tx)
            raise CommitSettled(f"another hub has settled commit {prepared.commit} of table {prepared.table}")
        if fold:
            self._unfolded.fold(tx, [OpenCommit(*prepared[:3], version)])

    def forget(self, prepared: Prepared) -> None:
        def work(tx: sa.Connection) -> None:
            self._writer.require(tx)
            still = _row_of(prepared) & (commits.c.state == PREPARED) & commits.c.version.is_(None)
            found = tx.execute(sa.select(commits.c.reached).where(still)).one_or_none()
            if found is not None:
                raise_minimum_ends(tx, [unpack_reached(found.reached, prepared.commit)])
            tx.execute(commits.update().where(still).values(state=FORGOTTEN, ranges=b"", reached=None))

        self._database.transaction(work)
        if prepared.writer in self._writer.own:
            self._check.repeat()  # another hub may have fenced the next ones too


def _landed(named: Iterable[OpenCommit]) -> list[OpenCommit]:
    return [each for each in named if each.version is not None]


def _row_of(prepared: Prepared) -> sa.ColumnElement[bool]:
    of_table = (commits.c.writer == prepared.writer, commits.c.table_name == prepared.table)
    return sa.and_(*of_table, commits.c.id == prepared.commit)
