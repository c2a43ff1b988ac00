"""What an MQTT session remembers of its acknowledged deliveries between connections (MQTT 5 section 4.1).

`SessionState` holds packet identifiers and what they stand for, and no connection's limits: those are in `inbound`
and `outbound`, which work on it. Subscriptions and messages not sent yet are the router's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from edge.broker.message.mqtt_errors import LocalError
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.events import MqttDelivery

PACKET_ID_MAX = 65_535

InFlight = tuple[MqttDelivery, int]
"""A delivery and the index of one message in its run."""


class SessionConnection(Protocol):
    """The connection a session has now."""

    def confirm(self, packet_ids: Sequence[int], reason: ReasonCode, text: str = "") -> None:
        """These QoS 2 messages, which came in over an earlier connection, are safe (or refused) now."""
        ...

    def send_committed(self, packet_ids: Sequence[int]) -> None:
        """What `SessionState.awaiting_commit` held back for these is on disk: send it."""
        ...

    def complete(self, packet_ids: Iterable[int]) -> None:
        """That these QoS 2 messages were released is on disk: answer their PUBREL."""
        ...


class Qos2State:
    """Packet identifiers of QoS 2 messages that came in, by how far they are."""

    __slots__ = ("incoming", "pending", "releasing", "unstored")

    def __init__(self) -> None:
        self.incoming: set[int] = set()
        self.pending: set[int] = set()
        self.releasing: set[int] = set()
        self.unstored: set[int] = set()


class SessionState:
    """Packet identifiers in use in both directions. One object lives as long as the session.

    What only some sessions need is made when it is first asked for: an empty set is 216 bytes.
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
        """PUBLISH sent, no PUBACK or PUBREC yet; in the order they were sent [MQTT-4.6.0-1]."""
        if self._outgoing is None:
            self._outgoing = {}
        return self._outgoing

    @property
    def released(self) -> dict[int, InFlight]:
        """PUBREL sent, no PUBCOMP yet; in the order of the PUBRECs [MQTT-4.6.0-4]."""
        if self._released is None:
            self._released = {}
        return self._released

    @property
    def awaiting_commit(self) -> dict[int, None]:
        """Packet identifiers of `outgoing` and `released` whose PUBLISH, or PUBREL, waits for the disk."""
        if self._awaiting_commit is None:
            self._awaiting_commit = {}
        return self._awaiting_commit

    @property
    def incoming(self) -> set[int]:
        """QoS 2 packet identifiers received and not released by PUBREL."""
        return self._of_qos2().incoming

    @property
    def pending(self) -> set[int]:
        """Those of `incoming` that have not been acknowledged: their message is not safe yet."""
        return self._of_qos2().pending

    @property
    def unstored(self) -> set[int]:
        """Those of `incoming` whose message is not in the store: it will be refused, or a consumer has it and has not
        answered (anycast). On disk they would say, after a restart, that it was taken."""
        return self._of_qos2().unstored

    @property
    def stored(self) -> set[int]:
        """Those of `incoming` that are to be on disk."""
        qos2 = self._of_qos2()
        return qos2.incoming - qos2.unstored if qos2.unstored else qos2.incoming

    @property
    def releasing(self) -> set[int]:
        """Packet identifiers released by PUBREL whose PUBCOMP waits until `incoming` is on disk without them: then the
        client may use them for other messages, which must not be taken for the old ones after a restart."""
        return self._of_qos2().releasing

    def _of_qos2(self) -> Qos2State:
        if self._qos2 is None:
            self._qos2 = Qos2State()
        return self._qos2

    @property
    def reserved(self) -> set[int]:
        """Packet identifiers the client may know from before a restart, whose message has not been read again yet."""
        if self._reserved is None:
            self._reserved = set()
        return self._reserved

    def forget_incoming(self, packet_ids: Iterable[int]) -> None:
        """Nobody has these messages, and nobody will answer for them."""
        for known in (self.incoming, self.pending, self.unstored):
            known.difference_update(packet_ids)

    def answered(self, packet_ids: Iterable[int]) -> None:
        """Somebody has these, or they were refused."""
        if self._qos2 is not None:
            self._qos2.unstored.difference_update(packet_ids)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """It is on disk that these of `releasing` are forgotten, where anything of the session is: answer PUBCOMP."""
        self.releasing.difference_update(packet_ids)
        if self.connection is not None:
            self.connection.complete(packet_ids)

    @property
    def free_packet_ids(self) -> int:
        """Packet identifiers the client cannot know, whether or not they are in flight."""
        return PACKET_ID_MAX - len(self._reserved) if self._reserved else PACKET_ID_MAX

    @property
    def in_flight(self) -> int:
        """Messages in flight to the client: packet identifiers in use by us."""
        return (len(self._outgoing) if self._outgoing else 0) + (len(self._released) if self._released else 0)

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, and nothing known of what was but `incoming`."""
        if self._outgoing or self._released or self._awaiting_commit or self._reserved:
            return False
        qos2 = self._qos2
        return qos2 is None or not (qos2.pending or qos2.releasing or qos2.unstored)

    def restore_incoming(self, packet_ids: Iterable[int]) -> None:
        """QoS 2 packet identifiers received and kept, with their messages, over a restart of the gateway."""
        self.incoming.update(packet_ids)

    def reserve(self, count: int) -> Sequence[int]:
        """`count` free packet identifiers, ascending from the last one given, around 65 535.

        Raises LocalError when there are not so many.
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
        """As `reserve` of one."""
        packet_id = self._next
        taken = packet_id in self.outgoing or (self._released is not None and packet_id in self._released)
        if taken or packet_id == PACKET_ID_MAX or self._reserved:
            return self._reserve_one_by_one(1)[0]
        self._next = packet_id + 1
        return packet_id

    def _taken(self, ids: Sequence[int]) -> bool:
        return not all(known.isdisjoint(ids) for known in (self.outgoing.keys(), self.released.keys(), self.reserved))

    def _reserve_one_by_one(self, count: int) -> list[int]:
        free = PACKET_ID_MAX - self.in_flight - len(self.reserved)
        if count > free:
            raise LocalError(f"{count} packet identifiers wanted, {free} are free")
        ids: list[int] = []
        candidate = self._next
        while len(ids) < count:
            if candidate not in self.outgoing and candidate not in self.released and candidate not in self.reserved:
                ids.append(candidate)
            candidate = candidate % PACKET_ID_MAX + 1
        self._next = candidate
        return ids
