"""Network cable from an emulated machine to a test: raw Ethernet frames in datagrams (QEMU, -netdev socket)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self

from tests.support.processes import free_port

MAC: Final = "52:54:00:aa:bb:cc"
"""MAC address of the machine on this cable."""
IPV6: Final = b"\x86\xdd"
UDP, ICMPV6 = 17, 58
OWN: Final = bytes.fromhex("fe80000000000000020000fffe000001")
OWN_MAC: Final = bytes.fromhex("020000000001")
ALL_NODES: Final = bytes.fromhex("ff020000000000000000000000000001")
MDNS: Final = bytes.fromhex("ff0200000000000000000000000000fb")
MDNS_PORT: Final = 5353
DHCPV6_SERVER_PORT: Final = 547


class Datagram(NamedTuple):
    """UDP over IPv6, as seen on the cable."""

    port: int
    """Destination port."""
    content: bytes


class Lan:
    """The test's end of the cable."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.5)
        self._there = free_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def words(self) -> Sequence[str]:
        """Return QEMU's options for the machine at the other end."""
        here = self._socket.getsockname()[1]
        cable = f"socket,id=lan,udp=127.0.0.1:{here},localaddr=127.0.0.1:{self._there}"
        return ("-netdev", cable, "-device", f"virtio-net-pci,netdev=lan,romfile=,mac={MAC}")

    def ask(self, name: str, kind: int) -> None:
        """Send a question by multicast DNS (RFC 6762)."""
        labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split(".")) + b"\0"
        question = struct.pack(">6H", 0, 0, 1, 0, 0, 0) + labels + struct.pack(">2H", kind, 1)
        head = struct.pack(">3H", MDNS_PORT, MDNS_PORT, 8 + len(question))
        self._send(MDNS, UDP, head, question)

    def be_a_router(self) -> None:
        """Advertise that addresses come from DHCPv6 (RFC 4861 section 4.2, flag M)."""
        self._send(ALL_NODES, ICMPV6, b"\x86\0", struct.pack(">BBHII", 64, 0x80, 1800, 0, 0))

    def datagrams(self) -> Iterator[Datagram]:
        """Yield incoming datagrams until none has arrived for half a second."""
        while True:
            try:
                frame = self._socket.recv(4096)
            except TimeoutError:
                return
            if frame[12:14] == IPV6 and frame[20] == UDP:
                yield Datagram(int.from_bytes(frame[56:58]), frame[62:])

    def _send(self, to: bytes, protocol: int, head: bytes, body: bytes) -> None:
        """`head`: header of the protocol, up to its checksum."""
        length = len(head) + 2 + len(body)
        pseudo = OWN + to + struct.pack(">I3xB", length, protocol)
        total = _checksum(pseudo + head + b"\0\0" + body)
        packet = struct.pack(">IHBB", 6 << 28, length, protocol, 255) + OWN + to
        frame = b"\x33\x33" + to[12:] + OWN_MAC + IPV6 + packet + head + struct.pack(">H", total) + body
        self._socket.sendto(frame, ("127.0.0.1", self._there))


def _checksum(content: bytes) -> int:
    """Return the checksum of IP and UDP (RFC 1071)."""
    content += bytes(len(content) % 2)
    total = sum(struct.unpack(f">{len(content) // 2}H", content))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF or 0xFFFF
