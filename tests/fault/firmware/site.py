"""Gateway with TLS behind a link that can be unplugged, and examples as processes that publish to it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.fault.firmware.programs import ExampleProgram
from tests.fault.firmware.spool_file import SpoolFile, read_spool
from tests.support.certificates import Authority
from tests.support.command import document_of
from tests.support.configured_gateway import gateway_with, user
from tests.support.cut_link import CutLink
from tests.support.paho_client import SESSION_S, PahoClient
from tests.support.processes import free_port, wait_until

WAIT_S: Final = 60.0
COLLECTED: Final = ("plant", "status", "command-response")
"""First levels of the topics that are collected."""
CERTIFIED: Final = "certified"
"""Device that has a certificate and no password."""
_RESOURCES: Final = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: hall}}
spec:
  listeners:
    mqtt: "127.0.0.1:{mqtt}"
    mqtts: "127.0.0.1:{mqtts}"
    amqps: "127.0.0.1:{amqps}"
    http: "127.0.0.1:{http}"
    https: "127.0.0.1:{https}"
    tls: {{certificate: "{certificate}", key: "{key}", clientCa: "{ca}"}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{authenticationService: {{name: standard}}}}
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.certified}}
spec:
  username: certified
  authentication: {{type: serviceaccount}}
  authorization:
  - {{addresses: ["plant/certified", "status/certified", "command-response/certified"], operations: [send]}}
  - {{addresses: ["command/certified/#"], operations: [recv]}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.commands-over-http}}
spec: {{address: "command/curl", type: queue}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.commands-over-amqp}}
spec: {{address: "command/python-amqp", type: queue}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.commands-to-rhea}}
spec: {{address: "command/nodejs-amqp", type: queue}}
"""


