"""Simulated device over MQTT 3.1.1 with QoS 1, by amqtt's client, that loses no reading when connections break.

amqtt's own reconnecting is not used: it drops a QoS 1 message without a PUBACK within 5 s, and cancels waiting calls of
`publish`. Here each connection is a new client of the same client identifier and persistent session. A window of
publishes runs as tasks, and unacknowledged readings return to the outbox in order. A missing PUBACK means a broken
connection, because MQTT resends on reconnection only (MQTT 3.1.1 section 4.4).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from amqtt.client import MQTTClient
from amqtt.errors import (
    AMQTTError,
    ClientError,
    CodecError,
    ConnectError,
    MQTTError,
    NoDataError,
    ProtocolHandlerError,
)
from amqtt.mqtt.constants import QOS_1

from simulator.measuring.device import (
    ACKNOWLEDGEMENT_TIMEOUT_S,
    RECONNECT_DELAY_S,
    RECONNECT_DELAY_S_MAX,
    SimulatedDevice,
    SimulatorSettings,
)

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10


SERVER_UNAVAILABLE = 3

_REFUSALS = {
    1: "unacceptable protocol version",
    2: "client identifier rejected",
    SERVER_UNAVAILABLE: "server unavailable",
    4: "bad user name or password",
    5: "not authorized (this user, or its last will at status/NAME)",
}
"""CONNACK return codes (MQTT 3.1.1 section 3.2.2.3)."""


class MqttDevice:
    """Run a device over MQTT until it is finished, or the time to deliver the rest is over."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._wake = asyncio.Event()
        self._broken = asyncio.Event()
        self._publishes: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Stop measuring, deliver the rest, and return from `run`."""
        self._device.stop()
        self._wake.set()

    async def run(self) -> None:
        """Measure and deliver. Connection errors are retried, not raised."""
        connecting = asyncio.create_task(self._stay_connected())
        try:
            await self._measure()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._device.settings.drain_s):
                    while not self._device.finished:
                        await self._wait_awake()
        finally:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await connecting

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._device.measuring:
            self._device.measure()
            self._wake.set()
            due = max(due + self._device.settings.interval_s, loop.time())
            while self._device.measuring and loop.time() < due:
                await asyncio.sleep(min(0.2, due - loop.time()))  # `stop` is noticed within 0.2 s

    async def _stay_connected(self) -> None:
        delay = RECONNECT_DELAY_S
        while not _cancelled():  # amqtt may swallow the cancellation
            client = MQTTClient(self._device.settings.name, config=self._client_configuration())
            try:
                await client.connect(_url(self._device.settings), cleansession=False)
            except (AMQTTError, ClientError, CodecError, MQTTError, NoDataError, ProtocolHandlerError, OSError) as why:
                if _cancelled():
                    return  # `run` has ended: not a failure
                self._not_connected(why)
                await asyncio.sleep(delay)
                delay = min(delay * 2, RECONNECT_DELAY_S_MAX)
                continue
            before = self._device.outbox.acknowledged
            await self._serve(client)
            if self._device.outbox.acknowledged > before:
                delay = RECONNECT_DELAY_S
            await asyncio.sleep(delay)  # spare a gateway that accepts and drops connections
            delay = min(delay * 2, RECONNECT_DELAY_S_MAX)

    def _not_connected(self, why: Exception) -> None:
        code = why.return_code if isinstance(why, ConnectError) else None
        trouble = f"cannot connect: {_cause(why)}"
        if code and code != SERVER_UNAVAILABLE:
            self._device.refused(trouble)
            self._wake.set()
        elif not code or not self._device.trouble:
            # After wrong passwords the gateway refuses this client for a while: report the first refusal.
            self._device.record_obstacle(trouble, unreachable=not code)

    def _client_configuration(self) -> dict[str, Any]:
        return {
            "keep_alive": KEEP_ALIVE_S,
            "auto_reconnect": False,
            "connection_timeout": ACKNOWLEDGEMENT_TIMEOUT_S,
            "plugins": {},  # the default logs every packet
            "will": {
                "topic": f"status/{self._device.settings.name}",
                "message": "offline",
                "qos": QOS_1,
                "retain": True,
            },
        }

    async def _serve(self, client: MQTTClient) -> None:
        """Publish over one connection until it breaks or this task is cancelled."""
        self._broken.clear()
        self._device.connected()
        watching = asyncio.create_task(self._watch(client))
        why = "connection lost"
        try:
            await client.publish(f"status/{self._device.settings.name}", b"online", qos=QOS_1, retain=True)
            while not self._broken.is_set():
                self._publish_window(client)
                await self._wait_awake()
            if len(self._device.outbox):  # the only refusal in MQTT 3.1.1 (section 3.3.5)
                step = f"a gateway closes it when the user may not send to {self._device.settings.address}"
                self._device.record_obstacle(f"the connection was closed with readings in flight; {step}")
        except asyncio.CancelledError:
            if _cancelled():
                why = "stopped"
                raise
        except (AMQTTError, TimeoutError) as error:
            why = _cause(error)
            self._device.record_obstacle(why)
        finally:
            watching.cancel()
            await self._close(client)
            self._device.disconnected(why)

    def _publish_window(self, client: MQTTClient) -> None:
        while len(self._publishes) < self._device.settings.window:
            reading = self._device.outbox.send()
            if reading is None:
                return
            task = asyncio.create_task(client.publish(self._device.settings.address, reading.body, qos=QOS_1))
            self._publishes.add(task)
            task.add_done_callback(partial(self._published, reading.seq))

    def _published(self, seq: int, task: asyncio.Task[Any]) -> None:
        """Handle the end of `publish`: a PUBACK, or a broken connection."""
        self._publishes.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._device.acknowledged(seq)
        else:
            self._broken.set()
        self._wake.set()

    async def _watch(self, client: MQTTClient) -> None:
        """Wait for the end of the connection, which amqtt signals by delivering None."""
        with contextlib.suppress(AMQTTError, asyncio.CancelledError):
            while await client.deliver_message() is not None:
                pass
        self._broken.set()
        self._wake.set()

    async def _close(self, client: MQTTClient) -> None:
        pending = list(self._publishes)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        try:
            await client.disconnect()
        except (AMQTTError, OSError, asyncio.CancelledError) as why:
            if _cancelled():
                raise
            log.debug("%s: while closing: %r", self._device.settings.name, why)

    async def _wait_awake(self) -> None:
        await self._wake.wait()
        self._wake.clear()


def _cancelled() -> bool:
    """Return True when this task is cancelled, and not only one of amqtt's."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _url(settings: SimulatorSettings) -> str:
    """Return the gateway's URL with the credentials, as amqtt expects them."""
    if settings.user is None:
        return settings.url
    scheme, _, rest = settings.url.partition("://")
    return f"{scheme}://{quote(settings.user, safe='')}:{quote(settings.password or '', safe='')}@{rest}"


_NOT_MQTT: Final = (AMQTTError, CodecError, MQTTError, NoDataError)
"""Errors that amqtt raises for bytes other than the packet it expects."""


def _cause(error: BaseException) -> str:
    """Return the cause of an error as text: amqtt wraps the system's errors, some without a text."""
    if isinstance(error, ConnectError) and error.return_code:
        return f"the gateway refused the connection: {_REFUSALS.get(error.return_code, error.return_code)}"
    if isinstance(error, _NOT_MQTT):
        return "the server does not speak MQTT: is it the port of another protocol?"
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no server listens there"
    return str(error) or type(error).__name__
