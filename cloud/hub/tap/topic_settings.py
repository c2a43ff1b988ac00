"""Kafka cluster and topic of a tap. It imports no client: the hub itself has none."""

from __future__ import annotations

import msgspec

from bridge.connectors.settings import Mechanism
from bridge.hidden import hides
from edge.broker.configuration import TlsFiles


@hides("password")
class TopicSettings(msgspec.Struct, frozen=True):
    """Kafka cluster, topic and credentials."""

    brokers: tuple[tuple[str, int], ...]
    """Host and port of the brokers to ask first."""
    topic: str
    mechanism: Mechanism
    message_bytes_max: int
    """Largest record; the topic has to accept it (``max.message.bytes``)."""
    user: str | None = None
    password: str | None = None
    tls: TlsFiles | None = None
