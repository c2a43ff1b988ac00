"""Brokers under comparison, started fresh for a benchmark on free loopback ports and stopped after it.

`peers` has those with their own runtime (RabbitMQ, ActiveMQ Artemis).
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.bench.packages import BrokerMissing, program
from tests.bench.scratch import scratch_folder
from tests.support.certificates import Authority
from tests.support.processes import Waypost, cpu_s, edge, free_port, peak_mib, resident_mib, wait_until


class Broker(Protocol):
    """A running broker: ``with`` starts and stops it."""

    name: str

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def port(self, protocol: str) -> int: ...

    def queue(self, number: int) -> str:
        """Return the AMQP address of a durable queue; each number is another queue."""
        ...

    def stop(self) -> None:
        """Stop it cleanly; its data is on the medium afterwards."""
        ...

    @property
    def resident_mib(self) -> float: ...


def listens(port: int) -> bool:
    """Return True when the loopback port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class WaypostBroker:
    """A development gateway with its store on disk."""

    name = "waypost"

    def __init__(self, folder: Path | None = None, *arguments: str) -> None:
        """Keep data in `folder`; without one, in a temporary folder that is deleted with the gateway."""
        self._own = None if folder else scratch_folder()
        self._process: Waypost = edge(folder or Path(self._own.name if self._own else ""), "gateway", *arguments)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self._process.start()

    def kill(self) -> None:
        """Send SIGKILL; `start` restarts it."""
        self._process.kill()

    def stop(self) -> None:
        """Send SIGTERM and wait for the end."""
        self._process.stop()

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()
        if self._own is not None:
            self._own.cleanup()

    def port(self, protocol: str) -> int:
        return self._process.port(protocol)

    def queue(self, number: int) -> str:
        return f"queue/bench{number}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_mib(self) -> float:
        return resident_mib(self._process.pid)

    @property
    def resident_mib_max(self) -> float:
        """Return its largest resident memory since the start."""
        return peak_mib(self._process.pid)

    @property
    def cpu_s(self) -> float:
        """Return its processor time since the start."""
        return cpu_s(self._process.pid)


class WaypostWaiting(WaypostBroker):
    """Gateway with commits delayed by up to 100 ms: `durability: batch:100` on every address."""

    name = "waypost-batch"
    durability = "batch:100"
    _resources = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: bench}, spec: {listeners:
  {mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.all},
  spec: {address: "#", type: topic, durability: "DURABILITY"}}
"""

    def __init__(self, folder: Path) -> None:
        (folder / "gateway.yaml").write_text(self._resources.replace("DURABILITY", self.durability))
        super().__init__(folder, "--config", str(folder / "gateway.yaml"))


class WaypostInMemory(WaypostWaiting):
    """Gateway that stores no message: `durability: memory` on every address."""

    name = "waypost-memory"
    durability = "memory"


class WaypostConfigured(WaypostBroker):
    """Gateway with its own limits, given as YAML."""

    _resources = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: bench}, spec: {listeners:
  {mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}, limits: LIMITS}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
"""

    def __init__(self, limits: str) -> None:
        self._configuration = scratch_folder()
        folder = Path(self._configuration.name)
        (folder / "gateway.yaml").write_text(self._resources.replace("LIMITS", limits))
        super().__init__(folder, "--config", str(folder / "gateway.yaml"))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._configuration.cleanup()


