"""Bytes written to the card, by kernel counters for this process and for the whole device, and bytes stored.

The kernel's counters restart with each process and each boot. So the meter continues from table ``wear``, which has
totals since the store was created, one row for each hour of running. It uses hours of running because the clock may
jump, and because a gateway that is switched off does not wear its card.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, Self

PERSIST_S: Final = 300.0
"""Shortest time between two writes of the totals, which are part of a commit that writes counters anyway."""
HOURS_KEPT: Final = 8 * 24
"""Rows of table ``wear``: a week, and one more day to find its start."""
HOUR_S: Final = 3600.0
SECTOR_BYTES: Final = 512
_SECTORS_WRITTEN: Final = 6
"""Field of a block device's ``stat`` (Linux Documentation/block/stat.rst)."""
LIFE_STEP: Final = 0.1
"""Step of the life time estimate of an eMMC (JEDEC JESD84-B51, DEVICE_LIFE_TIME_EST): n means up to n steps used."""

_INSERT: Final = """
INSERT OR REPLACE INTO wear (hour, seconds, payload_bytes, process_bytes, device_bytes) VALUES (?, ?, ?, ?, ?)
"""
_PRUNE: Final = "DELETE FROM wear WHERE hour < ?"
_SELECT: Final = "SELECT seconds, payload_bytes, process_bytes, device_bytes FROM wear ORDER BY hour"


class WearTotals(NamedTuple):
    """Totals since the store was created, while a gateway had it open."""

    seconds: float = 0.0
    payload_bytes: int = 0
    """Bytes of bodies of committed messages."""
    process_bytes: int = 0
    """Bytes written by the gateway's process to any medium; 0 when unknown."""
    device_bytes: int = 0
    """Bytes written to the device of the store by all processes; 0 when unknown."""


class WrittenBytes(NamedTuple):
    """Current counters of the kernel; None: unknown."""

    process_bytes: int | None
    device_bytes: int | None


class BlockDevice(NamedTuple):
    """Block device in /sys."""

    name: str
    folder: Path

    @classmethod
    def of(cls, path: Path, root: Path = Path("/")) -> Self | None:
        """Return the device of `path`; None if it is unknown (an overlay, a network, another system)."""
        try:
            number = os.stat(path).st_dev
            folder = (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        except OSError:
            return None
        if (folder / "partition").exists():
            folder = folder.parent
        return cls(folder.name, folder)

    @classmethod
    def of_all(cls, paths: Iterable[Path], root: Path = Path("/")) -> tuple[Self, ...]:
        """Return the known devices of these paths, each once, in the order of the paths."""
        return tuple(dict.fromkeys(device for path in paths if (device := cls.of(path, root)) is not None))

    def written_bytes(self) -> int | None:
        """Return the bytes written since the boot, or None."""
        try:
            return int((self.folder / "stat").read_text(encoding="ascii").split()[_SECTORS_WRITTEN]) * SECTOR_BYTES
        except (OSError, ValueError, IndexError):
            return None

    def life_used(self) -> float | None:
        """Return the used share of the life of an eMMC, rounded down to a step; None: not reported."""
        try:
            text = (self.folder / "device" / "life_time").read_text(encoding="ascii")
            steps = max(int(part, 0) for part in text.split())
        except (OSError, ValueError):
            return None
        return (steps - 1) * LIFE_STEP if steps else None


def process_written_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process caused to be written to media (proc(5): /proc/pid/io)."""
    try:
        text = (root / "proc/self/io").read_text(encoding="ascii")
        fields = dict(line.split(": ") for line in text.splitlines())
        return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def read_counters(device: BlockDevice | None) -> WrittenBytes:
    """Return the kernel's counters for this process and `device`."""
    return WrittenBytes(process_written_bytes(), device.written_bytes() if device is not None else None)


class WearMeter:
    """Continues the totals of the store. Used by one thread."""

    def __init__(
        self,
        rows: Sequence[WearTotals],
        read: Callable[[], WrittenBytes],
        clock: Callable[[], float],
    ) -> None:
        """`rows`: table ``wear``, oldest first. `clock`: seconds, monotonic."""
        self.payload_bytes = 0
        """Bytes of bodies committed since the start. The caller adds to it."""
        self.rows = list(rows)
        """Totals in the store."""
        self._written_payload_bytes = 0
        self._base = rows[-1] if rows else WearTotals()
        self._read = read
        self._clock = clock
        self._began = self._kept_at = clock()
        self._first = read()

    def totals(self, payload_bytes: int = 0) -> WearTotals:
        """Return the totals until now, including `payload_bytes` of a running commit."""
        base, now = self._base, self._read()
        return WearTotals(
            base.seconds + max(0.0, self._clock() - self._began),
            base.payload_bytes + self.payload_bytes + payload_bytes,
            base.process_bytes + _since(self._first.process_bytes, now.process_bytes),
            base.device_bytes + _since(self._first.device_bytes, now.device_bytes),
        )

    def due(self) -> bool:
        """Return True when the last write was `PERSIST_S` or more ago."""
        return self._clock() >= self._kept_at + PERSIST_S

    @property
    def has_new_bytes(self) -> bool:
        """True when messages were committed since the totals were written."""
        return self.payload_bytes != self._written_payload_bytes

    def committed(self, totals: WearTotals) -> None:
        """Record totals written by a commit."""
        self._kept_at = self._clock()
        self._written_payload_bytes = self.payload_bytes
        if self.rows and hour_of(self.rows[-1]) == hour_of(totals):
            self.rows.pop()
        self.rows.append(totals)
        del self.rows[: -HOURS_KEPT - 1]


def hour_of(totals: WearTotals) -> int:
    """Return the hour of running of these totals."""
    return int(totals.seconds // HOUR_S)


def write(connection: sqlite3.Connection, totals: WearTotals) -> None:
    """Write totals in the open transaction. Raises sqlite3.Error."""
    connection.execute(_INSERT, (hour_of(totals), *totals))
    connection.execute(_PRUNE, (hour_of(totals) - HOURS_KEPT,))


def load(connection: sqlite3.Connection) -> list[WearTotals]:
    """Return the totals in the store, oldest first, without damaged rows, which must not keep a gateway from starting.

    Raises sqlite3.Error.
    """
    rows = (WearTotals._make(row) for row in connection.execute(_SELECT))
    return [row for row in rows if _is_valid(row)]


def _is_valid(row: WearTotals) -> bool:
    """Return True when a row has the types and ranges of totals."""
    seconds, *counts = row
    return isinstance(seconds, float) and 0 <= seconds < inf and all(isinstance(n, int) and n >= 0 for n in counts)


def _since(first: int | None, now: int | None) -> int:
    """Return the growth of a counter; 0 when it is unknown or has restarted."""
    return max(0, now - first) if first is not None and now is not None else 0
