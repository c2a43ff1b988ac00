"""Journal of QoS 2 deliveries in flight to a durable session, so that none is delivered twice after a restart.

A receiver may process a message at PUBLISH and recognises a duplicate by the packet identifier until PUBREL (MQTT 5
section 4.3.3). So two facts have to be on disk before they are sent: the packet identifier of a message (before
PUBLISH) and its release (before PUBREL). After a restart the subscription delivers again, by position, what it had not
settled. `Qos2Journal` recognises these messages and resumes the exchange where it stopped, also for queues and shared
subscriptions. The packet identifier of a message that another member of the group gets instead stays reserved.

    SENT ──PUBREC──▶ RELEASED ──PUBCOMP──▶ DONE ──cursor on disk──▶ (forgotten)

DONE exists because cursors are written lazily (`store.contract`). Until the settled position is on disk, a restart
delivers the message again, and only this record shows that the client has it.
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
    """Stage of an exchange."""

    SENT = 0
    RELEASED = 1
    DONE = 2


class Qos2Entry(NamedTuple):
    """One message of the journal."""

    stage: int
    packet_id: int
    log: int
    position: int


class ReleasedMessage(NamedTuple):
    """Token of a message that was released before a restart, so its body is not needed."""

    log: int
    position: int


class Qos2Journal:
    """QoS 2 exchanges of one session that are stored on disk."""

    __slots__ = ("_changed", "_done", "_recovered", "_state", "_unwritten")

    def __init__(self, state: SessionState, changed: Callable[[], None]) -> None:
        """`changed` is called when the record has to be written."""
        self._unwritten: list[int] = []
        """Packet identifiers that wait for the record to be written."""
        self._state = state
        self._changed = changed
        self._done: deque[tuple[int | None, int, int]] = deque()
        """Messages that are DONE: `Commits.moves_kept` when first written as such, log and position."""
        self._recovered: dict[tuple[int, int], Qos2Entry] = {}
        """Entries from before a restart that no subscription has delivered again yet."""

    def is_done(self, moves_kept: int) -> bool:
        """Return True if the next record would be empty; `moves_kept` as for `encode`."""
        over = bool(self._done) and all(at is not None and at < moves_kept for at, _, _ in self._done)
        return over and not (self._unwritten or self._recovered)

    @property
    def resuming(self) -> bool:
        """True while messages of interrupted exchanges have not been delivered again."""
        return bool(self._recovered)

    def resumes(self, log: int, position: int) -> bool:
        """Return True if a restart interrupted the exchange of this message and it has not resumed."""
        return (log, position) in self._recovered

    @property
    def idle(self) -> bool:
        """True if the record is empty, also on disk."""
        return not (self._unwritten or self._done or self._recovered)

    # --- deliveries ---------------------------------------------------------------------------------------------

    def deliver(
        self, connection: MqttConnection, delivery: MqttDelivery, log: int, position: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Send like `MqttConnection.deliver`, after the record is on disk. Resume interrupted exchanges.

        Return the indexes of messages that the client already has, and of messages that are too large for it.
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
                self._resume(connection, entry, delivery, i)
        return had, too_large

    def _deliver_new(self, connection: MqttConnection, delivery: MqttDelivery) -> Sequence[int]:
        before = len(self._state.awaiting_commit)
        skipped = connection.deliver(delivery)
        ids = list(self._state.awaiting_commit)[before:]
        if ids:
            self._unwritten += ids
            self._changed()
        return skipped

    def _resume(self, connection: MqttConnection, entry: Qos2Entry, delivery: MqttDelivery, index: int) -> None:
        state = self._state
        if entry.stage == Qos2Stage.RELEASED:
            if entry.packet_id in state.released:
                state.released[entry.packet_id] = (delivery, index)
            return
        state.reserved.discard(entry.packet_id)
        state.outgoing[entry.packet_id] = (delivery, index)
        connection.send_again(entry.packet_id)

    # --- answers ------------------------------------------------------------------------------------------------

    def received(self, packet_ids: Sequence[int]) -> None:
        """Process PUBREC for these: PUBREL follows when that is on disk."""
        self._unwritten += packet_ids
        self._changed()

    def completed(self, log: int, first: int, last: int) -> None:
        """Record that the client has these messages; their positions have been settled."""
        for position in range(first, last + 1):
            self._done.append((None, log, position))
        self._changed()

    def aborted(self) -> None:
        """Write the record after exchanges ended without delivery."""
        self._changed()

    def recovered_completed(self, token: ReleasedMessage) -> None:
        """Process PUBCOMP for a message that its subscription has not delivered again yet."""
        entry = self._recovered.get(token)
        if entry is not None:
            self._recovered[token] = entry._replace(stage=Qos2Stage.DONE)

    # --- the record ---------------------------------------------------------------------------------------------

    def take_unwritten(self) -> list[int]:
        """Return the packet identifiers that wait for the record that `encode` has just made."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def write_again(self, packet_ids: Sequence[int]) -> None:
        """Wait for the next record, as the commit of the last one failed."""
        self._unwritten = [*packet_ids, *self._unwritten]
        self._changed()

    def encode(self, moves_kept: int) -> bytes:
        """Encode the record for the next group; empty if there is nothing to store.

        `moves_kept`: see `Store`. When it has grown since a message was written as DONE, the cursor's move is on disk
        and the entry is dropped. A clock cannot tell: on a busy machine moves are late.
        """
        entries: dict[tuple[int, int], Qos2Entry] = dict(self._recovered)
        for stage, in_flight in ((Qos2Stage.SENT, self._state.outgoing), (Qos2Stage.RELEASED, self._state.released)):
            for packet_id, (delivery, i) in in_flight.items():
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
        """Restore a record. `pending` returns True if a subscription of the client has not settled (log, position)."""
        state = self._state
        for entry in msgspec.msgpack.decode(record, type=list[Qos2Entry]):
            place = (entry.log, entry.position)
            unsettled = pending(*place)
            # The client waits for PUBREL in any case. A message that another member of the group got needs PUBREL too,
            # so that the client forgets the packet identifier.
            if entry.stage == Qos2Stage.RELEASED or (entry.stage == Qos2Stage.SENT and not unsettled):
                merged = MqttDelivery(
                    Run("", "", 2, b"", [b""]), 2, retain=False, token=ReleasedMessage(*place), kept=True
                )
                state.released[entry.packet_id] = (merged, 0)
            if unsettled:
                self._recovered[place] = entry
                if entry.stage == Qos2Stage.SENT:
                    state.reserved.add(entry.packet_id)


def _at(delivery: MqttDelivery, index: int) -> object:
    """Return the token of one message of a delivery."""
    token = delivery.token
    return token._replace(position=token.position + index)  # type: ignore[attr-defined]


def _place(delivery: MqttDelivery, index: int) -> tuple[int, int]:
    """Return log and position of one message of a kept delivery."""
    token = delivery.token
    if isinstance(token, ReleasedMessage):
        return token
    return token.subscription.log, token.position + index  # type: ignore[attr-defined]
