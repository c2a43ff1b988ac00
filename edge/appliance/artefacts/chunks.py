"""Requests for artefacts over MQTT, and the limit of the answers that wait for their devices.

It reads names of topics and counts bytes; it does not know connections and files.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from edge.appliance.artefacts.limits import (
    ANSWER_BYTES_MIN,
    ANSWER_UNREAD_S,
    ANSWERS_BYTES_MAX,
    CHUNK_BYTES_MAX,
    DEVICE_ANSWERS_BYTES_MAX,
    OFFER_BYTES,
)
from edge.broker.model.authorization import OWN_ADDRESSES

PREFIX: Final = OWN_ADDRESSES
"""Beginning of all topics of artefacts."""
_CHUNK: Final = re.compile(r"get/chunk/([0-9a-f]{64})/([0-9]{1,18})/([0-9]{1,18})", re.ASCII)


class RequestedOffer(NamedTuple):
    """Request for what is offered."""

    device: str

    @property
    def size(self) -> int:
        """Bytes that its answer may have."""
        return OFFER_BYTES

    @property
    def path(self) -> str:
        """Topic below that of the device, without ``get``."""
        return "offer"


class RequestedChunk(NamedTuple):
    """Request for bytes of an image or of a signed manifest."""

    device: str
    digest: str
    """SHA-256 of the whole, hexadecimal."""
    offset: int
    length: int
    """Bytes; an answer has fewer at the end, and never more than `CHUNK_BYTES_MAX`."""

    @property
    def size(self) -> int:
        """Bytes that its answer may have."""
        return max(1, min(self.length, CHUNK_BYTES_MAX))

    @property
    def path(self) -> str:
        """Topic below that of the device, without ``get`` and the length."""
        return f"chunk/{self.digest}/{self.offset}"


class ReportTopic(NamedTuple):
    """Topic of reports."""

    device: str


def read_topic(topic: str) -> RequestedOffer | RequestedChunk | ReportTopic | None:
    """Return the request of a topic; None if it is none."""
    device, _, rest = topic.removeprefix(PREFIX).partition("/")
    if not topic.startswith(PREFIX) or not device:
        return None
    if rest == "get/offer":
        return RequestedOffer(device)
    if rest == "report":
        return ReportTopic(device)
    found = _CHUNK.fullmatch(rest)
    return None if found is None else RequestedChunk(device, found[1], int(found[2]), int(found[3]))


def device_of_answers(pattern: str) -> str | None:
    """Return the device of a filter for answers; None for other filters."""
    device, _, rest = pattern.removeprefix(PREFIX).partition("/")
    return device if pattern.startswith(PREFIX) and rest == "answer/#" and device not in ("", "+") else None


class WaitingAnswer:
    """Answer that its device has not acknowledged; release it once."""

    __slots__ = ("abort", "at", "device", "size")

    def __init__(self, device: str, size: int, at: float, abort: Callable[[], None]) -> None:
        """`at`: monotonic seconds. `abort` ends the connection of the device."""
        self.device: Final = device
        self.size: Final = size
        self.at: Final = at
        self.abort: Final = abort


class AnswerBudget:
    """Bytes of answers that devices have not acknowledged, of all devices of a gateway."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting: dict[WaitingAnswer, None] = {}
        self._by_device: Counter[str] = Counter()
        self.bytes = 0
        """Bytes in use."""

    def take(self, device: str, size: int, abort: Callable[[], None]) -> WaitingAnswer | None:
        """Take bytes for an answer; None: there is no room, and the device repeats its request.

        When all room is taken, the connection with the oldest answer is ended, if that waited for `ANSWER_UNREAD_S`.
        `abort` ends the connection of this answer.
        """
        size = max(size, ANSWER_BYTES_MIN)
        if self._by_device[device] + size > DEVICE_ANSWERS_BYTES_MAX:
            return None
        if self.bytes + size > ANSWERS_BYTES_MAX:
            oldest = next(iter(self._waiting))
            if self._monotonic_s() - oldest.at >= ANSWER_UNREAD_S:
                self.release(oldest)
                oldest.abort()
            if self.bytes + size > ANSWERS_BYTES_MAX:
                return None
        found = WaitingAnswer(device, size, self._monotonic_s(), abort)
        self._waiting[found] = None
        self._by_device[device] += size
        self.bytes += size
        return found

    def release(self, answer: WaitingAnswer) -> None:
        """Give the bytes of an answer back. Idempotent."""
        if answer not in self._waiting:
            return
        del self._waiting[answer]
        self.bytes -= answer.size
        self._by_device[answer.device] -= answer.size
        if not self._by_device[answer.device]:
            del self._by_device[answer.device]
