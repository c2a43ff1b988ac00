"""The machine as a target: `MqttConnection` with the smallest broker that answers every event.

It matches topics level by level, acknowledges QoS 1 and 2 immediately, and stores only sessions. It does not model the
product's session; the corpus shows the machine's own behaviour with it.
"""

from __future__ import annotations

from typing import Any

from bridge.message import RETAIN, Run
from edge.broker.limits import Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import events
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import MqttDelivery, SubscriptionRequest
from edge.broker.mqtt.state import SessionState
from tests.conformance.mqtt.authenticating import WORD
from tests.support.machines import take_all


def matches(topic_filter: str, topic: str) -> bool:
    """Return True when a filter matches a topic name (section 4.7)."""
    filters, levels = topic_filter.split("/"), topic.split("/")
    for index, level in enumerate(filters):
        if level == "#":
            return True
        if index >= len(levels) or level not in {"+", levels[index]}:
            return False
    return len(filters) == len(levels)


class Session:
    """Stored state of a client."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.state = SessionState()
        self.subscriptions: dict[str, tuple[SubscriptionRequest, int]] = {}
        self.link: LoopbackLink | None = None
        self.waiting: list[tuple[Run, int, bool, tuple[int, ...]]] = []

    def pump(self) -> None:
        while self.waiting and self.link is not None:
            run, qos, retain, identifiers = self.waiting[0]
            if qos and not self.link.connection.window:
                return
            del self.waiting[0]
            self.link.connection.deliver(MqttDelivery(run, qos, retain, None, identifiers))


class LoopbackLink:
    """The client's end of a connection, with the session at the other end."""

    def __init__(self, target: LoopbackTarget) -> None:
        self.connection = MqttConnection(Limits(), target.now)
        self.target = target
        self.session: Session | None = None
        self.connect: events.ConnectEvent | None = None

    @property
    def closed(self) -> bool:
        return self.connection.closed and not self.connection._out

    def send(self, data: bytes) -> None:
        self.handle(take_all(self.connection, data, self.target.now))
        if self.connection.closed:
            self.handle(self.connection.receive_eof(self.target.now))

    def receive(self, *, quiet: bool) -> bytes:
        return self.connection.data_to_send()

    def drop(self) -> None:
        self.handle(self.connection.receive_eof(self.target.now))
        self.connection.data_to_send()

    def handle(self, found: Any) -> None:
        for event in found:
            match event:
                case events.ConnectEvent() if event.authentication_method is not None:
                    self.connect = event
                    self._authenticate(event.authentication_data)
                case events.AuthenticateEvent(data, _):
                    self._authenticate(data)
                case events.ConnectEvent():
                    self.connect = event
                    session, present = self.target.attach(event, self)
                    self.session = session
                    assigned = None if event.client_id else session.client_id
                    more = self.connection.accept(session.state, present, assigned_client_id=assigned)
                    session.pump()
                    self.handle(more)
                case events.PublishEvent(run, ids):
                    self.connection.acknowledge(run.qos, ids)
                    self.target.publish(run)
                case events.AcknowledgedEvent():
                    self._session.pump()
                case events.PubRelEvent(ids):
                    self._session.state.complete(ids)
                case events.SubscribeEvent(packet_id, requests, identifier):
                    for request in requests:
                        self._session.subscriptions[request.filter] = (request, identifier)
                    self.connection.subscribed(packet_id, [request.qos for request in requests])
                case events.UnsubscribeEvent(packet_id, filters):
                    known = self._session.subscriptions
                    codes = [0 if known.pop(each, None) else ReasonCode.NO_SUBSCRIPTION_EXISTED for each in filters]
                    self.connection.unsubscribed(packet_id, codes)
                case events.DisconnectedEvent():
                    self._leave(event)

    def _authenticate(self, data: bytes) -> None:
        """Handle the only method, `WORD`: request the word, then accept or refuse the client by it."""
        connect = self.connect
        assert connect is not None
        if connect.authentication_method != WORD:
            self.connection.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD)
        elif data == b"":
            self.handle(self.connection.challenge(b"the word?"))
        elif data != b"sesame":
            self.connection.disconnect(ReasonCode.NOT_AUTHORIZED)
        elif self.session is not None:
            self.connection.authenticated(b"welcome back")
        else:
            self.session, present = self.target.attach(connect, self)
            self.handle(self.connection.accept(self.session.state, present, authentication_data=b"welcome"))

    @property
    def _session(self) -> Session:
        assert self.session is not None
        return self.session

    def _leave(self, event: events.DisconnectedEvent) -> None:
        if self.session is not None and self.session.link is self:
            self.session.link = None
        if event.publish_will and self.connect is not None and self.connect.will is not None:
            self.target.publish(self.connect.will.run)


class LoopbackTarget:
    """All sessions of the small broker."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.now = 0.0
        self.sessions: dict[str, Session] = {}
        self.links: list[LoopbackLink] = []

    def open(self) -> LoopbackLink:
        link = LoopbackLink(self)
        self.links.append(link)
        return link

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for link in self.links:
            link.handle(link.connection.handle_timeout(self.now))

    def attach(self, connect: events.ConnectEvent, link: LoopbackLink) -> tuple[Session, bool]:
        client_id = connect.client_id or f"assigned-{len(self.sessions)}"
        session = self.sessions.get(client_id)
        if session is not None and session.link is not None:
            session.link.connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)
            session.link.handle(session.link.connection.receive_eof(self.now))
        present = session is not None and not connect.clean_start
        if session is None or connect.clean_start:
            session = self.sessions[client_id] = Session(client_id)
        session.link = link
        return session, present

    def publish(self, run: Run) -> None:
        for session in self.sessions.values():
            for request, identifier in session.subscriptions.values():
                if not matches(request.filter, run.address):
                    continue
                if request.no_local and session.client_id == run.device:
                    continue
                retain = request.retain_as_published and bool(run.flags & RETAIN)
                identifiers = (identifier,) if identifier else ()
                for index in range(len(run)):
                    one = run.part(index, index + 1)
                    session.waiting.append((one, min(run.qos, request.qos), retain, identifiers))
            session.pump()
