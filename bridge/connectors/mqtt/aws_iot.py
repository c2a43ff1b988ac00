"""MQTT 5 as AWS IoT Core speaks it, with its quotas for topics, messages and rates.

AWS IoT Core ends the connection of a client that violates a quota, so a message that it would not take is rejected
here. It discards messages above the rate of a connection without a PUBACK: they are paced, and a missing PUBACK ends
the connection, over which they are sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from bridge.connectors.limits import (
    AWS_CONTENT_TYPE_BYTES_MAX,
    AWS_CORRELATION_BYTES_MAX,
    AWS_IN_FLIGHT_MAX,
    AWS_PAYLOAD_BYTES_MAX,
    AWS_PUBACK_TIMEOUT_S,
    AWS_PUBLISH_BYTES_PER_S,
    AWS_PUBLISHES_AT_ONCE,
    AWS_PUBLISHES_PER_S,
    AWS_SIGNATURE_LIFETIME_S,
    AWS_USER_PROPERTIES_BYTES_MAX,
    AWS_WEBSOCKET_LIFETIME_S,
)
from bridge.connectors.messages import ConnectorMessage
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.aws_names import region_of, topic_fault
from bridge.connectors.mqtt.aws_signature import AccessKey, SigningScope, signed_query
from bridge.connectors.mqtt.dialects import Mqtt5, MqttDialect
from bridge.connectors.mqtt.service_terms import PublishQuota, ServiceTerms
from bridge.connectors.settings import ClientIdentity, MqttSettings
from bridge.publish_properties import PublishProperties

SERVICE: Final = "iotdevicegateway"
"""Name of the service in signatures for MQTT over WebSocket."""
QUOTA: Final = PublishQuota(
    AWS_IN_FLIGHT_MAX,
    AWS_PUBLISHES_PER_S,
    AWS_PUBLISH_BYTES_PER_S,
    AWS_PUBLISHES_AT_ONCE,
    AWS_PUBACK_TIMEOUT_S,
)
CERTIFICATE_PROTOCOL: Final = "x-amzn-mqtt-ca"
"""ALPN name of MQTT with a client certificate on port 443."""
PASSWORD_PROTOCOL: Final = "mqtt"  # noqa: S105 - a protocol's name
"""ALPN name of MQTT with a custom authorizer on port 443."""
_HINT: Final = (
    "check the access key, its right to iot:Connect with this client id, mqtt.region, and this gateway's clock"
)


class AwsMqtt5(Mqtt5):
    """MQTT 5 at AWS IoT Core."""

    peer = "AWS IoT Core"

    def publish(
        self, message: ConnectorMessage, packet_id: int, *, dup: bool, terms: packets.ConnackTerms, now_ns: int
    ) -> bytes:
        _check(message)
        return super().publish(message, packet_id, dup=dup, terms=terms, now_ns=now_ns)

    def _properties(self, message: ConnectorMessage, now_ns: int) -> PublishProperties:
        properties = super()._properties(message, now_ns)
        size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.users)
        if size > AWS_USER_PROPERTIES_BYTES_MAX:
            raise ValueError(f"user properties of {size} bytes; AWS IoT Core accepts {AWS_USER_PROPERTIES_BYTES_MAX}")
        return properties


DIALECTS: Final[Sequence[MqttDialect]] = (AwsMqtt5(),)
"""Only MQTT 5, which AWS IoT Core always speaks: after a closed connection, 3.1.1 would drop names and properties."""


def service_of(
    identity: ClientIdentity, settings: MqttSettings, host: str, now_ns: Callable[[], int], *, websocket: bool
) -> tuple[ClientIdentity, Sequence[MqttDialect], ServiceTerms]:
    """Return our identity, the versions to try, and the terms. `host`: of the first endpoint; `now_ns` is UTC.

    With `websocket` the user name and password are an access key, which signs the request. Raises ValueError for
    settings that the configuration's rules refuse.
    """
    protocol = CERTIFICATE_PROTOCOL if identity.password is None else PASSWORD_PROTOCOL
    terms = ServiceTerms(quota=QUOTA, application_protocol=protocol, disconnects=True)
    if not websocket or identity.username is None or identity.password is None:
        return identity, DIALECTS, terms
    region = settings.region or region_of(host)
    if region is None:
        raise ValueError("no region is configured")
    key, scope = AccessKey(identity.username, identity.password), SigningScope(region, SERVICE)

    def sign_path(host: str, path: str) -> str:
        date = datetime.fromtimestamp(now_ns() // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        return f"{path}?{signed_query(key, scope, host, path, date, AWS_SIGNATURE_LIFETIME_S)}"

    signed = terms._replace(sign_path=sign_path, renew_after_s=AWS_WEBSOCKET_LIFETIME_S, websocket_hint=_HINT)
    return ClientIdentity(identity.client_id), DIALECTS, signed


def _check(message: ConnectorMessage) -> None:
    """Raise ValueError with the reason when AWS IoT Core would disconnect us for a message."""
    fault = topic_fault(message.target)
    if fault:
        raise ValueError(f"the topic {fault}")
    properties = message.properties
    if properties.response_topic is not None and (fault := topic_fault(properties.response_topic)):
        raise ValueError(f"the response topic {fault}")
    for name, length, most in (
        ("content type", len((properties.content_type or "").encode()), AWS_CONTENT_TYPE_BYTES_MAX),
        ("correlation data", len(properties.correlation_data or b""), AWS_CORRELATION_BYTES_MAX),
    ):
        if length > most:
            raise ValueError(f"{name} of {length} bytes; AWS IoT Core accepts {most}")
    size = len(message.payload)
    if size > AWS_PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {size} bytes; AWS IoT Core accepts {AWS_PAYLOAD_BYTES_MAX}")
