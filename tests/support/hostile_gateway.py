"""A gateway that means harm: batches as no uplink makes them, and whatever else, to a real hub over a plain socket."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Self

from bridge import plain
from bridge.batch import CAPABILITY, Codec
from bridge.columns import dictionary, pack, planes
from bridge.engine import Attached, Closed, Dispositions, Engine, Link, State
from bridge.hub_addresses import TELEMETRY

WAIT_S = 120.0
"""For the hub's word on everything that was sent."""


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
    """A batch with these two sections (`bridge.batch`), with a right checksum, whatever is in them."""
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
    """One range."""
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
    """Runs of so many messages, all of one device and with one property block."""
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


class HostileGateway:
    """Its telemetry link to a hub, driven by hand."""

    def __init__(self, port: int, name: str = "hostile") -> None:
        self.engine = Engine(container_id=name, server=False)
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.outcomes: dict[int, State] = {}
        self.closed = False
        self._tags = 0
        self.engine.open()
        self.link: Link = self.engine.attach_sender(TELEMETRY, TELEMETRY, desired_capabilities=(CAPABILITY,))
        self._until(lambda: self.link.credit > 0, "credit")

    def send(self, *batches: bytes) -> Self:
        """As deliveries, as far as credit goes; waits for more."""
        for batch in batches:
            self._until(lambda: self.link.credit > 0 or self.closed, "credit")
            self.engine.send(self.link, self._tags, plain.data_section(batch))
            self._tags += 1
        return self

    def settled(self) -> list[State]:
        """What the hub said of everything sent, in order."""
        self._until(lambda: len(self.outcomes) == self._tags or self.closed, "the hub's word")
        return [self.outcomes[tag] for tag in sorted(self.outcomes)]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}"
            self._exchange()

    def _exchange(self) -> None:
        if data := self.engine.data_to_send():
            self.socket.sendall(data)
        self.socket.settimeout(0.2)
        try:
            received = self.socket.recv(1 << 16)
        except TimeoutError:
            received = None
        now = time.monotonic()
        events = () if received is None else self.engine.receive_data(received, now)
        for event in events or (self.engine.receive_eof(now) if received == b"" else ()):
            if isinstance(event, Dispositions):
                self.outcomes |= {tag: state for tag, state, _, _ in event.items}
            elif isinstance(event, Closed):
                self.closed = True
            elif isinstance(event, Attached):
                self.link = event.link

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
