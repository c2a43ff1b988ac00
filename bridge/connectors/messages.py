"""Messages for peers without AMQP: a payload, what is said of it, and its name.

A message that came in as AMQP is translated; who makes a connector says how, as the broker's translation is above the
bridge. What names a message is the same each time it is sent: gateway, epoch, address and sequence.
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
"""The messages of a run in AMQP encoding as runs in MQTT's, in order, none left out."""


class MessageName(NamedTuple):
    """What one message is called for ever."""

    hop: Hop
    address: str
    """The one here."""
    sequence: int


@hides("properties", "payload")
class ConnectorMessage(NamedTuple):
    """One message as it goes to a peer."""

    place: int
    """Its place among those of its ticket."""
    name: MessageName
    target: str
    """The peer's address for it."""
    device: str
    received_at: int
    """UTC nanoseconds since 1970."""
    retain: bool
    hops: tuple[str, ...]
    """Gateways it has passed, this one included."""
    properties: PublishProperties
    payload: bytes
    client: str = ""
    """Client by which the device sent it; empty where it has the same name."""


def messages(outgoing: Outgoing, translate: Translate) -> Iterator[ConnectorMessage]:
    """What was taken by one ticket, message by message."""
    run = outgoing.stored.run
    place = 0
    hops = (*hops_of(run), outgoing.hop.gateway)
    device, client = device_of(run.device), client_of(run.device)
    client = "" if client == device else client
    for part in translate(run) if run.flags & AMQP else (run,):
        properties = read(part.properties)
        if properties.users:  # hops have a place of their own
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
