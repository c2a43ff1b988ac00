"""Simulated device over AMQP 1.0, by Proton's reactor. Deliveries are unsettled, and acknowledged by `accepted` only.

Proton's own reconnecting is not used: it restores links but not their deliveries. Each connection is a new one of the
same container id. Deliveries without an outcome return to the outbox when the transport closes.
"""

from __future__ import annotations

import time
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, Container

from simulator.measuring.device import (
    ACKNOWLEDGEMENT_TIMEOUT_S,
    RECONNECT_DELAY_S,
    RECONNECT_DELAY_S_MAX,
    SimulatedDevice,
)

TICK_S_MAX = 0.2
"""Longest time until `stop` and the end of the drain are noticed."""

UNAUTHORIZED = "amqp:unauthorized-access"


class _Tick:
    """Timer task that calls `AmqpDevice.tick`; Proton needs an object with a method."""

    def __init__(self, owner: AmqpDevice) -> None:
        self._owner = owner

    def on_timer_task(self, event: Any) -> None:
        self._owner.tick()


class _Reconnect:
    def __init__(self, owner: AmqpDevice) -> None:
        self._owner = owner

    def on_timer_task(self, event: Any) -> None:
        self._owner.connect()


class AmqpDevice(MessagingHandler):  # type: ignore[misc]  # Proton has no usable types
    """Run a device over AMQP 1.0 until it is finished, or the time to deliver the rest is over."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(prefetch=0, auto_settle=True)
        self._device = device
        self._container = Container(self)
        self._container.container_id = device.settings.name
        self._connection: Any = None
        self._sender: Any = None
        self._in_flight: dict[Any, int] = {}
        self._due = 0.0
        self._deadline: float | None = None
        self._delay = RECONNECT_DELAY_S
        self._why = "connection lost"
        self._unreachable = False
        self._unauthorized = False
        """True when the login was refused."""
        self._done = False

    def run(self) -> None:
        """Measure and deliver; it blocks. Connection errors are retried, not raised."""
        self._container.run()

    def stop(self) -> None:
        """Stop measuring, deliver the rest, and return from `run`. Safe in a signal handler."""
        self._device.stop()

    # --- the clock --------------------------------------------------------------------------------------------

    def on_start(self, event: Any) -> None:
        self._due = time.monotonic()
        self.connect()
        self.tick()

    def tick(self) -> None:
        """Measure when it is due, send what can be sent, and check whether the device is finished."""
        now = time.monotonic()
        device = self._device
        if device.measuring and now >= self._due:
            device.measure()
            self._due = max(self._due + device.settings.interval_s, now)
        self._send()
        if not device.measuring and self._deadline is None:
            self._deadline = now + device.settings.drain_s
        if device.finished or (self._deadline is not None and now >= self._deadline):
            self._finish()
            return
        delay = min(max(self._due - now, 0.0), TICK_S_MAX) if device.measuring else TICK_S_MAX / 4
        self._container.schedule(delay, _Tick(self))

    def _finish(self) -> None:
        self._done = True
        if self._sender is None:
            self._container.stop()  # no connection to close
        else:
            self._why = "stopped"
            self._connection.close()

    # --- the connection ---------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a new connection."""
        if self._done:
            return
        settings = self._device.settings
        self._connection = self._container.connect(
            settings.url,
            reconnect=False,
            heartbeat=ACKNOWLEDGEMENT_TIMEOUT_S,
            allowed_mechs="ANONYMOUS" if settings.user is None else "PLAIN",
            allow_insecure_mechs=settings.user is not None,
            user=settings.user,
            password=settings.password,
        )

    def on_connection_opened(self, event: Any) -> None:
        self._delay = RECONNECT_DELAY_S
        self._device.connected()
        self._sender = self._container.create_sender(
            event.connection, self._device.settings.address, options=AtLeastOnce()
        )

    def on_transport_error(self, event: Any) -> None:
        condition = event.transport.condition
        self._why = _condition_text(condition) if condition is not None else "transport error"
        self._unreachable = condition is not None and condition.name == "proton.pythonio"
        self._unauthorized = condition is not None and condition.name == UNAUTHORIZED

    def on_link_error(self, event: Any) -> None:
        condition, device = event.link.remote_condition, self._device
        self._why = _condition_text(condition)
        report = device.refused if condition.name == UNAUTHORIZED else device.record_obstacle
        report(f"cannot send to {device.settings.address}: {self._why}")
        event.connection.close()

    def on_connection_error(self, event: Any) -> None:
        self._why = _condition_text(event.connection.remote_condition)
        self._unreachable = False

    def on_transport_closed(self, event: Any) -> None:
        if event.connection != self._connection:  # Proton makes a new wrapper for each event
            return
        was_open, self._sender, self._connection = self._sender is not None, None, None
        self._in_flight.clear()
        if was_open:
            self._device.disconnected(self._why)
        elif self._unauthorized:
            self._device.refused(f"cannot connect: {self._why}")
        else:
            self._device.record_obstacle(f"cannot connect: {self._why}", unreachable=self._unreachable)
        if self._done:
            self._container.stop()
            return
        self._container.schedule(self._delay, _Reconnect(self))
        self._delay = min(self._delay * 2, RECONNECT_DELAY_S_MAX)

    # --- readings ---------------------------------------------------------------------------------------------

    def on_sendable(self, event: Any) -> None:
        self._send()

    def _send(self) -> None:
        sender, window = self._sender, self._device.settings.window
        while sender is not None and sender.credit > 0 and len(self._in_flight) < window:
            reading = self._device.outbox.send()
            if reading is None:
                return
            message = Message(body=reading.body, inferred=True, content_type="application/json", durable=True)
            self._in_flight[sender.send(message).tag] = reading.seq

    def on_accepted(self, event: Any) -> None:
        seq = self._in_flight.pop(event.delivery.tag, None)
        if seq is not None:
            self._device.acknowledged(seq)
        self._send()

    def on_rejected(self, event: Any) -> None:
        self._take_back(event)

    def on_released(self, event: Any) -> None:
        self._take_back(event)

    def _take_back(self, event: Any) -> None:
        """Return a reading that was not accepted to the outbox until the next tick, to spare a full gateway."""
        seq = self._in_flight.pop(event.delivery.tag, None)
        if seq is not None:
            self._device.record_obstacle(f"a reading was not accepted: {event.delivery.remote_state}")
            self._device.outbox.take_back(seq)


def _condition_text(condition: Any) -> str:
    """Return the text of an error condition, without the name that Proton uses for all socket errors."""
    description = condition.description or condition.name
    return str(description if condition.name == "proton.pythonio" else f"{condition.name}: {description}")