class WaypostEveryTransport(WaypostBroker):
    """Gateway with listeners for TLS and WebSocket too (`mqtts`, `amqps`, `mqtt-ws`, `amqp-ws`)."""

    _resources = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: bench}, spec: {listeners:
  {mqtt: "127.0.0.1:0", mqtts: "127.0.0.1:0", mqttWs: "127.0.0.1:0", amqp: "127.0.0.1:0", amqps: "127.0.0.1:0",
   amqpWs: "127.0.0.1:0", http: "127.0.0.1:0", tls: {certificate: CERTIFICATE, key: KEY}}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
"""

    def __init__(self) -> None:
        self._configuration = scratch_folder()
        folder = Path(self._configuration.name)
        issued = Authority(folder / "authority").issue("localhost")
        resources = self._resources.replace("CERTIFICATE", issued.certificate).replace("KEY", issued.key)
        (folder / "gateway.yaml").write_text(resources)
        super().__init__(folder, "--config", str(folder / "gateway.yaml"))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._configuration.cleanup()


class Mosquitto:
    """Debian's Mosquitto, entirely in memory and without a limit on its queues."""

    name = "mosquitto"
    _settings = "max_queued_messages 0\nmax_inflight_messages 0\n"

    def __init__(self, parent: Path | None = None) -> None:
        """Keep data in a new folder inside `parent`."""
        self._program = self._find()
        self._port = free_port()
        self._folder = scratch_folder(parent)
        self._configuration = Path(self._folder.name) / "mosquitto.conf"
        self._configuration.write_text(
            f"listener {self._port} 127.0.0.1\nallow_anonymous true\n{self._settings}"
            f"user {getpass.getuser()}\n"  # started by root it would switch to a user without write access here
            f"persistence_location {self._folder.name}/\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def _find(self) -> Path:
        """Return the program. Raises BrokerMissing."""
        return program("mosquitto", "mosquitto")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._program, "-c", str(self._configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: listens(self._port), timeout_s=10, what="mosquitto listens")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """Send SIGTERM and wait for the end, after it has written its state."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def port(self, protocol: str) -> int:
        return self._port

    def queue(self, number: int) -> str:
        raise NotImplementedError("Mosquitto speaks MQTT only")

    @property
    def resident_mib(self) -> float:
        if self._process is None:
            raise ProcessLookupError("mosquitto is not running")
        return resident_mib(self._process.pid)


class MosquittoBridge(Mosquitto):
    """Mosquitto with a bridge to another broker, which forwards topics below a filter at QoS 1."""

    name = "mosquitto-bridge"

    def __init__(self, parent: Path, far_port: int, messages: str) -> None:
        super().__init__(parent)
        with self._configuration.open("a") as configuration:
            configuration.write(
                f"connection far\naddress 127.0.0.1:{far_port}\ntopic {messages} out 1\ncleansession false\n"
                "notifications false\nrestart_timeout 1\n"
            )


class MosquittoPersistent(Mosquitto):
    """Mosquitto with persistence: writes its whole state every 10 000 changes, without a sync before an answer."""

    name = "mosquitto-db"
    _settings = (
        "max_queued_messages 0\nmax_inflight_messages 0\n"
        "persistence true\nautosave_on_changes true\nautosave_interval 10000\n"
    )


class MosquittoSaving(Mosquitto):
    """Mosquitto with Debian's persistence: writes its whole state every half hour and at its end."""

    name = "mosquitto-30m"
    _settings = f"{Mosquitto._settings}persistence true\n"


class MosquittoEach(Mosquitto):
    """Mosquitto that writes its whole state after each change: the smallest possible loss."""

    name = "mosquitto-each"
    _settings = f"{Mosquitto._settings}persistence true\nautosave_on_changes true\nautosave_interval 1\n"


class MosquittoEveryTransport(Mosquitto):
    """Mosquitto with listeners for TLS and WebSocket too."""

    def __init__(self) -> None:
        super().__init__()
        self._ports = {"mqtt": self._port, "mqtts": free_port(), "mqtt-ws": free_port()}
        issued = Authority(Path(self._folder.name) / "authority").issue("localhost")
        with self._configuration.open("a") as configuration:
            configuration.write(
                f"listener {self._ports['mqtts']} 127.0.0.1\ncertfile {issued.certificate}\nkeyfile {issued.key}\n"
                f"listener {self._ports['mqtt-ws']} 127.0.0.1\nprotocol websockets\n"
            )

    def port(self, protocol: str) -> int:
        return self._ports[protocol]


class MosquittoSqlite(Mosquitto):
    """Mosquitto 2.1 with its SQLite plugin's defaults: it answers first, and commits every 5 s without a sync."""

    name = "mosquitto-sqlite"
    _settings = f"{Mosquitto._settings}plugin PLUGIN\n"

    def __init__(self) -> None:
        super().__init__()
        text = self._configuration.read_text().replace("PLUGIN", str(self._program.parent / self._plugin))
        self._configuration.write_text(text)

    _plugin = "mosquitto_persist_sqlite.so"

    def _find(self) -> Path:
        named = os.environ.get("MOSQUITTO_SQLITE", "")
        if not named or not (Path(named).parent / self._plugin).exists():
            raise BrokerMissing(
                f"MOSQUITTO_SQLITE names no mosquitto 2.1 with {self._plugin} beside it. No Debian release has one: "
                "build it from its source as tests/bench/README.md says (two minutes)"
            )
        return Path(named)
