"""Device that publishes over MQTT 5 at QoS 1, with Eclipse Paho: ``python3 mqtt_device.py``; README.md has the rest."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as paho
from device import ExampleDevice, ExampleSettings, GatewayClock, RetryDelay, Watchdog, WrongSetting, log, start_updates
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from spool import ReadingSpool, SpoolError

WINDOW = 8
"""Readings in flight: sent and not acknowledged."""
KEEP_ALIVE_S = 30
LOOP_S = 0.05
"""Longest wait for packets before new readings are looked for."""
SESSION_S = 7 * 86_400
"""The gateway keeps commands for an absent device for this time."""
NEXT_STEP = {
    0x85: "two devices have the same name, or the name is not valid: set WAYPOST_DEVICE",
    0x86: "wrong user or password: `waypost user rotate` at the gateway makes a new one",
    0x87: "no right: `waypost client refusals` at the gateway names it",
}


class PahoDevice:
    """One connection at a time, served by `run`. After a lost connection Paho sends again what was in flight."""

    def __init__(self, device: ExampleDevice) -> None:
        self._device, settings = device, device.settings
        name = settings.device
        self._address, self._status = f"plant/{name}", f"status/{name}"
        self._commands, self._answers = f"command/{name}/#", f"command-response/{name}"
        self._in_flight: dict[int, int] = {}
        """Packet identifier: number of the reading."""
        self._next = device.spool.acknowledged
        """Next reading to send."""
        self._connected = False
        self._pause_until = 0.0
        self._retry = RetryDelay()
        self._watchdog = Watchdog()
        client = self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        if settings.password:
            client.username_pw_set(settings.device, settings.password)
        if context := settings.tls():
            client.tls_set_context(context)
        client.will_set(self._status, b"offline", qos=1, retain=True)
        client.on_connect, client.on_message, client.on_publish = self._on_connect, self._on_message, self._on_publish

    def run(self) -> None:
        """Connect, publish and reconnect until the device is finished."""
        device, client, settings = self._device, self._client, self._device.settings
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = SESSION_S
        while not device.finished:
            self._watchdog.feed()
            device.clock.ask()
            try:
                client.connect(settings.host, settings.port, KEEP_ALIVE_S, clean_start=False, properties=session)
                self._serve()
            except OSError as error:
                log(f"no connection to {settings.host}:{settings.port}: {error}")
            if self._connected:
                self._connected = False
                log("disconnected")
            if not device.finished:
                time.sleep(self._retry.take())

    def _serve(self) -> None:
        """Publish until the connection is lost, or the device is finished."""
        client, device = self._client, self._device
        while client.loop(LOOP_S) == paho.MQTT_ERR_SUCCESS:
            self._watchdog.feed()
            if device.finished:
                client.publish(self._status, b"offline", qos=1, retain=True)
                client.disconnect()
            elif self._connected and time.monotonic() >= self._pause_until:
                self._send()

    def _send(self) -> None:
        """Send readings until the window is full."""
        spool, waiting = self._device.spool, set(self._in_flight.values())
        self._next = max(self._next, spool.acknowledged)
        while self._next < spool.next and len(self._in_flight) < WINDOW:
            content = spool.get(self._next)
            if content is None:
                spool.acknowledge(self._next)  # acknowledged before an earlier one, or damaged on the disk
            elif self._next not in waiting:
                self._in_flight[self._client.publish(self._address, content, qos=1).mid] = self._next
            self._next += 1

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            log(f"the gateway refuses the device: {code}; {NEXT_STEP.get(code.value, 'its log has the reason')}")
            return
        log("connected")
        self._connected = True
        client.subscribe(self._commands, qos=1)
        client.publish(self._status, b"online", qos=1, retain=True)

    def _on_publish(self, _client: Any, _data: Any, packet_id: int, code: Any, _properties: Any) -> None:
        number = self._in_flight.pop(packet_id, None)
        if number is None:  # the status, or an answer
            return
        if code.is_failure:
            log(f"reading {number} was refused: {code}; `waypost client refusals` at the gateway has the reason")
            self._next, self._pause_until = self._device.spool.acknowledged, time.monotonic() + self._retry.take()
            return
        self._device.spool.acknowledge(number)
        self._retry.reset()

    def _on_message(self, client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        """Obey a command, then answer it. Paho acknowledges it when this returns."""
        answer = self._device.obey(message.payload)
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = ("status", str(answer["status"]))
        if correlation := getattr(message.properties, "CorrelationData", None):
            properties.CorrelationData = correlation
        topic = getattr(message.properties, "ResponseTopic", None) or self._answers
        client.publish(topic, json.dumps(answer).encode(), qos=1, properties=properties)


def main() -> int:
    """Run the device; return the exit code: 0 stopped with all delivered, 1 the disk failed, 2 a wrong setting."""
    try:
        settings = ExampleSettings.from_environment(1883, 8883)
        spool = ReadingSpool(settings.spool, settings.spool_readings)
        device = ExampleDevice(settings, spool, GatewayClock(settings.time_url, settings.tls()))
        protocol = PahoDevice(device)
        start_updates(device)
    except (WrongSetting, SpoolError, OSError) as error:
        log(str(error))
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: device.stop())
    threading.Thread(target=device.measure_until_stopped, daemon=True).start()
    protocol.run()
    if device.failed:
        log(str(device.failed))
        return 1
    log(f"stopped: every reading below {spool.next} is acknowledged, {spool.dropped} were dropped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
