"""Hostile gateway: sends invalid batches and other data to a real hub over a plain socket."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Self

from bridge import plain
from bridge.batch import CAPABILITY, Codec
from bridge.columns import dictionary, pack, planes
from bridge.hub_addresses import TELEMETRY
from tests.support.amqp_sender import AmqpSender


def sealed(
    table: bytes,
    columns: bytes,
    *,
    messages: int,
    ranges: int,
    epoch: str = "e" * 32,
    packed: Callable[[bytes], bytes] = pack,
    columns_size: int | None = None,
) -> bytes:
    """Build a batch of these two sections (`bridge.batch`) with a correct checksum, whatever their content."""
    packed_table, packed_columns = pack(table), packed(columns)
    names = (b"default", epoch.encode())
    size = len(columns) if columns_size is None else columns_size
    head = struct.pack(
        "<BBHIIIIIIHH",
        *(Codec.ZSTD, 0, 0, messages, ranges, len(table), len(packed_table), size, len(packed_columns)),
        *map(len, names),
    )
    checked = b"".join((head, *names, packed_table, packed_columns))
    return b"WPB\x01" + zlib.crc32(checked).to_bytes(4, "little") + checked


def table_of(address: str, first: int, count: int, base: int = 0) -> bytes:
    """Build a table of one range."""
    name = address.encode()
    lengths, counts = array("I", [len(name)]), array("I", [count])
    return b"".join(map(planes, (lengths, array("Q", [base]), array("Q", [first]), counts))) + name


def columns_of(
    runs: Sequence[int],
    *,
    properties: bytes = b"",
    device: str = "d",
    flags: int = 1,
    bodies: Sequence[bytes] | None = None,
    received_at: Sequence[int] | None = None,
) -> bytes:
    """Build runs of this many messages, all of one device and with one property block."""
    made = [b""] * sum(runs) if bodies is None else bodies
    indexes = array("I", bytes(4 * len(runs)))
    times = array("q", received_at or [1] + [0] * (len(runs) - 1))
    return b"".join(
        (
            len(runs).to_bytes(4, "little"),
            dictionary([device.encode()]),
            dictionary([properties]),
            *map(planes, (array("I", runs), indexes, indexes)),
            planes(times),
            bytes([flags]) * len(runs),
            planes(array("I", map(len, made))),
            *made,
        )
    )


class HostileGateway(AmqpSender):
    """Telemetry link of a gateway to a hub."""

    def __init__(self, port: int, name: str = "hostile") -> None:
        super().__init__(port, name, TELEMETRY, (CAPABILITY,))

    def send(self, *batches: bytes) -> Self:
        return super().send(*map(plain.data_section, batches))
