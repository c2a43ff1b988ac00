"""Gateway of a test that takes commands from one hub after another: a thread with plain sockets.

It keeps each command once and reports it as delivered, as a gateway with an obedient device does.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from bridge.batch import CAPABILITY, encode
from bridge.command import RECEIPTS, read
from bridge.engine import Closed, DeliveryState, Dispositions, Engine, Link, Transfers
from bridge.hub_addresses import COMMANDS, TELEMETRY
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.support.machines import take_all

WAIT_MS: Final = 20
CREDIT: Final = 64
RETRY_S: Final = 0.05
DEVICE: Final = "device"


class CommandGateway:
    """A context manager. `port` returns the hub to connect to now; the gateway follows it."""

    def __init__(self, name: str, port: Callable[[], int]) -> None:
        self.name = name
        self.taken: dict[str, float] = {}
        """Commands that it keeps, with the time of their arrival (monotonic)."""
        self.reported: set[str] = set()
        """Commands with a receipt that a hub has accepted."""
        self.doubled = 0
        """Commands that arrived again."""
        self.connected_to = 0
        """Port of the hub that it is connected to; 0 without one."""
        self.delivering = threading.Event()
        """Receipts are sent while it is set."""
        self.delivering.set()
        self._port = port
        self._sequence = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                self._serve(self._port())
            self.connected_to = 0
            time.sleep(RETRY_S)

    def _serve(self, port: int) -> None:
        """Serve one connection until it ends, or the gateway is to connect to another hub."""
        engine = Engine(container_id=self.name, server=False, sasl=None)
        with socket.create_connection(("127.0.0.1", port), 5.0) as peer:
            peer.setblocking(False)
            engine.open()
            sender = engine.attach_sender(TELEMETRY, TELEMETRY, desired_capabilities=(CAPABILITY,))
            receiver = engine.attach_receiver(COMMANDS, COMMANDS)
            engine.grant(receiver, CREDIT)
            sent: dict[int, str] = {}
            while not self._stop.is_set() and self._port() == port:
                if sender.credit > 0 and sender.attached:
                    self.connected_to = port
                    self._report(engine, sender, sent)
                for event in _exchange(engine, peer):
                    if isinstance(event, Closed):
                        return
                    if isinstance(event, Transfers):
                        self._take(engine, receiver, event)
                    elif isinstance(event, Dispositions):
                        for tag, state, _, _ in event.items:
                            identifier = sent.pop(tag, None)
                            if identifier is not None and state is DeliveryState.ACCEPTED:
                                self.reported.add(identifier)

    def _take(self, engine: Engine, link: Link, event: Transfers) -> None:
        for message in event.messages:
            identifier = read(message).id
            self.doubled += identifier in self.taken
            self.taken.setdefault(identifier, time.monotonic())
        engine.settle(link, event.deliveries)
        engine.grant(link, len(event.deliveries))

    def _report(self, engine: Engine, sender: Link, sent: dict[int, str]) -> None:
        """Send the receipts that no hub has accepted, one batch each."""
        under_way = set(sent.values())
        for identifier in [each for each in self.taken if each not in self.reported and each not in under_way]:
            if sender.credit < 1 or not self.delivering.is_set():
                return
            body = json.dumps({"command": identifier, "receipt": "delivered"}).encode()
            address = f"{RECEIPTS}/{DEVICE}"
            run = Run(address, DEVICE, 1 | CLOCK_GOOD, b"", [body], time.time_ns())
            content = encode([Stored(-1, self._sequence, run)], space="default", epoch="e" * 32)
            engine.send(sender, self._sequence, data_section(content))
            sent[self._sequence] = identifier
            self._sequence += 1


def _exchange(engine: Engine, peer: socket.socket) -> list[Any]:
    """Write and read what is possible within a moment; return the events."""
    while output := engine.data_to_send():
        _write(peer, output)
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    if not poll.poll(WAIT_MS):
        return []
    received = peer.recv(1 << 16)
    now = time.monotonic()
    return take_all(engine, received, now) if received else list(engine.receive_eof(now))


def _write(peer: socket.socket, output: bytes) -> None:
    view = memoryview(output)
    while view:
        poll = select.poll()
        poll.register(peer, select.POLLOUT)
        poll.poll(1_000)
        view = view[peer.send(view) :]
