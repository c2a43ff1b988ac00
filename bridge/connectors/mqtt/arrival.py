"""Translate a remote broker's PUBLISH into a message, and restore the name that a Waypost gateway gave it."""

from __future__ import annotations

from typing import Final

from bridge.connectors.mqtt.packets import LargePublishReceived, PublishReceived
from bridge.forwarders.inbox import Incoming
from bridge.message import RETAIN, Run
from bridge.plain import (
    ADDRESS,
    CLIENT,
    DEVICE,
    EPOCH,
    HOPS_MAX,
    HOPS_PROPERTY,
    ORIGIN_NAMES,
    PREFIX,
    RECEIVED_AT,
    SEQUENCE,
)
from bridge.publish_properties import read, write
from bridge.publisher import publisher_name

TOO_LARGE: Final = "too-large"
NO_ADDRESS: Final = "no-address"
TOPIC_SHOWN_MAX = 200
"""Maximum length of a topic name in a log line."""


def arrival(token: int | None, publication: PublishReceived, *, repeats: bool) -> Incoming:
    """Return a PUBLISH as a message. `repeats`: we have just subscribed, so retained messages may be duplicates."""
    flags = publication.qos | (RETAIN if publication.retain else 0)
    topic, again = publication.topic, repeats and publication.retain
    if not publication.properties:
        return Incoming(token, (topic,), b"", (), Run(topic, "", flags, b"", [publication.payload]), again=again)
    properties = read(publication.properties)
    own = {name: value for name, value in properties.users if name.startswith(PREFIX)}
    hops = tuple(own.get(HOPS_PROPERTY, "").split()[-HOPS_MAX:])
    users = [pair for pair in properties.users if not pair[0].startswith(PREFIX)]
    epoch, address, sequence = own.get(EPOCH), own.get(ADDRESS), own.get(SEQUENCE, "")
    ours = epoch is not None and address is not None and _is_number(sequence)
    if ours:
        users += [pair for pair in own.items() if pair[0] in ORIGIN_NAMES]
    if hops:
        users.append((HOPS_PROPERTY, " ".join(hops)))
    name = f"{epoch}/{int(sequence)}/{address}".encode() if ours else b""
    device, at = own.get(DEVICE, ""), own.get(RECEIVED_AT, "")
    run = Run(
        topic,
        publisher_name(device, own.get(CLIENT) or device) if device else "",
        flags,
        write(properties._replace(users=tuple(users))),
        [publication.payload],
        int(at) if ours and _is_number(at) else 0,
    )
    return Incoming(token, (topic,), name, hops, run, unique=ours, again=again)


def too_large(token: int | None, publication: LargePublishReceived, bytes_max: int) -> Incoming:
    """Return the report of a message that was too large and skipped."""
    topic = publication.topic
    size = f"the message to {topic[:TOPIC_SHOWN_MAX]} has {publication.packet_bytes} bytes"
    return Incoming(
        token,
        (topic,),
        b"",
        (),
        Run(topic, "", 0, b"", []),
        fault=f"{size}, more than {bytes_max}",
        code=TOO_LARGE,
        bytes=publication.packet_bytes,
    )


def not_wanted(token: int | None, publication: PublishReceived | LargePublishReceived) -> Incoming:
    """Return the report of a message with a topic that no forwarder wants."""
    topic = publication.topic
    size = len(publication.payload) if isinstance(publication, PublishReceived) else publication.packet_bytes
    fault = f"no forwarder takes messages of {topic[:TOPIC_SHOWN_MAX]}; one that did may have been removed"
    return Incoming(token, (topic,), b"", (), Run(topic, "", 0, b"", []), fault=fault, code=NO_ADDRESS, bytes=size)


def _is_number(text: str) -> bool:
    """Return True for a decimal number of fewer than 20 digits."""
    return text.isascii() and text.isdecimal() and len(text) < 20
