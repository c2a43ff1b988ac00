"""Comparison of the messages of one address at two brokers. Without I/O; `now` is an argument.

Messages are paired by the digest of their payload, in the order of arrival. A message without a counterpart waits for
it, up to a limit. What was not seen at both brokers from the beginning is counted as not compared, never as a
difference.
"""

from __future__ import annotations

import enum
from collections import deque
from hashlib import blake2b
from typing import NamedTuple

from edge.appliance.shadow.limits import (
    ADDRESS_WAITING_MAX,
    DIGEST_BYTES,
    EXAMPLES_MAX,
    HEAD_BYTES,
    LOOP_REPEATS,
    LOOP_WINDOW_S,
    RECENT_MAX,
)


class ComparedBroker(enum.IntEnum):
    """One of the two brokers."""

    OLD = 0
    """The broker that is mirrored."""
    HERE = 1
    """The gateway."""

    @property
    def other(self) -> ComparedBroker:
        """Return the other one."""
        return ComparedBroker(1 - self)


class Difference(enum.Enum):
    """Kind of a difference between the two."""

    MISSING = "missing"
    """The old broker delivered it, the gateway did not."""
    EXTRA = "extra"
    """The gateway delivered it, the old broker did not: for example of a client that has moved."""
    DUPLICATED = "duplicated"
    """One of them delivered a further copy."""
    REORDERED = "reordered"
    """Both delivered it, in another order."""


class DifferingMessage(NamedTuple):
    """Example of a difference."""

    difference: Difference
    broker: ComparedBroker
    """ComparedBroker that delivered it."""
    number: int
    """Number of the message among those of its address at this broker, from 1."""
    at: float
    """Time of the arrival."""
    digest: bytes
    head: bytes
    """Beginning of its payload."""


class _Waiting(NamedTuple):
    """Message without a counterpart."""

    number: int
    digest: bytes
    head: bytes
    at: float


def digest_of(payload: bytes) -> bytes:
    """Return the digest by which messages of one address are paired."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


class AddressComparison:
    """Counts of one address, with the messages that wait for their counterpart."""

    __slots__ = (
        "_excused", "_last", "_newest", "_recent", "_repeats", "_repeats_since", "_waiting", "counts", "equal",
        "examples", "found", "not_compared",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts = [0, 0]
        """Messages by broker."""
        self.equal = 0
        """Pairs, also those in another order."""
        self.not_compared = 0
        """Messages of either broker without a judgement."""
        self.found: dict[Difference, int] = {}
        self.examples: list[DifferingMessage] = []
        self._waiting: tuple[deque[_Waiting], deque[_Waiting]] = (deque(), deque())
        self._newest = [0, 0]
        """Largest number of a paired message by broker."""
        self._recent: deque[bytes] = deque(maxlen=RECENT_MAX)
        """Digests of the last pairs."""
        self._excused = [0, 0]
        """Messages by broker that had a counterpart in the window before it left."""
        self._last = b""
        self._repeats = 0
        self._repeats_since = 0.0

    @property
    def waiting(self) -> int:
        """Messages that wait for their counterpart."""
        return len(self._waiting[0]) + len(self._waiting[1])

    def awaits(self, broker: ComparedBroker) -> bool:
        """Return True if messages of the other broker wait for one of this broker."""
        return bool(self._waiting[broker.other])

    def arrived(self, broker: ComparedBroker, payload: bytes, now: float) -> None:
        """Record a message that both brokers can have."""
        self.counts[broker] += 1
        digest = digest_of(payload)
        others = self._waiting[broker.other]
        place = next((place for place, each in enumerate(others) if each.digest == digest), None)
        one = _Waiting(self.counts[broker], digest, payload[:HEAD_BYTES], now)
        if place is None:
            self._wait(broker, one)
            return
        other = others[place]
        del others[place]
        self._pair(broker, one, other)

    def passed(self, broker: ComparedBroker) -> None:
        """Count a message that came while only one broker was seen."""
        self.counts[broker] += 1
        self.not_compared += 1

    def expire(self, before: float, sure_from: float) -> None:
        """Judge the messages that came before `before` and have no counterpart; those from before `sure_from` may have
        had one that was not seen."""
        for broker in ComparedBroker:
            waiting = self._waiting[broker]
            while waiting and waiting[0].at < before:
                self._judge(broker, waiting.popleft(), sure_from)

    def forget_waiting(self) -> None:
        """Count all waiting messages as not compared: a connection was lost."""
        for waiting in self._waiting:
            self.not_compared += len(waiting)
            waiting.clear()
        self._excused = [0, 0]

    def is_looping(self, now: float) -> bool:
        """Return True when the same message comes again and again at the old broker."""
        return self._repeats >= LOOP_REPEATS and now - self._repeats_since <= LOOP_WINDOW_S

    def note_repeat(self, payload: bytes, now: float) -> None:
        """Count a message of the old broker for `is_looping`."""
        head = payload[:HEAD_BYTES] + len(payload).to_bytes(4)
        if head != self._last or now - self._repeats_since > LOOP_WINDOW_S:
            self._last, self._repeats, self._repeats_since = head, 0, now
        self._repeats += 1

    # --- inside -----------------------------------------------------------------------------------------------

    def _wait(self, broker: ComparedBroker, one: _Waiting) -> None:
        waiting = self._waiting[broker]
        if len(waiting) >= ADDRESS_WAITING_MAX:
            waiting.popleft()
            self.not_compared += 1
            self._excused[broker.other] += 1
        waiting.append(one)

    def _pair(self, broker: ComparedBroker, one: _Waiting, other: _Waiting) -> None:
        self.equal += 1
        self._recent.append(one.digest)
        newest = self._newest
        earlier = (one.number < newest[broker], other.number < newest[broker.other])
        if earlier[0] != earlier[1]:
            self._note(Difference.REORDERED, broker, one)
        newest[broker] = max(newest[broker], one.number)
        newest[broker.other] = max(newest[broker.other], other.number)

    def _judge(self, broker: ComparedBroker, one: _Waiting, sure_from: float) -> None:
        if one.at < sure_from:
            self.not_compared += 1
        elif self._excused[broker]:
            self._excused[broker] -= 1
            self.not_compared += 1
        elif one.digest in self._recent:
            self._note(Difference.DUPLICATED, broker, one)
        else:
            self._note(Difference.MISSING if broker is ComparedBroker.OLD else Difference.EXTRA, broker, one)

    def _note(self, difference: Difference, broker: ComparedBroker, one: _Waiting) -> None:
        self.found[difference] = self.found.get(difference, 0) + 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(DifferingMessage(difference, broker, one.number, one.at, one.digest, one.head))
