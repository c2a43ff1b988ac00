"""Check that the registry knows every commit of the lake. If not, it is an older copy of itself: it was restored, or a
standby took over that lacked the last transactions. Messages that its marks do not name may be in the lake.

A commit is in the registry before it is in the lake. So the lake never has a later commit of any writer than the
registry, unless the registry is older. A hub checks all writers, not only its own: a hub in a pod has never written.
It checks at its start, and after each new connection to the database before it prepares a commit: that may be another
database than before.

An older copy is repaired, once for all hubs (``cloud/decisions/0020-registry-older-than-its-lake.md``):

1. The lake refuses all commits that were prepared and are not in it: their ranges are lost.
2. In one transaction, every mark becomes unusable, the ranges of the ledger are read back, open commits are forgotten,
   and the numbers in the lake count as used. Every connection of a gateway counts as an old one, so gateways connect
   again wherever they are. Its statements are bounded, not the transaction: a hub that has checked the registry before
   must not land anything in between.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import REPAIRED_AT_ONCE
from cloud.hub.registry.campaign_states import pause_campaigns
from cloud.hub.registry.commit_states import FORGOTTEN, NUMBERED, PREPARED
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import utc_us
from cloud.hub.registry.faults import CommitDamaged
from cloud.hub.registry.known_numbers import leave_known_numbers
from cloud.hub.registry.marks import Marks
from cloud.hub.registry.paged_changes import change_in_pages
from cloud.hub.registry.schema import (
    OLDER_WRITER,
    PARAMETERS_MAX,
    commits,
    gateways,
    ledgered,
    require_unmarked,
    writers,
)
from cloud.hub.registry.unfolded import UnfoldedCommits
from cloud.hub.registry.writer import RegistryWriter
from cloud.lake.faults import RegistryError
from cloud.lake.lake import LandingLake
from cloud.lake.sequences import SequenceRange

log = logging.getLogger(__name__)

FENCED_AHEAD: Final = 1_000
"""Numbers after a writer's last commit in the lake that the repair fences. A hub prepares one commit of a table at a
time, so a lost one has the next number, or a few more if their transactions failed."""
CONNECTIONS_AHEAD: Final = 1_000_000
"""Added to the generation of each gateway by the repair. The copy has lower ones than hubs that still run: they must
not become equal, and no gateway connects so often while such a hub still runs."""


class CommitSeries(NamedTuple):
    """Numbered commits of one writer to one table."""

    writer: str
    table: str


class LakeCheck:
    """Checks the registry against the lake of this hub. For the registry's thread."""

    def __init__(self, database: Database, registry_id: str, writer: RegistryWriter) -> None:
        self.is_older_copy = False
        """True if a check has found that the registry is an older copy."""
        self._database = database
        self._registry_id = registry_id
        self._writer = writer
        self._lake: LandingLake | None = None
        self._older: Callable[[], None] = lambda: None
        self._checked = 0
        """Connection of the database at the last check."""
        self._again = False

    def application(self, series: CommitSeries) -> str:
        """Return the application id. It names registry and writer, so that a lake that outlives its registry does not
        mistake new commit ids for old ones."""
        parts = ("waypost", self._registry_id, series.writer, series.table)
        return "/".join(part for part in parts if part != OLDER_WRITER)

    def use(self, lake: LandingLake, older: Callable[[], None]) -> None:
        """Check against this lake from now on; `older` is called when the registry is an older copy."""
        self._lake = lake
        self._older = older
        self._checked = 0

    @property
    def lake(self) -> LandingLake | None:
        """Lake that it checks against; None before `use`."""
        return self._lake

    @property
    def is_due(self) -> bool:
        return self._again or self._is_unchecked

    @property
    def _is_unchecked(self) -> bool:
        return self._lake is not None and self._checked != self._database.connections

    def repeat(self) -> None:
        """Check again before the next landing."""
        self._again = self._lake is not None

    def require(self) -> None:
        """Check, in a transaction about landed sequences, that it runs on the connection of the last check. Raises
        `RegistryError`."""
        if self._is_unchecked:
            raise RegistryError("the connection to the registry is a new one: it is compared with the lake first")

    def run(self) -> Mapping[str, int]:
        """Check, and repair an older copy. Return the last number of this writer by table.

        Raises `RegistryError`, `LakeError`; then the check is still due.
        """
        lake = self._lake
        if lake is None:
            return {}
        found = self._numbers(lake)  # before the registry: what is in the lake now was in the registry before

        def work(tx: sa.Connection) -> tuple[bool, Mapping[CommitSeries, int], int]:
            require_unmarked(tx)
            return self._writer.repair(tx), _later(tx, found), self._database.connections

        forgotten, later, connection = self._database.transaction(work)
        if forgotten:
            log.error("the registry is an older copy: it does not know that this hub has started")
            self._older()
        if later:
            found = self._repair_once(lake)
        self._checked, self._again = connection, False
        return {table: number for (writer, table), number in found.items() if writer == self._writer.id}

    def _repair_once(self, lake: LandingLake) -> dict[CommitSeries, int]:
        """Repair the registry, unless another hub does or has done it; return the last number of each series.

        Two repairs at a time would take each other's fences for lost commits, and never end.
        """
        with self._database.repairing():
            found = self._numbers(lake)
            later = self._database.transaction(lambda tx: _later(tx, found))
            if not later:
                return found
            self._repair(lake, found, later)
            return _fenced(found)

    def repair(self, lake: LandingLake) -> int:
        """Repair the registry as an older copy, also if the lake does not show that it is one; return the number of
        writers with later commits in the lake. Raises `RegistryError`, `LakeError`."""
        found = self._numbers(lake)
        later = self._database.transaction(lambda tx: _later(tx, found))
        self._repair(lake, found, later, always=True)
        return len({series.writer for series in later})

    def _numbers(self, lake: LandingLake) -> dict[CommitSeries, int]:
        """Return the last number of each series of this registry in the lake, of a commit or a fence."""
        found: dict[CommitSeries, int] = {}
        for table in NUMBERED:
            for application, number in lake.transactions(table).items():
                writer = self._writer_of(application, table)
                if writer is not None:
                    found[CommitSeries(writer, table)] = number
        return found

    def _writer_of(self, application: str, table: str) -> str | None:
        """Return the writer of an application id of this registry; None for another one."""
        before, _, after = self.application(CommitSeries("*", table)).partition("*")
        if application == self.application(CommitSeries(OLDER_WRITER, table)):
            return OLDER_WRITER
        if application.startswith(before) and application.endswith(after):
            return application.removeprefix(before).removesuffix(after)
        return None

    def _repair(
        self,
        lake: LandingLake,
        found: Mapping[CommitSeries, int],
        later: Mapping[CommitSeries, int],
        *,
        always: bool = False,
    ) -> None:
        for series, known in later.items():
            words = "the registry is an older copy: table %s of the lake has commit %d of writer %s, the registry %d"
            log.error(words, series.table, found[series], series.writer or "(none)", known)
        self.is_older_copy = True
        self._older()
        fenced = _fenced(found)
        for table in NUMBERED:
            numbers = {self.application(each): number for each, number in fenced.items() if each.table == table}
            if numbers:
                lake.fence(table, numbers)
        landed = lake.gateways()
        dropped = [moved for part in lake.ledgered() for moved in part]

        def work(tx: sa.Connection) -> None:
            if not always and not _later(tx, found):
                return  # another hub has repaired it in the meantime
            for writer in sorted({series.writer for series in found}):
                with contextlib.suppress(CommitDamaged):  # the marks are read back from the lake anyway
                    UnfoldedCommits.fold(tx, UnfoldedCommits.of_writers(tx, [writer]))
            _forget_open(tx, lake.identity)
            Marks.mark_unusable(tx, landed)
            for start in range(0, len(dropped), REPAIRED_AT_ONCE):
                _add_to_ledger(tx, dropped[start : start + REPAIRED_AT_ONCE])
            further = gateways.update().values(generation=gateways.c.generation + CONNECTIONS_AHEAD)
            change_in_pages(tx, further, [gateways.c.tenant, gateways.c.name], REPAIRED_AT_ONCE)
            _use_numbers(tx, fenced)
            leave_known_numbers(tx)
            pause_campaigns(tx, utc_us())

        self._database.transaction(work)


