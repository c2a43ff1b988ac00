"""Stored state of sessions (MQTT 5 section 4.1), and answers that wait for its commit.

`session`   record of the session: owner, expiry, subscriptions
`incoming`  QoS 2 packet identifiers that were received and not released. They are written with their messages, and
            never without: after a restart an identifier means that the message is stored
`outgoing`  journal of QoS 2 deliveries (`qos2_journal`)

CONNACK, SUBACK, UNSUBACK, PUBCOMP, and PUBLISH and PUBREL of a kept delivery are sent after the commit of their state.
If that commit fails, CONNACK reports it and the others wait for the next commit. State of an ended session is no
longer written, as its client identifier may belong to another session by then.
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
    """Record of a session on disk."""

    expiry_s: int
    subscriptions: list[tuple[SubscriptionRequest, int]]
    """Request and subscription identifier (0: none)."""
    user: str = ""
    """Owner of the session; empty: any client with its identifier."""


class _WaitingSession(NamedTuple):
    """An answer of a session that waits for a commit."""

    ticket: Ticket
    session: MqttSession
    send: Callable[[], None]
    """Sends the answer after the commit."""
    write_again: Callable[[], None]
    """Writes the state again after a failed commit."""


class SessionStore:
    """The sessions of one broker in its store."""

    def __init__(self, state: SmallState, commits: StoreCommits, save_soon: Callable[[], None]) -> None:
        """`save_soon` requests a commit."""
        self._state = state
        self._commits = commits
        self._save_soon = save_soon
        self._changed: dict[MqttSession, None] = {}
        """Sessions with a journal to write."""
        self._waiting: deque[_WaitingSession] = deque()
        self._failed: list[_WaitingSession] = []
        """Answers of a failed commit, until another commit succeeds."""
        self._forgotten: dict[str, Ticket] = {}
        """Deletions of ended sessions that are not committed, by client identifier."""

    # --- at start -----------------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[str, SessionRecord]]:
        """Yield the record of every session with its client identifier."""
        for client_id, value in self._state.items(_SESSION):
            yield client_id, msgspec.msgpack.decode(value, type=SessionRecord)

    def record(self, client_id: str) -> SessionRecord | None:
        """Return the record of one session; None if it is not found. Raises StoreError."""
        value = self._state.get(_SESSION, client_id)
        return None if value is None else msgspec.msgpack.decode(value, type=SessionRecord)

    def incoming_of(self, client_id: str) -> bytes:
        """Return the `incoming` row of one session. Raises StoreError."""
        return self._state.get(_INCOMING, client_id) or b""

    def incoming(self) -> Iterator[tuple[str, bytes]]:
        """Yield the received and unreleased packet identifiers of each client, two bytes each."""
        return ((client_id, value) for client_id, value in self._state.items(_INCOMING) if value)

    def journals(self) -> Iterator[tuple[str, bytes]]:
        """Yield the journals that are not empty."""
        return ((client_id, value) for client_id, value in self._state.items(_OUTGOING) if value)

    # --- while it runs ------------------------------------------------------------------------------------------

    def save(self, session: MqttSession) -> Ticket | None:
        """Write the record of a durable session.

        Return None for other sessions, unless an earlier durable session of the client is not deleted on disk yet.
        """
        if session.ended:
            return None
        if not (session.durable or session.recorded):
            return self._repeat_deletion(session.client_id)
        session.recorded = True
        return self._state.put(_SESSION, session.client_id, _record(session))

    def save_then_call(self, session: MqttSession, done: Callable[[], None]) -> None:
        """Write the record, and call `done` after the commit; at once if there is nothing to write."""
        ticket = self.save(session)
        if ticket is None:
            done()
        else:
            self._wait(_WaitingSession(ticket, session, done, partial(self.save_then_call, session, done)))

    def save_incoming(self, session: MqttSession) -> Ticket | None:
        """Write the packet identifiers of stored messages, in the group of the messages. Return None for a session that
        ends with its connection."""
        if not session.recorded:
            return None
        return self._state.put(_INCOMING, session.client_id, _incoming(session))

    def release(self, session: MqttSession, packet_ids: Sequence[int]) -> None:
        """Process PUBREL: PUBCOMP follows after the commit.

        After PUBCOMP the client may reuse the identifiers. Without the commit, a new message would count as a duplicate
        of the old one after a restart.
        """
        ticket = self.save_incoming(session)
        if ticket is None:
            _complete(session, packet_ids)
            return
        complete, again = partial(_complete, session, packet_ids), partial(self.release, session, packet_ids)
        self._wait(_WaitingSession(ticket, session, complete, again))

    def journal_changed(self, session: MqttSession) -> None:
        """Write the journal of a session with the next commit."""
        if session.recorded:
            self._changed[session] = None
            self._save_soon()

    def forget(self, session: MqttSession) -> None:
        """Delete the state of an ended session."""
        self._changed.pop(session, None)
        session.ended = True
        if session.recorded:
            session.recorded = False
            self._forgotten[session.client_id] = self._delete(session.client_id)

    def _delete(self, client_id: str) -> Ticket:
        for kind in (_OUTGOING, _INCOMING):
            self._state.delete(kind, client_id)
        return self._state.delete(_SESSION, client_id)

    def _repeat_deletion(self, client_id: str) -> Ticket | None:
        """Return the deletion of an ended session, repeated if it failed; None if it is committed."""
        ticket = self._forgotten.get(client_id)
        if ticket is not None and ticket.error is not None:
            ticket = self._forgotten[client_id] = self._delete(client_id)
        return ticket

    def unload(self, session: MqttSession) -> bool:
        """Mark the object as unused: from now on the rows contain the whole session.

        Return False and do nothing while the object contains more, or the rows cannot be read.
        """
        if session in self._changed:
            return False
        if not session.idle:
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
        """Write what the rows lack. Raises StoreError.

        That is subscriptions of a client that disconnected before SUBACK, and identifiers of anycast messages in
        delivery.
        """
        for kind, value in ((_SESSION, _record(session)), (_INCOMING, _incoming(session))):
            if (self._state.get(kind, session.client_id) or b"") != value:
                self._state.put(kind, session.client_id, value)
                self._save_soon()

    # --- commits (`edge.broker.router.router.CommitParticipant`) ------------------------------------------------

    def prepare(self) -> None:
        """Write changed journals of QoS 2 deliveries, once for each commit."""
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
        """Send the answers of a commit. State of a failed commit is written again after the next successful one.

        Writing it at once would repeat failing commits without pause on a broken medium.
        """
        while self._waiting and self._waiting[0].ticket.decided:
            waiting = self._waiting.popleft()
            if waiting.ticket.error is not None:
                self._failed.append(waiting)
                continue
            try:
                waiting.send()
            except Exception as error:
                _end(waiting.session, error)
        if kept and self._forgotten:  # a failed deletion is in the next commit
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
    """Abort the connection of a session. The session stays, as it is on disk."""
    report(f"session {session.client_id!r}", "closing its connection", error)
    if session.attachment is not None:
        session.attachment.abort()


def _send_committed(session: MqttSession, packet_ids: Sequence[int]) -> None:
    """Send deliveries after the commit of their journal."""
    state = session.state
    if state.connection is not None:
        state.connection.send_committed(packet_ids)
    for packet_id in packet_ids:
        state.awaiting_commit.pop(packet_id, None)
    if session.attachment is not None:
        session.attachment.flush_soon()


def _complete(session: MqttSession, packet_ids: Sequence[int]) -> None:
    """Send PUBCOMP for released packet identifiers, after the commit."""
    session.state.complete(packet_ids)
    if session.attachment is not None:
        session.attachment.flush_soon()
