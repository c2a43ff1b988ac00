"""MQTT gateway that offers any manifest and image to a device, also wrong ones, and keeps its reports.

It is Mosquitto, with a client that answers at `$artefacts/` as docs/how-to/update-devices-over-mqtt.md says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho

from tests.support.mosquitto import Mosquitto
from tests.support.paho_loop import close_client


class ScriptedBroker:
    """A context manager."""

    def __init__(self, folder: Path) -> None:
        self.offer: dict[str, object] = {}
        """Offer, until the device refuses it; empty: no artefact."""
        self.manifest = b""
        self.image = b""
        self.reports: list[tuple[str, str]] = []
        """State and reason of each report."""
        self._mosquitto = Mosquitto(folder)
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "gateway")
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    @property
    def port(self) -> int:
        return self._mosquitto.port

    def __enter__(self) -> Self:
        self._mosquitto.start()
        self._client.connect("127.0.0.1", self.port)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        close_client(self._client)
        self._mosquitto.stop()

    def _on_connect(self, *_: object) -> None:
        self._client.subscribe([("$artefacts/+/get/#", 1), ("$artefacts/+/report", 1)])

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        _, device, *levels = message.topic.split("/")
        answer = f"$artefacts/{device}/answer"
        if levels == ["report"]:
            report = json.loads(message.payload)
            self.reports.append((report["state"], report["reason"]))
            if report["state"] == "rolled-back":
                self.offer = {}  # one try
        elif levels == ["get", "offer"]:
            self._client.publish(f"{answer}/offer", json.dumps({"artefact": self._offered()}), 1)
        else:
            _, _, sha256, offset, length = levels
            part = self.image[int(offset) :][: int(length)]
            if part:
                self._client.publish(f"{answer}/chunk/{sha256}/{offset}", part, 1)
            else:
                refusal = json.dumps({"status": 416, "detail": "behind the end"})
                self._client.publish(f"{answer}/refused/chunk/{sha256}/{offset}", refusal, 1)

    def _offered(self) -> dict[str, Any] | None:
        if not self.offer:
            return None
        digest = hashlib.sha256(self.manifest).hexdigest()
        manifest = base64.b64encode(self.manifest).decode()
        return {**self.offer, "manifest": manifest, "manifest_sha256": digest, "manifest_size": len(self.manifest)}
