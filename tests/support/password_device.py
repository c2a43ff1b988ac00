"""Device with a password of a gateway's own, added by the command line."""

from __future__ import annotations

from pathlib import Path

import paho.mqtt.client as paho

from tests.support.command import document_of
from tests.support.paho_client import WAIT_S, PahoClient

NAME = "pump7"


class PasswordDevice(PahoClient):
    """Client of a device that may publish to ``plant/#``."""

    def __init__(self, data: Path, port: int) -> None:
        """`data`, `port`: data directory and MQTT port of the gateway."""
        added = document_of("user", "add", NAME, "--data", str(data), "--allow", "send:plant/#")
        super().__init__(paho.Client(paho.CallbackAPIVersion.VERSION2, NAME))
        self.client.username_pw_set(NAME, added["password"])
        self.sent = 0
        self.connect(port)

    def send(self, count: int) -> None:
        """Publish the next messages, with consecutive numbers; every one is acknowledged on return."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        for each in [self.client.publish("plant/7", b"%d" % number, qos=1) for number in numbers]:
            each.wait_for_publish(WAIT_S)
            assert each.is_published()
