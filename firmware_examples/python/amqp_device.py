"""Device that publishes over AMQP 1.0, with Qpid Proton: ``python3 amqp_device.py``; README.md has the rest."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from device import ExampleDevice, ExampleSettings, GatewayClock, RetryDelay, Watchdog, WrongSetting, log, start_updates
from proton import Message, SSLDomain, symbol
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, Container
from spool import ReadingSpool, SpoolError

WINDOW = 8
"""Readings in flight: sent and not settled by the gateway."""
HEARTBEAT_S = 30
TICK_S = 0.05
"""Longest wait before new readings, or a stop, are seen."""
UNAUTHORIZED = "amqp:unauthorized-access"


class _Timer:
    """Task of Proton's timer."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def on_timer_task(self, _event: Any) -> None:
        self._task()


class ProtonDevice(MessagingHandler):
    """One connection at a time. Proton's own reconnecting is not used: the spool has what has to be sent again."""

    def __init__(self, device: ExampleDevice) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._device, self._retry = device, RetryDelay()
        self._watchdog = Watchdog()
        self._container = Container(self)
        self._container.container_id = device.settings.device
        self._connection: Any = None
        self._readings: Any = None
        """Sender of readings; None while the gateway does not serve us."""
        self._senders: dict[str, Any] = {}
        """Further senders, by their address."""
        self._answers: list[tuple[str, Message, Any]] = []
        """Answers that wait for credit: address, answer, delivery of the command."""
        self._commands: dict[Any, Any] = {}
        """Deliveries of commands, by the tag of their answer in flight."""
        self._in_flight: dict[Any, int] = {}
        """Readings by the tag of their delivery."""
        self._next = 0
        """Next reading to send."""
        self._ending = False

    def run(self) -> None:
        """Connect, publish and reconnect until the device is finished."""
        self._container.run()

    # --- the connection -----------------------------------------------------------------------------------------

    def on_start(self, _event: Any) -> None:
        self._connect()
        self._tick()

    def _connect(self) -> None:
        settings = self._device.settings
        if self._ending or self._device.finished:
            self._container.stop()
            return
        self._device.clock.ask()
        domain = None
        if settings.ca:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(settings.ca)
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, settings.ca)
            if settings.certificate:
                domain.set_credentials(settings.certificate, settings.key or settings.certificate, None)
        mechanisms = "PLAIN" if settings.password else "EXTERNAL" if settings.certificate else "ANONYMOUS"
        self._connection = self._container.connect(
            f"{'amqps' if domain else 'amqp'}://{settings.host}:{settings.port}",
            reconnect=False,
            heartbeat=HEARTBEAT_S,
            ssl_domain=domain,
            allowed_mechs=mechanisms,
            allow_insecure_mechs=not domain,
            user=settings.device if settings.password else None,
            password=settings.password or None,
            properties={
                symbol("x-opt-will-address"): f"status/{settings.device}",
                symbol("x-opt-will-body"): "offline",
                symbol("x-opt-retain-message"): True,
            },
        )

    def on_connection_opened(self, event: Any) -> None:
        name = self._device.settings.device
        log("connected")
        self._next = self._device.spool.acknowledged
        self._readings = self._container.create_sender(event.connection, f"plant/{name}", options=AtLeastOnce())
        self._container.create_receiver(event.connection, f"command/{name}").flow(1)
        self._send_status("online")

    def on_transport_error(self, event: Any) -> None:
        condition, settings = event.transport.condition, self._device.settings
        text = (condition.description or condition.name) if condition else "broken"
        if condition and condition.name == UNAUTHORIZED:
            text += "; wrong user or password: `waypost user rotate` at the gateway makes a new one"
        log(f"connection to {settings.host}:{settings.port}: {text}")

    def on_link_error(self, event: Any) -> None:
        condition = event.link.remote_condition
        log(f"a link was refused: {condition.description}; `waypost client refusals` at the gateway has the reason")
        event.connection.close()

    def on_transport_closed(self, event: Any) -> None:
        if event.connection != self._connection:
            return
        if self._readings is not None:
            log("disconnected")
        self._readings = self._connection = None
        for pending in (self._senders, self._answers, self._commands, self._in_flight):
            pending.clear()
        if self._ending or self._device.finished:
            self._container.stop()
        else:
            self._container.schedule(self._retry.take(), _Timer(self._connect))

    def _tick(self) -> None:
        self._watchdog.feed()
        if self._ending:
            return
        if self._device.finished and not self._answers and not self._commands:
            self._finish()
            return
        self._send()
        self._container.schedule(TICK_S, _Timer(self._tick))

    def _finish(self) -> None:
        """Tell that the device is away, then close the connection."""
        self._ending = True
        if self._readings is None:
            self._container.stop()
            return
        self._send_status("offline")
        self._connection.close()

    # --- messages -----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send readings and answers until the window or the credit is used up."""
        spool, waiting = self._device.spool, set(self._in_flight.values())
        self._next = max(self._next, spool.acknowledged)
        while self._readings and self._readings.credit > 0 and len(waiting) < WINDOW and self._next < spool.next:
            content = spool.get(self._next)
            if content is None:
                spool.acknowledge(self._next)  # acknowledged before an earlier one, or damaged on the disk
            elif self._next not in waiting:
                message = Message(body=content, inferred=True, content_type="application/json", durable=True)
                self._in_flight[self._readings.send(message).tag] = self._next
                waiting.add(self._next)
            self._next += 1
        for answer in list(self._answers):
            address, message, command = answer
            sender = self._sender(address)
            if sender.credit > 0:
                self._answers.remove(answer)
                self._commands[sender.send(message).tag] = command

    def _sender(self, address: str) -> Any:
        if address not in self._senders:
            self._senders[address] = self._container.create_sender(self._connection, address, options=AtLeastOnce())
        return self._senders[address]

    def _send_status(self, status: str) -> None:
        """Send the status as a retained message; a link that has just been made gets its credit later."""
        message = Message(body=status.encode(), inferred=True, durable=True, annotations={"x-opt-retain-message": True})
        self._sender(f"status/{self._device.settings.device}").send(message)

    def on_sendable(self, _event: Any) -> None:
        self._send()

    def on_accepted(self, event: Any) -> None:
        tag = event.delivery.tag
        if (number := self._in_flight.pop(tag, None)) is not None:
            self._device.spool.acknowledge(number)
            self._retry.reset()
            self._send()
        elif (command := self._commands.pop(tag, None)) is not None:
            self.accept(command)  # last: without it the command comes again after a reset
            command.link.flow(1)

    def on_rejected(self, event: Any) -> None:
        self._refused(event)

    def on_released(self, event: Any) -> None:
        self._refused(event)

    def _refused(self, event: Any) -> None:
        log(f"a message was not accepted: {event.delivery.remote}; `waypost client refusals` has the reason")
        event.connection.close()  # readings stay in the spool, and are sent again after a delay

    def on_message(self, event: Any) -> None:
        """Obey a command, and queue its answer."""
        body, command = event.message.body, event.message
        payload = body.encode() if isinstance(body, str) else bytes(body or b"")
        answer = self._device.obey(payload)
        address = command.reply_to or f"command-response/{self._device.settings.device}"
        message = Message(
            body=json.dumps(answer).encode(),
            inferred=True,
            durable=True,
            correlation_id=command.correlation_id,
            properties={"status": answer["status"]},
        )
        self._answers.append((address, message, event.delivery))
        self._send()


def main() -> int:
    """Run the device; return the exit code: 0 stopped with all delivered, 1 the disk failed, 2 a wrong setting."""
    try:
        settings = ExampleSettings.from_environment(5672, 5671)
        spool = ReadingSpool(settings.spool, settings.spool_readings)
        device = ExampleDevice(settings, spool, GatewayClock(settings.time_url, settings.tls()))
        start_updates(device)
    except (WrongSetting, SpoolError, OSError) as error:
        log(str(error))
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: device.stop())
    threading.Thread(target=device.measure_until_stopped, daemon=True).start()
    ProtonDevice(device).run()
    if device.failed:
        log(str(device.failed))
        return 1
    log(f"stopped: every reading below {spool.next} is acknowledged, {spool.dropped} were dropped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
