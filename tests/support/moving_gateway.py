"""Gateway that two hubs fight for: it sends what has no answer again, to any hub."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from bridge.batch import CAPABILITY, encode
from bridge.engine import DeliveryState
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.support.amqp_sender import AmqpSender
from tests.support.processes import Waypost

PER_BATCH: Final = 10
PAUSE_S: Final = 0.1


class MovingGateway:
    """Makes numbered batches, and sends each until a hub accepts it."""

    def __init__(self, name: str, epoch: str) -> None:
        self.name = name
        self.made = 0
        self.accepted: set[int] = set()
        self._epoch = epoch
        self._open: list[tuple[AmqpSender, list[int]]] = []

    @property
    def sequences(self) -> range:
        """Sequences of all its messages."""
        return range(self.made * PER_BATCH)

    def send(self, hub: Waypost, more: int = 0) -> None:
        """Send what has no answer and more batches on a new connection, and do not wait.

        Earlier connections stay open. Raises OSError if the hub is not there.
        """
        self.made += more
        sender = AmqpSender(hub.port("amqp"), self.name, "telemetry", [CAPABILITY])
        numbers = self._pending()
        self._open.append((sender, numbers))
        if not sender.closed:
            sender.send(*map(self.batch, numbers)).flush()

    def finish(self, hubs: Sequence[Waypost], within_s: float) -> float:
        """Send to one hub after the other until everything is accepted; return the seconds."""
        began = time.monotonic()
        tried = 0
        while self._pending():
            assert time.monotonic() - began < within_s, f"{self.name}: no answer within {within_s:g} s"
            self.close()
            with contextlib.suppress(OSError):
                self.send(hubs[tried % len(hubs)])
                self._wait(began + within_s)
            tried += 1
            if self._pending():
                time.sleep(PAUSE_S)
        return time.monotonic() - began

    def close(self) -> None:
        """Break its connections; what hubs have answered until now counts."""
        self._count()
        for sender, _ in self._open:
            sender.close()
        self._open.clear()

    def batch(self, number: int) -> bytes:
        """Return the content of a batch."""
        first = number * PER_BATCH
        bodies = [b"%d" % sequence for sequence in range(first, first + PER_BATCH)]
        run = Run("load", "device", 1 | CLOCK_GOOD, b"", bodies, time.time_ns())
        return data_section(encode([Stored(-1, first, run)], space="default", epoch=self._epoch))

    def _wait(self, until_s: float) -> None:
        sender, numbers = self._open[-1]
        sender.until(
            lambda: len(sender.outcomes) == len(numbers) or sender.closed or time.monotonic() > until_s, "an answer"
        )
        self._count()

    def _pending(self) -> list[int]:
        self._count()
        return sorted(set(range(self.made)) - self.accepted)

    def _count(self) -> None:
        for sender, numbers in self._open:
            accepted = (tag for tag, outcome in sender.outcomes.items() if outcome is DeliveryState.ACCEPTED)
            self.accepted.update(numbers[tag] for tag in accepted)
