"""Sessions whose client is away."""

from __future__ import annotations

from typing import Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion


class Listening(Protocol):
    """A broker by its ports."""

    def port(self, protocol: str, /) -> int: ...


def absent_session(broker: Listening) -> None:
    """A persistent session on load/# whose client is away: every message is kept for it."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "absent", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/#", 1)  # type: ignore[assignment]
    client.on_subscribe = lambda *_: client.disconnect()  # type: ignore[assignment]
    client.connect("127.0.0.1", broker.port("mqtt"))
    client.loop_forever()
