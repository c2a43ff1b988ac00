"""Attacks that make a gateway hold memory: each gives the bytes of one connection, by number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from bridge.amqp_values import Symbol, Uint
from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.limits import FILTERS_MAX
from tests.support.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    HEADER,
    OPEN,
    RECEIVER,
    SENDER,
    SOURCE,
    TARGET,
    TRANSFER,
    frame,
    terminus,
)

Stream = Callable[[int], Iterator[bytes]]
FRAME_BYTES: Final = 30_000
"""Payload of an AMQP frame; a hub takes 32 KiB, a gateway 64."""
WIDE: Final = Uint(2**31 - 1)
"""Window that is never used up."""


def filler(size: int) -> Iterator[bytes]:
    """Yield this many bytes, a piece at a time."""
    piece = bytes(256 * 1024)
    while size > 0:
        yield piece[:size]
        size -= len(piece)


def half_messages(size: int) -> Stream:
    """PUBLISH without its last byte."""

    def stream(number: int) -> Iterator[bytes]:
        yield packets.Connect(f"half-{number}", 4).encode(4)
        head = packets.Publish("t", bytes(size)).encode(4)[:8]
        yield head
        yield from filler(size - 8)

    return stream


def half_connects(size: int) -> Stream:
    """CONNECT without its last byte."""

    def stream(number: int) -> Iterator[bytes]:
        whole = packets.Connect(f"c{number}", 5, username="u" * 60_000, password=bytes(60_000)).encode(5)
        yield whole[: min(size, len(whole) - 1)]

    return stream


def fat_connects(number: int) -> Iterator[bytes]:
    """Client identifier of 1 KB, and a name and password of 60 KB, all of which the standard allows."""
    client_id = f"{number:06}".ljust(1_000, "x")
    yield packets.Connect(client_id, 5, username="u" * 60_000, password=bytes(60_000)).encode(5)


def aliases(number: int) -> Iterator[bytes]:
    """16 topic aliases for names of 60 KB each."""
    yield packets.Connect(f"alias-{number}", 5).encode(5)
    for alias in range(1, 17):
        topic = f"{number}/{alias}/".ljust(60_000, "x")
        yield packets.Publish(topic, b"", properties=Properties(topic_alias=alias)).encode(5)


def packet_ids(number: int) -> Iterator[bytes]:
    """QoS 2 messages for all packet identifiers that are never released."""
    yield packets.Connect(f"ids-{number}", 4).encode(4)
    for first in range(1, 65_535, 500):
        ids = range(first, min(first + 500, 65_536))
        yield b"".join(packets.Publish("ids", b"", qos=2, packet_id=one).encode(4) for one in ids)


def byte_by_byte(size: int) -> Stream:
    """PUBLISH in pieces of one byte, which the gateway may read separately."""

    def stream(number: int) -> Iterator[bytes]:
        yield packets.Connect(f"bytes-{number}", 4).encode(4)
        whole = packets.Publish("t", bytes(1 << 20)).encode(4)
        for at in range(size):
            yield whole[at : at + 1]

    return stream


def never_reads(size: int) -> Stream:
    """Subscribes to a retained message of this size, and reads nothing."""

    def stream(number: int) -> Iterator[bytes]:
        yield packets.Connect(f"deaf-{number}", 4).encode(4)
        yield packets.Subscribe(1, (SubscriptionRequest("large/retained", 0),)).encode(4)

    return stream


def amqp_opening(
    number: int, links: int, *, sessions: int = 1, role: bool = SENDER, address: str = "topic/a"
) -> Iterator[bytes]:
    """Sessions with this many links each."""
    yield HEADER + frame(OPEN, f"amqp-{number}")
    for channel in range(sessions):
        yield frame(BEGIN, None, Uint(0), WIDE, WIDE, channel=channel)
        for handle in range(links):
            mine, theirs = (address, None) if role is RECEIVER else (None, address)
            fields: list[Any] = [f"l{channel}-{handle}", Uint(handle), role, None, None]
            fields += [terminus(SOURCE, mine), terminus(TARGET, theirs), None, None, Uint(0)]
            yield frame(ATTACH, *fields, channel=channel)


def half_deliveries(links: int, size: int, address: str = "topic/a") -> Stream:
    """Deliveries without their last frame, on many links of one connection."""

    def stream(number: int) -> Iterator[bytes]:
        yield from amqp_opening(number, links, address=address)
        body = bytes(FRAME_BYTES)
        for _ in range(size // FRAME_BYTES):
            for handle in range(links):
                fields = [Uint(handle), Uint(handle), b"%d" % handle, Uint(0), False, True]
                yield frame(TRANSFER, *fields, payload=body)

    return stream


def half_frames(number: int) -> Iterator[bytes]:
    """Frame of 64 KiB without its last byte."""
    yield HEADER + frame(OPEN, f"frames-{number}")
    yield (65_536).to_bytes(4, "big") + b"\x02\0\0\0" + bytes(65_000)


def many_links(sessions: int, links: int) -> Stream:
    """Endless sessions and links."""
    return lambda number: amqp_opening(number, links, sessions=sessions)


def fat_links(links: int) -> Stream:
    """Links with a filter map of 20 000 values in the source, which take 3 MB."""

    def stream(number: int) -> Iterator[bytes]:
        yield HEADER + frame(OPEN, f"fat-{number}") + frame(BEGIN, None, Uint(0), WIDE, WIDE)
        filters = {Symbol("f"): [None] * 20_000}
        for handle in range(links):
            source = terminus(SOURCE, "topic/a", None, None, None, None, None, None, filters)
            yield frame(ATTACH, f"f{handle}", Uint(handle), RECEIVER, None, None, source, terminus(TARGET, None))

    return stream


def half_sasl(number: int) -> Iterator[bytes]:
    """SASL frame without its last byte."""
    yield b"AMQP\x03\x01\0\0" + (8_000).to_bytes(4, "big") + b"\x02\x01\0\0" + bytes(7_900)


def silent(number: int) -> Iterator[bytes]:
    """No data at all."""
    yield from ()


def logs_in(number: int) -> Iterator[bytes]:
    """CONNECT, and nothing else."""
    yield packets.Connect(f"idle-{number}", 4).encode(4)


def in_half_a_frame(inner: Stream) -> Stream:
    """Put everything into one incomplete WebSocket frame."""

    def stream(number: int) -> Iterator[bytes]:
        yield (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        unmasked = bytes(4)  # a key that changes nothing
        whole = b"".join(inner(number))
        yield b"\x82\xff" + (len(whole) + 1).to_bytes(8, "big") + unmasked
        yield whole

    return stream


def many_filters(number: int) -> Iterator[bytes]:
    """SUBSCRIBE and UNSUBSCRIBE with the maximum number of filters, over and over."""
    yield packets.Connect(f"filters-{number}", 5).encode(5)
    filters = [f"filters/{number}/{i}" for i in range(FILTERS_MAX)]
    wanted = packets.Subscribe(1, tuple(SubscriptionRequest(each, 1) for each in filters)).encode(5)
    unwanted = packets.Unsubscribe(2, tuple(filters)).encode(5)
    while True:
        yield wanted
        yield unwanted


def new_addresses(number: int) -> Iterator[bytes]:
    """Small messages, each to a new address."""
    yield packets.Connect(f"addresses-{number}", 4).encode(4)
    for first in itertools.count(0, 1_000):
        yield b"".join(packets.Publish(f"new/{number}/{i}", b"").encode(4) for i in range(first, first + 1_000))


def pings(number: int) -> Iterator[bytes]:
    """The smallest packet of the protocol."""
    yield packets.Connect(f"pings-{number}", 4).encode(4)
    while True:
        yield packets.PingReq().encode(4) * 32_768


def attaches(number: int) -> Iterator[bytes]:
    """Links that are attached and detached, as many as fit into one read."""
    yield HEADER + frame(OPEN, f"attaches-{number}") + frame(BEGIN, None, Uint(0), WIDE, WIDE)
    for round_ in itertools.count():
        parts = []
        for handle in range(200):
            fields: list[Any] = [f"a{round_}-{handle}", Uint(handle), RECEIVER, None, None]
            fields += [terminus(SOURCE, f"topic/{handle}"), terminus(TARGET, None), None, None, Uint(0)]
            parts.append(frame(ATTACH, *fields))
        parts += [frame(DETACH, Uint(handle), True) for handle in range(200)]
        yield b"".join(parts)
