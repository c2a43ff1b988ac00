"""Publisher that records acknowledgements: MQTT 3.1.1 at QoS 1 on a plain socket, one thread for each connection.

Every body is sent exactly once, so a duplicate in the lake was made by Waypost. A body with a lost acknowledgement may
or may not be in the lake.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque

from tests.support.processes import wait_until

RETRY_S = 0.05
SENT_S = 60.0


class Publisher(threading.Thread):
    """Publishes to one topic as fast as its window allows until `end`, over any number of reconnects."""

    def __init__(
        self, name: str, port: int, topic: str, *, window: int = 50, password: str | None = None, pause_s: float = 0.0
    ) -> None:
        """`password`: of the user with the publisher's name. `pause_s`: shortest time between messages."""
        super().__init__(name=name, daemon=True)
        self.acked: list[bytes] = []
        """Bodies acknowledged, in order."""
        self.sent = 0
        self.failure: BaseException | None = None
        self._port = port
        self._topic = topic.encode()
        self._window = window
        self._password = password
        self._pause_s = pause_s
        self._ended = threading.Event()

    def end(self) -> None:
        """Stop publishing and wait for the thread."""
        self._ended.set()
        self.join(30)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure

    def wait_for_more(self, messages: int) -> None:
        """Wait until it has sent this many further messages, acknowledged or not."""
        enough = self.sent + messages
        wait_until(lambda: self.sent >= enough, timeout_s=SENT_S, what="further messages are sent")

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._connection()
                except OSError:
                    self._ended.wait(RETRY_S)
        except BaseException as failure:  # raised in `end`
            self.failure = failure

    def _connection(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as sock:
            sock.sendall(self._connect())
            connack = self._exactly(sock, 4)
            assert connack == b"\x20\x02\x00\x00", connack
            waiting: deque[tuple[int, bytes]] = deque()
            packet_id = 0
            while True:
                packets = []
                while len(waiting) < self._window and not self._ended.is_set():
                    packet_id = packet_id % 65_535 + 1
                    payload = f"{self.name}:{self.sent}".encode()
                    self.sent += 1
                    waiting.append((packet_id, payload))
                    packets.append(self._publish(packet_id, payload))
                sock.sendall(b"".join(packets))
                if not waiting:
                    return
                kind, length, acked_id = struct.unpack(">BBH", self._exactly(sock, 4))
                expected, payload = waiting.popleft()
                assert (kind, length, acked_id) == (0x40, 2, expected), "PUBACKs in order [MQTT-4.6.0-2]"
                self.acked.append(payload)
                if self._pause_s:
                    self._ended.wait(self._pause_s)

    def _connect(self) -> bytes:
        fields = [self.name.encode()] * (1 if self._password is None else 2)
        fields += [] if self._password is None else [self._password.encode()]
        flags = 0x02 if self._password is None else 0xC2
        body = b"\x00\x04MQTT\x04" + bytes((flags, 0, 0)) + b"".join(struct.pack(">H", len(f)) + f for f in fields)
        assert len(body) < 128
        return bytes((0x10, len(body))) + body

    def _publish(self, packet_id: int, payload: bytes) -> bytes:
        rest = struct.pack(">H", len(self._topic)) + self._topic + struct.pack(">H", packet_id) + payload
        assert len(rest) < 128
        return bytes((0x32, len(rest))) + rest

    @staticmethod
    def _exactly(sock: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = sock.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data
