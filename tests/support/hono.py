"""Gateway with Eclipse Hono's device API, devices of Hono, and an application on the other side."""

from __future__ import annotations

import base64
import queue
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from proton import Delivery, Message
from proton.utils import BlockingConnection, BlockingReceiver, SendException

from tests.support.configured_gateway import gateway_with
from tests.support.paho_client import PahoClient
from tests.support.paho_loop import stop_loop
from tests.support.processes import Waypost

WAIT_S = 20.0
TENANT = "DEFAULT_TENANT"


def _user(name: str, password: str, rest: str) -> str:
    encoded = base64.b64encode(password.encode()).decode()
    return f"""
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.{name.partition("@")[0]}}}
spec:
  username: {name}
  authentication: {{type: password, password: {encoded}}}
  {rest}
"""


def _device(name: str, spec: str) -> str:
    return f"""
---
apiVersion: waypost/v1
kind: Device
metadata: {{name: {name}}}
spec: {spec}
"""


def resources(*, authentication: str = "standard", extra: str = "", device_api: str = "") -> str:
    """Build an address space with the device API: device 4711 (sensor1), gateway gw-1 (gw) for 4712 and lamp,
    application app.
    """
    return f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  listeners: {{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec:
  authenticationService: {{name: {authentication}}}
  deviceApi: {{type: hono, tenant: {TENANT}{device_api}}}
""" + "".join(
        (
            _user(f"sensor1@{TENANT}", "sensor1-secret", 'device: {id: "4711"}'),
            _user(f"gw@{TENANT}", "gw-secret", "device: {id: gw-1, actsFor: ['4712']}"),
            _user(f"hub@{TENANT}", "hub-secret", "device: {actsFor: ['*']}"),
            _user(f"broken@{TENANT}", "broken-secret", ""),
            _user(
                "app",
                "app-secret",
                "authorization:\n"
                "    - {addresses: ['telemetry/#', 'event/#', 'command_response/#'], operations: [recv]}\n"
                "    - {addresses: ['command/#'], operations: [send]}",
            ),
            _device("gw-1", "{}"),
            _device("lamp", "{via: [gw-1]}"),
            _device("broken", "{enabled: false}"),
            extra,
        )
    )


def site(folder: Path, **options: str) -> Waypost:
    """Return the gateway, which starts when entered."""
    return gateway_with(folder, resources(**options))


class HonoDevice(PahoClient):
    """Paho client authenticated as ``<auth-id>@DEFAULT_TENANT``."""

    def __init__(
        self,
        gateway: Waypost,
        auth_id: str | None,
        *,
        version: int = 4,
        expect: int = 0,
        will: tuple[str, bytes, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(paho.Client(CallbackAPIVersion.VERSION2, protocol=version, **options))  # type: ignore[arg-type]
        if auth_id is not None:
            self.client.username_pw_set(f"{auth_id}@{TENANT}", f"{auth_id}-secret")
        if will is not None:
            self.client.will_set(*will)
        self.unsubscribed: queue.Queue[bool] = queue.Queue()
        self.client.on_unsubscribe = lambda *_: self.unsubscribed.put(True)
        self.connect(gateway.port("mqtt"))
        assert self.code == expect

    def send(self, topic: str, payload: bytes, qos: int) -> paho.MQTTMessageInfo:
        """Publish without waiting for an answer."""
        return self.client.publish(topic, payload, qos)

    def unsubscribe(self, pattern: str) -> None:
        self.client.unsubscribe(pattern)
        assert self.unsubscribed.get(timeout=WAIT_S)

    def cut(self) -> None:
        """Close the connection without a DISCONNECT."""
        stop_loop(self.client)
        self.client._reset_sockets()


def flush(connection: BlockingConnection) -> None:
    """Write pending output of the blocking client, such as settlements, by a round trip."""
    connection.create_receiver(None, dynamic=True).close()


class Application:
    """A business application over AMQP, on Hono's addresses."""

    def __init__(self, gateway: Waypost, user: str | None = "app") -> None:
        options = {} if user is None else {"user": user, "password": f"{user}-secret", "allowed_mechs": "PLAIN"}
        self.connection = BlockingConnection(
            f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S, allow_insecure_mechs=True, **options
        )
        self._events: BlockingReceiver | None = None

    def receiver(self, address: str, credit: int = 100) -> BlockingReceiver:
        return self.connection.create_receiver(address, credit)

    def command(
        self,
        device: str,
        name: str | None,
        payload: bytes,
        *,
        reply: str | None = None,
        correlation: Any = None,
        ttl_s: float = 0,
    ) -> None:
        """Send a command the way Hono's client does. Raises SendException unless it is accepted."""
        sender = self.connection.create_sender(f"command/{TENANT}")
        message = Message(body=payload, subject=name, address=f"command/{TENANT}/{device}", inferred=True)
        message.ttl = ttl_s
        if reply is not None:
            message.reply_to = f"command_response/{TENANT}/{reply}"
            message.correlation_id = correlation
        try:
            sender.send(message)
        finally:
            sender.close()

    def until_ttd(self, device: str, ttd: int) -> None:
        """Receive events until the device's empty notification with this ttd; skip others."""
        message = self.until_ttd_of_message(device, ttd)
        assert message.content_type == "application/vnd.eclipse-hono-empty-notification"
        assert not message.body

    def until_ttd_of_message(self, device: str, ttd: int) -> Message:
        """Receive events until one of the device has this ttd."""
        if self._events is None:
            self._events = self.receiver(f"event/{TENANT}")
        while True:
            message = self._events.receive(WAIT_S)
            self._events.accept()
            if message.properties["device_id"] == device and message.properties.get("ttd") == ttd:
                return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


__all__ = ["TENANT", "WAIT_S", "Application", "Delivery", "HonoDevice", "SendException", "flush", "resources", "site"]
