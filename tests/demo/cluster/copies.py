"""Application that receives the live copies at the message broker, and compares them with the lake."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from proton import Delivery, Message, Timeout
from proton.utils import BlockingConnection

from tests.demo.accounting import Row
from tests.demo.cluster.messages import COPIES

CREDIT: Final = 500
"""Copies that the broker sends ahead."""
POLL_S: Final = 1.0
"""Longest wait for a copy before the thread looks whether it has to end."""
TIMEOUT_S: Final = 30.0
QUIET_S: Final = 3.0
"""Time without a copy after which none is awaited."""
RECEIVED_S: Final = 60.0
"""Longest time until all copies of the devices' readings have come."""

Name = tuple[str, str, str, int]
"""Gateway, epoch, address and sequence of a message."""


class CopyAccount(NamedTuple):
    """Copies at the broker, and rows in the lake."""

    copied: int
    """Readings in the lake of which there is a copy."""
    readings: int
    """Readings in the lake."""
    repeated: int
    """Further copies of a reading, which a gateway sent again."""
    foreign: int
    """Copies of readings that the lake does not have."""

    @property
    def adds_up(self) -> bool:
        """True if there are copies, and each is one of a reading in the lake. Not every reading has one: copies are
        dropped while a hub restarts.
        """
        return self.copied > 0 and not self.foreign

    def explain(self) -> str:
        """Return the comparison as one line."""
        return (
            f"live copies at the broker {self.copied} of {self.readings} readings in the lake, repeated "
            f"{self.repeated}, of nothing in the lake {self.foreign}"
        )


class CopyReceiver:
    """Receives from `start` to `compare`, in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._copies: Counter[Name] = Counter()
        self._last_s = 0.0
        """Monotonic time of the last copy."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="copies", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._last_s = time.monotonic()
        self._thread.start()

    def compare(self, rows: Iterable[Row]) -> CopyAccount:
        """Stop when no further copies come, and compare them with the rows of the lake. Blocks."""
        deadline = time.monotonic() + RECEIVED_S
        while time.monotonic() < min(deadline, self._last_s + QUIET_S) and self._thread.is_alive():
            if self._ending.wait(POLL_S):
                break
        self.stop()
        landed = {row[:4] for row in rows if row.reading is not None}
        foreign = sum(1 for name in self._copies if name not in landed)
        repeated = sum(self._copies.values()) - len(self._copies)
        return CopyAccount(len(self._copies) - foreign, len(landed), repeated, foreign)

    def stop(self) -> None:
        """Stop receiving. Idempotent. Blocks."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def _receive(self) -> None:
        connection = BlockingConnection(self._url, timeout=TIMEOUT_S)
        receiver = connection.create_receiver(COPIES, credit=CREDIT)
        while not self._ending.is_set():
            try:
                message = receiver.receive(timeout=POLL_S)
            except Timeout:
                continue
            receiver.settle(Delivery.ACCEPTED)
            self._copies[_name_of(message)] += 1
            self._last_s = time.monotonic()
        connection.close()


def _name_of(message: Message) -> Name:
    fields = message.annotations
    gateway, epoch, address = (str(fields[f"x-opt-waypost-{each}"]) for each in ("gateway", "epoch", "address"))
    return gateway, epoch, address, int(fields["x-opt-waypost-sequence"])
