"""Devices that speak only MQTT: offers, chunks and reports, as `docs/how-to/update-devices-over-mqtt.md` says."""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge.appliance.artefacts.limits import CHUNK_BYTES_MAX, CONNECTION_REQUESTS_MAX
from tests.support.artefacts import sealed
from tests.support.configured_gateway import gateway_with, resources
from tests.support.device_artefacts import IMAGE, WAIT_S, gateway_with_image, reports
from tests.support.processes import Waypost, resident_mib, wait_until

ANSWER_S: Final = 5.0
"""Time after which a device repeats its request."""


PROTOCOLS: Final = (MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Waypost]:
    """Run a gateway of one test."""
    with gateway_with_image(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Run a gateway; each test has its own device."""
    with gateway_with_image(tmp_path_factory.mktemp("topics")) as made:
        yield made


class MqttDevice:
    """Device as the description says it: it sets the pace, repeats what is not answered, and resumes."""

    def __init__(
        self,
        gateway: Waypost,
        name: str,
        version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
        *,
        acknowledges: bool = True,
    ) -> None:
        self._gateway = gateway
        self._version = version
        self._name = name
        self._acknowledges = acknowledges
        self.root = f"$artefacts/{name}"
        self.answers: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.subscribed: queue.Queue[int] = queue.Queue()
        self.requests = 0
        self.client: paho.Client

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def connect(self, device: str = "") -> Self:
        """Connect, and subscribe to the answers for a device."""
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, self._name, protocol=self._version, manual_ack=not self._acknowledges
        )
        self.client.username_pw_set(self._name, self._name)
        self.client.on_message = lambda _client, _data, message: self.answers.put(message)
        self.client.on_subscribe = lambda _client, _data, _id, codes, _properties: self.subscribed.put(codes[0].value)
        self.client.connect("127.0.0.1", self._gateway.port("mqtt"))
        self.client.loop_start()
        wait_until(lambda: self.subscribe(device) == 1 or bool(device), timeout_s=60, what="it serves", every_s=0.2)
        return self

    def subscribe(self, device: str = "") -> int:
        """Subscribe to the answers for a device; return the code."""
        self.client.subscribe(f"$artefacts/{device or self._name}/answer/#", 1)
        self.code = self.subscribed.get(timeout=WAIT_S)
        return self.code

    def reconnect(self) -> None:
        """Connect again, after a restart of the gateway."""
        self.client.loop_stop()
        self.connect()

    def ask(
        self, request: str, answer: str, payload: bytes = b"", properties: Properties | None = None
    ) -> paho.MQTTMessage:
        """Publish a request and return its answer; repeat it while there is none."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self.requests += 1
            self.client.publish(f"{self.root}/get/{request}", payload, 0, properties=properties)
            until = time.monotonic() + ANSWER_S
            while (left := until - time.monotonic()) > 0:
                try:
                    found = self.answers.get(timeout=left)
                except queue.Empty:
                    break
                if found.topic in (f"{self.root}/answer/{answer}", f"{self.root}/answer/refused/{answer}"):
                    return found
        raise AssertionError(f"{request} is not answered")

    def offer(self, **said: str) -> dict[str, Any] | None:
        """Return what is offered, once the gateway has read its artefacts."""
        found: list[dict[str, Any]] = []

        def is_known() -> bool:
            found.append(json.loads(self.ask("offer", "offer", json.dumps(said).encode()).payload))
            return found[-1].get("status") != 503

        wait_until(is_known, timeout_s=WAIT_S, what="the gateway knows its artefacts", every_s=0.2)
        return found[-1]["artefact"]  # type: ignore[no-any-return]

    def chunk(self, digest: str, offset: int, length: int) -> bytes:
        """Return bytes of an image or a manifest."""
        found = self.ask(f"chunk/{digest}/{offset}/{length}", f"chunk/{digest}/{offset}")
        assert "/refused/" not in found.topic, found.payload
        return bytes(found.payload)

    def refused(self, request: str) -> int:
        """Return the status of a request that is refused."""
        found = self.ask(request, request.rpartition("/")[0])
        assert "/answer/refused/" in found.topic
        return int(json.loads(found.payload)["status"])

    def report(self, **said: str) -> int:
        """Publish a report; return the number of reason of its acknowledgement, or raise after a time."""
        sent = self.client.publish(f"{self.root}/report", json.dumps(said), 1)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published()
        return sent.rc


@pytest.mark.parametrize(("version", "name"), list(zip(PROTOCOLS, ("pump-1", "pump-2"), strict=True)))
def test_update(gateway: Waypost, version: MQTTProtocolVersion, name: str) -> None:
    with MqttDevice(gateway, name, version) as device:
        offer = device.offer(board="pico-w")
        assert offer is not None
        assert (offer["name"], offer["version"], offer["size"]) == ("blinker", "1.2.0", len(IMAGE))
        assert base64.b64decode(offer["manifest"]) == sealed(IMAGE)
        have = b""
        while len(have) < offer["size"]:
            have += device.chunk(offer["sha256"], len(have), offer["chunk_bytes_max"])
        assert hashlib.sha256(have).hexdigest() == offer["sha256"]
        device.report(artefact="blinker", version="1.2.0", state="verified")
        assert reports(gateway, name) == ["verified"]


@pytest.mark.slow
@pytest.mark.parametrize("version", PROTOCOLS)
def test_update_survives_kills_of_the_gateway(fresh: Waypost, version: MQTTProtocolVersion) -> None:
    gateway = fresh
    with MqttDevice(gateway, "pump-1", version) as device:
        offer = device.offer(board="pico-w")
        assert offer is not None
        have = b""
        while len(have) < offer["size"]:
            if len(have) == 3 * CHUNK_BYTES_MAX:
                gateway.kill()
                gateway.start()
                device.reconnect()
            have += device.chunk(offer["sha256"], len(have), offer["chunk_bytes_max"])
        assert hashlib.sha256(have).hexdigest() == offer["sha256"]
        assert device.requests <= 12, "a chunk is requested once, or again after a kill"
        device.report(artefact="blinker", version="1.2.0", state="installed")
        gateway.kill()
        gateway.start()
        device.reconnect()
        assert reports(gateway, "pump-1") == ["installed"], "it was acknowledged, so it is on disk"
    assert stored_nowhere(gateway)


def test_finished_update_is_not_offered_again(gateway: Waypost) -> None:
    with MqttDevice(gateway, "pump-3") as device:
        assert device.offer(board="esp32") is None
        assert device.offer(board="pico-w") is not None
        device.report(artefact="blinker", version="1.2.0", state="rolled-back", reason="no room")
        wait_until(lambda: device.offer() is None, timeout_s=WAIT_S, what="the report is noted")
        assert reports(gateway, "pump-3") == ["rolled-back"]


def test_manifest_in_chunks(gateway: Waypost) -> None:
    with MqttDevice(gateway, "pump-4") as device:
        offer = device.offer()
        assert offer is not None
        have = b""
        while len(have) < offer["manifest_size"]:
            have += device.chunk(offer["manifest_sha256"], len(have), 100)
        assert have == sealed(IMAGE)


def test_correlation_data_returns(gateway: Waypost) -> None:
    with MqttDevice(gateway, "pump-4", MQTTProtocolVersion.MQTTv5) as device:
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.CorrelationData = b"17"
        answered: Any = device.ask("offer", "offer", properties=properties).properties
        assert answered.CorrelationData == b"17"


def test_refusals(gateway: Waypost) -> None:
    with MqttDevice(gateway, "pump-5") as device:
        digest = hashlib.sha256(IMAGE).hexdigest()
        assert device.refused(f"chunk/{digest}/{len(IMAGE)}/10") == 416
        assert device.refused(f"chunk/{'0' * 64}/0/10") == 404
        assert device.offer(board="esp32") is None
        assert device.refused(f"chunk/{digest}/0/10") == 422, "it is for another board"
        assert json.loads(device.ask("offer", "offer", b"{").payload)["status"] == 400


@pytest.mark.parametrize(("version", "code"), list(zip(PROTOCOLS, (0x80, 0x87), strict=True)))
def test_other_devices_are_refused(gateway: Waypost, version: MQTTProtocolVersion, code: int) -> None:
    other = MqttDevice(gateway, "pump-2", version).connect("pump-1")
    try:
        assert other.code == code
    finally:
        other.__exit__()


def test_invalid_report_is_refused(gateway: Waypost) -> None:
    with MqttDevice(gateway, "pump-6", MQTTProtocolVersion.MQTTv5) as device:
        codes: queue.Queue[int] = queue.Queue()
        device.client.on_publish = lambda _client, _data, _id, code, _properties: codes.put(code.value)
        device.client.publish(f"{device.root}/report", b'{"state": "eaten"}', 1)
        assert codes.get(timeout=WAIT_S) == 0x99
        device.report(artefact="blinker", version="1.2.0", state="verified")
        assert reports(gateway, "pump-6") == ["verified"]


def test_device_that_does_not_acknowledge_costs_nothing(gateway: Waypost) -> None:
    digest = hashlib.sha256(IMAGE).hexdigest()
    with MqttDevice(gateway, "pump-7") as device, MqttDevice(gateway, "pump-8", acknowledges=False) as hostile:
        assert downloaded(device) == IMAGE, "all modules and files are in use from here on"
        before = resident_mib(gateway.pid)
        for _ in range(20):
            for _ in range(100):
                hostile.client.publish(f"{hostile.root}/get/chunk/{digest}/0/{CHUNK_BYTES_MAX}", b"", 0)
            hostile.client.unsubscribe(f"{hostile.root}/answer/#")
            assert hostile.subscribe() == 1, "what it has not acknowledged still counts"
        assert downloaded(device) == IMAGE
        hostile.client.publish("plant/pump-8/done", b"", 1).wait_for_publish(WAIT_S)
        assert hostile.answers.qsize() <= CONNECTION_REQUESTS_MAX
        assert resident_mib(gateway.pid) - before < 32


@pytest.mark.parametrize(("version", "code"), list(zip(PROTOCOLS, (0x80, 0x83), strict=True)))
def test_topics_of_a_gateway_without_artefacts(tmp_path: Path, version: MQTTProtocolVersion, code: int) -> None:
    """They are no usual topics, also for clients without authentication: no report is acknowledged and lost."""
    text = resources(listeners=("mqtt",), space="authenticationService: {name: none}")
    with gateway_with(tmp_path, text) as plain:
        device = MqttDevice(plain, "pump-1", version).connect("pump-1")
        try:
            assert device.code == code
            lost: queue.Queue[object] = queue.Queue()
            device.client.on_publish = lambda _client, _data, _id, reason, _properties: lost.put(reason.value)
            device.client.on_disconnect = lambda *_: lost.put("disconnected")
            device.client.publish(f"{device.root}/report", b"{}", 1)
            assert lost.get(timeout=WAIT_S) == ("disconnected" if code == 0x80 else 0x87)
        finally:
            device.__exit__()


def downloaded(device: MqttDevice) -> bytes:
    """Return the image that a device fetches."""
    offer = device.offer()
    assert offer is not None
    have = b""
    while len(have) < offer["size"]:
        have += device.chunk(offer["sha256"], len(have), CHUNK_BYTES_MAX)
    return have


def stored_nowhere(gateway: Waypost) -> bool:
    """Return whether the bytes of the image are in no file but the image."""
    part = IMAGE[1_000:1_064]
    files = [path for path in gateway.data.rglob("*") if path.is_file() and path.suffix != ".image"]
    return not any(part in path.read_bytes() for path in files)
