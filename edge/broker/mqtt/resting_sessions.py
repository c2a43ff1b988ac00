"""MQTT sessions whose clients are away, packed: a name and some 100 bytes each, where one that is an object takes
1.5 KiB, and 0.4 KiB for each of its subscriptions.

What is known of a session with nothing in flight is whose it is, when it ends, what it subscribed to and which packet
identifiers of QoS 2 messages it has received and not released (MQTT 5 section 4.1).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from edge.broker.model.lowest_numbers import LowestNumbers
from edge.broker.model.numbered_names import NumberedNames
from edge.broker.mqtt.events import SubscriptionRequest

_NEVER: Final = math.inf
_ROWS_MIN: Final = 1024
"""With more rows than this, of which three quarters are free, the table is made anew."""


class RestingSession(NamedTuple):
    """A session whose client is away."""

    user: str
    """Whom it belongs to; empty: to whoever names it."""
    expiry_s: int
    subscriptions: Sequence[tuple[SubscriptionRequest, int]]
    """Request and subscription identifier (0: none)."""
    incoming: bytes
    """QoS 2 packet identifiers received and not released, two bytes each."""
    expires_at: float | None
    """When it ends (monotonic seconds); None: never."""


class _Packed(msgspec.Struct, array_like=True):
    """As `RestingSession`; of a subscription filter, options and identifier."""

    user: str
    expiry_s: int
    subscriptions: list[tuple[str, int, int]]
    incoming: bytes


class RestingSessions:
    """By client identifier."""

    def __init__(self) -> None:
        self.subscriptions = 0
        """Of all of them."""
        self._begin()

    def _begin(self) -> None:
        self._names = NumberedNames()
        self._packed: list[bytes] = [b""]
        self._ends = LowestNumbers[float]("d")
        """When each ends (monotonic seconds)."""
        self._ends.append(_NEVER)
        self._free = array("i")

    def __len__(self) -> int:
        return len(self._packed) - 1 - len(self._free)

    def __contains__(self, client_id: object) -> bool:
        return isinstance(client_id, str) and self._names.number(client_id) is not None

    def user(self, client_id: str) -> str | None:
        """None when there is no such session here."""
        row = self._names.number(client_id)
        return None if row is None else msgspec.msgpack.decode(self._packed[row], type=_Packed).user

    def put(self, client_id: str, session: RestingSession) -> None:
        """It is here from now on."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._packed)
            self._packed.append(b"")
            self._ends.append(_NEVER)
        self._names.add(row, client_id)
        subscriptions = [(each.filter, _options(each), identifier) for each, identifier in session.subscriptions]
        packed = _Packed(session.user, session.expiry_s, subscriptions, session.incoming)
        self._packed[row] = msgspec.msgpack.encode(packed)
        self._ends[row] = _NEVER if session.expires_at is None else session.expires_at
        self.subscriptions += len(subscriptions)

    def take(self, client_id: str) -> RestingSession:
        """It is not here any more. Raises KeyError when it was not."""
        row = self._names.number(client_id)
        if row is None:
            raise KeyError(client_id)
        packed, ends_at = msgspec.msgpack.decode(self._packed[row], type=_Packed), self._ends[row]
        self._names.remove(row)
        self._packed[row], self._ends[row] = b"", _NEVER
        self._free.append(row)
        self.subscriptions -= len(packed.subscriptions)
        if len(self._packed) > _ROWS_MIN and 4 * len(self) < len(self._packed):
            self._make_anew()
        subscriptions = [(_request(name, options), identifier) for name, options, identifier in packed.subscriptions]
        expires_at = None if ends_at == _NEVER else ends_at
        return RestingSession(packed.user, packed.expiry_s, subscriptions, packed.incoming, expires_at)

    def over(self, now: float) -> Iterator[str]:
        """Those that end by now; to be asked anew once one of them was taken."""
        return (self._names[row] for row in self._ends.up_to(now))

    def begin_at(self, now: float) -> None:
        """Whatever their ends were counted from is `now`."""
        for row, ends_at in enumerate(self._ends):
            if ends_at != _NEVER:
                self._ends[row] = ends_at + now

    def _make_anew(self) -> None:
        """In as much memory as is needed now."""
        left = [(self._names[row], packed, self._ends[row]) for row, packed in enumerate(self._packed) if packed]
        self._begin()
        for row, (client_id, packed, ends_at) in enumerate(left, 1):
            self._packed.append(packed)
            self._ends.append(ends_at)
            self._names.add(row, client_id)


def _options(request: SubscriptionRequest) -> int:
    """As in a SUBSCRIBE packet (MQTT 5 section 3.8.3.1)."""
    return request.qos | request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4


def _request(pattern: str, options: int) -> SubscriptionRequest:
    return SubscriptionRequest(pattern, options & 3, bool(options & 4), bool(options & 8), options >> 4)
