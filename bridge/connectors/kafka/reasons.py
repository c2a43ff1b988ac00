"""Why a Kafka cluster does not do what it is asked for, in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka import errors
from aiokafka.errors import KafkaError

_WORDS: Final[Mapping[type[KafkaError], str]] = {
    errors.KafkaConnectionError: "no broker answers",
    errors.KafkaTimeoutError: "the brokers do not answer",
    errors.UnknownTopicOrPartitionError: "a topic does not exist, and the brokers do not create it: create it there",
    errors.TopicAuthorizationFailedError: "this user may not use a topic: see its access control list",
    errors.GroupAuthorizationFailedError: "this user may not use the consumer group: it needs the right READ on it",
    errors.ClusterAuthorizationFailedError: "this user may not write idempotently: it needs the right IDEMPOTENT_WRITE",
    errors.AuthenticationFailedError: "the brokers do not let us in: see the connector's credentials and mechanism",
    errors.SaslAuthenticationFailed: "the brokers do not let us in: see the connector's credentials and mechanism",
    errors.UnsupportedSaslMechanismError: "the brokers do not know the mechanism: see kafka.mechanism of the connector",
    errors.MessageSizeTooLargeError: "a batch is larger than its topic takes; its messages are sent one by one",
}


def words(error: BaseException) -> str:
    """One line for a person."""
    for kind, said in _WORDS.items():
        if isinstance(error, kind):
            return said
    return " ".join(f"{type(error).__name__} {error}".split())
