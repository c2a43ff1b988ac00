"""Times of clients' messages: when each sent its last one, and whether it is silent for longer than usual.

Clients are looked at in turn, at most `CLIENTS_LOOKED_AT_MAX` a second and each at most once a second. A look compares
the number of messages from the client with that of the look before, so a message costs nothing. With more clients than
that, the time of a message is known to some seconds only, and intervals below are learned as those seconds.

The usual interval is the median of the last `GAPS_KEPT_MAX` gaps. It is learned in memory, from `GAPS_MIN` gaps on. A
client that disconnects by itself (DISCONNECT) is forgotten. One that is lost stays known, as it may be silent because
of that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

GAPS_KEPT_MAX: Final = 20
"""Gaps between messages that are kept of each client."""

GAPS_MIN: Final = 10
"""Gaps from which the usual interval is known: fewer may be a start-up or a test."""

SILENT_AFTER_INTERVALS: Final = 5
"""Usual intervals without a message after which a client is silent: single losses and retries are no silence."""

CLIENTS_LOOKED_AT_MAX: Final = 2_000
"""Clients looked at in a second: some 2 ms of the loop."""

LOST_KEPT_MAX: Final = 1_000
"""Lost clients that stay known, some 300 bytes each; those that were lost first are forgotten first."""

LOST_KEPT_S: Final = 7 * 86_400.0
"""Seconds that a lost client stays known: after a week without it, its operator knows."""

LOOK_S_MIN: Final = 0.5
"""Shortest time between two messages that count as such: those of one burst are one."""

_GAP_S_MAX: Final = 0xFFFF
"""Longest gap that is learned: 18 hours, as two bytes each take little memory."""

ClientKey = str | int
"""MQTT client identifier, or number of an AMQP connection."""


class ClientCount(NamedTuple):
    """Number of messages that a client has sent since it connected."""

    key: ClientKey
    received: int


class ClientRhythm:
    """Message times of one client."""

    __slots__ = ("count", "gaps", "last_at")

    def __init__(self, count: int, last_at: float) -> None:
        self.count = count
        """Messages since the client connected, at the last look."""
        self.last_at = last_at
        """Time of its last message, monotonic seconds."""
        self.gaps: array[int] | None = None
        """Last gaps between messages in whole seconds, the oldest first; None before the second message."""

    def record_message(self, count: int, now: float) -> None:
        """Record that the client has sent `count` messages, the last one lately."""
        gap = round(now - self.last_at)
        if self.gaps is None:
            self.gaps = array("H")
        if len(self.gaps) >= GAPS_KEPT_MAX:
            del self.gaps[0]
        self.gaps.append(min(max(gap, 1), _GAP_S_MAX))
        self.count, self.last_at = count, now

    @property
    def interval_s(self) -> int | None:
        """Usual interval between messages in seconds; None before it is learned."""
        if self.gaps is None or len(self.gaps) < GAPS_MIN:
            return None
        return sorted(self.gaps)[len(self.gaps) // 2]

    def is_silent(self, now: float) -> bool:
        """Return True if the client has been silent for `SILENT_AFTER_INTERVALS` of its usual interval."""
        if self.gaps is None or len(self.gaps) < GAPS_MIN or now - self.last_at <= SILENT_AFTER_INTERVALS:
            return False  # no gap is below a second
        interval_s = self.interval_s
        return interval_s is not None and now - self.last_at > SILENT_AFTER_INTERVALS * interval_s


class ClientActivity:
    """Message times of all clients of one gateway."""

    def __init__(self, connected: Callable[[], Iterable[ClientCount]], numbers: Container[int] = ()) -> None:
        """`connected` lists the connected clients; they may change while it is iterated over. `numbers`: open AMQP
        connections."""
        self._connected = connected
        self._numbers = numbers
        self._numbered: set[int] = set()
        """Numbers of known AMQP connections."""
        self._known: dict[ClientKey, ClientRhythm] = {}
        """Clients that have sent messages, connected or lost."""
        self._lost: dict[ClientKey, float] = {}
        """Lost clients among them, and since when (monotonic seconds), the first one first."""
        self._silent: set[ClientKey] = set()
        self._looking: Iterator[ClientCount] = iter(())

    def look(self, now: float) -> None:
        """Look at the next clients. Call it every second; `now`: monotonic seconds."""
        left = CLIENTS_LOOKED_AT_MAX
        for each in islice(self._looking, left):
            left -= 1
            self.look_at(each, now)
        if left:
            self._looking = iter(self._connected())  # from the next second on
            for number in [each for each in self._numbered if each not in self._numbers]:
                self._numbered.discard(number)
                self.forget(number)
        for key, since in list(self._lost.items()):
            if now - since > LOST_KEPT_S:
                self.forget(key)
            else:
                self._judge(key, self._known[key], now)

    def look_at(self, client: ClientCount, now: float) -> None:
        """Look at one connected client."""
        key, received = client
        known = self._known.get(key)
        if known is None:
            if received:
                self._known[key] = ClientRhythm(received, now)
                if isinstance(key, int):
                    self._numbered.add(key)
            return
        if self._lost.pop(key, None) is not None:
            known.count = 0
        if received != known.count:
            if now - known.last_at >= LOOK_S_MIN:
                known.record_message(received, now)
                self._silent.discard(key)
        else:
            self._judge(key, known, now)

    def left(self, key: ClientKey, lost: bool, now: float) -> None:
        """Process the end of a connection. `lost`: without DISCONNECT."""
        known = self._known.get(key)
        if known is None:
            return
        if not lost or known.interval_s is None:
            self.forget(key)
            return
        known.count = 0
        self._lost[key] = now
        if len(self._lost) > LOST_KEPT_MAX:
            self.forget(next(iter(self._lost)))

    def forget(self, key: ClientKey) -> bool:
        """Forget a client. Return False if it was not known."""
        self._lost.pop(key, None)
        self._silent.discard(key)
        return self._known.pop(key, None) is not None

    def of(self, key: ClientKey) -> ClientRhythm | None:
        """Return the message times of a client; None if it has sent none."""
        return self._known.get(key)

    def is_silent(self, key: ClientKey) -> bool:
        """Return True if the client was silent at the last look."""
        return key in self._silent

    @property
    def silent(self) -> set[ClientKey]:
        """Silent clients, connected or lost."""
        return self._silent

    @property
    def lost(self) -> dict[ClientKey, float]:
        """Lost clients, and since when (monotonic seconds)."""
        return self._lost

    def _judge(self, key: ClientKey, known: ClientRhythm, now: float) -> None:
        if known.is_silent(now):
            self._silent.add(key)
