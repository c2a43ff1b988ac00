"""Server that speaks ChirpStack's MQTT integration: a device queue, one downlink after each uplink, and its events.

It follows `integration.proto` and `downlink/data.rs` of ChirpStack 4 (https://github.com/chirpstack/chirpstack); it is
not ChirpStack. Its broker is Mosquitto.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict, deque
from typing import Any, Final, Self

import paho.mqtt.client as paho

from tests.support.paho_loop import running_loop
from tests.support.processes import wait_until

APPLICATION: Final = "ae2012c2-75a1-407d-98ab-1520fb511edf"
FIELDS: Final = {"id", "devEui", "confirmed", "fPort", "data", "object", "expiresAt"}
"""Fields of `DownlinkCommand` in JSON."""


class ChirpStack:
    """Server of one application; a context manager."""

    def __init__(self, port: int, *, kind: str = "") -> None:
        """`kind`: class of the devices, such as ``CLASS_C``; class A is left out of events."""
        self.queues: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self.sent: list[dict[str, Any]] = []
        """Downlinks that a gateway has sent, in order."""
        self.repeated: list[str] = []
        """Identifiers that came again while they were queued."""
        self._port, self._kind = port, kind
        self._lock = threading.Lock()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "chirpstack", protocol=paho.MQTTv5)
        self._subscribed = threading.Event()
        self._client.on_connect = lambda *_: self._client.subscribe("application/+/device/+/command/+", 1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._command
        self._loop = running_loop(self._client)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._loop.__enter__()
        assert self._subscribed.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.__exit__(None, None, None)

    def event(self, device: str, kind: str, **fields: Any) -> None:
        """Publish an event."""
        info = {"tenantId": str(uuid.uuid4()), "applicationId": APPLICATION, "devEui": device, "deviceName": "meter"}
        if self._kind:
            info["deviceClassEnabled"] = self._kind
        document = {"deduplicationId": str(uuid.uuid4()), "time": "2026-11-30T20:00:00.5+00:00", "deviceInfo": info}
        topic = f"application/{APPLICATION}/device/{device}/event/{kind}"
        self._client.publish(topic, json.dumps(document | fields), 1)

    def uplink(self, device: str, data: str = "AQ==") -> None:
        """Publish an uplink."""
        self.event(device, "up", fCnt=7, fPort=2, data=data, rxInfo=[{"gatewayId": "0016c001f153a14c", "rssi": -48}])

    def send(self, device: str) -> dict[str, Any]:
        """Send the next downlink of a device, and publish its txack; an unconfirmed one then leaves the queue."""
        wait_until(lambda: self.queues[device], timeout_s=20, what=f"a downlink of {device}")
        with self._lock:
            downlink = self.queues[device][0]
            self.sent.append(downlink)
            if not downlink.get("confirmed"):
                self.queues[device].popleft()
        self.event(device, "txack", downlinkId=1, queueItemId=downlink["id"], fCntDown=3, gatewayId="0016c001f153a14c")
        return downlink

    def acknowledge(self, device: str, *, acknowledged: bool) -> None:
        """Publish the device's acknowledgement of a confirmed downlink, or that it timed out."""
        with self._lock:
            downlink = self.queues[device].popleft()
        answer = {"acknowledged": True} if acknowledged else {}
        self.event(device, "ack", queueItemId=downlink["id"], fCntDown=3, **answer)

    def _command(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        document = json.loads(message.payload)
        device = message.topic.split("/")[3]
        assert set(document) <= FIELDS, document
        assert document["devEui"] == device
        with self._lock:
            if any(each["id"] == document["id"] for each in self.queues[device]):
                self.repeated.append(document["id"])
            else:
                self.queues[device].append(document)
