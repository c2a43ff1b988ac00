"""What a selector may name of a message: application properties, JMS' header fields, and AMQP's own fields."""

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
"""What a selector may call each field of the properties."""
_HEADER_FIELDS: Final = (
    "header.durable",
    "header.priority",
    "header.ttl",
    "header.first_acquirer",
    "header.delivery_count",
)


def selectable(message: bytes) -> dict[str, Any]:
    """What a selector may name of a whole message. Raises `DecodeError` when it is none.

    Its application properties; JMS' header fields (Jakarta Messaging 3.1 section 3.8.1.1 and the JMS mapping of AMQP);
    and every field of the header and properties sections as ``header.ttl``, ``properties.content_type``, underscores
    for the hyphens a name cannot have. The body is not looked at.
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
