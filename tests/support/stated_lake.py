"""Lake of gateways and a hub, with manifests, and the same lake after damage."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import DeltaTable

from bridge.manifest import GENESIS, HOUR_NS, ManifestStatement
from cloud.lake.delta import DeltaLake
from cloud.lake.rows import record_rows

START_US = 1_795_248_000_000_000
"""2026-11-21T08:00:00Z: start of the first hour, UTC microseconds."""
HOUR_US = HOUR_NS // 1_000


class StatedGateway:
    """One gateway that writes directly to the tables."""

    def __init__(self, lake: StatedLake, name: str = "gw1", epoch: str = "e1") -> None:
        self.name = name
        self.epoch = epoch
        self.key = Ed25519PrivateKey.generate()
        self._lake = lake
        self._next: dict[str, int] = {}
        self._stated: dict[str, tuple[int, str]] = {}
        self._closing = 0

    def accept(self, address: str, count: int) -> Sequence[int]:
        """Accept messages; return their sequences."""
        first = self._next.get(address, 0)
        self._next[address] = first + count
        return range(first, first + count)

    def land(self, address: str, sequences: Iterable[int], *, hour: int = 0, lane: str = "live") -> None:
        at = START_US + hour * HOUR_US
        names = {"tenant": "default", "gateway": self.name, "epoch": self.epoch, "address": address, "lane": lane}
        names |= {"device": "d", "clock_quality": "good", "body": b"x"}
        times = {"event_time": at, "received_at": at}
        self._lake.append("telemetry", [{**names, **times, "sequence": n} for n in sequences], at)

    def give_up(self, address: str, first: int, last: int, reason: str = "evicted", *, hour: int = 0) -> None:
        at = START_US + hour * HOUR_US
        names = {"tenant": "default", "gateway": self.name, "epoch": self.epoch, "address": address, "reason": reason}
        span = {"first_sequence": first, "last_sequence": last, "bytes": 1, "decided_at": at}
        self._lake.append("ledger", [{**names, **span}], at)

    def state(self, hour: int, *, key: Ed25519PrivateKey | None = None) -> list[ManifestStatement]:
        """Close an hour: state the accepted messages of every address that are not yet stated."""
        changed = {
            address: following
            for address, following in self._next.items()
            if following > self._stated.get(address, (0, ""))[0]
        }
        self._closing += bool(changed)
        made = []
        for address, following in changed.items():
            first, previous = self._stated.get(address, (0, GENESIS))
            said = ManifestStatement(
                epoch=self.epoch,
                address=address,
                hour=(START_US + hour * HOUR_US) * 1_000,
                until=(START_US + (hour + 1) * HOUR_US) * 1_000,
                first_sequence=first,
                last_sequence=following - 1,
                count=following - first,
                given_up={},
                clock_quality="good",
                store_epoch=self.epoch,
                closing=self._closing,
                statements=len(changed),
                previous=previous,
            ).sealed(self.name)
            self._stated[address] = (following, said.digest)
            made.append(said)
        self.send(made, hour, key or self.key)
        return made

    def send(self, statements: Sequence[ManifestStatement], hour: int, key: Ed25519PrivateKey) -> None:
        public = "ed25519:" + base64.b64encode(key.public_key().public_bytes_raw()).decode()
        rows = []
        for said in statements:
            row = msgspec.structs.asdict(said)
            row.update((name, row[name] // 1_000) for name in ("hour", "until"))
            row["given_up"] = msgspec.json.encode(said.given_up).decode()
            row["signature"] = base64.b64encode(key.sign(said.digest.encode())).decode()
            rows.append({"tenant": "default", "gateway": self.name, "public_key": public, **row})
        self._lake.append("manifests", rows, START_US + (hour + 1) * HOUR_US)

    def report(self, hour: float, backlog: int) -> None:
        """Write a status."""
        at = START_US + int(hour * HOUR_US)
        row = {"tenant": "default", "gateway": self.name, "reported_at": at, "state": "running"}
        self._lake.append("gateway_status", [{**row, "backlog_messages": backlog}], at)


class StatedLake:
    """A lake in a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables = DeltaLake(path)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]], at_us: int) -> None:
        if rows:
            self._tables.append(table, record_rows(table, rows, at_us))

    def gateway(self, name: str = "gw1", epoch: str = "e1") -> StatedGateway:
        return StatedGateway(self, name, epoch)

    def remove(self, table: str, which: str) -> None:
        """Remove rows by an SQL predicate."""
        assert DeltaTable(self.path / table).delete(which)["num_deleted_rows"], "nothing was damaged"

    def change(self, table: str, which: str, **columns: str) -> None:
        """Set columns (SQL expressions) of rows."""
        assert DeltaTable(self.path / table).update(columns, predicate=which)["num_updated_rows"], "nothing was damaged"


def day(hour: int) -> datetime.date:
    """Return the day of an hour."""
    return datetime.datetime.fromtimestamp((START_US + hour * HOUR_US) / 1_000_000, datetime.UTC).date()
