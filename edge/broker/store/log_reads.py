"""Reads of logs from memory or from the medium, with retries while the medium cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bridge.message import Stored
from edge.broker.store.limits import StoreLimits
from edge.broker.store.logs import LogTable
from edge.broker.store.medium import FAILED, Medium, Post, ReadDone


class LogReads:
    """Reads of one store."""

    def __init__(
        self, limits: StoreLimits, logs: LogTable, medium: Medium, *, post: Post, clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._logs = logs
        self._medium = medium
        self._post = post
        self._clock = clock
        self._closed = False
        self.failed: list[tuple[int, int, int, ReadDone]] = []
        """(log, position, bytes_max, done) of failed reads."""
        self._again_at_s = 0.0

    def read(self, log: int, position: int, bytes_max: int, done: ReadDone) -> None:
        state = self._logs[log]
        position = max(position, state.first)
        if state.ring is not None and position >= state.medium_end:
            self._post(partial(self._read_ring, log, position, bytes_max, done))
        else:
            end = state.medium_end
            was_read = partial(self._was_read, log, position, bytes_max, done, end)
            self._medium.read(state, position, end, bytes_max, was_read)

    def _read_ring(self, log: int, position: int, bytes_max: int, done: ReadDone) -> None:
        state = self._logs[log]
        if not self._closed and (state.ring is None or position < state.medium_end):
            self.read(log, position, bytes_max, done)  # the log is on the medium by now
        else:
            done([] if state.ring is None else state.ring.read(position, bytes_max))

    def _was_read(
        self, log: int, position: int, bytes_max: int, done: ReadDone, end: int, runs: Sequence[Stored]
    ) -> None:
        """Handle the result of a read. `end` is the end of the messages that were on the medium at the request."""
        if self._closed:
            done(runs)
        elif runs is FAILED:
            self.failed.append((log, position, bytes_max, done))
            self._again_at_s = self._clock() + self._limits.retry_delay_s
        elif not runs and self._logs.bounds(log)[1] > end:
            self.read(log, end, bytes_max, done)  # an empty result means the end of the log *now*
        else:
            done(runs)

    def retry(self, now: float) -> None:
        """Repeat failed reads when their pause is over."""
        if self.failed and now >= self._again_at_s:
            again, self.failed = self.failed, []
            for log, position, bytes_max, done in again:
                self.read(log, position, bytes_max, done)

    def close(self) -> None:
        """Stop retries."""
        self._closed = True
