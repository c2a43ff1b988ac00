"""Sessions of absent clients."""

from __future__ import annotations

from typing import Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion


class Listening(Protocol):
    """Broker with its ports."""

    def port(self, protocol: str, /) -> int: ...


def absent_session(broker: Listening) -> None:
    """Create a persistent session on load/# and disconnect: every message is stored for it."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "absent", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/#", 1)  # type: ignore[assignment]
    client.on_subscribe = lambda *_: client.disconnect()  # type: ignore[assignment]
    client.connect("127.0.0.1", broker.port("mqtt"))
    client.loop_forever()
