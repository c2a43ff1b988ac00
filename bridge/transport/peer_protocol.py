"""Recognizes a client's protocol by its first bytes, to explain a connection to the wrong port."""

from __future__ import annotations

from typing import Final

BEGINNINGS: Final = (
    (b"\x16\x03", "TLS"),  # RFC 8446 section 5.1: a handshake record
    (b"AMQP\x00\x00\x09\x01", "AMQP 0-9-1"),  # AMQP 0-9-1 section 4.2.2, as RabbitMQ's own clients begin
    (b"AMQP", "AMQP"),  # AMQP 1.0 part 2, section 2.2
    (b"\x10", "MQTT"),  # MQTT 5 section 3.1.1: CONNECT
    (b"SSH-", "SSH"),  # RFC 4253 section 4.2
    *((method + b" ", "HTTP") for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH")),
)
"""First bytes of a client, by protocol."""


BEGINNING_BYTES: Final = 8
"""Length of the longest beginning."""


def detect_protocol(first: bytes) -> str:
    """Return the protocol of a client's first bytes; empty when it is unknown."""
    return next((name for beginning, name in BEGINNINGS if first.startswith(beginning)), "")


def foreign_protocol(first: bytes, own: str) -> str:
    """Return the protocol of a client's first bytes when it is known and not `own`; empty otherwise."""
    spoken = detect_protocol(first)
    return "" if spoken == own else spoken
