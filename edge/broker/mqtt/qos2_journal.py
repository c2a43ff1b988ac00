"""QoS 2 deliveries under way to a kept session, on disk, so that a restart of the gateway delivers none of them twice.

A receiver may hand a message on when PUBLISH comes and recognises it again by its packet identifier until PUBREL
(MQTT 5 section 4.3.3). So two things have to be on disk before they are sent: which packet identifier a message has
(before PUBLISH), and that it was released (before PUBREL). After a restart the subscription delivers once more, by
position, what it had not settled; `Qos2Journal` recognises these messages and goes on where the exchange had stopped.
So it does for queues and shared subscriptions; what others of the group are given instead keeps its packet identifier
from other messages.

    SENT ──PUBREC──▶ RELEASED ──PUBCOMP──▶ DONE ──cursor on disk──▶ (forgotten)

DONE exists because cursors move lazily (`store.contract`): until the settled position is on disk, a restart delivers
the message again, and only this record says that the client has it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bridge.message import Run
from edge.broker.mqtt.events import MqttDelivery
from edge.broker.mqtt.state import SessionState

if TYPE_CHECKING:
    from edge.broker.mqtt.connection import MqttConnection


class Qos2Stage(enum.IntEnum):
    """Where an exchange stands."""

    SENT = 0
    RELEASED = 1
    DONE = 2


class Qos2Entry(NamedTuple):
    """One message of the record."""

    stage: int
    packet_id: int
    log: int
    position: int


class ReleasedMessage(NamedTuple):
    """Token of a message that was released before a restart; its body is not needed any more."""

    log: int
    position: int


class Qos2Journal:
    """The QoS 2 exchanges of one session that are kept on disk."""

    __slots__ = ("_changed", "_done", "_recovered", "_state", "_unwritten")

    def __init__(self, state: SessionState, changed: Callable[[], None]) -> None:
        """`changed`: the record has to be written."""
        self._unwritten: list[int] = []
        """Packet identifiers that wait for a record that has not been written yet."""
        self._state = state
        self._changed = changed
        self._done: deque[tuple[int | None, int, int]] = deque()
        """What is DONE: `Commits.moves_kept` when the record with it was first written, log and position."""
        self._recovered: dict[tuple[int, int], Qos2Entry] = {}
        """What a restart found and no subscription has delivered again yet."""

    def is_done(self, moves_kept: int) -> bool:
        """All of the record is forgotten once it is written again; `moves_kept` as `encode` takes it."""
        over = bool(self._done) and all(at is not None and at < moves_kept for at, _, _ in self._done)
        return over and not (self._unwritten or self._recovered)

    @property
    def resuming(self) -> bool:
        """There are exchanges that a restart interrupted, whose messages have not been delivered again yet."""
        return bool(self._recovered)

    def resumes(self, log: int, position: int) -> bool:
        """The exchange of this message was interrupted by a restart, and goes on once it is delivered again."""
        return (log, position) in self._recovered

    @property
    def at_rest(self) -> bool:
        """The record is empty, on disk too."""
        return not (self._unwritten or self._done or self._recovered)

    # --- deliveries -------------------------------------------------------------------------------------------

    def deliver(
        self, connection: MqttConnection, delivery: MqttDelivery, log: int, position: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Send as `MqttConnection.deliver` does, once the record is on disk; go on with what a restart interrupted.

        Returns the indexes of the messages the client has already, and of those larger than it takes.
        """
        if not self._recovered:
            return (), self._deliver_new(connection, delivery)
        indexes = range(len(delivery.run.bodies))
        if not any((log, position + i) in self._recovered for i in indexes):
            return (), self._deliver_new(connection, delivery)
        had: list[int] = []
        too_large: list[int] = []
        for i in indexes:
            entry = self._recovered.pop((log, position + i), None)
            if entry is None:
                one = msgspec.structs.replace(delivery, run=delivery.run.part(i, i + 1), token=_at(delivery, i))
                too_large += [i for _ in self._deliver_new(connection, one)]
            elif entry.stage == Qos2Stage.DONE:
                had.append(i)
                self._done.append((None, log, position + i))
            elif entry.stage == Qos2Stage.SENT and not connection.fits(delivery, i):
                self._state.reserved.discard(entry.packet_id)
                too_large.append(i)
                self._changed()
            else:
                self._go_on(connection, entry, delivery, i)
        return had, too_large

    def _deliver_new(self, connection: MqttConnection, delivery: MqttDelivery) -> Sequence[int]:
        before = len(self._state.awaiting_commit)
        skipped = connection.deliver(delivery)
        ids = list(self._state.awaiting_commit)[before:]
        if ids:
            self._unwritten += ids
            self._changed()
        return skipped

    def _go_on(self, connection: MqttConnection, entry: Qos2Entry, delivery: MqttDelivery, index: int) -> None:
        state = self._state
        if entry.stage == Qos2Stage.RELEASED:
            if entry.packet_id in state.released:
                state.released[entry.packet_id] = (delivery, index)
            return
        state.reserved.discard(entry.packet_id)
        state.outgoing[entry.packet_id] = (delivery, index)
        connection.send_again(entry.packet_id)

    # --- answers ----------------------------------------------------------------------------------------------

    def received(self, packet_ids: Sequence[int]) -> None:
        """PUBREC came for these: PUBREL follows when that is on disk."""
        self._unwritten += packet_ids
        self._changed()

    def completed(self, log: int, first: int, last: int) -> None:
        """The client has these; their positions have been settled."""
        for position in range(first, last + 1):
            self._done.append((None, log, position))
        self._changed()

    def given_back(self) -> None:
        """Exchanges have ended without the client having the messages: the record must not say more of them."""
        self._changed()

    def recovered_completed(self, token: ReleasedMessage) -> None:
        """PUBCOMP for a message whose subscription has not delivered it again yet."""
        entry = self._recovered.get(token)
        if entry is not None:
            self._recovered[token] = entry._replace(stage=Qos2Stage.DONE)

    # --- the record -------------------------------------------------------------------------------------------

    def take_unwritten(self) -> list[int]:
        """Packet identifiers whose PUBLISH, or PUBREL, waits for the record that `encode` has just made."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def write_again(self, packet_ids: Sequence[int]) -> None:
        """The commit of that record failed: these wait for the next."""
        self._unwritten = [*packet_ids, *self._unwritten]
        self._changed()

    def encode(self, moves_kept: int) -> bytes:
        """The record as the group that is sealed next is to hold it; empty when there is nothing to keep.

        `moves_kept`: see `Store`. What was DONE in an earlier record leaves when it has grown since, for then the
        cursor's move is on disk. A clock would not do: on a busy machine moves are late.
        """
        entries: dict[tuple[int, int], Qos2Entry] = dict(self._recovered)
        for stage, under_way in ((Qos2Stage.SENT, self._state.outgoing), (Qos2Stage.RELEASED, self._state.released)):
            for packet_id, (delivery, i) in under_way.items():
                if delivery.kept:
                    log, position = _place(delivery, i)
                    entries[log, position] = Qos2Entry(stage, packet_id, log, position)
        done = self._done
        while done and done[0][0] is not None and done[0][0] < moves_kept:
            done.popleft()
        self._done = deque((moves_kept if at is None else at, log, position) for at, log, position in done)
        entries.update(
            ((log, position), Qos2Entry(Qos2Stage.DONE, 0, log, position)) for _, log, position in self._done
        )
        return msgspec.msgpack.encode(list(entries.values())) if entries else b""

    def restore(self, record: bytes, pending: Callable[[int, int], bool]) -> None:
        """Take up what the record says. `pending`: whether a subscription of the client still owes (log, position)."""
        state = self._state
        for entry in msgspec.msgpack.decode(record, type=list[Qos2Entry]):
            place = (entry.log, entry.position)
            owed = pending(*place)
            # PUBREL goes out whatever the cursor says: the client waits for it. So it does for a message that is not
            # coming any more, for another of a group has it: the client must forget the packet identifier.
            if entry.stage == Qos2Stage.RELEASED or (entry.stage == Qos2Stage.SENT and not owed):
                merged = MqttDelivery(
                    Run("", "", 2, b"", [b""]), 2, retain=False, token=ReleasedMessage(*place), kept=True
                )
                state.released[entry.packet_id] = (merged, 0)
            if owed:
                self._recovered[place] = entry
                if entry.stage == Qos2Stage.SENT:
                    state.reserved.add(entry.packet_id)


def _at(delivery: MqttDelivery, index: int) -> object:
    """The token of one message of a delivery."""
    token = delivery.token
    return token._replace(position=token.position + index)  # type: ignore[attr-defined]


def _place(delivery: MqttDelivery, index: int) -> tuple[int, int]:
    """Log and position of one message of a kept delivery."""
    token = delivery.token
    if isinstance(token, ReleasedMessage):
        return token
    return token.subscription.log, token.position + index  # type: ignore[attr-defined]
