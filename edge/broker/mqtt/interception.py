"""Extension points between an MQTT client and the router: connecting, publishing and subscribing.

The session calls an `Interceptor` before it processes a packet. The classes here change nothing. They are the default,
and the base classes of those that do (`edge.broker.hono.mqtt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from bridge.message import Run
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import PublishEvent, SubscriptionRequest, Will
from edge.broker.mqtt.session import MqttSession


class NotAdmitted(Exception):
    """The client may not connect under its name."""


class InterceptedPublisher(Protocol):
    """The parts of a connection's handler that an interceptor uses."""

    name: str
    connection: MqttConnection

    def publish(self, run: Run, packet_ids: Sequence[int]) -> None:
        """Publish a run as the client's own. The client gets the answers under these packet identifiers."""
        ...

    def acknowledge(self, packet_ids: Sequence[int], qos: int, reason: ReasonCode) -> None:
        """Answer messages that are not published. Before MQTT 5 an answer has no reason code."""
        ...

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Forget QoS 2 messages that are not published and get no answer. The client may send them again."""
        ...

    def flush_soon(self) -> None:
        """Send the written bytes soon."""
        ...


class OwnTopics(Protocol):
    """Topics below `authorization.OWN_ADDRESSES`: answered to the connection that uses them."""

    def interceptor(self, publisher: Any, session: MqttSession, grant: Grant | None) -> Interceptor:
        """Return the interceptor of a connection that subscribes to one of them. `grant`: None without
        authentication."""
        ...


class Interceptor:
    """Interceptor of one connection; this one changes nothing."""

    __slots__ = ()

    answers_at_once = False
    """Before MQTT 5, messages without a consumer are answered at once, and do not wait for one."""

    def will(self, will: Will | None, grant: Grant | None) -> Will | None:
        """Return the Will Message to publish; None: no will."""
        return will

    def published(self, event: PublishEvent) -> bool:
        """Return True if the messages are handled; False leaves them to the session."""
        return False

    def accepted(self, packet_ids: Sequence[int]) -> None:
        """Called when the session acknowledges these messages."""

    def refused(self, packet_ids: Sequence[int], qos: int, why: Refusal) -> bool:
        """Return True if the router's refusal is handled; False leaves it to the session.

        Not called after the connection has ended.
        """
        return False

    def subscribe(self, request: SubscriptionRequest) -> ReasonCode | None:
        """Return the answer to a subscription that is handled; None leaves it to the session."""
        return None

    def unsubscribe(self, pattern: str) -> bool:
        """Return True if a subscription that is handled here was removed."""
        return False

    def pump(self) -> None:
        """Deliver waiting messages of subscriptions that are handled here; the client has room."""

    def leave(self) -> None:
        """Called when the connection has ended."""


class ClientAdmission:
    """Admission of one client; this one changes nothing."""

    __slots__ = ()

    @property
    def keeps_session(self) -> bool:
        """True if the session may outlive the connection."""
        return True

    @property
    def takes_will(self) -> bool:
        """True if `Interceptor.will` handles a will that the client has no right to; else the client is refused."""
        return False

    def interceptor(self, publisher: InterceptedPublisher, session: MqttSession) -> Interceptor:
        """Return the interceptor of the connection, once the client has its session."""
        return PASS_THROUGH


class Interception:
    """Interception of one broker; this one admits every client and changes nothing."""

    __slots__ = ()

    def admit(self, user: str | None, *, authenticated: bool) -> ClientAdmission:
        """Return the admission of a client. Raises NotAdmitted.

        `user` is the verified user if `authenticated`, else the user name of CONNECT.
        """
        return UNCHANGED


PASS_THROUGH: Final = Interceptor()
UNCHANGED: Final = ClientAdmission()
NO_INTERCEPTION: Final = Interception()
