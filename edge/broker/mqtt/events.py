"""Events of the MQTT state machine for the session: one class for each packet type that matters above the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from bridge.hidden import hides
from bridge.message import Run
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.mqtt.limits import FILTERS_AT_ONCE, TERMS_SHARED_MAX


class Will(msgspec.Struct, frozen=True, gc=False):
    """The Will Message of CONNECT (MQTT 5 section 3.1.2.5); its run carries QoS and RETAIN in the flags."""

    run: Run
    delay_s: int = 0


@hides("password", "authentication_data")
class ConnectEvent(msgspec.Struct, frozen=True, gc=False):
    """A valid CONNECT. The session answers with `MqttConnection.accept` or `MqttConnection.refuse`."""

    version: int
    """Protocol level: 3 (MQTT 3.1), 4 (3.1.1), 5."""
    client_id: str
    clean_start: bool
    keep_alive_s: int
    session_expiry_s: int
    """0: the session ends with the connection; 0xFFFFFFFF: never. Before MQTT 5: 0 with clean session, else never."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    receive_maximum: int = 65_535
    maximum_packet_size: int = 268_435_460
    topic_alias_maximum: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    authentication_method: str | None = None
    authentication_data: bytes = b""
    bridge: bool = False
    """Set for the bridge of another broker: its subscriptions use No Local and Retain As Published."""

    def accepted(self) -> ConnectEvent:
        """Return the part that is needed after CONNACK, without credentials.

        Most clients of a fleet agree in it; they share one object.
        """
        terms = msgspec.structs.replace(self, client_id="", username=None, password=None, authentication_data=b"")
        return _shared(terms) if terms.will is None and terms.authentication_method is None else terms

    @property
    def kept_bytes(self) -> int:
        """Approximate size of an accepted one: client identifier and payload of the Will Message."""
        return len(self.client_id) + (0 if self.will is None else sum(map(len, self.will.run.bodies)))


@lru_cache(maxsize=TERMS_SHARED_MAX)
def _shared(terms: ConnectEvent) -> ConnectEvent:
    """Return the first equal object."""
    return terms


@hides("data")
class AuthenticateEvent(msgspec.Struct, frozen=True, gc=False):
    """AUTH of a client (MQTT 5 section 4.12). The session answers with `MqttConnection.challenge`, or with `accept` or
    `refuse` (`authenticated` or `disconnect` when the connection was open before).

    `again`: the client starts a re-authentication; else it continues the exchange.
    """

    data: bytes
    again: bool


class PublishEvent(msgspec.Struct, frozen=True, gc=False):
    """PUBLISH packets that arrived together and differ only in payload and packet identifier.

    `packet_ids` has one entry a message at QoS 1 and 2 and is empty at QoS 0. A QoS 2 packet id that is already
    being received is answered by the state machine and is not reported again. The session answers with
    `MqttConnection.acknowledge(qos, packet_ids)` (PUBACK or PUBREC) once the messages are stored.
    """

    run: Run
    packet_ids: list[int]
    head: bytes = b""
    """Encoded topic name, if this is the first such packet and the name is cached; else empty."""
    block: bytes = b""
    """Encoded properties of such packets."""


class RejectedPublish(msgspec.Struct, frozen=True, gc=False):
    """PUBLISH packets of QoS 1 or 2 that are refused without ending the connection.

    The session answers with `MqttConnection.acknowledge(qos, packet_ids, reason)`, in order.
    """

    run: Run
    packet_ids: list[int]
    reason: ReasonCode


class PubRelEvent(msgspec.Struct, frozen=True, gc=False):
    """PUBREL for these packet identifiers: they are to be forgotten. `MqttConnection.complete` sends PUBCOMP."""

    packet_ids: list[int]


