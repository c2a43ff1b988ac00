"""Devices that keep a journal of what was acknowledged to them, through any number of ends of their gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import paho.mqtt.client as paho

WINDOW: Final = 20
WAIT_S: Final = 60.0


class ExactlyOnce:
    """A device with Eclipse Paho's client: MQTT 3.1.1 at QoS 2 in a session that is kept, so that each body is once
    in the lake however often the client has to send it."""

    def __init__(self, name: str, password: str, port: int, topic: str, *, pause_s: float) -> None:
        self.name = name
        self.acked: list[bytes] = []
        """Bodies of which the exchange is over, in order."""
        self.sent = 0
        self._topic = topic
        self._pause_s = pause_s
        self._under_way: dict[int, bytes] = {}
        self._room = threading.Semaphore(WINDOW)
        self._ended = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.username_pw_set(name, password)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.connect_async("127.0.0.1", port)
        self._thread = threading.Thread(target=self._publish, name=name, daemon=True)

    def start(self) -> None:
        self._client.loop_start()
        self._thread.start()

    def end(self) -> None:
        """Publish nothing more; all of it is acknowledged on return."""
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        for _ in range(WINDOW):
            assert self._room.acquire(timeout=WAIT_S), f"{self.name}: {len(self._under_way)} are not answered"
        self._client.disconnect()
        self._client.loop_stop()

    def bodies(self) -> Iterator[bytes]:
        """Of all that was sent."""
        return (self._body(number) for number in range(self.sent))

    def _body(self, number: int) -> bytes:
        return f"{self.name}:{number}".encode()

    def _publish(self) -> None:
        while not self._ended.wait(self._pause_s):
            if self._room.acquire(timeout=0.1):
                body, self.sent = self._body(self.sent), self.sent + 1
                self._under_way[self._client.publish(self._topic, body, qos=2).mid] = body

    def _on_publish(self, _client: Any, _userdata: Any, mid: int, *_: Any) -> None:
        self.acked.append(self._under_way.pop(mid))
        self._room.release()
