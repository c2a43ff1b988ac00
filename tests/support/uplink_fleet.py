"""Uplinks of a fleet of gateways in one process, with a backlog and a live message each, for measurements of hubs."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from random import Random

from bridge.amqp_connection import AmqpConnection
from bridge.backoff import Backoff
from bridge.dialer import Dialer, PeerEndpoint
from bridge.engine import Engine
from bridge.flow import Outcomes, SendFlow
from bridge.hub_links import HubLinks
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.reports import Reports
from bridge.sasl import SaslClient
from bridge.socket_attempt import SocketAttempt
from bridge.uplink import Uplink
from edge.broker.router.connector_uplink import BACKOFF, UPLINK_LIMITS


class UplinkPlace:
    """Position of a forwarder in a log, behind one lane of an uplink."""

    def __init__(self, flow: SendFlow, gateway: str, address: str) -> None:
        self.settled = 0
        self.served_at: float | None = None
        """Time at which the first of the last kept messages was accepted."""
        self._flow = flow
        self._gateway = gateway
        self._address = address
        self._end = self._next = 0
        flow.add(self)

    def keep(self, messages: int) -> None:
        """Add this many messages to its log."""
        self._end += messages
        self.served_at = None
        self.pump()

    def pump(self) -> None:
        while (credit := self._flow.credit) and self._next < self._end:
            count = min(credit, self._end - self._next)
            bodies = [b'{"temperature": 21.5, "gateway": "%s"}' % self._gateway.encode()] * count
            run = Run(self._address, self._gateway, 1, b"", bodies, 1_763_845_200_000_000_000)
            first, self._next = self._next, self._next + count
            self._flow.deliver(self, [Stored(first, first, run)])

    def settle(self, _consumer: object, first: int, last: int, outcome: object) -> None:
        assert outcome == "accepted"
        assert first == self.settled, "out of order"
        self.settled = last + 1
        self.served_at = self.served_at or time.monotonic()


class FleetGateway:
    """Uplink of one gateway with its dialer, its backlog and its measurements."""

    def __init__(self, number: int, ports: Sequence[int], tls: Callable[[str], ssl.SSLContext] | None = None) -> None:
        """`ports`: hubs, the first preferred. `tls` returns the context of a gateway with its certificate."""
        self.name = f"gw{number:04d}"
        self.uplink = Uplink(
            self.name,
            Hop(self.name, f"{number:032x}"),
            space="default",
            outcomes=Outcomes("accepted", "rejected"),
            clock=asyncio.get_running_loop().time,
            limits=UPLINK_LIMITS,
        )
        self.kept = UplinkPlace(self.uplink.backlog, self.name, "plant/1")
        self.live = UplinkPlace(self.uplink.live, self.name, "plant/2")
        reports = Reports()
        self.dialer = Dialer(
            [PeerEndpoint("127.0.0.1" if tls is None else "localhost", port, tls is not None) for port in ports],
            lambda dialer, endpoint: SocketAttempt(
                dialer,
                endpoint,
                AmqpConnection(self._engine(certified=tls is not None), HubLinks(self.uplink, reports)),
                tls=(lambda: tls(self.name)) if tls is not None else None,
            ),
            backoff=Backoff(BACKOFF, Random(number).random),
        )

    def _engine(self, *, certified: bool) -> Engine:
        """Return the engine of one connection."""
        sasl = SaslClient(external=True) if certified else None
        return Engine(container_id=self.name, server=False, sasl=sasl)
