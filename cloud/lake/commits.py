"""Interface of the commit log that the landing needs: prepare, confirm, forget, and the landed sequences.

The landing knows no database. `cloud.hub.registry.commits` implements `CommitLog` with SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream, Span


class GatewayStore(NamedTuple):
    """Store of a gateway in one epoch."""

    tenant: str
    gateway: str
    epoch: str


class Prepared(NamedTuple):
    """Commit with an outcome in the lake that the registry does not know yet."""

    writer: str
    """Writer that prepared it; ids are per writer and table."""
    table: str
    commit: int
    ranges: Sequence[SequenceRange]


class CommitLog(Protocol):
    """Durable log of commits. Each method is one transaction, durable on return; raises
    `cloud.lake.faults.RegistryError`."""

    def application(self, prepared: Prepared) -> str:
        """Return the application id of a commit: one for each writer and table. Its transaction version in the Delta
        table is the commit id."""
        ...

    def unresolved(self) -> Sequence[Prepared]:
        """Return the prepared commits of this hub, the oldest first."""
        ...

    def take_over(self, gateways: Iterable[tuple[str, str]]) -> Sequence[Prepared]:
        """Prepare to land for gateways, each (tenant, name): load their landed sequences.

        A gateway that came from another hub of this lake may be named by open commits of that hub. Those are returned,
        the oldest first, and nothing is loaded: settle them, and call it again. So are open commits of this hub, if the
        registry may be an older copy.
        """
        ...

    def landed(self, stream: SequenceStream) -> SequenceSet:
        """Return the landed sequences of a stream, by confirmed commits; read-only. Raises `StreamInDoubt`."""
        ...

    def restore(self, tenant: str, gateway: str, landed: Mapping[SequenceStream, SequenceSet]) -> None:
        """Set the landed sequences of a gateway's streams that were in doubt."""
        ...

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        """Return those of `ranges` that are in the ledger."""
        ...

    def dropped(self, stream: SequenceStream, first: int, last: int, limit: int | None = None) -> Sequence[Span]:
        """Return the ranges of the ledger that overlap ``first..last`` of a stream, the lowest first."""
        ...

    def prepare(
        self,
        table: str,
        ranges: Sequence[SequenceRange],
        rows: int,
        reached: Mapping[GatewayStore, Mapping[int, int]] | None = None,
    ) -> Prepared:
        """Record a commit before it lands, under an id greater than every earlier one of this writer and table.

        `reached`: minimum ends of the logs of gateways' stores, as their messages show.
        """
        ...

    def confirm(self, prepared: Prepared, version: int) -> None:
        """Record that the commit is in the table as `version`: its ranges have landed.

        Raises `CommitSettled` if another hub has settled the commit before.
        """
        ...

    def forget(self, prepared: Prepared) -> None:
        """Forget a commit that is not in the table and never will be, unless another hub has settled it before."""
        ...


Failpoint = Callable[[str], None]
"""Called with the name of the step just done; tests raise or kill there."""

FAILPOINTS = ("prepared", "written", "committed", "synced", "confirmed")
"""The steps of a landing, in order: recorded in the registry; data file on disk; in the table's log; that log on disk;
confirmed in the registry (and not yet acked)."""


def no_failpoint(step: str) -> None:
    """Do nothing between two steps, as the product does."""
