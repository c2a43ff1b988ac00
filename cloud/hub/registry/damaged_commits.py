"""Commits with ranges that cannot be read any more: repaired from the lake.

One damaged row must not stop the other gateways, and must not be guessed away. The lake knows everything about it: the
outcome by its number, the ranges by the data file that its entry names. If that file is gone (compacted, and deleted
after a week), the landed sequences of all gateways are read back from the lake, as if the registry were an older copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import sqlalchemy as sa

from cloud.hub.registry.commit_states import FORGOTTEN, PREPARED
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import CommitDamaged
from cloud.hub.registry.lake_check import CommitSeries, LakeCheck
from cloud.hub.registry.packing import pack_checked
from cloud.hub.registry.schema import commits
from cloud.hub.registry.writer import RegistryWriter
from cloud.lake.faults import RegistryError
from cloud.lake.lake import LandingLake, TransactionId

log = logging.getLogger(__name__)

T = TypeVar("T")

REPAIRED_COMMITS_MAX: Final = 20
"""Damaged commits that one transaction may meet: each is repaired by itself, some 20 ms in a folder. With more of them,
the next landing goes on."""


class DamagedCommits:
    """Repairs damaged commits of the registry. For the registry's thread."""

    def __init__(self, database: Database, writer: RegistryWriter, check: LakeCheck) -> None:
        self._database = database
        self._writer = writer
        self._check = check

    def transaction(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a transaction, and again after the repair of each damaged commit that it met. Raises `RegistryError`,
        also while the lake cannot be asked."""
        for _ in range(REPAIRED_COMMITS_MAX):
            try:
                return self._database.transaction(work)
            except CommitDamaged as damaged:
                self._repair(damaged)
        raise RegistryError(f"more than {REPAIRED_COMMITS_MAX} commits of the registry are damaged; the repair goes on")

    def _repair(self, damaged: CommitDamaged) -> None:
        """Repair a commit, or take the next step towards that. Raises `RegistryError`, `LakeError`."""
        writer, table, commit = damaged.name
        lake = self._check.lake
        if lake is None:
            raise damaged
        if writer not in self._writer.own | self._database.transaction(self._writer.others_of_lake):
            raise RegistryError(f"{damaged}, and that hub has another lake: start it, so that it repairs the commit")
        transaction = TransactionId(self._check.application(CommitSeries(writer, table)), commit)
        if damaged.version is None:
            self._settle(damaged, lake, transaction)
            return
        ranges = lake.ranges_of(table, transaction, damaged.version)
        if ranges is None:
            log.error("registry: %s and its file is gone: the lake is read for the landed sequences of all", damaged)
            self._check.repair(lake)
            self._check.repeat()
            return
        self._change(damaged, ranges=pack_checked(ranges))
        log.warning("registry: %s: its ranges were read from the lake", damaged)

    def _settle(self, damaged: CommitDamaged, lake: LandingLake, transaction: TransactionId) -> None:
        """Find out whether the commit is in the lake, for good, as for any open one."""
        _, table, _ = damaged.name
        if lake.settled(table, transaction):
            self._change(damaged, version=lake.versions[table])
        else:
            self._change(damaged, state=FORGOTTEN, ranges=b"", reached=None)
            log.warning("registry: %s: it is not in the lake, and forgotten", damaged)

    def _change(self, damaged: CommitDamaged, **values: object) -> None:
        writer, table, commit = damaged.name
        row = (commits.c.writer == writer, commits.c.table_name == table, commits.c.id == commit)
        same = commits.c.version.is_(None) if damaged.version is None else commits.c.version == damaged.version
        change = commits.update().where(*row, commits.c.state == PREPARED, same).values(**values)
        self._database.transaction(lambda tx: tx.execute(change))
