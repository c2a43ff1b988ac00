"""Figures over time for the charts of the console: 15 minutes, 24 hours and 7 days.

A gateway keeps what a technician needs on the spot; the lake has the long history. The two longer spans are also in a
file of at most 30 kB in the data directory, so that a restart does not lose them. It is written every 15 minutes
without a sync: losing the last minutes of a chart is not worth the wear of the card.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""Time between two samples."""
SAVE_S: Final = 900.0
"""Time between two writes of the file: 96 a day, 3 MB."""
FILE: Final = "console-series"
SPANS: Final = {"15m": (5, 180), "24h": (60, 1_440), "7d": (900, 672)}
"""Seconds of one point, and points, by span. About 40 kB in memory. A chart has less than 700 pixels, and the overview
requests the first span every 5 s: it takes 1.3 kB compressed; with points of a second it took 5.6 kB."""
SAVED: Final = ("24h", "7d")

_NOTHING, _CUT, _LINKED = -1, 0, 1


class SeriesSample(NamedTuple):
    """Counters and states at one time. The counters never decrease while the process runs."""

    received: int
    """Messages received from clients."""
    acked: int
    """Messages acknowledged by the hub."""
    waiting: int
    """Messages that wait for the uplink."""
    linked: bool
    """The uplink is connected, or there is none."""


class SeriesPoints(msgspec.Struct, frozen=True):
    """Points of one span, oldest first; null where the gateway did not run."""

    step_s: int
    """Seconds of one point."""
    end: int
    """End of the last point, in seconds since 1970."""
    received_per_s: Sequence[float | None]
    acked_per_s: Sequence[float | None]
    waiting: Sequence[int | None]
    """Most messages that waited in the time of the point."""
    linked: Sequence[bool | None]
    """False if the uplink was cut at any time of the point."""


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    last: int
    received: bytes
    acked: bytes
    waiting: bytes
    state: bytes


class _Span:
    """Ring of points. A point is the share of time with its number: seconds since 1970, divided by `step_s`."""

    def __init__(self, step_s: int, size: int) -> None:
        self._step_s = step_s
        self._size = size
        self._last = 0
        self._received = array("f", bytes(4 * size))
        self._acked = array("f", bytes(4 * size))
        self._waiting = array("Q", bytes(8 * size))
        self._state = array("b", [_NOTHING]) * size

    def add(self, at: float, received: int, acked: int, waiting: int, linked: bool) -> None:
        """Add what happened since the last sample to the point of a time."""
        number = int(at) // self._step_s
        if number != self._last:
            self._move_to(number)
        place = number % self._size
        self._received[place] += received
        self._acked[place] += acked
        self._waiting[place] = max(self._waiting[place], waiting)
        self._state[place] = min(self._state[place], linked) if self._state[place] != _NOTHING else linked

    def _move_to(self, number: int) -> None:
        """Clear the points between the last one and this one; all of them after a step of the clock backwards."""
        moved = number - self._last
        for passed in range(max(1, moved - self._size + 1), moved + 1) if moved > 0 else range(self._size):
            place = (self._last + passed) % self._size
            self._received[place] = self._acked[place] = 0.0
            self._waiting[place] = 0
            self._state[place] = _NOTHING
        self._last = number

    def points(self) -> SeriesPoints:
        order = [(self._last + 1 + place) % self._size for place in range(self._size)]
        known = [self._state[place] != _NOTHING for place in order]
        step_s = self._step_s

        def per_second(sums: array[float]) -> list[float | None]:
            return [
                round(sums[place] / step_s, 1) if there else None for place, there in zip(order, known, strict=True)
            ]

        return SeriesPoints(
            step_s,
            (self._last + 1) * step_s,
            per_second(self._received),
            per_second(self._acked),
            [self._waiting[place] if there else None for place, there in zip(order, known, strict=True)],
            [self._state[place] == _LINKED if there else None for place, there in zip(order, known, strict=True)],
        )

    def save(self) -> _Saved:
        received, acked, waiting, state = (ring.tobytes() for ring in self._rings())
        return _Saved(self._last, received, acked, waiting, state)

    def load(self, saved: _Saved) -> None:
        """Continue a saved span. Raises ValueError if it has another size."""
        found = (saved.received, saved.acked, saved.waiting, saved.state)
        if any(len(ring) * ring.itemsize != len(raw) for ring, raw in zip(self._rings(), found, strict=True)):
            raise ValueError("the points have another number")
        for ring, raw in zip(self._rings(), found, strict=True):
            ring[:] = array(ring.typecode, raw)
        self._last = saved.last

    def _rings(self) -> list[array[Any]]:
        return [self._received, self._acked, self._waiting, self._state]


class StatusSeries:
    """Series of a gateway, one sample a second while `run` runs."""

    def __init__(self, source: Callable[[], SeriesSample], folder: Path | None = None) -> None:
        """`folder`: data directory with the file; None: in memory only."""
        self._source = source
        self._file = folder / FILE if folder is not None else None
        self._spans = {name: _Span(step_s, size) for name, (step_s, size) in SPANS.items()}
        self._before: SeriesSample | None = None

    def points(self, span: str) -> SeriesPoints:
        """Return the points of a span. Raises KeyError for an unknown one."""
        return self._spans[span].points()

    def take(self, at: float) -> None:
        """Take one sample. `at`: seconds since 1970."""
        now, before = self._source(), self._before
        self._before = now
        received = now.received - before.received if before is not None else 0
        # A connector that is removed takes its count with it.
        acked = max(0, now.acked - before.acked) if before is not None else 0
        for span in self._spans.values():
            span.add(at, received, acked, now.waiting, now.linked)

    async def run(self) -> None:
        """Load the file, then take samples until cancelled, and save them."""
        await asyncio.to_thread(self.load)
        saved_at = time.monotonic()
        try:
            while True:
                self.take(time.time())
                await asyncio.sleep(INTERVAL_S)
                if time.monotonic() - saved_at >= SAVE_S:
                    saved_at = time.monotonic()
                    await asyncio.to_thread(self.save)
        finally:
            self.save()

    def save(self) -> None:
        """Write the file; a failure is logged."""
        if self._file is None:
            return
        content = zlib.compress(msgspec.msgpack.encode({name: self._spans[name].save() for name in SAVED}))
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_bytes(content)
            fresh.replace(self._file)
        except OSError as error:
            log.warning("cannot save the console's charts: %s: %s", error.filename, error.strerror)

    def load(self) -> None:
        """Continue with the file of an earlier process, if there is one that can be read."""
        if self._file is None:
            return
        with contextlib.suppress(FileNotFoundError):
            try:
                found = msgspec.msgpack.decode(zlib.decompress(self._file.read_bytes()), type=dict[str, _Saved])
                for name in SAVED:
                    self._spans[name].load(found[name])
            except (zlib.error, msgspec.MsgspecError, ValueError, KeyError) as error:
                log.warning("the console's charts start empty: %s cannot be read: %s", self._file, error)
