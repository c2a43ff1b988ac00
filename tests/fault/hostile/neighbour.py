"""A client that has nothing to do with an attack, in a process of its own, and how long its round trips take.

``python -m tests.fault.hostile.neighbour PORT`` sends itself a QoS 1 message over and over, from another address than
the attackers, and writes a line for each: when it came back, and how long it took (seconds, the monotonic clock).
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
"""Where the neighbour lives; attackers have 127.0.0.1."""
PACE_S: Final = 0.005
"""Between two round trips."""
WAIT_S: Final = 30.0


class Neighbour:
    """The process, and what it has told."""

    def __init__(self, port: int) -> None:
        self.samples: list[tuple[float, float]] = []
        """(when, seconds) of each round trip."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.hostile.neighbour", str(port)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def p99_s(self, begin: float, end: float) -> float:
        """Of the round trips that began in this time; one that is still under way counts with the time it has taken."""
        took = sorted(took for at, took in self.samples if begin <= at - took <= end)
        if not took:
            return end - begin
        return took[min(len(took) - 1, len(took) * 99 // 100)]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, count: int) -> None:
        """Until it has made so many round trips more."""
        wanted, deadline = len(self.samples) + count, time.monotonic() + WAIT_S
        while len(self.samples) < wanted:
            assert self.alive, "the neighbour was not served"
            assert time.monotonic() < deadline, "the neighbour gets no answer"
            time.sleep(0.01)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # it was killed while it wrote this
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


def main(port: int) -> None:
    with socket.socket() as client:
        client.bind((ADDRESS, 0))
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", port))
        client.sendall(packets.Connect("neighbour", 4).encode(4))
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
    main(int(sys.argv[1]))
