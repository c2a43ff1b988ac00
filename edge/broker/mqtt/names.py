"""Check topic names and topic filters (section 4.7 of MQTT 5 and of MQTT 3.1.1). Matching is in the router."""

from __future__ import annotations

from edge.broker.limits import ADDRESS_BYTES_MAX
from edge.broker.message.mqtt_errors import ProtocolError
from edge.broker.message.mqtt_reason_codes import ReasonCode

SHARE = "$share/"
"""Prefix of the filter of a shared subscription (MQTT 5 section 4.8.2)."""


def check_topic_name(topic: str, levels_max: int) -> None:
    """Raise ProtocolError (0x90) unless `topic` can be published to: not empty [MQTT-4.7.3-1], no wildcard
    [MQTT-3.3.2-2], at most `levels_max` levels and `ADDRESS_BYTES_MAX` bytes."""
    if not topic:
        raise ProtocolError("empty topic name", ReasonCode.TOPIC_NAME_INVALID)
    if "+" in topic or "#" in topic:
        raise ProtocolError("wildcard in a topic name", ReasonCode.TOPIC_NAME_INVALID)
    if len(topic) > ADDRESS_BYTES_MAX or len(topic.encode()) > ADDRESS_BYTES_MAX:
        raise ProtocolError(f"topic name of more than {ADDRESS_BYTES_MAX} bytes", ReasonCode.TOPIC_NAME_INVALID)
    if topic.count("/") >= levels_max:
        raise ProtocolError(f"topic name of more than {levels_max} levels", ReasonCode.TOPIC_NAME_INVALID)


def check_topic_filter(topic_filter: str, levels_max: int) -> None:
    """Raise ProtocolError (0x8F) unless `topic_filter` is well-formed: not empty [MQTT-4.7.3-1], `#` last and a level
    of its own [MQTT-4.7.1-1], `+` a level of its own [MQTT-4.7.1-2], a share name without wildcards and with a filter
    behind it [MQTT-4.8.2-1] [MQTT-4.8.2-2], at most `levels_max` levels."""
    if not topic_filter:
        raise ProtocolError("empty topic filter", ReasonCode.TOPIC_FILTER_INVALID)
    if topic_filter.count("/") >= levels_max:
        raise ProtocolError(f"topic filter of more than {levels_max} levels", ReasonCode.TOPIC_FILTER_INVALID)
    rest = topic_filter
    if topic_filter.startswith(SHARE):
        name, _, rest = topic_filter[len(SHARE) :].partition("/")
        if not name or "+" in name or "#" in name or not rest:
            raise ProtocolError("shared subscription without a name or a filter", ReasonCode.TOPIC_FILTER_INVALID)
    if ("#" in rest or "+" in rest) and not _wildcards_stand_alone(rest):
        raise ProtocolError("wildcard out of place in a topic filter", ReasonCode.TOPIC_FILTER_INVALID)


def check_subscription(topic_filter: str, levels_max: int, *, no_local: bool) -> None:
    """Check a filter; also raise ProtocolError (0x82) for No Local on a shared subscription [MQTT-3.8.3-4]."""
    check_topic_filter(topic_filter, levels_max)
    if no_local and topic_filter.startswith(SHARE):
        raise ProtocolError("no local on a shared subscription")


def _wildcards_stand_alone(topic_filter: str) -> bool:
    levels = topic_filter.split("/")
    if "#" in levels[:-1]:
        return False
    return all(level in {"+", "#"} or not ("+" in level or "#" in level) for level in levels)
