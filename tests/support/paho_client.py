"""Paho, an MQTT client that is not ours, with its callbacks in queues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any, Final, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.paho_loop import close_client, running_loop
from tests.support.processes import Waypost

WAIT_S: Final = 30.0
CLOSED: Final = -1
"""In place of a reason code: the server closed the connection."""
SESSION_S: Final = 3600
"""Expiry of a session that is to last."""


class PahoClient:
    """Client with its network thread; a context manager that disconnects."""

    def __init__(self, client: paho.Client) -> None:
        """`client`: configured, and not yet connected."""
        self.client = client
        self.code = CLOSED
        """Reason code of the first CONNACK."""
        self.session_present = False
        self.server_properties: Properties | None = None
        """Properties of CONNACK."""
        self.received: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.subscribed: queue.Queue[list[int]] = queue.Queue()
        self.connected: queue.Queue[int] = queue.Queue()
        """Reason code of each further CONNACK."""
        self.ended: queue.Queue[int] = queue.Queue()
        """Reason code of each end of the connection."""
        self._codes: dict[int, int] = {}
        self._changed = threading.Condition()
        client.on_connect = self._on_connect
        client.on_message = lambda _c, _d, message: self.received.put(message)
        client.on_subscribe = lambda _c, _d, _mid, codes, _p: self.subscribed.put([code.value for code in codes])
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect

    def connect(self, port: int, *, host: str = "127.0.0.1", keep_alive_s: int = 30, **options: Any) -> Self:
        """Connect and wait for CONNACK; `options` are those of `paho.Client.connect`."""
        self.client.connect(host, port, keep_alive_s, **options)
        self.client.loop_start()
        self.code = self.connected.get(timeout=WAIT_S)
        return self

    def subscribe(self, pattern: str, qos: int = 1) -> list[int]:
        """Subscribe; return the codes of SUBACK."""
        self.client.subscribe(pattern, qos)
        return self.subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, body: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        info = self.client.publish(topic, body, qos, retain)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def publish_code(self, topic: str, body: bytes = b"x", qos: int = 1) -> int:
        """Publish; return the reason code, or CLOSED when the server closes instead of an answer."""
        return self.code_of(self.client.publish(topic, body, qos))

    def code_of(self, info: paho.MQTTMessageInfo) -> int:
        """Wait for the acknowledgement of a message; return its reason code, or CLOSED."""
        with self._changed:
            assert self._changed.wait_for(lambda: info.mid in self._codes or not self.ended.empty(), WAIT_S)
            if info.mid not in self._codes:
                self.ended.get()
            return self._codes.pop(info.mid, CLOSED)

    def take(self) -> paho.MQTTMessage:
        """Return the next message."""
        return self.received.get(timeout=WAIT_S)

    def get(self) -> tuple[str, bytes, int, bool]:
        """Return topic, body, QoS and retain flag of the next message."""
        message = self.take()
        return message.topic, message.payload, message.qos, message.retain

    def bodies(self, count: int) -> list[bytes]:
        return [self.get()[1] for _ in range(count)]

    def close(self) -> None:
        close_client(self.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_connect(self, _client: Any, _data: Any, flags: Any, code: Any, properties: Properties | None) -> None:
        self.session_present, self.server_properties = flags.session_present, properties
        self.connected.put(code.value)

    def _on_publish(self, _client: Any, _data: Any, packet_id: int, code: Any, _properties: Any) -> None:
        with self._changed:
            self._codes[packet_id] = code.value
            self._changed.notify_all()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        with self._changed:
            self.ended.put(code.value)
            self._changed.notify_all()


def mqtt_client(gateway: Waypost, client_id: str, *, version: int = 4, clean: bool = True) -> PahoClient:
    """Connect a client; with `clean` False its session lasts and is resumed."""
    if version != 5:
        old = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, clean_session=clean)  # type: ignore[arg-type]
        return PahoClient(old).connect(gateway.port("mqtt"))
    lasting = Properties(PacketTypes.CONNECT)
    if not clean:
        lasting.SessionExpiryInterval = SESSION_S
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    return PahoClient(client).connect(gateway.port("mqtt"), clean_start=clean, properties=lasting)


def publish_messages(port: int, topic: str, bodies: Iterable[bytes], *, retain: bool = False) -> None:
    """Publish at QoS 1 with a client of its own, and wait for every acknowledgement."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "publisher")
    client.connect("127.0.0.1", port)
    with running_loop(client):
        for each in [client.publish(topic, body, 1, retain) for body in bodies]:
            each.wait_for_publish(WAIT_S)
            assert each.is_published()
