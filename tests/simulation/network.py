"""Network between processes: byte streams that are delayed, cut anywhere, or stopped by a partition.

Streams behave as in TCP: bytes arrive in order, complete up to a cut. Each end notices a cut at its own time. A
partition holds bytes back; they continue when it heals, or the connection is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.scheduler import Process, Scheduler

Address = tuple[str, int]

HALF_OPEN_S = 1.5
"""Longest time until an end notices a broken stream: the peer may have reconnected by then."""

REFUSED_S = 0.002
"""Time until a connection to a closed port is refused."""


class Transport(asyncio.Transport):
    """One end of a stream."""

    def __init__(self, network: Network, process: Process, protocol: Any, peer: Address) -> None:
        super().__init__()
        self.process = process
        self.protocol = protocol
        self.other: Transport
        self.closing = False
        self.lost = self.broken = False
        self.paused = False
        self.eof_sent = False
        self._network = network
        self.certificate: Any = None
        """Certificate that the peer has shown in its handshake."""
        self._peer = peer
        self._arrived: list[bytes] = []
        """Data that arrived while reading was paused, or during a partition."""
        self._eof_arrived = False
        self._at_s = 0.0
        """Arrival time of the last byte sent to this end: data never overtakes other data."""

    # --- asyncio.Transport ------------------------------------------------------------------------------------

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        if data and not (self.lost or self.eof_sent):
            self._network.carry(self, self.other.receive, bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self.lost or self.eof_sent):
            self.eof_sent = True
            self._network.carry(self, self.other.receive_eof)

    def is_closing(self) -> bool:
        return self.closing or self.lost

    def close(self) -> None:
        if not self.is_closing():
            self.closing = True
            self.write_eof()
            self._network.scheduler.after(0.0, self.process, self.lose, None)
            self._network.carry(self, self.other.lose, None)

    def abort(self) -> None:
        if not self.lost:
            self.closing = True
            self._network.scheduler.after(0.0, self.process, self.lose, None)
            self._network.carry(self, self.other.lose, ConnectionResetError(104, "reset by the peer"))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self._network.scheduler.after(0.0, self.process, self.drain)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert" and self.certificate is not None:
            return self.certificate
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the network takes all data."""

    def get_write_buffer_size(self) -> int:
        return 0

    # --- the network's side -----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if not (self.lost or self.broken):
            self._arrived.append(data)
            self.drain()

    def receive_eof(self) -> None:
        if not (self.lost or self.broken):
            self._eof_arrived = True
            self.drain()

    def drain(self) -> None:
        """Pass the arrived data to the protocol."""
        while self._arrived and not (self.paused or self.lost or self._network.parted(self)):
            self.protocol.data_received(self._arrived.pop(0))
        if self._eof_arrived and not self._arrived and not (self.paused or self.lost):
            self._eof_arrived = False
            if not self.protocol.eof_received():
                self.close()

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self._network.forget(self)
            self.protocol.connection_lost(error)

    def arrival_s(self, delay_s: float) -> float:
        """Return the time at which the other end receives data that is sent now."""
        self._at_s = max(self._at_s, self._network.scheduler.now_s + delay_s)
        return self._at_s


class Server:
    """Substitute for `bridge.transport.listening.Listening`."""

    def __init__(self, network: Network, address: Address) -> None:
        self._network = network
        self.address = address

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)


class Network:
    """Registry of listeners and streams."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.listeners: dict[Address, tuple[Process, Callable[[], Any]]] = {}
        self.latency_s = 0.002
        self._random = random
        self._streams: dict[Transport, None] = {}
        """One end of each stream: the end that connected."""
        self._parted: set[str] = set()
        """Names of processes that are unreachable."""

    def listen(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> Server:
        self.listeners[host, port] = (process, factory)
        return Server(self, (host, port))

    def connect(
        self,
        process: Process,
        factory: Callable[[], Any],
        host: str,
        port: int,
        future: asyncio.Future[Any],
        tls: Any = None,
    ) -> None:
        """Complete `future` with (transport, protocol), or fail it as the system would.

        `tls` is the context of the client (`enrolment.Context`).
        """

        def arrived() -> None:
            found = self.listeners.get((host, port))
            if process.name in self._parted or (found is not None and found[0].name in self._parted):
                return  # without an answer the client waits until its own timeout
            if found is None or not found[0].alive:
                self.scheduler.after(REFUSED_S, process, refused)
                return
            near = Transport(self, process, factory(), (host, port))
            far = Transport(self, found[0], None, (process.name, 0))
            near.other, far.other = far, near
            self._streams[near] = None
            refusal = None if tls is None else tls.refusal()
            if refusal is None:
                far.certificate = None if tls is None else tls.shown
                self.scheduler.at(0.0, far.process, accept, far, found[1])
            else:  # in TLS 1.3 a client learns this after its handshake
                far.lost = True
                self.scheduler.after(self._delay_s() * 2, process, near.lose, refusal)
            near.protocol.connection_made(near)
            if not future.done():
                future.set_result((near, near.protocol))

        def refused() -> None:
            if not future.done():
                future.set_exception(ConnectionRefusedError(111, "connection refused"))

        def accept(far: Transport, make: Callable[[], Any]) -> None:
            far.protocol = make()
            far.protocol.connection_made(far)

        self.scheduler.after(self._delay_s(), process, arrived)

    def carry(self, sender: Transport, callback: Callable[..., None], *args: Any) -> None:
        """Deliver something to the other end."""
        receiver = sender.other
        self.scheduler.at(receiver.arrival_s(self._delay_s()), receiver.process, callback, *args)

    def forget(self, transport: Transport) -> None:
        self._streams.pop(transport, None)

    def parted(self, transport: Transport) -> bool:
        """Return whether the process is cut off."""
        return self.apart(transport.process.name, transport.other.process.name)

    def apart(self, *ends: str) -> bool:
        """Return whether the two processes cannot reach each other."""
        return bool(self._parted) and not self._parted.isdisjoint(ends)

    # --- faults of the nemesis --------------------------------------------------------------------------------

    def died(self, process: Process) -> None:
        """Close the sockets of a killed process; after a power cut its peers notice later."""
        for address in [address for address, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[address]
        for near in list(self._streams):
            if process in (near.process, near.other.process):
                self.cut(near)

    def cut(self, near: Transport) -> None:
        """Break a stream: data no longer arrives, and each end notices at its own time."""
        self._streams.pop(near, None)
        for end in (near, near.other):
            end.broken = True
            if end.protocol is None:
                end.lost = True
                continue
            delay_s = HALF_OPEN_S * self._random.random() if self._random.random() < 0.3 else self._delay_s() * 3
            self.scheduler.after(delay_s, end.process, end.lose, ConnectionResetError(104, "reset"))

    def streams(self, port: int) -> list[Transport]:
        """Return the streams to a port, by the end that connected."""
        return [near for near in self._streams if near._peer[1] == port]

    def part(self, name: str) -> None:
        self._parted.add(name)

    def heal(self) -> None:
        """Connect all processes again."""
        if self._parted:
            self._parted.clear()
            for near in self._streams:
                for end in (near, near.other):
                    self.scheduler.after(self._delay_s(), end.process, end.drain)

    def _delay_s(self) -> float:
        return self.latency_s * (0.5 + self._random.random())
