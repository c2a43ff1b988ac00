"""What is on disk of sessions (MQTT 5 section 4.1), and what a client may hear only when it is.

`session`   the record: whose it is, how long it lives, its subscriptions
`incoming`  QoS 2 packet identifiers that came in and have not been released; written with the messages they stand for,
            and never for a message that is not stored: after a restart such an identifier means "we have it"
`outgoing`  the journal of QoS 2 deliveries (`qos2_journal`)

CONNACK, SUBACK, UNSUBACK, PUBCOMP, and PUBLISH and PUBREL of a kept delivery leave by the outcome of the commit
their own state joined. When that commit fails CONNACK says so, and the others wait for the next one. What belongs to a
session that has ended is not written any more: its client identifier may be another session's by then.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from edge.broker.model.isolation import report
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session import MqttSession
from edge.broker.store.contract import SmallState, StoreCommits
from edge.broker.store.errors import StoreError
from edge.broker.store.ticket import Ticket

_SESSION: Final = "session"
_INCOMING: Final = "incoming"
_OUTGOING: Final = "outgoing"


class SessionRecord(msgspec.Struct):
    """What is kept of a session on disk."""

    expiry_s: int
    subscriptions: list[tuple[SubscriptionRequest, int]]
    """Request and subscription identifier (0: none)."""
    user: str = ""
    """Whom the session belongs to; empty: to whoever names it."""


class _WaitingSession(NamedTuple):
    """What the client of a session may hear when a commit has succeeded."""

    ticket: Ticket
    session: MqttSession
    tell: Callable[[], None]
    write_again: Callable[[], None]
    """Has it wait for another commit, as this one failed."""


class SessionStore:
    """The sessions of one broker in its store."""

    def __init__(self, state: SmallState, commits: StoreCommits, save_soon: Callable[[], None]) -> None:
        """`save_soon`: something is there for `prepare`, or waits for a commit."""
        self._state = state
        self._commits = commits
        self._save_soon = save_soon
        self._changed: dict[MqttSession, None] = {}
        """Their journals have to be written."""
        self._waiting: deque[_WaitingSession] = deque()
        self._failed: list[_WaitingSession] = []
        """Their commits failed, and none has succeeded since."""
        self._forgotten: dict[str, Ticket] = {}
        """By client identifier of sessions that have ended: what deletes them, as long as that is not on disk."""

    # --- at start ---------------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[str, SessionRecord]]:
        """Every session, by client identifier."""
        for client_id, value in self._state.items(_SESSION):
            yield client_id, msgspec.msgpack.decode(value, type=SessionRecord)

    def record(self, client_id: str) -> SessionRecord | None:
        """Return the record of one session; None if it is not found. Raises StoreError."""
        value = self._state.get(_SESSION, client_id)
        return None if value is None else msgspec.msgpack.decode(value, type=SessionRecord)

    def incoming_of(self, client_id: str) -> bytes:
        """Return what `incoming` has of one session. Raises StoreError."""
        return self._state.get(_INCOMING, client_id) or b""

    def incoming(self) -> Iterator[tuple[str, bytes]]:
        """The packet identifiers of messages that came in and were not released, two bytes each."""
        return ((client_id, value) for client_id, value in self._state.items(_INCOMING) if value)

    def journals(self) -> Iterator[tuple[str, bytes]]:
        """Journals that hold something."""
        return ((client_id, value) for client_id, value in self._state.items(_OUTGOING) if value)

    # --- while it runs ----------------------------------------------------------------------------------------

    def save(self, session: MqttSession) -> Ticket | None:
        """Write the record of a session that outlives its connection; None for one that does not, unless one before it
        did and is on disk still."""
        if session.ended:
            return None
        if not (session.durable or session.recorded):
            return self._forget_again(session.client_id)
        session.recorded = True
        return self._state.put(_SESSION, session.client_id, _record(session))

    def save_and_tell(self, session: MqttSession, tell: Callable[[], None]) -> None:
        """Write the record, and call `tell` once it is on disk; at once for a session that ends with its connection."""
        ticket = self.save(session)
        if ticket is None:
            tell()
        else:
            self._wait(_WaitingSession(ticket, session, tell, partial(self.save_and_tell, session, tell)))

    def save_incoming(self, session: MqttSession) -> Ticket | None:
        """Write the packet identifiers of messages that are stored, in the group that stores them; None for a session
        that ends with its connection."""
        if not session.recorded:
            return None
        return self._state.put(_INCOMING, session.client_id, _incoming(session))

    def release(self, session: MqttSession, packet_ids: Sequence[int]) -> None:
        """PUBREL came for these. PUBCOMP follows once that is on disk: the client may use them again from then on, and
        after a restart what it sends again under one of them would be taken for the message before."""
        ticket = self.save_incoming(session)
        if ticket is None:
            _complete(session, packet_ids)
            return
        complete, again = partial(_complete, session, packet_ids), partial(self.release, session, packet_ids)
        self._wait(_WaitingSession(ticket, session, complete, again))

    def journal_changed(self, session: MqttSession) -> None:
        """Its journal is to be part of the next commit."""
        if session.recorded:
            self._changed[session] = None
            self._save_soon()

    def forget(self, session: MqttSession) -> None:
        """The session has ended."""
        self._changed.pop(session, None)
        session.ended = True
        if session.recorded:
            session.recorded = False
            self._forgotten[session.client_id] = self._delete(session.client_id)

    def _delete(self, client_id: str) -> Ticket:
        for kind in (_OUTGOING, _INCOMING):
            self._state.delete(kind, client_id)
        return self._state.delete(_SESSION, client_id)

    def _forget_again(self, client_id: str) -> Ticket | None:
        """What deletes the session that has ended; None: it is on disk that there is none."""
        ticket = self._forgotten.get(client_id)
        if ticket is not None and ticket.error is not None:
            ticket = self._forgotten[client_id] = self._delete(client_id)
        return ticket

    def let_go(self, session: MqttSession) -> bool:
        """End the use of the object: the rows hold all of the session from now on.

        False, and nothing happens, while the object holds more, or the rows cannot be read.
        """
        if session in self._changed:
            return False
        if not session.at_rest:
            if session.attachment is None and session.journal.is_done(self._commits.moves_kept):
                self.journal_changed(session)
            return False
        try:
            self._complete_rows(session)
        except StoreError:
            return False
        session.ended = True
        return True

    def _complete_rows(self, session: MqttSession) -> None:
        """Write what the rows lack: subscriptions of a client that left before SUBACK, identifiers of anycast messages
        a consumer has. Raises StoreError."""
        for kind, value in ((_SESSION, _record(session)), (_INCOMING, _incoming(session))):
            if (self._state.get(kind, session.client_id) or b"") != value:
                self._state.put(kind, session.client_id, value)
                self._save_soon()

    # --- commits (`edge.broker.router.router.CommitParticipant`) ------------------------------------------------

    def prepare(self) -> None:
        """A group is about to be sealed: write down what is under way to clients at QoS 2, once a commit."""
        changed, self._changed = self._changed, {}
        for session in changed:
            try:
                self._write_journal(session)
            except Exception as error:
                _end(session, error)

    def _write_journal(self, session: MqttSession) -> None:
        record = session.journal.encode(self._commits.moves_kept)
        if record:
            ticket = self._state.put(_OUTGOING, session.client_id, record)
        else:
            ticket = self._state.delete(_OUTGOING, session.client_id)
        unwritten = session.journal.take_unwritten()
        if unwritten:
            send, again = partial(_send_committed, session, unwritten), partial(session.journal.write_again, unwritten)
            self._waiting.append(_WaitingSession(ticket, session, send, again))

    def committed(self, *, kept: bool) -> None:
        """Let go what is on disk now. What a commit failed with waits until one succeeds, and is written with the next:
        to write it at once would start commit after commit on a medium that fails."""
        while self._waiting and self._waiting[0].ticket.decided:
            waiting = self._waiting.popleft()
            if waiting.ticket.error is not None:
                self._failed.append(waiting)
                continue
            try:
                waiting.tell()
            except Exception as error:
                _end(waiting.session, error)
        if kept and self._forgotten:  # what one commit failed with is in the next
            self._forgotten = {name: ticket for name, ticket in self._forgotten.items() if not ticket.decided}
        if kept and self._failed:
            failed, self._failed = self._failed, []
            for waiting in failed:
                if not waiting.session.ended:
                    waiting.write_again()

    def _wait(self, waiting: _WaitingSession) -> None:
        self._waiting.append(waiting)
        self._save_soon()


def _record(session: MqttSession) -> bytes:
    requests = [(s.request, s.identifiers[0] if s.identifiers else 0) for s in session.all_subscribers]
    return msgspec.msgpack.encode(SessionRecord(session.expiry_s, requests, session.user))


def _incoming(session: MqttSession) -> bytes:
    return array.array("H", sorted(session.state.stored)).tobytes()


def _end(session: MqttSession, error: Exception) -> None:
    """Its connection ends; the session stays, and goes on from what is on disk."""
    report(f"session {session.client_id!r}", "its connection ends", error)
    if session.attachment is not None:
        session.attachment.abort()


def _send_committed(session: MqttSession, packet_ids: Sequence[int]) -> None:
    """The journal that holds these deliveries is on disk."""
    state = session.state
    if state.connection is not None:
        state.connection.send_committed(packet_ids)
    for packet_id in packet_ids:
        state.awaiting_commit.pop(packet_id, None)
    if session.attachment is not None:
        session.attachment.flush_soon()


def _complete(session: MqttSession, packet_ids: Sequence[int]) -> None:
    """These are forgotten, on disk too where anything of the session is."""
    session.state.complete(packet_ids)
    if session.attachment is not None:
        session.attachment.flush_soon()
