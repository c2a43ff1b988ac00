"""What the landing asks of the registry: the three verbs of a commit, and what has landed.

The landing knows no database. `cloud.hub.registry.commits` implements `CommitLog` on SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cloud.lake.sequences import SequenceRange, SequenceSet, Stream


class GatewayStore(NamedTuple):
    """The store of a gateway, in one epoch of it."""

    tenant: str
    gateway: str
    epoch: str


class Prepared(NamedTuple):
    """A commit whose outcome in the lake is not known to the registry."""

    writer: str
    """Who prepared it; ids are its own for each table."""
    table: str
    commit: int
    ranges: Sequence[SequenceRange]


class CommitLog(Protocol):
    """Durable record of commits. Each method is one transaction, durable on return; raises
    `cloud.lake.faults.RegistryError`."""

    def application(self, prepared: Prepared) -> str:
        """The application id whose transaction version in the Delta table is the commit id: one a writer and table."""
        ...

    def unresolved(self) -> Sequence[Prepared]:
        """Prepared commits that were neither confirmed nor forgotten and are this hub's to settle, oldest first."""
        ...

    def landed(self, stream: Stream) -> SequenceSet:
        """What has landed of a stream, by confirmed commits. Raises `StreamInDoubt`. Not for the caller to change."""
        ...

    def restore(self, tenant: str, gateway: str, landed: Mapping[Stream, SequenceSet]) -> None:
        """This is what has landed of the streams of a gateway of which `landed` could not say it."""
        ...

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        """Those of `ranges` that are in the ledger already."""
        ...

    def prepare(
        self,
        table: str,
        ranges: Sequence[SequenceRange],
        rows: int,
        reached: Mapping[GatewayStore, Mapping[int, int]] | None = None,
    ) -> Prepared:
        """Record what is about to land, under a commit id greater than every one before it of this writer and table.

        `reached`: how far the logs of these stores reach at least, as what they sent says.
        """
        ...

    def confirm(self, prepared: Prepared, version: int) -> None:
        """The commit is in the table as `version`: its ranges have landed."""
        ...

    def forget(self, prepared: Prepared) -> None:
        """The commit is not in the table and never will be."""
        ...


Failpoint = Callable[[str], None]
"""Called with the name of the step just done; tests raise or kill there."""

FAILPOINTS = ("prepared", "written", "committed", "synced", "confirmed")
"""The steps of a landing, in order: recorded in the registry; data file on disk; in the table's log; that log on disk;
confirmed in the registry (and not yet acked)."""


def no_failpoint(step: str) -> None:
    """The product: nothing happens between two steps."""
