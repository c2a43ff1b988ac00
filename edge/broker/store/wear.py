"""What is written to the card, counted by the kernel for this process and for the whole device, against what is stored.

The kernel's counters begin anew with each process and each boot. The meter counts from where the store's table ``wear``
stopped: its rows are totals since the store was made, the last of each hour of running. Hours of running, because a
gateway's clock may jump, and a gateway that is switched off wears nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, Self

PERSIST_S: Final = 300.0
"""Least time between two writes of the totals, which ride along with a commit that writes counters anyway."""
HOURS_KEPT: Final = 8 * 24
"""Rows of table ``wear``: a week, and a day to find its beginning in."""
HOUR_S: Final = 3600.0
SECTOR_BYTES: Final = 512
_SECTORS_WRITTEN: Final = 6
"""Field of a block device's ``stat`` (Linux Documentation/block/stat.rst)."""
LIFE_STEP: Final = 0.1
"""A step of an eMMC's life time estimate (JEDEC JESD84-B51, DEVICE_LIFE_TIME_EST): n means up to n steps used."""

_INSERT: Final = """
INSERT OR REPLACE INTO wear (hour, seconds, payload_bytes, process_bytes, device_bytes) VALUES (?, ?, ?, ?, ?)
"""
_PRUNE: Final = "DELETE FROM wear WHERE hour < ?"
_SELECT: Final = "SELECT seconds, payload_bytes, process_bytes, device_bytes FROM wear ORDER BY hour"


class WearTotals(NamedTuple):
    """Since the store was made, while a gateway had it open."""

    seconds: float = 0.0
    payload_bytes: int = 0
    """Bodies of messages committed."""
    process_bytes: int = 0
    """Written by the gateway's process to any medium; 0 where the kernel does not say."""
    device_bytes: int = 0
    """Written to the device the store is on, by everybody; 0 where the kernel does not say."""


class WrittenBytes(NamedTuple):
    """The kernel's counters now; None: it does not say."""

    process_bytes: int | None
    device_bytes: int | None


class BlockDevice(NamedTuple):
    """A block device as /sys shows it."""

    name: str
    folder: Path

    @classmethod
    def of(cls, path: Path, root: Path = Path("/")) -> Self | None:
        """The whole device `path` is on; None where the system shows none (an overlay, a network, another system)."""
        try:
            number = os.stat(path).st_dev
            folder = (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        except OSError:
            return None
        if (folder / "partition").exists():
            folder = folder.parent
        return cls(folder.name, folder)

    def written_bytes(self) -> int | None:
        """Since the machine's start."""
        try:
            return int((self.folder / "stat").read_text(encoding="ascii").split()[_SECTORS_WRITTEN]) * SECTOR_BYTES
        except (OSError, ValueError, IndexError):
            return None

    def life_used(self) -> float | None:
        """The share of its life an eMMC says it has used, to the step below; None: it does not tell."""
        try:
            text = (self.folder / "device" / "life_time").read_text(encoding="ascii")
            steps = max(int(part, 0) for part in text.split())
        except (OSError, ValueError):
            return None
        return (steps - 1) * LIFE_STEP if steps else None


def process_written_bytes(root: Path = Path("/")) -> int | None:
    """Bytes this process has made the kernel write to media (proc(5): /proc/pid/io)."""
    try:
        text = (root / "proc/self/io").read_text(encoding="ascii")
        fields = dict(line.split(": ") for line in text.splitlines())
        return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def counters(device: BlockDevice | None) -> WrittenBytes:
    """The kernel's counters for this process and `device`."""
    return WrittenBytes(process_written_bytes(), device.written_bytes() if device is not None else None)


class WearMeter:
    """Counts on from what the store has. Used by one thread."""

    def __init__(
        self,
        rows: Sequence[WearTotals],
        read: Callable[[], WrittenBytes],
        clock: Callable[[], float],
    ) -> None:
        """`rows`: of table ``wear``, oldest first. `clock`: seconds, monotonic."""
        self.payload_bytes = 0
        """Of bodies committed since; whoever commits adds to it."""
        self.rows = list(rows)
        """Totals as the store has them."""
        self._told_bytes = 0
        self._base = rows[-1] if rows else WearTotals()
        self._read = read
        self._clock = clock
        self._began = self._kept_at = clock()
        self._first = read()

    def totals(self, payload_bytes: int = 0) -> WearTotals:
        """Until now, with bodies that are just being committed."""
        base, now = self._base, self._read()
        return WearTotals(
            base.seconds + max(0.0, self._clock() - self._began),
            base.payload_bytes + self.payload_bytes + payload_bytes,
            base.process_bytes + _since(self._first.process_bytes, now.process_bytes),
            base.device_bytes + _since(self._first.device_bytes, now.device_bytes),
        )

    def due(self) -> bool:
        """The store has not been told for PERSIST_S."""
        return self._clock() >= self._kept_at + PERSIST_S

    @property
    def untold(self) -> bool:
        """Messages were committed that the store's totals do not count."""
        return self.payload_bytes != self._told_bytes

    def committed(self, totals: WearTotals) -> None:
        """The store has these."""
        self._kept_at = self._clock()
        self._told_bytes = self.payload_bytes
        if self.rows and hour_of(self.rows[-1]) == hour_of(totals):
            self.rows.pop()
        self.rows.append(totals)
        del self.rows[: -HOURS_KEPT - 1]


def hour_of(totals: WearTotals) -> int:
    """The hour of running they were taken in."""
    return int(totals.seconds // HOUR_S)


def write(connection: sqlite3.Connection, totals: WearTotals) -> None:
    """Keep them, in the transaction that is open. Raises sqlite3.Error."""
    connection.execute(_INSERT, (hour_of(totals), *totals))
    connection.execute(_PRUNE, (hour_of(totals) - HOURS_KEPT,))


def load(connection: sqlite3.Connection) -> list[WearTotals]:
    """What the store has, oldest first, without rows a rotten page gives other types: they are figures, and no reason
    to keep a gateway from serving. Raises sqlite3.Error."""
    rows = (WearTotals._make(row) for row in connection.execute(_SELECT))
    return [row for row in rows if _sound(row)]


def _sound(row: WearTotals) -> bool:
    """It has the types and the range of totals."""
    seconds, *counts = row
    return isinstance(seconds, float) and 0 <= seconds < inf and all(isinstance(n, int) and n >= 0 for n in counts)


def _since(first: int | None, now: int | None) -> int:
    """What a counter has grown by; 0 when it is not there or has begun anew."""
    return max(0, now - first) if first is not None and now is not None else 0
