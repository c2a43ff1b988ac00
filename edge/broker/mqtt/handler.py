"""Handle one MQTT connection: turn events of the state machine into calls of the router, and answers into packets.

The handler owns the driver and is the origin of the client's messages for the router. It contains no protocol rules
(they are in `connection`) and no subscriptions (they belong to the session). It ends with its connection.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from bridge.message import QOS_MASK, Run
from bridge.publisher import ANONYMOUS, publisher_name
from bridge.transport.driver import ConnectionDriver
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import OWN_ADDRESSES, Ended, Grant
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.broker.mqtt.answers import QOS_2, qos2_tokens
from edge.broker.mqtt.arrivals import MqttLane, MqttLanes
from edge.broker.mqtt.connect import ConnectTerms, negotiate
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import (
    AcknowledgedEvent,
    AuthenticateEvent,
    ConnectEvent,
    DisconnectedEvent,
    PublishEvent,
    PubRecEvent,
    PubRelEvent,
    RejectedPublish,
    SubscribeEvent,
    UnsubscribeEvent,
)
from edge.broker.mqtt.interception import (
    NO_INTERCEPTION,
    PASS_THROUGH,
    UNCHANGED,
    ClientAdmission,
    Interception,
    Interceptor,
    NotAdmitted,
    OwnTopics,
)
from edge.broker.mqtt.login import MqttLogin
from edge.broker.mqtt.publish_answers import PublishAnswers
from edge.broker.mqtt.session import ClientConnection, MqttSession, Subscriber
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.mqtt.subscribing import Subscribing
from edge.broker.router.batch import Publication
from edge.broker.router.connection_states import state_topic
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import VerifiedIdentity

log = logging.getLogger(__name__)

SUBSCRIBER_BEHIND = "a subscriber is behind"

CONNECTION_LIMIT = "connection limit of the user or address reached"

ASSIGNED: Final = "auto-"
"""Prefix of the client identifiers that the broker assigns (MQTT 5 section 3.1.3.1)."""

REPLIES = "replies"
"""Prefix of the Response Information, followed by the client identifier (MQTT 5 section 3.2.2.3.15)."""


class HandlerContext:
    """Objects that all handlers of one broker share."""

    __slots__ = (
        "arrivals", "certificates", "clock", "gate", "interception", "own_topics", "refusals", "router", "sessions",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        sessions: SessionRegistry,
        clock: Callable[[], float],
        arrivals: MqttLanes,
        gate: Authenticator | None = None,
        interception: Interception = NO_INTERCEPTION,
        refusals: RefusalJournal | None = None,
        *,
        certificates: bool = True,
    ) -> None:
        """`clock` returns monotonic seconds. Without a `gate` every client may do everything. `interception` can handle
        packets before the router does. `refusals` records refused clients. `certificates`: a verified client
        certificate authenticates its client."""
        self.router: Final = router
        self.sessions: Final = sessions
        self.clock: Final = clock
        self.gate: Final = gate
        self.certificates: Final = certificates
        self.interception: Final = interception
        self.own_topics: OwnTopics | None = None
        """Topics that are answered to the connections that use them; for clients that nothing else intercepts."""
        self.arrivals: Final = arrivals
        self.refusals: Final = RefusalJournal() if refusals is None else refusals

    def serve_own_topics(self, own: OwnTopics | None) -> None:
        """Answer these topics from now on, to connections that subscribe to one of them; None: none."""
        self.own_topics = own

    def identity_of(self, driver: ConnectionDriver) -> str | None:
        """Return the name in the client certificate; None where certificates do not authenticate."""
        return driver.identity if self.certificates else None

    def publisher(self, driver: ConnectionDriver) -> Callable[[Publication], None]:
        """Return the function that publishes runs. With a trace it also reports the result."""
        return self.router.publish if driver.trace is None else partial(driver.trace.publish, self.router)


class ConnectionHandler(Origin):
    """Handles the events of one MQTT connection; owner of its driver."""

    in_order = True
    """Answers keep the order of the client's packets, whoever gives them [MQTT-4.6.0-2] [MQTT-4.6.0-3]."""
    __slots__ = (
        "_admission", "_arriving", "_common", "_connect", "_connected_at", "_driver", "_grant", "_in_parts",
        "_interceptor", "_lane", "_left", "_login", "_read", "_session", "connection", "name", "user",
    )  # fmt: skip

    def __init__(self, driver: ConnectionDriver, connection: MqttConnection, common: HandlerContext) -> None:
        self.name = self.user = ""
        self.connection, self._driver = connection, driver
        self._common = common
        self._read, self._connected_at = 0, 0.0  # messages received without the lane; CONNACK in UTC seconds
        self._session: MqttSession | None = None
        """Set once, by CONNECT; `_left` says whether the connection still has it."""
        self._left = False
        """The session has been returned, or belongs to another connection."""
        self._arriving = False
        """The session is taken, and CONNACK has not been sent."""
        self._connect: ConnectEvent | None = None
        self._login: MqttLogin | None = None
        """Login of a client that named an authentication method and may re-authenticate."""
        self._grant: Grant | None = None
        """Rights of the client; None without authentication."""
        self._admission: ClientAdmission = UNCHANGED
        self._interceptor: Interceptor = PASS_THROUGH
        self._lane: MqttLane | None = None
        self._in_parts: Subscribing | None = None
        """SUBSCRIBE or UNSUBSCRIBE that is processed in parts, until its last part."""

    # --- driver's owner -----------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        try:
            self._handle(events)
        except Exception:  # the driver logs it and closes; the last event may have been among these
            self._leave(DisconnectedEvent(publish_will=True, reason="internal error"))
            raise

    def _handle(self, events: Sequence[Any]) -> None:
        publish = self._common.publisher(self._driver)
        for event in events:
            kind = type(event)
            if kind is PublishEvent:
                self._read += len(event.run.bodies)
                if self._interceptor is not PASS_THROUGH and self._interceptor.published(event):
                    continue
                run, grant = event.run, self._grant
                if not _may_send(grant, run.address):
                    record_refusal(self, RefusalCause.NOT_ALLOWED_TO_SEND, address=run.address)
                    self._refuse(event, Refusal.NOT_AUTHORIZED)
                    continue
                if run.flags & QOS_MASK < 2:
                    publish(Publication(self, run, event.packet_ids))
                    if event.head and self._interceptor is PASS_THROUGH:
                        self._lane = self._common.arrivals.learn(event, self._lane, self, self._driver, self._grant)
                else:
                    self._publish_once(run, event.packet_ids)
            elif kind is AcknowledgedEvent:
                self._attached.acknowledged(event.messages, event.outcome)
            else:
                self._control(event)

    def writable(self) -> None:
        if self._session is not None and not self._left:
            self._session.pump()
            self._interceptor.pump()

    @property
    def trace_names(self) -> tuple[str, str]:
        """See `edge.broker.model.tracing.Traceable`."""
        return self.name, self.user

    def reset_fast_path(self) -> None:
        """See `edge.broker.model.tracing.Traceable`. While traced, the lane learns no topics."""
        if self._lane is not None:
            self._lane.forget()
        elif self._session is not None and not self.connection.closed and not self._arriving:
            self.connection.receiver.forget_topics()

    # --- for the interceptor ------------------------------------------------------------------------------------

    def publish(self, run: Run, packet_ids: Sequence[int]) -> None:
        """Publish a run as the client's own. The client gets the answers under these packet identifiers."""
        if run.qos < 2:
            self._common.publisher(self._driver)(Publication(self, run, packet_ids))
        else:
            self._publish_once(run, packet_ids)

    def acknowledge(self, packet_ids: Sequence[int], qos: int, reason: ReasonCode) -> None:
        """Answer messages that are not published. Before MQTT 5 an answer has no reason code."""
        self._published.answer_unpublished(packet_ids, qos, reason)

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Forget QoS 2 messages that are not published and get no answer. The client may send them again."""
        self._published.forget(packet_ids)

    def _publish_once(self, run: Run, packet_ids: Sequence[int]) -> None:
        """Publish at QoS 2: the packet identifiers are written in the group that stores the messages."""
        session = self._attached
        if self._common.router.addresses.type_of(run.address) is AddressType.ANYCAST:
            session.state.unstored.update(packet_ids)
        else:
            session.state.answered(packet_ids)
            self._common.sessions.on_disk.save_incoming(session)
        try:
            self._common.publisher(self._driver)(Publication(self, run, qos2_tokens(packet_ids)))
        except Exception:
            self.forget(packet_ids)
            raise

    # --- AttachedConnection of the session ----------------------------------------------------------------------

    @property
    def received(self) -> int:
        return self._read if self._lane is None else self._read + self._lane.received

    def describe(self) -> ClientConnection:
        driver = self._driver
        return ClientConnection(driver.peername, self.connection.version, driver.cipher, self._connected_at)

    @property
    def congested(self) -> bool:
        return self._driver.congested

    def flush_soon(self) -> None:
        self._driver.flush_soon()

    def continue_soon(self) -> None:
        self._common.router.ready.add(self._continue)

    def _continue(self) -> None:
        if self._session is not None and not self._left:
            self._driver.run(self._session.continue_delivery)

    def taken_over(self) -> None:
        """Close: another connection has the same client identifier."""
        self.connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)
        self._driver.flush_soon()
        self._leave(DisconnectedEvent(publish_will=True, reason="session taken over", lost=True))

    # --- origin -------------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        if self._interceptor is PASS_THROUGH and max(tokens) < QOS_2:
            self.connection.puback(tokens)
            self._driver.flush_soon()
        else:
            self._published.accept(tokens, ReasonCode.SUCCESS)

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        self._published.accept(tokens, ReasonCode.NO_MATCHING_SUBSCRIBERS)

    def store_failed(self, tokens: Sequence[int]) -> None:
        self._published.mark_unstored(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if self._driver.trace is not None:
            self._driver.trace.refused("", tokens, why)
        self._published.refuse(tokens, why)

    def waits_for_consumer(self) -> bool:
        return self.connection.version < 5 and not self._interceptor.answers_at_once

    def pause_publishing(self) -> None:
        """Stop reading from the client until a subscriber of its messages has caught up."""
        self._driver.pause_reading(SUBSCRIBER_BEHIND)

    def resume_publishing(self) -> None:
        """Resume reading from the client."""
        self._driver.resume_reading(SUBSCRIBER_BEHIND)

    def abort(self) -> None:
        self._driver.abort()

    # --- control packets ----------------------------------------------------------------------------------------

    @property
    def _published(self) -> PublishAnswers:
        """Answers to messages that need more than a PUBACK. Made for each use: kept, it would be a reference cycle."""
        if self._session is None:
            raise LookupError("PUBLISH before CONNECT was accepted")
        return PublishAnswers(self, self._session, self._interceptor, self._common.sessions.on_disk)

    @property
    def _attached(self) -> MqttSession:
        if self._session is None:
            raise LookupError("event before CONNECT was accepted")
        return self._session

    def _control(self, event: Any) -> None:
        match event:
            case ConnectEvent():
                common, driver = self._common, self._driver
                login = MqttLogin(common.gate, self.connection, self, common.identity_of(driver), driver.address)
                if event.authentication_method is not None:
                    self._login = login
                login.start(event)
            case AuthenticateEvent() if self._login is not None:
                self._login.resume(event)
            case SubscribeEvent():
                self._subscribe(event)
            case UnsubscribeEvent():
                self._unsubscribe(event)
            case PubRecEvent():
                self._attached.journal.received(event.packet_ids)
            case RejectedPublish():
                self._refuse(event, Refusal.FORMAT_INVALID)
            case PubRelEvent():
                self._common.sessions.on_disk.release(self._attached, event.packet_ids)
            case DisconnectedEvent():
                self._leave(event)
            case _:
                raise TypeError(f"unknown event {type(event).__name__}")

    def admit(self, connect: ConnectEvent, proven: VerifiedIdentity | None, data: bytes | None = None) -> None:
        """Give the authenticated client its session. `proven` is None without authentication."""
        assigned = None if connect.client_id else f"{ASSIGNED}{uuid.uuid4().hex}"
        self.name = assigned or connect.client_id
        self.user = user = "" if proven is None else proven.user
        if not self._common.sessions.has_room(self.name, user):
            record_refusal(self, RefusalCause.TOO_MANY_SESSIONS)
            self.connection.refuse(ReasonCode.QUOTA_EXCEEDED)
            return
        try:
            self._admission = self._common.interception.admit(
                user if proven is not None else connect.username, authenticated=proven is not None
            )
        except NotAdmitted as error:
            log.warning("%s: connection refused: %s", self.name, error)
            record_refusal(self, RefusalCause.NOT_ADMITTED, detail=str(error))
            self.connection.refuse(ReasonCode.NOT_AUTHORIZED)
            return
        if proven is not None:
            refusal = self._take_grant(proven, connect)
            if refusal is not None:
                self.connection.refuse(refusal)
                return
        if not self._driver.identified(user):
            self._release()
            record_refusal(self, RefusalCause.TOO_MANY_CONNECTIONS)
            self.connection.refuse(ReasonCode.QUOTA_EXCEEDED, CONNECTION_LIMIT)
            return
        self.connection.admit()
        agreed = negotiate(connect, self.connection.limits, keeps_session=self._admission.keeps_session)
        self._take_session(connect.accepted(), agreed, assigned, data)

    def _take_session(
        self, connect: ConnectEvent, agreed: ConnectTerms, assigned: str | None, data: bytes | None
    ) -> None:
        """Take the session. CONNACK waits for the commit, so that an ended session cannot return after a power cut."""
        self._arriving = True
        clean_start = connect.clean_start or not self._admission.keeps_session
        session, present = self._common.sessions.take(
            self.name, self, clean_start=clean_start, expiry_s=agreed.session_expiry_s, user=self.user
        )
        self._session = session
        self._interceptor = self._admission.interceptor(self, session)
        will = self._interceptor.will(connect.will, self._grant)
        self._connect = connect if will is connect.will else msgspec.structs.replace(connect, will=will)
        self._drop_subscriptions()
        relay = self._grant is not None and self._grant.may_relay  # without authentication no client is a relay
        accept = partial(
            self.connection.accept,
            session.state,
            present,
            publisher=publisher_name(self.user or (ANONYMOUS if assigned else self.name), self.name, relay=relay),
            assigned_client_id=assigned,
            session_expiry_s=agreed.announced_session_expiry_s,
            server_keep_alive_s=agreed.announced_keep_alive_s,
            response_information=f"{REPLIES}/{self.name}" if connect.request_response_information else None,
            authentication_data=data,
        )
        self._common.sessions.save(session, will, self, partial(self._accept, session, accept))

    def _accept(self, session: MqttSession, accept: Callable[..., Sequence[Any]], why: Refusal | None) -> None:
        """Send CONNACK: the session is on disk, or could not be written because of `why`."""
        if self._left or self.connection.closed:
            return  # the client did not wait
        self._arriving = False
        if why is not None:
            log.warning("%s: connection refused, its session cannot be stored: %s", self.name, why.value)
            self.connection.refuse(ReasonCode.SERVER_UNAVAILABLE, f"the session cannot be stored: {why.value}")
            self._leave(DisconnectedEvent(publish_will=False, reason="its session could not be stored"))
        else:
            self._common.sessions.join(session)
            self._connected_at = self._common.sessions.utc_s()
            events = accept(now=self._common.clock())
            if not self.connection.closed:
                session.pump()
            self.handle(events)
        self._driver.flush_soon()

    # --- authorization ------------------------------------------------------------------------------------------

    def renewed(self, proven: VerifiedIdentity) -> bool:
        """Apply the rights of a client that re-authenticated. Return False if it may not continue as this user."""
        grant = self._grant
        if grant is None or self._common.gate is None or not self._common.gate.renew(grant, proven):
            return False
        if self._connect is not None and (will := self._connect.will) and not grant.may_send(will.run.address):
            return False
        self._drop_subscriptions()
        return True

    def _drop_subscriptions(self) -> None:
        """End the subscriptions that the client no longer has a right to."""
        if self._session is not None and self._grant is not None:
            self._common.sessions.drop_forbidden(self._session, self._grant)

    def _take_grant(self, proven: VerifiedIdentity, connect: ConnectEvent) -> ReasonCode | None:
        """Get the grant of the user for this connection. Return a reason code if the client may not connect."""
        owner = self._common.sessions.owner(self.name)
        if owner not in (None, "", proven.user):
            log.warning("%s: the session belongs to user %s, not to %s", self.name, owner, proven.user)
            record_refusal(self, RefusalCause.CLIENT_ID_TAKEN)
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        grant = self._common.gate.grant(proven, self.name, self._revoked) if self._common.gate is not None else None
        if grant is None:
            record_refusal(self, RefusalCause.UNKNOWN_USER)
            return ReasonCode.NOT_AUTHORIZED
        self._grant = grant
        grant.allow_own_topic(state_topic(self.name))
        will = connect.will
        if will is not None and not self._admission.takes_will and not grant.may_send(will.run.address):
            log.warning("%s: connection refused: no right to send its will to %s", self.name, will.run.address)
            record_refusal(self, RefusalCause.NOT_ALLOWED_TO_SEND, address=will.run.address, detail="its will")
            self._release()
            return ReasonCode.NOT_AUTHORIZED
        return None

    def _refuse(self, event: PublishEvent | RejectedPublish, why: Refusal) -> None:
        """Refuse messages: answer in order at QoS 1 and 2, only count at QoS 0."""
        packet_ids = event.packet_ids
        if event.run.qos == 0:
            self._common.router.figures.refused += len(event.run.bodies)
            if self._driver.trace is not None:
                self._driver.trace.refused(event.run.address, packet_ids, why)
        elif event.run.qos == 2:
            self._attached.state.unstored.update(packet_ids)
            packet_ids = qos2_tokens(packet_ids)
        self._common.router.answers.refuse(self, packet_ids, why)

    def _revoked(self, why: Ended) -> None:
        """Close the connection. Publish the will only if the token expired: other rights may not allow it."""
        expired = why is Ended.EXPIRED
        self.connection.disconnect(ReasonCode.MAXIMUM_CONNECT_TIME if expired else ReasonCode.NOT_AUTHORIZED)
        self._driver.flush_soon()
        self._leave(DisconnectedEvent(publish_will=expired, reason=why.value))

    def _release(self) -> None:
        if self._grant is not None and self._common.gate is not None:
            self._common.gate.release(self._grant)

    def _subscribe(self, event: SubscribeEvent) -> None:
        _use_own_topics(self, event)
        subscribing = self._subscribing(last=event.last)
        subscribing.subscribe(event)

        def answer() -> None:
            self.connection.subscribed(event.packet_id, subscribing.codes, subscribing.text)
            _deliver_retained(self, subscribing.wanting_retained)  # simple clients drop messages before SUBACK

        if event.last:
            subscribing.when_joined(partial(_answer_when_saved, self, answer))
        else:
            self._common.sessions.on_disk.save(self._attached)

    def _unsubscribe(self, event: UnsubscribeEvent) -> None:
        subscribing = self._subscribing(last=event.last)
        subscribing.unsubscribe(event)
        if event.last:
            _answer_when_saved(self, partial(self.connection.unsubscribed, event.packet_id, subscribing.codes))
        else:
            self._common.sessions.on_disk.save(self._attached)

    def _subscribing(self, *, last: bool) -> Subscribing:
        """Return the SUBSCRIBE that is processed in parts, or a new one. `last`: this is the last part."""
        found, terms = self._in_parts, self._connect
        if terms is None:
            raise LookupError("SUBSCRIBE before CONNECT was accepted")
        if found is None:
            forbidden = _recorder(self, RefusalCause.NOT_ALLOWED_TO_RECEIVE)
            found = Subscribing(self._attached, self._common.sessions, self._interceptor, self._grant, terms, forbidden)
        self._in_parts = None if last else found
        return found

    def _leave(self, event: DisconnectedEvent) -> None:
        session = self._session
        if self._lane is not None:
            self._lane.leave()  # before the will
            self._lane = None
        self._common.router.forget_origin(self)
        self._release()
        if event.violation and not self.connection.spoken:
            record_refusal(self, RefusalCause.PROTOCOL_ERROR, detail=event.reason)
        if session is None and self._connect is None and event.lost and not self.connection.spoken:
            log.warning("%s: not an MQTT client: %s", self._driver.address, event.reason)
        if session is None or self._left:
            return
        self._left = True
        log.debug("%s: %s", self.name, event.reason)
        try:
            self._detach(session, event)
        finally:
            self._interceptor.leave()

    def _detach(self, session: MqttSession, event: DisconnectedEvent) -> None:
        """Return the session to the registry."""
        if event.session_expiry_s is not None and self._admission.keeps_session:
            expiry_s = min(event.session_expiry_s, self.connection.limits.session_expiry_s_max)
            self._common.sessions.expire_after(session, expiry_s)
        gone = event.publish_will or self._arriving
        will = self._connect.will if self._connect is not None and gone else None
        self._common.sessions.leave(session, self, will, self._common.clock(), lost=event.lost)


def router_of(handler: ConnectionHandler) -> Router:
    """Return the router of the address space of a connection."""
    return handler._common.router


def _may_send(grant: Grant | None, address: str) -> bool:
    """Return whether a client may publish to an address as a usual one. `grant`: None without authentication."""
    if address.startswith(OWN_ADDRESSES):
        return False  # what no interceptor has taken
    return grant is None or bool(grant.sends.get(address)) or grant.may_send(address)


def _use_own_topics(handler: ConnectionHandler, event: SubscribeEvent) -> None:
    """Intercept own topics from now on, if the client subscribes to one of them. Its fast path is forgotten, as that
    knows topics and not interceptors."""
    own = handler._common.own_topics
    if own is None or handler._interceptor is not PASS_THROUGH:
        return
    if any(request.filter.startswith(OWN_ADDRESSES) for request in event.requests):
        handler._interceptor = own.interceptor(handler, handler._attached, handler._grant)
        handler.reset_fast_path()
        if handler._in_parts is not None:
            handler._in_parts.interceptor = handler._interceptor


def _deliver_retained(handler: ConnectionHandler, subscribers: Iterable[Subscriber]) -> None:
    """Send the retained messages of new subscriptions."""
    session, sessions = handler._attached, handler._common.sessions
    for subscriber in subscribers:
        pattern, subscription = subscriber.request.filter, subscriber.live or subscriber.durable
        if subscription is not None and session.subscribers.get(pattern) is subscriber and not handler._left:
            session.deliver_retained(subscriber, subscription, sessions.retained(pattern))
    if not handler._left:
        session.pump()
        handler._interceptor.pump()


def _answer_when_saved(handler: ConnectionHandler, answer: Callable[[], None]) -> None:
    """Send SUBACK or UNSUBACK once the session is on disk, so that a power cut does not undo what they say."""
    if handler._left:
        return  # while it joined thousands of queues

    def send() -> None:
        answer()
        handler._driver.flush_soon()

    handler._common.sessions.on_disk.save_then_call(handler._attached, send)


def record_refusal(handler: ConnectionHandler, cause: RefusalCause, address: str = "", detail: str = "") -> None:
    """Record a refusal of a client for operators."""
    _recorder(handler, cause, detail)(address)


def _recorder(handler: ConnectionHandler, cause: RefusalCause, detail: str = "") -> Callable[[str], None]:
    """Return a function that records the refusal of an address, without a reference to the handler.

    An assigned client identifier is left out, as it differs at each connect.
    """
    client = "" if handler.name.startswith(ASSIGNED) else handler.name
    refusals, remote, user = handler._common.refusals, handler._driver.address, handler.user
    return lambda address: refusals.add(cause, remote, user=user, client=client, address=address, detail=detail)
