"""Client unrelated to an attack, in its own process, and the duration of its round trips.

``python -m tests.fault.hostile.neighbour PORT [USER PASSWORD]`` repeatedly sends itself a QoS 1 message, from another
address than the attackers'. It writes a line for each: time of return and duration (seconds, the monotonic clock).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import Final, Self

from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest

ADDRESS: Final = "127.0.0.2"
"""Address of the neighbour; attackers have 127.0.0.1."""
PACE_S: Final = 0.005
"""Pause between two round trips."""
WAIT_S: Final = 30.0


class Neighbour:
    """The process, and its reported round trips."""

    def __init__(self, port: int, *login: str) -> None:
        """`login`: user name and password, where the gateway requires them."""
        self.samples: list[tuple[float, float]] = []
        """(when, seconds) of each round trip."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.hostile.neighbour", str(port), *login],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def p99_s(self, begin: float, end: float) -> float:
        """Return the p99 of the round trips that began in this time, or the whole time without any."""
        took = sorted(took for at, took in self.samples if begin <= at - took <= end)
        if not took:
            return end - begin
        return took[min(len(took) - 1, len(took) * 99 // 100)]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, count: int) -> None:
        """Wait until this many further round trips are complete."""
        wanted, deadline = len(self.samples) + count, time.monotonic() + WAIT_S
        while len(self.samples) < wanted:
            assert self.alive, "the neighbour was not served"
            assert time.monotonic() < deadline, "the neighbour gets no answer"
            time.sleep(0.01)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # a kill interrupted this line
            at, took = line.split()
            self.samples.append((float(at), float(took)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def main(port: int, username: str | None = None, password: str | None = None) -> None:
    with socket.socket() as client:
        client.bind((ADDRESS, 0))
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", port))
        secret = password.encode() if password is not None else None
        client.sendall(packets.Connect("neighbour", 4, username=username, password=secret).encode(4))
        expect(client, 4)
        client.sendall(packets.Subscribe(1, (SubscriptionRequest("neighbour/echo", 0),)).encode(4))
        expect(client, 5)
        sent = packets.Publish("neighbour/echo", b"x", qos=1, packet_id=1).encode(4)
        echo = packets.Publish("neighbour/echo", b"x").encode(4)
        while True:
            begin = time.monotonic()
            client.sendall(sent)
            expect(client, len(echo) + 4)  # the message, and its PUBACK
            end = time.monotonic()
            print(end, end - begin, flush=True)
            time.sleep(PACE_S)


def expect(client: socket.socket, count: int) -> None:
    while count:
        data = client.recv(count)
        if not data:
            raise SystemExit("closed by the gateway")
        count -= len(data)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