def _fenced(found: Mapping[CommitSeries, int]) -> dict[CommitSeries, int]:
    """Return the last number of each series after the repair."""
    return {series: number + FENCED_AHEAD for series, number in found.items()}


def _known(tx: sa.Connection) -> dict[CommitSeries, int]:
    """Return the last number of each series in the registry."""
    query = sa.select(commits.c.writer, commits.c.table_name, sa.func.max(commits.c.id))
    rows = tx.execute(query.group_by(commits.c.writer, commits.c.table_name))
    return {CommitSeries(row[0], row[1]): row[2] for row in rows}


def _later(tx: sa.Connection, found: Mapping[CommitSeries, int]) -> dict[CommitSeries, int]:
    """Return the series with later numbers in the lake, each with the last number in the registry."""
    known = _known(tx)
    return {series: known.get(series, 0) for series, number in found.items() if number > known.get(series, 0)}


def _forget_open(tx: sa.Connection, lake: str) -> None:
    """Forget the open commits of this lake, also damaged ones: a later number in the lake does not tell that one of
    them is there, and the marks are read back anyway."""
    elsewhere = sa.select(writers.c.id).where(writers.c.lake.is_not(None), writers.c.lake != lake)
    still = (commits.c.state == PREPARED, commits.c.writer.not_in(elsewhere))
    tx.execute(commits.update().where(*still).values(state=FORGOTTEN, ranges=b"", reached=None))


def _use_numbers(tx: sa.Connection, last: Mapping[CommitSeries, int]) -> None:
    """Record that the numbers of each series are used."""
    known = _known(tx)
    rows = [
        {"writer": series.writer, "table_name": series.table, "id": number}
        for series, number in last.items()
        if number > known.get(series, 0)
    ]
    if rows:
        tx.execute(commits.insert().values(state=FORGOTTEN, rows=0, ranges=b""), rows)


def _add_to_ledger(tx: sa.Connection, dropped: Sequence[SequenceRange]) -> None:
    """Add ranges that the registry does not have."""
    known = known_in_ledger(tx, dropped)
    new = [moved._asdict() for moved in dict.fromkeys(dropped) if moved not in known]
    if new:
        tx.execute(ledgered.insert(), new)


def known_in_ledger(tx: sa.Connection, asked: Sequence[SequenceRange]) -> set[SequenceRange]:
    """Return those of the ranges that are in the ledger."""
    columns = [ledgered.c[name] for name in SequenceRange._fields]
    at_once = PARAMETERS_MAX // len(columns)
    known: set[SequenceRange] = set()
    for start in range(0, len(asked), at_once):
        some = asked[start : start + at_once]
        found = tx.execute(sa.select(*columns).where(sa.tuple_(*columns).in_(some)))
        known |= {SequenceRange(*row) for row in found}
    return known
