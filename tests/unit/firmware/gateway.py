"""A gateway for the firmware: MQTT 3.1.1 in a thread, with scripted faults."""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import dataclass, field


@dataclass
class Received:
    """One PUBLISH of a reading."""

    seq: int
    dup: bool
    packet_id: int


@dataclass
class Gateway:
    """Acknowledge readings; reset each connection in turn after the number of readings in `break_after`.

    On the last connection the device gets `command` once `command_after` readings were acknowledged.
    """

    break_after: list[int] = field(default_factory=list)
    command: bytes = b'{"stop": true}'
    command_after: int = 10
    received: list[Received] = field(default_factory=list)
    connects: list[bytes] = field(default_factory=list)
    subscriptions: list[bytes] = field(default_factory=list)
    status: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    command_acknowledged: bool = False
    disconnected: bool = False

    def __enter__(self) -> Gateway:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(20)
                try:
                    self._serve(sock)
                except (ConnectionError, EOFError):
                    continue

    def _serve(self, sock: socket.socket) -> None:
        left = self.break_after.pop(0) if self.break_after else None
        acknowledged = 0
        with sock.makefile("rb") as stream:
            while True:
                first, body = self._packet(stream.read)
                match first >> 4:
                    case 1:
                        self.connects.append(body)
                        sock.sendall(b"\x20\x02\x01\x00")
                    case 3:
                        end = 2 + struct.unpack("!H", body[:2])[0]
                        packet_id, payload = body[end : end + 2], body[end + 2 :]
                        if body[2:end].startswith(b"status/"):
                            self.status.append(payload)
                        elif body[2:end].startswith(b"command-response/"):
                            self.answers.append(payload)
                        else:
                            number = struct.unpack("!H", packet_id)[0]
                            self.received.append(Received(json.loads(payload)["seq"], bool(first & 8), number))
                            if left is not None and acknowledged == left:
                                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                                return
                            acknowledged += 1
                        sock.sendall(b"\x40\x02" + packet_id)
                        if left is None and acknowledged == self.command_after:
                            acknowledged += 1
                            packet = b"\x00\x0ecommand/pico-1\x00\x07" + self.command
                            sock.sendall(bytes([0x32, len(packet)]) + packet)
                    case 4:
                        self.command_acknowledged = body == b"\x00\x07"
                    case 8:
                        self.subscriptions.append(body[4:-1])
                        sock.sendall(b"\x90\x03" + body[:2] + b"\x01")
                    case 12:
                        sock.sendall(b"\xd0\x00")
                    case 14:
                        self.disconnected = True
                        return

    @staticmethod
    def _packet(read: object) -> tuple[int, bytes]:
        def exactly(count: int) -> bytes:
            data: bytes = read(count)  # type: ignore[operator]
            if len(data) < count:
                raise EOFError
            return data

        first = exactly(1)[0]
        length = shift = 0
        while True:
            digit = exactly(1)[0]
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                return first, exactly(length)
