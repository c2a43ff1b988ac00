"""Descriptions of Kafka's errors for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka import errors
from aiokafka.errors import KafkaError

from bridge.connectors.kafka.tokens import TokenError

_WORDS: Final[Mapping[type[KafkaError], str]] = {
    errors.KafkaConnectionError: "no broker answers",
    errors.KafkaTimeoutError: "the brokers do not answer",
    errors.UnknownTopicOrPartitionError: "a topic does not exist, and the brokers do not create it: create it there",
    errors.TopicAuthorizationFailedError: "this user may not use a topic: check its access control list",
    errors.GroupAuthorizationFailedError: "this user may not use the consumer group: grant it READ on the group",
    errors.ClusterAuthorizationFailedError: "this user may not write idempotently: grant it IDEMPOTENT_WRITE",
    errors.AuthenticationFailedError: "authentication failed: check the connector's credentials and mechanism",
    errors.SaslAuthenticationFailed: "authentication failed: check the connector's credentials and mechanism",
    errors.UnsupportedSaslMechanismError: "the brokers do not know the mechanism: check kafka.mechanism",
    errors.MessageSizeTooLargeError: "a batch is larger than its topic allows; its messages are sent one by one",
}


def describe_error(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, TokenError):
        return error.why
    for kind, text in _WORDS.items():
        if isinstance(error, kind):
            return text
    return " ".join(f"{type(error).__name__} {error}".split())