class ExampleSite:
    """Running gateway with one link for each listener; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.ports = {name: free_port() for name in ("mqtt", "mqtts", "amqps", "http", "https")}
        server = self.authority.issue("gateway")
        text = _RESOURCES.format(
            **self.ports, certificate=server.certificate, key=server.key, ca=self.authority.certificate
        )
        self.gateway = gateway_with(folder, text + user("collector", "send, recv"))
        self.links = {name: CutLink(port) for name, port in self.ports.items()}

    def __enter__(self) -> Self:
        self.gateway.start()
        for link in self.links.values():
            link.__enter__()
        with self._collector():
            pass
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            link.__exit__()
        self.gateway.__exit__()

    def kill_gateway(self) -> None:
        """Kill the gateway and start it again."""
        self.gateway.kill()
        self.gateway.start()

    def unplug(self, unplugged: bool) -> None:
        """Pull the network cable of all devices, or plug it in."""
        for link in self.links.values():
            link.down(unplugged)

    def add_device(self, name: str) -> str:
        """Add a device with the rights of the profile `sensor`; return its password."""
        added = document_of("user", "add", name, "--data", str(self.folder / "gw"), "--profile", "sensor")
        return str(added["password"])

    def publish(self, topic: str, body: bytes, properties: Properties | None = None) -> None:
        """Publish as an application does, and wait for the acknowledgement."""
        with PahoClient(self._client("application")).connect(self.ports["mqtt"]) as client:
            info = client.client.publish(topic, body, 1, properties=properties)
            info.wait_for_publish(WAIT_S)
            assert info.is_published()

    def command(self, device: str, body: bytes, *, answer_to: str = "", correlation: bytes = b"") -> None:
        """Send a command to a device."""
        properties = Properties(PacketTypes.PUBLISH)
        if answer_to:
            properties.ResponseTopic, properties.CorrelationData = answer_to, correlation
        self.publish(f"command/{device}", body, properties)

    def collect(self) -> dict[str, list[paho.MQTTMessage]]:
        """Return everything that arrived since the start, or since the last collection, by topic in its order."""
        ends = {f"{level}/end" for level in COLLECTED}  # each subscription has an order of its own
        token = secrets.token_bytes(8)  # an end of before comes again if its acknowledgement was lost
        for end in ends:
            self.publish(end, token)
        found: dict[str, list[paho.MQTTMessage]] = defaultdict(list)
        with self._collector() as collector:
            while ends:
                message = collector.take()
                if bytes(message.payload) == token:
                    ends.discard(message.topic)
                elif not message.topic.endswith("/end"):
                    found[message.topic].append(message)
        return found

    def _collector(self) -> PahoClient:
        """Return a connected subscriber with a session that lasts."""
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = SESSION_S
        collector = PahoClient(self._client("collector"))
        collector.connect(self.ports["mqtt"], clean_start=False, properties=lasting)
        for level in COLLECTED if not collector.session_present else ():
            collector.subscribe(f"{level}/#")
        return collector

    @staticmethod
    def _client(name: str) -> paho.Client:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        client.username_pw_set("collector", "collector")
        return client


class ExampleRun:
    """A device: its settings, its spool on the disk, and its process, which may be reset; a context manager."""

    def __init__(self, program: ExampleProgram, folder: Path, settings: Mapping[str, object]) -> None:
        """`folder`: of the device; `settings`: without the prefix of the variables."""
        folder.mkdir(parents=True, exist_ok=True)
        self.program, self.folder = program, folder
        self.spool_path, self.log = folder / "readings.spool", folder / "stderr"
        self.settings = {"SPOOL": self.spool_path, **settings}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        variables = {f"WAYPOST_{name}": str(value) for name, value in self.settings.items()}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                (*self.program.command(), *self.program.arguments(self.settings)),
                cwd=self.folder, env=self.program.environment() | variables, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self

    def reset(self) -> None:
        """Cut the power, and start it again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill all processes of the device, as a power cut does."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> None:
        """Request the end after the delivery of all readings."""
        assert self.process is not None
        self.process.send_signal(self.program.stop_signal)

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.program.name} does not end: {self.said()}") from None

    @property
    def spool(self) -> SpoolFile:
        return read_spool(self.spool_path)

    def said(self) -> str:
        """Return what the program printed."""
        return self.log.read_text(errors="replace")

    def wait_stored(self, more: int) -> None:
        """Wait until this many more readings are stored."""
        target = self.spool.next + more
        self._wait(lambda: self.spool.next >= target, f"{more} more readings are stored")

    def wait_acknowledged(self, more: int = 5) -> None:
        """Wait until this many more readings are acknowledged."""
        target = self.spool.acknowledged + more
        self._wait(lambda: self.spool.acknowledged >= target, f"{more} more readings are acknowledged")

    def wait_said(self, text: str) -> None:
        """Wait until the program prints this."""
        self._wait(lambda: text in self.said(), f"it prints {text!r}")

    def _wait(self, condition: object, what: str, timeout_s: float = WAIT_S) -> None:
        assert callable(condition)

        def met() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.program.name} ended: {self.said()}"
            return bool(condition())

        try:
            wait_until(met, timeout_s=timeout_s, what=what)
        except AssertionError as error:
            raise AssertionError(f"{self.program.name}: {error}; it printed:\n{self.said()[-3000:]}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()  # also children that have outlived the first process


def settings_at(site: ExampleSite, program: ExampleProgram, name: str, password: str) -> dict[str, object]:
    """Return the settings of a device that reaches the gateway over its link, by TLS if the program has it."""
    settings: dict[str, object] = {
        "HOST": "localhost" if program.listener == "amqps" else "127.0.0.1",  # Proton checks names, not addresses
        "PORT": site.links[program.listener].port,
        "DEVICE": name,
        "INTERVAL_MS": 50,
        "SPOOL_READINGS": 4096,
    }
    if password:
        settings["PASSWORD"] = password
    if program.listener.endswith("s"):
        settings["CA"] = site.authority.certificate
    return settings
