"""Hostile peers on plain sockets, and the well-behaved client that must not be affected."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Self

from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.processes import Waypost, resident_mib

WAIT_S: Final = 20.0
"""Longest wait for an expected answer, on a busy machine."""


GROWTH_MIB_MAX = 40.0
"""Most memory that one attack may add after earlier ones: about as much as a fresh gateway uses."""


class Raw:
    """MQTT socket that sends any packet on demand."""

    def __init__(
        self,
        gateway: Waypost,
        version: int = 4,
        *,
        protocol: str = "mqtt",
        receive_bytes: int = 0,
        wait_s: float = WAIT_S,
    ) -> None:
        """`receive_bytes`: the kernel's receive buffer, for a peer that stops reading early; `wait_s`: for
        each answer.
        """
        self.version = version
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(wait_s)
        self.socket.connect(("127.0.0.1", gateway.port(protocol)))
        self._received = b""

    def send(self, *what: packets.Packet | bytes) -> Self:
        data = b"".join(each if isinstance(each, bytes) else each.encode(self.version) for each in what)
        self.socket.sendall(data)
        return self

    def connect(self, client_id: str, **fields: object) -> Self:
        """Send CONNECT and wait for its CONNACK."""
        self.send(packets.Connect(client_id, self.version, **fields))  # type: ignore[arg-type]
        answer = self.receive()
        assert isinstance(answer, packets.ConnAck), answer
        assert not answer.reason, answer
        return self

    def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """Return the codes of SUBACK; skip earlier packets."""
        self.send(packets.Subscribe(1, tuple(SubscriptionRequest(each, qos) for each in filters)))
        while not isinstance(answer := self.receive(), packets.SubAck):
            assert answer is not None
        return list(answer.codes)

    def receive(self) -> packets.Packet | None:
        """Return the next packet; None when the gateway has closed."""
        while True:
            header = read_fixed_header(self._received, 0) if len(self._received) > 1 else None
            if header is not None and len(self._received) >= header[0] + header[1]:
                end = header[0] + header[1]
                first, body = self._received[0], self._received[header[0] : end]
                self._received = self._received[end:]
                return packets.decode(first, body, self.version)
            data = self._read()
            if not data:
                return None
            self._received += data

    def rest(self) -> bytes:
        """Return everything up to the gateway's end of the connection."""
        while data := self._read():
            self._received += data
        return self._received

    def _read(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def accepts(answer: packets.Packet | None) -> bool:
    """Return whether the answer accepts a CONNECT."""
    return isinstance(answer, packets.ConnAck) and not answer.reason


class Witness:
    """Client that sends itself QoS 1 messages repeatedly, and records the longest round trip."""

    def __init__(self, gateway: Waypost) -> None:
        self.rounds = 0
        self.worst_s = 0.0
        self.failure: Exception | None = None
        self._client = Raw(gateway).connect("witness")
        self._client.subscribe("witness/echo", qos=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._round()
                self._stop.wait(0.01)
        except Exception as error:  # a thread ends here; the test checks `failure`
            self.failure = error

    def _round(self) -> None:
        begin = time.monotonic()
        self._client.send(packets.Publish("witness/echo", b"%d" % self.rounds, qos=1, packet_id=9))
        missing = {packets.Publish, packets.PubAck}
        while missing:
            packet = self._client.receive()
            assert packet is not None, "the gateway closed the witness's connection"
            if isinstance(packet, packets.Publish):
                self._client.send(packets.PubAck(packet.packet_id))
            missing.discard(type(packet))
        self.worst_s = max(self.worst_s, time.monotonic() - begin)
        self.rounds += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._client.close()


@contextlib.contextmanager
def unharmed(gateway: Waypost, *, round_trip_s_max: float, resident_mib_max: float) -> Iterator[Witness]:
    """Check inside the block that another client's round trips stay short and the gateway's memory stays bounded."""
    before = resident_mib(gateway.pid)
    with Witness(gateway) as witness:
        yield witness
        seen = witness.rounds
        deadline = time.monotonic() + WAIT_S
        while witness.rounds < seen + 5 and witness.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        resident = resident_mib(gateway.pid)
    assert witness.failure is None, witness.failure
    assert witness.rounds >= seen + 5, "the witness got no answer"
    assert witness.worst_s < round_trip_s_max, f"a round trip took {witness.worst_s:.2f} s"
    # Memory that the allocator kept from an earlier attack on the same gateway does not count.
    allowed = max(resident_mib_max, before + GROWTH_MIB_MAX)
    assert resident < allowed, f"{resident:.0f} MiB resident, {before:.0f} before"
