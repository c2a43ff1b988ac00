"""Values that a selector can use: application properties, JMS header fields and AMQP fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from bridge import sections as s
from bridge.amqp_values import decode
from edge.broker.message.amqp_identifiers import as_text
from edge.broker.message.translation import PROPERTY_NAMES, plain_value

_JMS_NAMES: Final = {
    "message-id": "JMSMessageID",
    "user-id": "JMSXUserID",
    "to": "JMSDestination",
    "subject": "JMSType",
    "reply-to": "JMSReplyTo",
    "correlation-id": "JMSCorrelationID",
    "absolute-expiry-time": "JMSExpiration",
    "creation-time": "JMSTimestamp",
    "group-id": "JMSXGroupID",
    "group-sequence": "JMSXGroupSeq",
}
_IDENTIFIERS: Final = ("JMSMessageID", "JMSCorrelationID")
_SELECTABLE_NAMES: Final = tuple(
    (f"properties.{name.replace('-', '_')}", *([_JMS_NAMES[name]] if name in _JMS_NAMES else []))
    for name in PROPERTY_NAMES
)
"""Names of each field of the properties in selectors."""
_HEADER_FIELDS: Final = (
    "header.durable",
    "header.priority",
    "header.ttl",
    "header.first_acquirer",
    "header.delivery_count",
)


def selectable_values(message: bytes) -> dict[str, Any]:
    """Return the values of a message for selectors, by name. Raises `DecodeError` for an invalid message.

    They are the application properties, the JMS header fields (Jakarta Messaging 3.1 section 3.8.1.1 and the JMS
    mapping of AMQP), and all fields of header and properties as ``header.ttl`` and ``properties.content_type``, with
    underscores for hyphens. The body is not read.
    """
    header: Sequence[Any] = ()
    properties: Sequence[Any] = ()
    values: dict[str, Any] = {}
    for section in s.sections(message):
        if section.code > s.APPLICATION_PROPERTIES:
            break
        if section.code in (s.HEADER, s.PROPERTIES, s.APPLICATION_PROPERTIES):
            value, _ = decode(message, section.value)
            if section.code == s.HEADER and isinstance(value, list):
                header = value
            elif section.code == s.PROPERTIES and isinstance(value, list):
                properties = value
            elif section.code == s.APPLICATION_PROPERTIES and isinstance(value, dict):
                values = {str(name): item for name, item in value.items()}
    durable, priority = bool(header) and header[0] is True, 4
    if len(header) > 1 and type(header[1]) is int:
        priority = header[1]
    for name, value in zip(_HEADER_FIELDS, (durable, priority, *header[2:]), strict=False):
        values[name] = value
    values["JMSPriority"] = priority
    values["JMSDeliveryMode"] = "PERSISTENT" if durable else "NON_PERSISTENT"
    for names, value in zip(_SELECTABLE_NAMES, properties, strict=False):
        if value is not None:
            shown = int(value) if isinstance(value, int) else str(plain_value(value))
            for name in names:
                values[name] = as_text(value) if name in _IDENTIFIERS and isinstance(value, int | UUID) else shown
    return values
