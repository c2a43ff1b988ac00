"""Where another layer steps in between an MQTT client and the router: publish, subscribe, and how a client connects.

The session asks an `Interceptor` before it does what a packet says. The classes here step in nowhere: they are the
default, and the base of those that do (`edge.broker.hono.mqtt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bridge.message import Run
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import PublishEvent, SubscriptionRequest, Will
from edge.broker.mqtt.session import MqttSession


class NotAdmitted(Exception):
    """The client may not connect under the name it has."""


class InterceptedPublisher(Protocol):
    """The connection's session, as an interceptor uses it."""

    name: str
    connection: MqttConnection

    def publish(self, run: Run, packet_ids: Sequence[int]) -> None:
        """Publish as the client's; answered to it under these packet identifiers."""
        ...

    def acknowledge(self, packet_ids: Sequence[int], qos: int, reason: ReasonCode) -> None:
        """Answer messages that are not published; before MQTT 5 an answer says no reason."""
        ...

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Messages of QoS 2 that are not published are not answered either: they may come again."""
        ...

    def flush_soon(self) -> None:
        """Something is to be sent."""
        ...


class Interceptor:
    """Of one connection. Steps in nowhere."""

    __slots__ = ()

    def will(self, will: Will | None, grant: Grant | None) -> Will | None:
        """The Will Message as it is to be published; None: none is."""
        return will

    def published(self, event: PublishEvent) -> bool:
        """True when the messages are dealt with; False leaves them to the session."""
        return False

    def accepted(self, packet_ids: Sequence[int]) -> None:
        """The session acknowledges these."""

    def refused(self, packet_ids: Sequence[int], qos: int, why: Refusal) -> bool:
        """True when the router's refusal is dealt with; False leaves it to the session. Not asked once the connection
        is over."""
        return False

    def subscribe(self, request: SubscriptionRequest) -> ReasonCode | None:
        """The answer to a subscription that is dealt with; None leaves it to the session."""
        return None

    def unsubscribe(self, pattern: str) -> bool:
        """True when there was such a subscription among those dealt with here."""
        return False

    def pump(self) -> None:
        """The client has room: deliver what waits for subscriptions dealt with here."""

    def leave(self) -> None:
        """The connection is over."""


class ClientAdmission:
    """How one client connects. Changes nothing."""

    __slots__ = ()

    @property
    def keeps_session(self) -> bool:
        """The session may outlive the connection, as the client wishes."""
        return True

    @property
    def takes_will(self) -> bool:
        """`Interceptor.will` deals with a will the client has no right to leave; else such a client is refused."""
        return False

    def interceptor(self, publisher: InterceptedPublisher, session: MqttSession) -> Interceptor:
        """For the connection, once the client has its session."""
        return PASS_THROUGH


class Interception:
    """Of one broker. Admits everybody, and changes nothing."""

    __slots__ = ()

    def admit(self, user: str | None, *, authenticated: bool) -> ClientAdmission:
        """For a client that calls itself `user`, which is proven when it is `authenticated`; where nobody has to say
        who he is, it is what CONNECT says. Raises NotAdmitted."""
        return UNCHANGED


PASS_THROUGH: Final = Interceptor()
UNCHANGED: Final = ClientAdmission()
NO_INTERCEPTION: Final = Interception()
