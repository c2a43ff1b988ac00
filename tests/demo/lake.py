"""The demo's view of the lake: Delta tables, read with deltalake and without code of the program that wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.demo.accounting import Given, Reading, Row


@dataclass(frozen=True, slots=True)
class Landed:
    """Rows of `telemetry`, and their commits."""

    rows: int = 0
    commits: int = 0


class Lake:
    """Lake in a folder or a bucket. Blocks: call it from a worker thread."""

    def __init__(self, place: Path | str, options: Mapping[str, str] | None = None) -> None:
        """`options`: deltalake's options of a bucket."""
        self._place = str(place)
        self._options = dict(options) if options is not None else None
        self._telemetry: DeltaTable | None = None

    def landed(self) -> Landed:
        """Count rows from the table's log, without reading data."""
        table = self._telemetry
        if table is None:
            table = self._telemetry = self._open("telemetry")
            if table is None:
                return Landed()
        else:
            table.update_incremental()
        counts = pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()
        return Landed(rows=sum(count or 0 for count in counts), commits=table.version())

    def rows(self) -> list[Row]:
        """Return every row of `telemetry`."""
        table = self._open("telemetry")
        if table is None:
            return []
        columns = ("gateway", "epoch", "address", "sequence", "body")
        found = table.to_pyarrow_table(columns=list(columns))
        values = zip(*(found.column(name).to_pylist() for name in columns), strict=True)
        return [
            Row(gateway, epoch, address, sequence, reading_of(body))
            for gateway, epoch, address, sequence, body in values
        ]

    def ledger(self) -> list[Given]:
        """Return every row of `ledger`."""
        table = self._open("ledger")
        if table is None:
            return []
        columns = ("gateway", "epoch", "address", "first_sequence", "last_sequence")
        found = table.to_pyarrow_table(columns=list(columns))
        return [Given(*values) for values in zip(*(found.column(name).to_pylist() for name in columns), strict=True)]

    def _open(self, name: str) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self._place}/{name}", storage_options=self._options)
        except TableNotFoundError:
            return None


def reading_of(body: bytes) -> Reading | None:
    """Return (device, seq) of a reading; None when the body is not one."""
    try:
        match json.loads(body):
            case {"device": str(device), "seq": int(seq)}:
                return device, seq
    except ValueError:
        pass
    return None
