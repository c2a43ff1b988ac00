"""Message model of gateway and hub: runs of messages, and the flags of a run.

A broker written in Python is fast only when it touches each message a few times. Messages that arrive in one read of a
socket are nearly always alike (same device, same address, same quality of service). So the unit from the protocol
machines through the router into the store and out again is the *run*: messages that differ only in their bodies. A
single message is a run of one.

This module knows no protocol, no socket, no clock and no store.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bridge.publisher import is_client

QOS_MASK = 0b0000_0011
"""Bits 0-1: the MQTT quality of service the message was sent with (0, 1, 2); AMQP: 0 pre-settled, 1 unsettled."""
RETAIN = 0b0000_0100
"""The RETAIN flag of the PUBLISH, or annotation ``x-opt-retain-message`` of an AMQP message."""
AMQP = 0b0000_1000
"""Set: bodies are AMQP bare messages. Clear: bodies are MQTT application payloads."""
DURABLE = 0b0001_0000
"""The AMQP header's ``durable`` (AMQP 1.0 section 3.2.1); for MQTT the same as QoS > 0."""
CLOCK_GOOD = 0b0010_0000
"""The gateway's clock was known to be right when it stamped ``received_at``."""
GROUPED = 0b0100_0000
"""AMQP: at least one message of the run has a group-id (AMQP 1.0 section 3.2.4), so a queue has to look at each."""


class Run(msgspec.Struct, gc=False):
    """Messages that arrived together and differ only in their bodies.

    ``address``      the MQTT topic name or AMQP address, e.g. ``plant/7/temp``.
    ``device``       name of the publisher (`bridge.publisher`): its device, its client where that has another name, and
                     a mark where the origin that its messages name is believed.
    ``flags``        bit field of the constants above.
    ``properties``   in the encoding the message came in: MQTT 5 publish properties (section 3.3.2.3, without
                     their length prefix, without topic alias and subscription identifiers), or the encoded
                     AMQP header section (section 3.2.1); empty when there are none.
    ``bodies``       one byte string per message, in order: the MQTT payload, or the AMQP message without its
                     header and delivery annotations, never re-encoded.
    ``received_at``  UTC nanoseconds since 1970, stamped by the router, 0 before.
    """

    address: str
    device: str
    flags: int
    properties: bytes
    bodies: list[bytes]
    received_at: int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def qos(self) -> int:
        return self.flags & QOS_MASK

    @property
    def size(self) -> int:
        """Bytes of all messages, counting address and properties for each."""
        bodies = self.bodies
        each = len(self.properties) + len(self.address)
        if len(bodies) == 1:
            return len(bodies[0]) + each
        return sum(map(len, bodies)) + each * len(bodies)

    def __repr__(self) -> str:
        """Return counts and sizes: exceptions and logs must not show customer data."""
        return (
            f"<Run of {len(self.bodies)} to {self.address!r} from {self.device!r}, {self.size} bytes, "
            f"flags 0x{self.flags:02x}>"
        )

    def part(self, start: int, stop: int) -> Run:
        """Return the messages ``start <= i < stop`` as a run; the run itself when these are all."""
        if start <= 0 and stop >= len(self.bodies):
            return self
        return Run(self.address, self.device, self.flags, self.properties, self.bodies[start:stop], self.received_at)


def is_from(run: Run, client: str | None) -> bool:
    """Return True when this client published the run; never for None."""
    return client is not None and is_client(run.device, client)


class Stored(NamedTuple):
    """A run with the names the store gave its messages.

    ``position``  place of the first message in its log; the others follow densely.
    ``sequence``  sequence of the first message in (epoch, address); the others follow densely.
    """

    position: int
    sequence: int
    run: Run
