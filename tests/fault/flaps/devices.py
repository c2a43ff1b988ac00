"""Devices that record acknowledged messages across any number of restarts of their gateway."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import Final

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState

from tests.support.paho_loop import stop_loop

WINDOW: Final = 20
WAIT_S: Final = 60.0


class Paho(paho.Client):
    """Eclipse Paho's client without its violation of [MQTT-4.3.3-1].

    Version 2.2 publishes a message again after its PUBREL if it has tried to connect twice since: a second reset finds
    the state `RESEND_PUBREL`, which it does not know.
    """

    def _messages_reconnect_reset_out(self) -> None:
        with self._out_message_mutex:
            for message in self._out_messages.values():
                if message.state is MessageState.MQTT_MS_RESEND_PUBREL:
                    message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


class ExactlyOnce:
    """Device with Eclipse Paho's client: MQTT 3.1.1 at QoS 2 in a persistent session.

    Each body is in the lake once, even if the client has to repeat it.
    """

    def __init__(self, name: str, password: str, port: int, topic: str, *, pause_s: float) -> None:
        self.name = name
        self.acked: list[bytes] = []
        """Bodies with a complete exchange, in order."""
        self.sent = 0
        self._topic = topic
        self._pause_s = pause_s
        self._under_way: dict[int, bytes] = {}
        self._over: SimpleQueue[int] = SimpleQueue()
        """Packet identifiers of complete exchanges."""
        self._connected = threading.Event()
        self._ended = threading.Event()
        self._client = Paho(paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.username_pw_set(name, password)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda *_: self._connected.set()
        self._client.on_publish = lambda _client, _userdata, mid, *_: self._over.put(mid)
        self._client.connect_async("127.0.0.1", port)
        self._thread = threading.Thread(target=self._publish, name=name, daemon=True)

    def start(self) -> None:
        self._client.loop_start()
        self._thread.start()

    def end(self) -> None:
        """Stop publishing; return when all messages are acknowledged."""
        self._ended.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()
        assert not self._under_way, f"{self.name}: {len(self._under_way)} are not answered"
        self._client.disconnect()
        stop_loop(self._client)

    def _publish(self) -> None:
        assert self._connected.wait(WAIT_S)  # Paho sends earlier messages after later ones
        while not self._ended.wait(self._pause_s):
            if len(self._under_way) < WINDOW:
                body, self.sent = f"{self.name}:{self.sent}".encode(), self.sent + 1
                self._under_way[self._client.publish(self._topic, body, qos=2).mid] = body
            self._take_answers(0.0 if len(self._under_way) < WINDOW else 0.1)
        deadline = time.monotonic() + WAIT_S
        while self._under_way and time.monotonic() < deadline:
            self._take_answers(0.1)

    def _take_answers(self, timeout_s: float) -> None:
        """Process all pending answers; wait for the first one up to this time."""
        try:
            while True:
                mid = self._over.get(timeout=timeout_s) if timeout_s else self._over.get_nowait()
                self.acked.append(self._under_way.pop(mid))
                timeout_s = 0.0
        except Empty:
            return
