"""Translate answers of the router to MQTT: tokens to packet identifiers with QoS, refusals to reason codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.interfaces import Refusal

QOS_2: Final = 1 << 16
"""Bit of a token, next to the packet identifier, that marks QoS 2."""

REASONS: Final[Mapping[Refusal, ReasonCode]] = {
    Refusal.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
    Refusal.NO_CONSUMER: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.NO_CONSUMER_CONNECTED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.FULL: ReasonCode.QUOTA_EXCEEDED,
    Refusal.NAMES: ReasonCode.QUOTA_EXCEEDED,
    Refusal.STORE_FAILED: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.ADDRESS_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Refusal.TOO_LARGE: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,  # a PUBACK cannot have 0x95 (section 3.4.2.1)
    Refusal.REJECTED: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.RELEASED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.DELIVERY_FAILED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.UNDELIVERABLE: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.NO_ANSWER: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.PATH_LOST: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.FORMAT_INVALID: ReasonCode.PAYLOAD_FORMAT_INVALID,
}


def qos2_tokens(packet_ids: Sequence[int]) -> list[int]:
    """Return the tokens of QoS 2 messages. The token of a QoS 1 message is its packet identifier."""
    return [packet_id | QOS_2 for packet_id in packet_ids]


def by_qos(tokens: Sequence[int]) -> Iterable[Sequence[int]]:
    """Split the tokens of an answer into parts of one QoS each, in order."""
    if max(tokens) < QOS_2:
        return (tokens,)
    return [list(part) for _, part in groupby(tokens, lambda token: token < QOS_2)]


def qos_of(tokens: Sequence[int]) -> int:
    """Return the QoS (1 or 2) of tokens that share it."""
    return 1 if tokens[0] < QOS_2 else 2


def packet_ids_of(tokens: Sequence[int]) -> Sequence[int]:
    """Return the packet identifiers of tokens that share their QoS."""
    return tokens if tokens[0] < QOS_2 else [token - QOS_2 for token in tokens]
