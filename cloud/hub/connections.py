"""Connections of a hub: their number, and the memory that they may hold together.

A connection counts for its remote address until its peer has opened it, then for the peer. Budget and admission are
those of a broker (`edge.broker.listeners.admission`), with limits of the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from bridge.engine import Engine
from bridge.sasl import SaslServer
from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from cloud.hub.limits import (
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    HANDSHAKES_PER_S,
    HELD_HALF_SENT_BYTES_MAX,
    IDLE_TIMEOUT_S,
    MEMORY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    WRITE_BYTES_MAX,
)
from edge.broker.amqp.session import CAPABILITIES
from edge.broker.limits import (
    AMQP_CONNECTION_BYTES,
    CONNECTIONS_SHARE,
    TICK_S,
    TLS_CONNECTION_BYTES,
    UNREAD_BYTES_MAX,
    WEBSOCKET_CONNECTION_BYTES,
    Limits,
)
from edge.broker.listeners.admission import Admission, ConnectionMeter
from edge.broker.listeners.resident_memory import resident_bytes
from edge.broker.listeners.secure import Admit, HandshakeRate
from edge.broker.listeners.tcp import TcpListener
from edge.broker.listeners.tls import Certificates
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.budget import Budget
from edge.broker.tracing.tracer import PacketTracer

CONTAINER_ID: Final = "waypost-hub"
LIMITS: Final = Limits(
    connections_max=CONNECTIONS_MAX, packet_bytes_max=MESSAGE_BYTES_MAX, memory_bytes_max=MEMORY_BYTES_MAX
)


class PeerIdentification(Protocol):
    """Identifies the peer of one connection."""

    @property
    def sasl(self) -> SaslServer:
        """SASL server that checks the peer's credentials."""
        ...

    def arrive(self, engine: Engine, driver: ConnectionDriver) -> ConnectionOwner:
        """Take over a new transport. The owner returned reports the peer's identity by
        `ConnectionDriver.identified`."""
        ...


class ConnectionAcceptor(Protocol):
    """Admits or refuses connections (`cloud.hub.acceptor`)."""

    def new_connection(self) -> PeerIdentification:
        """Return the handler of a new connection."""
        ...

    def remove(self, driver: ConnectionDriver) -> None:
        """Forget a connection that has ended."""
        ...

    def tick(self) -> None:
        """Drop expired state. Called every `TICK_S`."""
        ...


class Connections:
    """All connections of one hub. Made inside a running loop."""

    def __init__(
        self,
        acceptor: ConnectionAcceptor,
        *,
        limits: Limits = LIMITS,
        held_bytes_max: int = HELD_HALF_SENT_BYTES_MAX,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """`held_bytes_max`: memory of all open connections for half-sent messages, links and unread answers. `resident`
        returns the resident bytes of the process."""
        self.wrong_port = WrongPortReporter()
        """Ports of all listeners of the hub; the HTTP server adds its own."""
        self._loop = asyncio.get_running_loop()
        self.tracer = PacketTracer(lambda: self.listener.drivers, loop=self._loop)
        """Writes every frame to the log with ``-vv``."""
        self.listener = TcpListener("amqp", self._driver, wrong_port=self.wrong_port, tracer=self.tracer)
        self.admission = Admission(limits, Budget(held_bytes_max * CONNECTIONS_SHARE, "hub"), resident)
        self._accepting = True
        self._acceptor = acceptor
        self._limits = limits
        self._meter = ConnectionMeter(self.admission, AMQP_CONNECTION_BYTES)
        self._framed_meter = ConnectionMeter(self.admission, AMQP_CONNECTION_BYTES + WEBSOCKET_CONNECTION_BYTES)
        self._ticker: asyncio.TimerHandle | None = None

    async def start(
        self, host: str, port: int, certificates: Certificates | None, others: Mapping[str, Admit] | None = None
    ) -> tuple[str, int]:
        """Listen; return the bound address. `others`: see `Handshakes`. Raises `ListenError`."""
        self.tracer.follow_log()
        if certificates is not None:
            cost = AMQP_CONNECTION_BYTES + TLS_CONNECTION_BYTES
            self._meter = ConnectionMeter(self.admission, cost)
            self._framed_meter = ConnectionMeter(self.admission, cost + WEBSOCKET_CONNECTION_BYTES)
        rate, handshake_s = HandshakeRate(HANDSHAKES_PER_S), self._limits.handshake_s
        bound = await self.listener.start(host, port, certificates, handshake_s=handshake_s, others=others, rate=rate)
        self.wrong_port.add_listener("amqp", bound[1], protocol="AMQP", tls=certificates is not None)
        self._tick()
        return bound

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.listener.stop()
        self.tracer.close()

    def stop_accepting(self) -> None:
        """Refuse new connections while the hub stops. Gateways then try their next hub at once."""
        self._accepting = False
        self.listener.stop_accepting()

    def admit_framed(self, around: Callable[[ConnectionMachine], ConnectionMachine]) -> ConnectionDriver | None:
        """Return a driver for a connection accepted by another listener, with its engine wrapped into frames.

        None: connection limit reached.
        """
        return self.listener.admit(None, partial(self._driver, around=around))

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.admission.tick(lambda: self.listener.drivers)
        self._acceptor.tick()

    def _driver(
        self,
        gone: Callable[[ConnectionDriver], None],
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine] | None = None,
    ) -> ConnectionDriver | None:
        if not self._accepting:
            return None
        if not self.admission.has_slot(len(self.listener.drivers)) and not self.admission.make_room():
            return None
        acceptor, peer = self._acceptor, self._acceptor.new_connection()
        engine = Engine(
            container_id=CONTAINER_ID,
            server=True,
            sasl=peer.sasl,
            idle_timeout_s=IDLE_TIMEOUT_S,
            handshake_timeout_s=self._limits.handshake_s,
            max_frame_size=FRAME_BYTES_MAX,
            max_message_size=self._limits.packet_bytes_max,
            offered_capabilities=CAPABILITIES,
            now=self._loop.time(),
        )

        def over(driver: ConnectionDriver) -> None:
            acceptor.remove(driver)
            gone(driver)

        machine, owner = self.tracer.follow(engine, "amqp", lambda made: peer.arrive(engine, made))
        return ConnectionDriver(
            machine if around is None else around(machine),
            owner,
            write_bytes_max=WRITE_BYTES_MAX,
            gone=over,
            unread_bytes_max=UNREAD_BYTES_MAX,
            meter=self._meter if around is None else self._framed_meter,
        )
