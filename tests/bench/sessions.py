"""Sessions whose client is away."""

from __future__ import annotations

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.brokers import Broker


def absent_session(broker: Broker) -> None:
    """A persistent session on load/# whose client is away: every message is kept for it."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "absent", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/#", 1)  # type: ignore[assignment]
    client.on_subscribe = lambda *_: client.disconnect()  # type: ignore[assignment]
    client.connect("127.0.0.1", broker.port("mqtt"))
    client.loop_forever()
