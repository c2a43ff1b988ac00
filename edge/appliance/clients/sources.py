"""Clients of a running broker, one by one: documents from MQTT sessions, AMQP connections and waiting HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from edge.appliance.clients.activity import ClientActivity, ClientCount, ClientKey
from edge.appliance.clients.documents import FILTERS_SHOWN_MAX, ClientDocument, ClientSubscription
from edge.appliance.clients.silence import SILENT_NAMED_MAX, SilentClient
from edge.broker.amqp.containers import ObservedConnection
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.names import SHARE
from edge.broker.mqtt.session import MqttSession
from edge.broker.mqtt.session_registry import SessionRegistry, durable_name
from edge.broker.router.durable_subscriptions import figures_of, unsettled_messages
from edge.broker.router.router import Router
from edge.broker.server import Broker
from edge.broker.store.errors import StoreError
from edge.output.amounts import span

if TYPE_CHECKING:
    from edge.broker.http.polls import WaitingPoll

MQTT, AMQP, HTTP = "mqtt/", "amqp/", "http/"
"""Prefixes of the identities of clients."""

VERSIONS: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class ClientSources:
    """Clients of one broker."""

    def __init__(
        self,
        broker: Broker,
        polls: Callable[[], Mapping[int, WaitingPoll]],
        *,
        monotonic_s: Callable[[], float],
        utc_s: Callable[[], float],
    ) -> None:
        """`polls` returns the HTTP requests that wait for a message. `monotonic_s`: clock of the broker's loop."""
        self._sessions: Final[SessionRegistry] = broker.mqtt_sessions
        self._router: Final[Router] = broker.router
        self._broker = broker
        self._polls = polls
        self._monotonic_s = monotonic_s
        self._utc_s = utc_s
        self.activity: Final = ClientActivity(self._counts, broker.amqp_connections)
        self._sessions.call_when_left(self._left)

    def ids(self) -> Iterator[str]:
        """Yield the identities of all clients; they may change in the meantime."""
        for client_id in list(self._sessions.loaded):
            yield MQTT + client_id
        for client_id in list(self._sessions.idle):
            yield MQTT + client_id
        for lost in [each for each in self.activity.lost if isinstance(each, str)]:
            if not self._has_session(lost):
                yield MQTT + lost
        for number in list(self._broker.amqp_connections):
            yield f"{AMQP}{number}"
        for number in list(self._polls()):
            yield f"{HTTP}{number}"

    def named(self, name: str) -> list[str]:
        """Return the identities of the clients with this identity or, if there is none, with this name."""
        if self.exists(name):
            return [name]
        found = [MQTT + name] if self.exists(MQTT + name) else []
        connections = self._broker.amqp_connections
        found += [f"{AMQP}{number}" for number, each in connections.items() if each.figures().container_id == name]
        return found + [f"{HTTP}{number}" for number, each in self._polls().items() if each.device == name]

    def exists(self, identity: str) -> bool:
        """Return True for the identity of a client."""
        if identity.startswith(MQTT):
            client_id = identity.removeprefix(MQTT)
            return self._has_session(client_id) or client_id in self.activity.lost
        return self._connection(identity) is not None or self._poll(identity) is not None

    # --- for lists ----------------------------------------------------------------------------------------------

    def is_connected(self, identity: str) -> bool:
        """Return True if the client has a connection."""
        if not identity.startswith(MQTT):
            return True
        session = self._sessions.loaded.get(identity.removeprefix(MQTT))
        return session is not None and session.attachment is not None

    def is_silent(self, identity: str) -> bool:
        """Return True if the client is silent for longer than usual."""
        if identity.startswith(MQTT):
            return self.activity.is_silent(identity.removeprefix(MQTT))
        return self._connection(identity) is not None and self.activity.is_silent(_number(identity))

    def texts(self, identity: str) -> tuple[str, ...]:
        """Return the texts by which a client is found: name, user and remote address."""
        if identity.startswith(MQTT):
            client_id = identity.removeprefix(MQTT)
            session = self._sessions.loaded.get(client_id)
            if session is None:
                return (client_id,)
            attachment = session.attachment
            return client_id, session.user, "" if attachment is None else attachment.describe().remote
        if (connection := self._connection(identity)) is not None:
            figures = connection.figures()
            return figures.container_id, figures.user, figures.host
        poll = self._poll(identity)
        return () if poll is None else (poll.device, poll.user, poll.remote)

    def user(self, identity: str) -> str:
        """Return the user of a client as far as it is in memory; empty for an idle session."""
        texts = self.texts(identity)
        return texts[1] if len(texts) > 1 else ""

    def received(self, identity: str) -> int:
        """Return the messages from the client since it connected."""
        if identity.startswith(MQTT):
            session = self._sessions.loaded.get(identity.removeprefix(MQTT))
            return 0 if session is None or session.attachment is None else session.attachment.received
        connection = self._connection(identity)
        return 0 if connection is None else connection.totals().received

    def sent(self, identity: str) -> int:
        """Return the messages to the client since it connected."""
        if identity.startswith(MQTT):
            session = self._sessions.loaded.get(identity.removeprefix(MQTT))
            return 0 if session is None or session.attachment is None else session.sent
        connection = self._connection(identity)
        return 0 if connection is None else connection.totals().sent

    def queued(self, identity: str) -> int:
        """Return the stored messages that the client has not acknowledged."""
        if not identity.startswith(MQTT):
            return 0
        client_id = identity.removeprefix(MQTT)
        return sum(self._waiting(client_id, request) for request in self._requests(client_id))

    def queues(self) -> Iterator[tuple[str, int]]:
        """Yield the stored messages of each durable subscription that belongs to one MQTT client, with the identity of
        the client. Subscriptions without messages, and records of sessions, are not read."""
        subscriptions = self._router.durable_subscriptions
        figures = map(figures_of, list(subscriptions.opened.values()))
        opened = ((each.name, each.pattern, each.backlog + each.outstanding) for each in figures)
        for name, pattern, count in chain(opened, subscriptions.absent_backlogs()):
            client_id = name.removeprefix(MQTT).removesuffix(f"/{pattern}")
            if name == durable_name(client_id, pattern):
                yield MQTT + client_id, count

    def last_at(self, identity: str) -> float:
        """Return the time of the last message from the client, monotonic seconds; 0 if it has sent none."""
        known = self.activity.of(_key(identity))
        return 0.0 if known is None else known.last_at

    # --- one client ---------------------------------------------------------------------------------------------

    def document(self, identity: str) -> ClientDocument | None:
        """Return the document of a client; None if there is no such client."""
        if identity.startswith(MQTT):
            found = self._mqtt(identity)
        elif (connection := self._connection(identity)) is not None:
            found = self._amqp(identity, connection)
        elif (poll := self._poll(identity)) is not None:
            found = _of_poll(identity, poll)
        else:
            return None
        if found is not None:
            self._add_activity(found)
        return found

    def filters(self, identity: str) -> list[ClientSubscription]:
        """Return the subscriptions of a client, at most `FILTERS_SHOWN_MAX`."""
        if identity.startswith(MQTT):
            client_id = identity.removeprefix(MQTT)
            return [
                ClientSubscription(filter=each.filter, qos=each.qos, queued=self._waiting(client_id, each))
                for each in self._requests(client_id)[:FILTERS_SHOWN_MAX]
            ]
        if (connection := self._connection(identity)) is not None:
            links = [each for each in connection.link_figures() if each.is_sender]
            return [ClientSubscription(filter=each.address or "") for each in links[:FILTERS_SHOWN_MAX]]
        poll = self._poll(identity)
        return [] if poll is None else [ClientSubscription(filter=poll.address)]

    def session_ends_at(self, identity: str) -> float | None:
        """Return the end of the stored session of a client that is not connected, UTC seconds; None: no end."""
        client_id = identity.removeprefix(MQTT)
        session = self._sessions.loaded.get(client_id)
        ends_at = self._sessions.idle.get(client_id) if session is None else session.expires_at
        return None if ends_at is None else self._utc_s() + ends_at - self._monotonic_s()

    def usual_interval_s(self, identity: str) -> int | None:
        """Return the usual seconds between messages from the client; None while it is not known."""
        known = self.activity.of(_key(identity))
        return None if known is None else known.interval_s

    def silent(self) -> list[SilentClient]:
        """Return silent clients, those that are silent for longest first; at most `SILENT_NAMED_MAX`."""
        activity, now, utc_s = self.activity, self._monotonic_s(), self._utc_s()
        found = [(known.last_at, key, known) for key in activity.silent if (known := activity.of(key)) is not None]
        found.sort(key=lambda each: each[0])
        return [
            SilentClient(self._name_of(key), key in activity.lost, utc_s + last_at - now, known.interval_s or 0)
            for last_at, key, known in found[:SILENT_NAMED_MAX]
        ]

    # --- changes ------------------------------------------------------------------------------------------------

    def disconnect(self, identity: str, *, end_session: bool) -> tuple[bool, bool]:
        """Close the connection of a client, or forget a lost one. Return whether it was connected, and whether its
        session ends. Raises StoreError."""
        if (connection := self._connection(identity)) is not None:
            connection.close_by_operator()
            return True, False
        client_id = identity.removeprefix(MQTT)
        self.activity.forget(client_id)
        session = self._sessions.loaded.get(client_id)
        attachment = None if session is None else session.attachment
        if session is None or attachment is None:
            return False, end_session and self._sessions.end(client_id)
        if end_session:
            self._sessions.expire_after(session, 0)
        attachment.connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
        attachment.flush_soon()
        return True, not session.durable

    # --- inside -------------------------------------------------------------------------------------------------

    def _counts(self) -> Iterator[ClientCount]:
        """Yield the counts of connected clients."""
        loaded = self._sessions.loaded
        for client_id in list(loaded):
            session = loaded.get(client_id)
            if session is not None and (attachment := session.attachment) is not None:
                yield ClientCount(client_id, attachment.received)
        connections = self._broker.amqp_connections
        for number in list(connections):
            connection = connections.get(number)
            if connection is not None:
                yield ClientCount(number, connection.totals().received)

    def _left(self, client_id: str, lost: bool) -> None:
        self.activity.left(client_id, lost, self._monotonic_s())

    def _name_of(self, key: ClientKey) -> str:
        if isinstance(key, str):
            return key
        connection = self._broker.amqp_connections.get(key)
        return f"{AMQP}{key}" if connection is None else connection.figures().container_id

    def _has_session(self, client_id: str) -> bool:
        return client_id in self._sessions.loaded or client_id in self._sessions.idle

    def _connection(self, identity: str) -> ObservedConnection | None:
        return self._broker.amqp_connections.get(_number(identity)) if identity.startswith(AMQP) else None

    def _poll(self, identity: str) -> WaitingPoll | None:
        return self._polls().get(_number(identity)) if identity.startswith(HTTP) else None

    def _requests(self, client_id: str) -> list[SubscriptionRequest]:
        session = self._sessions.loaded.get(client_id)
        if session is not None:
            return [each.request for each in session.all_subscribers]
        record = self._sessions.record(client_id) if client_id in self._sessions.idle else None
        return [] if record is None else [request for request, _ in record.subscriptions]

    def _waiting(self, client_id: str, request: SubscriptionRequest) -> int:
        """Return the stored messages for one subscription of the client alone."""
        if request.filter.startswith(SHARE):
            return 0
        return unsettled_messages(self._router.durable_subscriptions, durable_name(client_id, request.filter))

    def _mqtt(self, identity: str) -> ClientDocument | None:
        client_id = identity.removeprefix(MQTT)
        session = self._sessions.loaded.get(client_id)
        if session is not None:
            return self._of_session(identity, session)
        if client_id in self._sessions.idle:
            try:
                record = self._sessions.record(client_id)
            except StoreError:
                record = None
            user = "" if record is None else record.user
            return self._absent(identity, user, len(record.subscriptions) if record is not None else 0)
        return self._absent(identity, "", 0) if client_id in self.activity.lost else None

    def _of_session(self, identity: str, session: MqttSession) -> ClientDocument:
        attachment, subscriptions = session.attachment, len(session.all_subscribers)
        found = self._absent(identity, session.user, subscriptions)
        found.in_flight = session.state.in_flight
        if attachment is not None:
            connection = attachment.describe()
            found.protocol, found.remote = VERSIONS.get(connection.version, "MQTT"), connection.remote
            found.tls, found.connected_at = _tls_of(connection.cipher), connection.connected_at
            found.received, found.sent = attachment.received, session.sent
            found.state, found.why = "connected", ""
        return found

    def _absent(self, identity: str, user: str, subscriptions: int) -> ClientDocument:
        client_id = identity.removeprefix(MQTT)
        kept = "its session is kept" if self._has_session(client_id) else "it has no session"
        lost = "its connection was lost" if client_id in self.activity.lost else "it is not connected"
        return ClientDocument(
            id=identity,
            name=client_id,
            user=user,
            protocol="MQTT",
            remote="",
            tls="",
            state="absent",
            why=f"{lost}; {kept}",
            connected_at=None,
            received=0,
            sent=0,
            subscriptions=subscriptions,
            queued=self.queued(identity),
            in_flight=0,
            last_at=None,
        )

    def _amqp(self, identity: str, connection: ObservedConnection) -> ClientDocument:
        figures, totals = connection.figures(), connection.totals()
        return ClientDocument(
            id=identity,
            name=figures.container_id,
            user=figures.user,
            protocol="AMQP 1.0",
            remote=figures.host,
            tls=_tls_of(figures.cipher),
            state="connected",
            why="",
            connected_at=figures.opened_at,
            received=totals.received,
            sent=totals.sent,
            subscriptions=totals.receivers,
            queued=0,
            in_flight=totals.unsettled,
            last_at=None,
        )

    def _add_activity(self, found: ClientDocument) -> None:
        """Set the time of the last message, and the state of a silent client."""
        key, now = _key(found.id), self._monotonic_s()
        if found.connected_at is not None:
            self.activity.look_at(ClientCount(key, found.received), now)
        known = self.activity.of(key)
        if known is None:
            return
        found.last_at = self._utc_s() + known.last_at - now
        if self.activity.is_silent(key):
            usual = f"no message for {span(now - known.last_at)}, usually one every {span(known.interval_s)}"
            found.state, found.why = "silent", f"{usual}; {found.why}" if found.why else usual


def _of_poll(identity: str, poll: WaitingPoll) -> ClientDocument:
    return ClientDocument(
        id=identity,
        name=poll.device,
        user=poll.user,
        protocol="HTTP",
        remote=poll.remote,
        tls="TLS" if poll.tls else "",
        state="connected",
        why="",
        connected_at=poll.since,
        received=0,
        sent=0,
        subscriptions=1,
        queued=0,
        in_flight=0,
        last_at=None,
    )


def _tls_of(cipher: tuple[str, str] | None) -> str:
    """Return the version of TLS; empty without TLS."""
    return "" if cipher is None else cipher[1]


def _number(identity: str) -> int:
    """Return the number in the identity of an AMQP or HTTP client; 0 without one, which no client has."""
    text = identity[len(AMQP) :]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _key(identity: str) -> ClientKey:
    """Return the key of a client for `ClientActivity`."""
    if identity.startswith(MQTT):
        return identity.removeprefix(MQTT)
    return _number(identity) if identity.startswith(AMQP) else 0
