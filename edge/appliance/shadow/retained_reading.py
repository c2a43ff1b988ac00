"""Read the retained messages of a broker with a session of their own."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bridge.client_attempt import ConnectorError
from bridge.connectors.mqtt.packets import PublishReceived
from edge.appliance.shadow.address_comparison import digest_of
from edge.appliance.shadow.broker_session import BrokerAccess, session_at
from edge.appliance.shadow.limits import QUIET_S, RETAINED_MAX, RETAINED_MOVED_BYTES_MAX


class RetainedOfBroker(NamedTuple):
    """Retained messages of one broker."""

    digests: dict[str, bytes]
    """Digests of their payloads by address."""
    payloads: dict[str, bytes]
    """Payloads of the addresses that were asked for, up to the limit."""
    further: int
    """Messages beyond the limit, which were not compared."""


async def read_retained(access: BrokerAccess, filters: Sequence[str], wanted: Collection[str] = ()) -> RetainedOfBroker:
    """Return the retained messages that match the filters, and the payloads of the `wanted` addresses.

    They are read with QoS 0: brokers limit the messages with QoS 1 that wait for a subscriber, and drop the others.
    Raises one of `broker_session.FAILURES`.
    """
    found, payloads, size, further = dict[str, bytes](), dict[str, bytes](), 0, 0
    async with session_at(access) as session:
        refused = await session.subscribe(filters, qos=0, retained=True)
        if refused:
            raise ConnectorError(f"the broker refuses a subscription to {refused[0]}: check our rights there")
        last = time.monotonic()
        while time.monotonic() - last < QUIET_S:
            for packet in await session.read(QUIET_S):
                if not isinstance(packet, PublishReceived) or not session.is_wanted(packet):
                    continue
                last = time.monotonic()
                if not packet.payload:
                    found.pop(packet.topic, None)
                elif packet.topic not in found and len(found) >= RETAINED_MAX:
                    further += 1
                else:
                    found[packet.topic] = digest_of(packet.payload)
                    if packet.topic in wanted and size < RETAINED_MOVED_BYTES_MAX:
                        size += len(packet.payload)
                        payloads[packet.topic] = packet.payload
    return RetainedOfBroker(found, payloads, further)
