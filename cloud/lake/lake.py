"""What the landing asks of a lake: tables that are appended to, under transactions that can be looked up.

`cloud.lake.delta` keeps them as Delta tables in a directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from cloud.lake.sequences import SequenceRange


class Transaction(NamedTuple):
    """The name of an append: ids of one application ascend."""

    application: str
    commit: int


class Lake(Protocol):
    """For one thread. Every method raises `cloud.lake.faults.LakeError`."""

    @property
    def identity(self) -> str:
        """Another one for every lake."""
        ...

    @property
    def versions(self) -> Mapping[str, int]:
        """The newest version of each table."""
        ...

    def append(self, table: str, rows: pa.Table, transaction: Transaction | None = None) -> int:
        """Append rows (all of one partition) as one version, on the medium on return; returns that version.

        When it raises, the rows may or may not be in the table: `committed` tells.
        """
        ...

    def compact(self) -> int:
        """Put small files together where a table has many; returns how many. Changes no rows; takes 0.3 s at most."""
        ...

    def committed(self, table: str, application: str) -> int | None:
        """The last commit id of an application in the table; None for none. What it tells is on the medium."""
        ...

    def settled(self, table: str, transaction: Transaction) -> bool:
        """Whether this transaction is in the table, on the medium, for good: what has not come there never will,
        whatever is still on its way, or whoever was about to commit it and was held up."""
        ...

    def gateways(self) -> set[tuple[str, str]]:
        """(tenant, gateway) of everybody of whom something is in `telemetry`, as of now. As slow as `landed`."""
        ...

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        """Every sequence of a gateway in `telemetry`, as of now, a data file at a time: for the rebuilding of a
        damaged registry, so it may be slow."""
        ...
