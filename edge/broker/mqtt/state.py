"""State of QoS 1 and 2 exchanges that an MQTT session keeps between connections (MQTT 5 section 4.1).

`SessionState` holds packet identifiers and their messages. The limits of a connection are in `inbound` and `outbound`,
which work on this state. Subscriptions and unsent messages belong to the router.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from edge.broker.message.mqtt_errors import LocalError
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.events import MqttDelivery

PACKET_ID_MAX = 65_535

InFlight = tuple[MqttDelivery, int]
"""Delivery, and index of one message in its run."""


class SessionConnection(Protocol):
    """Current connection of a session."""

    def confirm(self, packet_ids: Sequence[int], reason: ReasonCode, text: str = "") -> None:
        """Send PUBREC for QoS 2 messages of an earlier connection that are stored or refused now."""
        ...

    def send_committed(self, packet_ids: Sequence[int]) -> None:
        """Send the packets of `SessionState.awaiting_commit`, after the commit."""
        ...

    def complete(self, packet_ids: Iterable[int]) -> None:
        """Send PUBCOMP for QoS 2 messages after the commit of their release."""
        ...


class Qos2State:
    """Packet identifiers of received QoS 2 messages, by stage."""

    __slots__ = ("incoming", "pending", "releasing", "unstored")

    def __init__(self) -> None:
        self.incoming: set[int] = set()
        self.pending: set[int] = set()
        self.releasing: set[int] = set()
        self.unstored: set[int] = set()


class SessionState:
    """Packet identifiers in use in both directions, for the lifetime of the session.

    Parts that only some sessions need are created on first use, as an empty set takes 216 bytes.
    """

    __slots__ = (
        "_awaiting_commit", "_next", "_outgoing", "_qos2", "_released", "_reserved", "connection",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connection: SessionConnection | None = None
        self._next = 1
        self._outgoing: dict[int, InFlight] | None = None
        self._released: dict[int, InFlight] | None = None
        self._awaiting_commit: dict[int, None] | None = None
        self._qos2: Qos2State | None = None
        self._reserved: set[int] | None = None

    @property
    def outgoing(self) -> dict[int, InFlight]:
        """Messages with PUBLISH sent and no PUBACK or PUBREC, in the order of sending [MQTT-4.6.0-1]."""
        if self._outgoing is None:
            self._outgoing = {}
        return self._outgoing

    @property
    def released(self) -> dict[int, InFlight]:
        """Messages with PUBREL sent and no PUBCOMP, in the order of the PUBRECs [MQTT-4.6.0-4]."""
        if self._released is None:
            self._released = {}
        return self._released

    @property
    def awaiting_commit(self) -> dict[int, None]:
        """Packet identifiers of `outgoing` and `released` with a PUBLISH or PUBREL that waits for a commit."""
        if self._awaiting_commit is None:
            self._awaiting_commit = {}
        return self._awaiting_commit

    @property
    def incoming(self) -> set[int]:
        """QoS 2 packet identifiers that were received and not released by PUBREL."""
        return self._of_qos2().incoming

    @property
    def pending(self) -> set[int]:
        """Part of `incoming` that is not acknowledged, as the message is not stored yet."""
        return self._of_qos2().pending

    @property
    def unstored(self) -> set[int]:
        """Part of `incoming` without a stored message: it will be refused, or an anycast consumer has to answer.

        They are not written to disk, as they would mean after a restart that the message is stored.
        """
        return self._of_qos2().unstored

    @property
    def stored(self) -> set[int]:
        """Part of `incoming` that is written to disk."""
        qos2 = self._of_qos2()
        return qos2.incoming - qos2.unstored if qos2.unstored else qos2.incoming

    @property
    def releasing(self) -> set[int]:
        """Packet identifiers released by PUBREL, until `incoming` is committed without them and PUBCOMP is sent.

        After PUBCOMP the client may reuse them, and a new message must not count as a duplicate after a restart.
        """
        return self._of_qos2().releasing

    def _of_qos2(self) -> Qos2State:
        if self._qos2 is None:
            self._qos2 = Qos2State()
        return self._qos2

    @property
    def reserved(self) -> set[int]:
        """Packet identifiers that the client may know from before a restart, until their message is delivered again."""
        if self._reserved is None:
            self._reserved = set()
        return self._reserved

    def forget_incoming(self, packet_ids: Iterable[int]) -> None:
        """Forget messages that were not published and will get no answer."""
        for identifiers in (self.incoming, self.pending, self.unstored):
            identifiers.difference_update(packet_ids)

    def answered(self, packet_ids: Iterable[int]) -> None:
        """Mark messages as accepted or refused."""
        if self._qos2 is not None:
            self._qos2.unstored.difference_update(packet_ids)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """Send PUBCOMP for these of `releasing`, after the commit."""
        self.releasing.difference_update(packet_ids)
        if self.connection is not None:
            self.connection.complete(packet_ids)

    @property
    def free_packet_ids(self) -> int:
        """Number of packet identifiers that are not reserved, including those in flight."""
        return PACKET_ID_MAX - len(self._reserved) if self._reserved else PACKET_ID_MAX

    @property
    def in_flight(self) -> int:
        """Number of messages in flight to the client."""
        return (len(self._outgoing) if self._outgoing else 0) + (len(self._released) if self._released else 0)

    @property
    def idle(self) -> bool:
        """True if no exchange is in progress and only `incoming` has to be kept."""
        if self._outgoing or self._released or self._awaiting_commit or self._reserved:
            return False
        qos2 = self._qos2
        return qos2 is None or not (qos2.pending or qos2.releasing or qos2.unstored)

    def restore_incoming(self, packet_ids: Iterable[int]) -> None:
        """Restore received QoS 2 packet identifiers after a restart of the gateway."""
        self.incoming.update(packet_ids)

    def reserve(self, count: int) -> Sequence[int]:
        """Return `count` free packet identifiers, ascending from the last one, wrapping at 65 535.

        Raises LocalError if there are fewer.
        """
        start = self._next
        stop = start + count
        if stop <= PACKET_ID_MAX:
            ids = range(start, stop)
            free = self.outgoing.keys().isdisjoint(ids)
            if (free and not (self._released or self._reserved)) or not self._taken(ids):
                self._next = stop
                return ids
        return self._reserve_one_by_one(count)

    def reserve_one(self) -> int:
        """Return one free packet identifier; see `reserve`."""
        packet_id = self._next
        taken = packet_id in self.outgoing or (self._released is not None and packet_id in self._released)
        if taken or packet_id == PACKET_ID_MAX or self._reserved:
            return self._reserve_one_by_one(1)[0]
        self._next = packet_id + 1
        return packet_id

    def _taken(self, ids: Sequence[int]) -> bool:
        return not all(used.isdisjoint(ids) for used in (self.outgoing.keys(), self.released.keys(), self.reserved))

    def _reserve_one_by_one(self, count: int) -> list[int]:
        free = PACKET_ID_MAX - self.in_flight - len(self.reserved)
        if count > free:
            raise LocalError(f"{count} packet identifiers requested, {free} are free")
        ids: list[int] = []
        candidate = self._next
        while len(ids) < count:
            if candidate not in self.outgoing and candidate not in self.released and candidate not in self.reserved:
                ids.append(candidate)
            candidate = candidate % PACKET_ID_MAX + 1
        self._next = candidate
        return ids
