"""The AMQP device against a peer that drops connections and refuses deliveries (Proton on both sides)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from proton.handlers import MessagingHandler
from proton.reactor import Container

from simulator.measuring.amqp import AmqpDevice
from simulator.measuring.device import SimulatedDevice, SimulatorSettings
from simulator.measuring.journal import SimulatorJournal
from simulator.outbox import DeviceOutbox
from tests.support.processes import free_port


class Peer(MessagingHandler):  # type: ignore[misc]  # Proton has no usable types
    """Accept deliveries, but release each of `release` once and break the connection at each of `break_at` once."""

    def __init__(self, port: int, release: set[int], break_at: set[int]) -> None:
        super().__init__(prefetch=10, auto_accept=False)
        self._port = port
        self._release = release
        self._break_at = break_at
        self.received: list[int] = []
        self.addresses: set[str] = set()
        self.containers: list[str] = []
        self.listening = threading.Event()
        self.ending = threading.Event()
        self._open: list[Any] = []

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen(f"127.0.0.1:{self._port}")
        self._container = event.container
        self.listening.set()
        self.on_timer_task(event)

    def on_timer_task(self, event: Any) -> None:
        """Check for the end here, as only the container's own thread may touch it."""
        if self.ending.is_set():
            self._acceptor.close()
            for connection in self._open:
                connection.close()
        else:
            self._container.schedule(0.05, self)

    def on_connection_opening(self, event: Any) -> None:
        self.containers.append(event.connection.remote_container)
        self._open.append(event.connection)

    def on_link_opening(self, event: Any) -> None:
        event.link.target.address = event.link.remote_target.address
        self.addresses.add(event.link.remote_target.address)

    def on_message(self, event: Any) -> None:
        seq = json.loads(bytes(event.message.body))["seq"]
        self.received.append(seq)
        if seq in self._break_at:
            self._break_at.discard(seq)
            event.transport.close_head()
            event.transport.close_tail()
        elif seq in self._release:
            self._release.discard(seq)
            self.release(event.delivery, delivered=False)
        else:
            self.accept(event.delivery)


@contextmanager
def serving(peer: Peer) -> Iterator[None]:
    thread = threading.Thread(target=Container(peer).run, daemon=True)
    thread.start()
    assert peer.listening.wait(5)
    try:
        yield
    finally:
        peer.ending.set()
        thread.join(10)
        assert not thread.is_alive()


def run(port: int, journal: Path | None, *, count: int, drain_s: float = 10.0) -> SimulatedDevice:
    settings = SimulatorSettings("d2", "plant/d2/cpu", "cpu", f"amqp://127.0.0.1:{port}", 0.002, count, 4, drain_s)
    kept = SimulatorJournal(journal, device="d2", address=settings.address, protocol="amqp", kind="cpu")
    device = SimulatedDevice(settings, lambda now: {"cpu_percent": 1.0}, DeviceOutbox(1000), kept)
    AmqpDevice(device).run()
    device.journal.close(device.outbox)
    return device


@pytest.mark.timeout(40)
def test_every_reading_is_accepted_over_breaks_and_refusals(tmp_path: Path) -> None:
    port, journal = free_port(), tmp_path / "journal.jsonl"
    peer = Peer(port, release={3, 20}, break_at={10, 11, 30})
    with serving(peer):
        device = run(port, journal, count=60)
    acked = {r["acked"]: r["sends"] for r in map(json.loads, journal.read_text().splitlines()) if "acked" in r}
    assert sorted(acked) == list(range(60))
    assert set(peer.received) == set(range(60))
    assert acked[3] > 1
    assert acked[10] > 1
    assert device.outbox.resent == sum(sends - 1 for sends in acked.values())
    assert all(peer.received.count(seq) <= sends for seq, sends in acked.items())
    assert peer.addresses == {"plant/d2/cpu"}
    assert set(peer.containers) == {"d2"}


@pytest.mark.timeout(40)
def test_readings_are_kept_and_the_drain_ends_without_a_peer() -> None:
    device = run(free_port(), None, count=5, drain_s=0.3)
    assert len(device.outbox) == 5
    assert device.outbox.acknowledged == 0