class MqttDelivery(msgspec.Struct, frozen=True):  # with GC: its token refers back to its holder
    """A run to send with `MqttConnection.deliver`, one PUBLISH for each message.

    `qos` is the one granted (never above the run's own), `retain` the RETAIN flag to send, `identifiers` the
    subscription identifiers (MQTT 5 section 3.3.2.3.8), `token` an object of the session to identify it.
    """

    run: Run
    qos: int
    retain: bool
    token: object
    identifiers: tuple[int, ...] = ()
    kept: bool = False
    """QoS 2 with its packet identifier on disk: PUBLISH and PUBREL wait for `MqttConnection.send_committed`."""


class PubRecEvent(msgspec.Struct, frozen=True, gc=False):
    """PUBREC for these packet identifiers of kept deliveries. `MqttConnection.send_committed` sends PUBREL."""

    packet_ids: list[int]


class AcknowledgedEvent(msgspec.Struct, frozen=True, gc=False):
    """Messages that the client has answered for good (PUBACK, PUBCOMP, or PUBREC with an error), in this order.

    Each is (delivery, index of the message in ``delivery.run.bodies``). `outcome`: REJECTED if the reason code is 0x80
    or above; TOO_LARGE for a message of an earlier connection that is too large for this one, and was not sent again.
    """

    messages: list[tuple[MqttDelivery, int]]
    outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED


class SubscriptionRequest(msgspec.Struct, frozen=True, gc=False):
    """One filter of a SUBSCRIBE with its options (MQTT 5 section 3.8.3.1)."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class SubscribeEvent(msgspec.Struct, frozen=True, gc=False):
    """Up to `FILTERS_AT_ONCE` filters of a SUBSCRIBE. No other event comes between the parts of one packet.

    After the last part the session answers with `MqttConnection.subscribed(packet_id, codes)`.
    """

    packet_id: int
    requests: list[SubscriptionRequest]
    identifier: int = 0
    last: bool = True


class UnsubscribeEvent(msgspec.Struct, frozen=True, gc=False):
    """Up to `FILTERS_AT_ONCE` filters of an UNSUBSCRIBE, answered with `MqttConnection.unsubscribed`."""

    packet_id: int
    filters: list[str]
    last: bool = True


class DisconnectedEvent(msgspec.Struct, frozen=True, gc=False):
    """The connection has ended. Always the last event, exactly once.

    `publish_will`: false after a normal DISCONNECT (or one without a will), true otherwise.
    `session_expiry_s`: set when DISCONNECT changed it (MQTT 5 section 3.14.2.2.2).
    `reason`: text for the log.
    `lost`: the client left without DISCONNECT, or violated the protocol; an unanswered message may be the cause.
    `violation`: the client violated the protocol, as `reason` says.
    """

    publish_will: bool
    reason: str
    session_expiry_s: int | None = None
    lost: bool = False
    violation: bool = False


Event = (
    ConnectEvent
    | AuthenticateEvent
    | PublishEvent
    | RejectedPublish
    | PubRelEvent
    | AcknowledgedEvent
    | PubRecEvent
    | SubscribeEvent
    | UnsubscribeEvent
    | DisconnectedEvent
)
"""Any event of the state machine."""


def subscribe_parts(
    packet_id: int, requests: Sequence[SubscriptionRequest], identifier: int
) -> Iterator[SubscribeEvent]:
    """Split a SUBSCRIBE into events of up to `FILTERS_AT_ONCE` filters."""
    for start in range(0, len(requests), FILTERS_AT_ONCE):
        stop = start + FILTERS_AT_ONCE
        yield SubscribeEvent(packet_id, list(requests[start:stop]), identifier, stop >= len(requests))


def unsubscribe_parts(packet_id: int, filters: Sequence[str]) -> Iterator[UnsubscribeEvent]:
    """Split an UNSUBSCRIBE into events of up to `FILTERS_AT_ONCE` filters."""
    for start in range(0, len(filters), FILTERS_AT_ONCE):
        stop = start + FILTERS_AT_ONCE
        yield UnsubscribeEvent(packet_id, list(filters[start:stop]), stop >= len(filters))
