"""The brokers that are compared, started fresh for a benchmark on free loopback ports and stopped after it.

Those with a runtime of their own (RabbitMQ, ActiveMQ Artemis) are in `peers`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.support.processes import Waypost, edge, free_port, resident_mib, wait_until


class Broker(Protocol):
    """A running broker: ``with`` starts and stops it."""

    name: str

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def port(self, protocol: str) -> int: ...

    def queue(self, number: int) -> str:
        """AMQP address of a durable queue; another number, another queue."""
        ...

    @property
    def resident_mib(self) -> float: ...


class BrokerMissing(Exception):
    """The peer is not installed; the message says what to install."""


def listens(port: int) -> bool:
    """Somebody accepts connections on this loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class WaypostBroker:
    """A development gateway with its store on disk."""

    name = "waypost"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=Path.cwd() / "build")
        self._process: Waypost = edge(Path(self._folder.name), "gateway")

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()
        self._folder.cleanup()

    def port(self, protocol: str) -> int:
        return self._process.port(protocol)

    def queue(self, number: int) -> str:
        return f"queue/bench{number}"

    @property
    def resident_mib(self) -> float:
        return resident_mib(self._process.pid)


class Mosquitto:
    """Debian's Mosquitto, everything in memory, no bound on its queues."""

    name = "mosquitto"
    _settings = "max_queued_messages 0\nmax_inflight_messages 0\n"

    def __init__(self) -> None:
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if program is None:
            raise BrokerMissing("mosquitto is not installed: apt-get install mosquitto")
        self._port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=Path.cwd() / "build")
        self._configuration = Path(self._folder.name) / "mosquitto.conf"
        self._configuration.write_text(
            f"listener {self._port} 127.0.0.1\nallow_anonymous true\n{self._settings}"
            f"persistence_location {self._folder.name}/\n"
        )
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._program, "-c", str(self._configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: listens(self._port), timeout_s=10, what="mosquitto listens")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        self._folder.cleanup()

    def port(self, protocol: str) -> int:
        return self._port

    def queue(self, number: int) -> str:
        raise NotImplementedError("Mosquitto speaks MQTT only")

    @property
    def resident_mib(self) -> float:
        if self._process is None:
            raise ProcessLookupError("mosquitto is not running")
        return resident_mib(self._process.pid)


class MosquittoPersistent(Mosquitto):
    """The same with its persistence: its whole state written every 10 000 changes, never synced before an answer."""

    name = "mosquitto-db"
    _settings = (
        "max_queued_messages 0\nmax_inflight_messages 0\n"
        "persistence true\nautosave_on_changes true\nautosave_interval 10000\n"
    )


def say(text: str) -> None:
    """Progress goes to stderr; stdout is for the result."""
    print(text, file=sys.stderr, flush=True)
