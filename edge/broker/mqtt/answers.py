"""What the router answers, in MQTT's words: tokens are packet identifiers with their QoS, refusals are reason codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.interfaces import Refusal

QOS_2: Final = 1 << 16
"""Tokens of QoS 2 messages carry this bit beside their packet identifier."""

REASONS: Final[Mapping[Refusal, ReasonCode]] = {
    Refusal.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
    Refusal.NO_CONSUMER: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.NO_CONSUMER_CONNECTED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.FULL: ReasonCode.QUOTA_EXCEEDED,
    Refusal.NAMES: ReasonCode.QUOTA_EXCEEDED,
    Refusal.STORE_FAILED: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.ADDRESS_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Refusal.TOO_LARGE: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,  # 0x95 is none of a PUBACK's (section 3.4.2.1)
    Refusal.REJECTED: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.RELEASED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.DELIVERY_FAILED: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.UNDELIVERABLE: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.NO_ANSWER: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.FORMAT_INVALID: ReasonCode.PAYLOAD_FORMAT_INVALID,
}


def qos2_tokens(packet_ids: Sequence[int]) -> list[int]:
    """The tokens of QoS 2 messages; those of QoS 1 are their packet identifiers."""
    return [packet_id | QOS_2 for packet_id in packet_ids]


def by_qos(tokens: Sequence[int]) -> Iterable[Sequence[int]]:
    """The tokens of an answer in parts that are of one QoS each."""
    if max(tokens) < QOS_2:
        return (tokens,)
    return [list(part) for _, part in groupby(tokens, lambda token: token < QOS_2)]


def qos_of(tokens: Sequence[int]) -> int:
    """1 or 2, of tokens that are alike."""
    return 1 if tokens[0] < QOS_2 else 2


def packet_ids_of(tokens: Sequence[int]) -> Sequence[int]:
    """The packet identifiers behind tokens."""
    return tokens if tokens[0] < QOS_2 else [token - QOS_2 for token in tokens]
