"""Connection of a hub to a message broker, for commands, their outcomes and live copies. `start`, later `stop`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from bridge.amqp_connection import AmqpConnection
from bridge.backoff import Backoff, BackoffPolicy
from bridge.batch import Batch
from bridge.dialer import Attempt, Dialer, LinkState, PeerEndpoint
from bridge.engine import Engine
from bridge.sasl import SaslClient
from bridge.socket_attempt import SocketAttempt
from cloud.hub.health import MessagingFigures
from cloud.hub.messaging.commands import QueuedCommands, SendCommand
from cloud.hub.messaging.copies import BrokerCopies
from cloud.hub.messaging.limits import COMMANDS_CREDIT, IDLE_TIMEOUT_S, LATE_S
from cloud.hub.messaging.links import BrokerAway, BrokerLinks, ReceivedCommand
from cloud.hub.messaging.outcome import BrokerOutcomes
from cloud.hub.messaging.settings import BrokerSettings, address_of
from cloud.hub.registry.commands import CommandNews, CommandRecord
from edge.broker.security.peer_tls import peer_context, peer_stamps

_BACKOFF: Final = BackoffPolicy(first_s=0.5, limit_s=15.0, stable_s=30.0)
"""The same as a gateway's connectors."""


class BrokerConnection:
    """Connection to one message broker."""

    def __init__(self, settings: BrokerSettings, container: str, send: SendCommand) -> None:
        """`container`: name of this hub at the broker; `send` stores a command. Inside a running loop."""
        self._settings = settings
        self._container = container
        self._queues = {address_of(settings.commands, tenant): tenant for tenant in settings.tenants}
        self._commands = QueuedCommands(send, self._tenant_of)
        self._outcomes = BrokerOutcomes(settings, self._send)
        self._copies = BrokerCopies(settings, self._send, lambda: self.state.connected)
        self._links: BrokerLinks | None = None
        self._down_since = time.monotonic()
        self._was_up = False
        self._dialer = Dialer(
            settings.endpoints,
            self._attempt,
            backoff=Backoff(_BACKOFF, random.Random().random),  # noqa: S311 - jitter, no secret
            changed=self._changed,
            stamps=partial(peer_stamps, settings.tls),
        )
        self.publish_outcome = self._outcomes.publish
        self.copy = self._copies.take

    def start(self) -> None:
        """Start to connect."""
        self._dialer.start()

    async def stop(self) -> None:
        """Leave unfinished commands to the broker, and disconnect."""
        await self._commands.stop()
        await self._dialer.close()

    @property
    def state(self) -> LinkState:
        return self._dialer.state

    @property
    def figures(self) -> MessagingFigures:
        """Return the state and the counts."""
        outcomes, copies, rejected = self._outcomes, self._copies, self._commands.rejected
        counts = (outcomes.published, outcomes.refused, rejected, copies.made, copies.missed)
        return MessagingFigures(self.state.connected, self.problem, *counts)

    @property
    def problem(self) -> str | None:
        """Return what is wrong; None if nothing is."""
        if not self.state.connected:
            down_s = time.monotonic() - self._down_since
            why = self.state.last_error or "no connection yet"
            return f"no connection for {down_s:.0f} s: {why}" if down_s > LATE_S else None
        refused = self._links.refused if self._links is not None else None
        return refused or self._commands.trouble

    # --- inside -------------------------------------------------------------------------------------------------------

    def _tenant_of(self, queue: str) -> tuple[str, str]:
        tenant = self._queues[queue]
        return tenant, address_of(self._settings.replies, tenant)

    def _attempt(self, dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        settings = self._settings
        certified = settings.tls is not None and settings.tls.certificate is not None
        loopback = endpoint.host in ("127.0.0.1", "::1", "localhost")
        sasl = SaslClient(settings.user, settings.password, external=certified, plain=endpoint.tls or loopback)
        engine = Engine(
            container_id=self._container,
            server=False,
            hostname=endpoint.host,
            sasl=sasl,
            idle_timeout_s=IDLE_TIMEOUT_S,
        )
        self._links = BrokerLinks(self._queues, self._arrived, COMMANDS_CREDIT)
        tls = partial(peer_context, settings.tls) if settings.tls is not None else None
        return SocketAttempt(dialer, endpoint, AmqpConnection(engine, self._links), tls=tls)

    def _arrived(self, received: ReceivedCommand) -> None:
        self._commands.take(received)

    def _changed(self, state: LinkState) -> None:
        if self._was_up and not state.connected:
            self._down_since = time.monotonic()
        self._was_up = state.connected

    def _send(self, address: str, message: bytes) -> asyncio.Future[None]:
        if self._links is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(BrokerAway("there was no connection yet"))
            return future
        return self._links.send(address, message)


PublishOutcome = Callable[[CommandNews, CommandRecord], Awaitable[None]]
CopyBatch = Callable[[str, str, Batch], None]


class HubMessaging:
    """Applications of a hub: in its own address spaces, and at a message broker if one is configured."""

    def __init__(
        self, settings: BrokerSettings | None, container: str, *, publish: PublishOutcome, copy: CopyBatch
    ) -> None:
        """`publish`, `copy`: those of the hub's own spaces."""
        self.broker: BrokerConnection | None = None
        self._settings = settings
        self._container = container
        self._publish = publish
        self._copy = copy

    def start(self, send: SendCommand) -> None:
        """Start to connect; `send` stores a command."""
        if self._settings is not None:
            self.broker = BrokerConnection(self._settings, self._container, send)
            self.broker.start()

    async def stop(self) -> None:
        """Disconnect. Idempotent."""
        if self.broker is not None:
            await self.broker.stop()

    @property
    def figures(self) -> MessagingFigures | None:
        """Return state and counts of the broker; None without one."""
        return self.broker.figures if self.broker is not None else None

    async def publish_outcome(self, news: CommandNews, command: CommandRecord) -> None:
        """Publish the outcome of a command to applications everywhere. Raises `ApplicationsUnavailable`."""
        if self.broker is not None:  # first, because it may fail for long, and all of it is repeated then
            await self.broker.publish_outcome(news, command)
        await self._publish(news, command)

    def copy(self, tenant: str, gateway: str, batch: Batch) -> None:
        """Make live copies of a batch for applications everywhere."""
        self._copy(tenant, gateway, batch)
        if self.broker is not None:
            self.broker.copy(tenant, gateway, batch)
