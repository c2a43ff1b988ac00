"""Interface of the lake that the landing needs: append to tables under transactions that can be looked up.

`cloud.lake.delta` implements it with Delta tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from cloud.lake.sequences import SequenceRange


class TransactionId(NamedTuple):
    """Id of an append; commits of one application ascend."""

    application: str
    commit: int


class TableRefusal(NamedTuple):
    """Reason why this program cannot append to a table."""

    why: str
    next_step: str
    fences: bool
    """False if not even an entry without rows may be written."""
    columns: bool = False
    """True if the columns are others, so it may be another table."""


class LandingLake(Protocol):
    """Lake for one thread. Every method raises `cloud.lake.faults.LakeError`."""

    @property
    def identity(self) -> str:
        """Unique id of the lake."""
        ...

    @property
    def versions(self) -> Mapping[str, int]:
        """Newest version of each table."""
        ...

    @property
    def refusals(self) -> Mapping[str, TableRefusal]:
        """Tables that accept no rows of this program, as they were last read."""
        ...

    def require_writable(self, table: str) -> None:
        """Check that rows can be appended to a table. Raises `cloud.lake.faults.TableMismatch`."""
        ...

    def append(self, table: str, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        """Append rows of one partition as one version, durable on return; return the version.

        When it raises, the rows may or may not be in the table: ask `committed`.
        """
        ...

    def compact(self) -> int:
        """Compact the small files of one table; return their number. Changes no rows; takes 0.3 s at most."""
        ...

    def committed(self, table: str, application: str) -> int | None:
        """Return the last commit id of an application in the table, durable; None without one."""
        ...

    def settled(self, table: str, transaction: TransactionId) -> bool:
        """Return whether a transaction is in the table, for good. If it is not, it will never be, even if an entry is
        still in flight or its writer was delayed."""
        ...

    def transactions(self, table: str) -> Mapping[str, int]:
        """Return the last commit id of every application in the table, durable: of a commit, or of a fence."""
        ...

    def fence(self, table: str, commits: Mapping[str, int]) -> None:
        """Refuse commits up to these ids, by application, that are not in the table: they will never be in it."""
        ...

    def ranges_of(self, table: str, transaction: TransactionId, version: int) -> Sequence[SequenceRange] | None:
        """Return the sequences that a transaction added to `telemetry` or `ledger`, in this version or a few before;
        None if the lake no longer has its entry or file."""
        ...

    def ledgered(self) -> Iterator[Sequence[SequenceRange]]:
        """Yield the ranges in `ledger` now, one data file at a time. As slow as `landed`."""
        ...

    def gateways(self) -> set[tuple[str, str]]:
        """Return (tenant, gateway) of all rows in `telemetry` now. As slow as `landed`."""
        ...

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        """Yield the sequences of a gateway in `telemetry` now, one data file at a time. For rebuilding a damaged
        registry, so it may be slow."""
        ...
