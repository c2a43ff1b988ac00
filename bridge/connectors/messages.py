"""Messages for peers without AMQP: payload, metadata and name.

A message that arrived over AMQP is translated. The translation belongs to the broker, a layer above the bridge, so the
creator of a connector passes it in. A message keeps its name (gateway, epoch, address and sequence) forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bridge.forwarders.outbox import Outgoing
from bridge.hidden import hides
from bridge.message import AMQP, RETAIN, Run
from bridge.plain import Hop, hops_of, without_names
from bridge.publish_properties import PublishProperties, read
from bridge.publisher import client_of, device_of

Translate = Callable[[Run], Sequence[Run]]
"""Translates a run in AMQP encoding to runs in MQTT encoding: all messages, in order."""


class MessageName(NamedTuple):
    """Permanent name of a message."""

    hop: Hop
    address: str
    """Address at this gateway."""
    sequence: int


@hides("properties", "payload")
class ConnectorMessage(NamedTuple):
    """One message for a peer."""

    place: int
    """Index among the messages of its ticket."""
    name: MessageName
    target: str
    """Address at the peer."""
    device: str
    received_at: int
    """UTC nanoseconds since 1970."""
    retain: bool
    hops: tuple[str, ...]
    """Gateways it has passed, this one included."""
    properties: PublishProperties
    payload: bytes
    client: str = ""
    """MQTT client identifier of the sender; empty when it equals `device`."""


def messages(outgoing: Outgoing, translate: Translate) -> Iterator[ConnectorMessage]:
    """Yield the messages of one ticket."""
    run = outgoing.stored.run
    place = 0
    hops = (*hops_of(run), outgoing.hop.gateway)
    device, client = device_of(run.device), client_of(run.device)
    client = "" if client == device else client
    for part in translate(run) if run.flags & AMQP else (run,):
        properties = read(part.properties)
        if properties.users:  # hops have their own field
            properties = properties._replace(users=tuple(without_names(properties.users)))
        for payload in part.bodies:
            name = MessageName(outgoing.hop, run.address, outgoing.stored.sequence + place)
            yield ConnectorMessage(
                place,
                name,
                outgoing.address,
                device,
                run.received_at,
                bool(run.flags & RETAIN),
                hops,
                properties,
                payload,
                client,
            )
            place += 1
