"""Uplinks: the connectors of a space, each dialling its peer, and the forwarders bound to them.

The modules of connectors (1 MiB of code, and 2 of AMQP) are imported only if there is one.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard

from edge.broker.configuration import BrokerConfiguration, Connector, ConnectorType, Direction
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.limits import NETWORK_DRAIN_S
from edge.broker.model.clock import WallClock
from edge.broker.router.commands.addresses import PLAIN, CommandAddresses, command_forwarders
from edge.broker.router.commands.receipts import CommandReceipts
from edge.broker.router.inbound_losses import InboundLosses
from edge.broker.router.landing.addresses import wants_receipts
from edge.broker.router.recent_names import NamesByForwarder
from edge.broker.router.router import Router
from edge.broker.store.contract import Store
from edge.broker.store.errors import StoreError

if TYPE_CHECKING:
    from bridge.dialer import Dialer
    from edge.broker.retention.manifests import Signer
    from edge.broker.router.connector_uplink import ConnectorUplink
    from edge.broker.router.landing.receipts import LandingReceipts
    from edge.broker.router.networking.network import RouterNetwork
    from edge.broker.router.peer_connector import PeerConnector

log = logging.getLogger(__name__)

AnyConnector: TypeAlias = "ConnectorUplink | PeerConnector"

TO_HUB: Final = "edge.broker.router.connector_uplink"
TO_PEER: Final = "edge.broker.router.connector_types"
"""Modules that import all others for connectors to a hub, and to other peers."""


_LOOK_AGAIN_S: Final = 0.01
"""Interval at which an orderly stop looks for messages on their way."""


def is_to_hub(uplink: AnyConnector) -> TypeGuard[ConnectorUplink]:
    """Return True for a connector of type ``waypost``."""
    return uplink.connector.type is ConnectorType.WAYPOST


class Uplinks:
    """Connectors of the present configuration."""

    def __init__(
        self,
        router: Router,
        store: Store,
        signer: Signer,
        *,
        commands: CommandAddresses = PLAIN,
        knows: Callable[[str], bool] = lambda _device: True,
        made: Callable[[ConnectorUplink], None] = lambda _uplink: None,
        clock: WallClock | None = None,
    ) -> None:
        """`store` has the messages to forward; `signer` signs statements about them. `commands` are the addresses of
        commands; `knows` returns True for a known device. `made` is called with each connector to a hub before it
        dials. `clock` stamps messages."""
        self._clock = clock
        self._signer = signer
        self._commands = commands
        self._knows = knows
        self._made = made
        self.receipts = CommandReceipts(router, store.state, store.cursors, commands)
        """Receipts of commands."""
        self.landing_receipts: LandingReceipts | None = None
        """Receipts of landed messages; None: no connector to a hub yet."""
        self._router = router
        self._store = store
        self._by_name: dict[str, AnyConnector] = {}
        self._leaving: dict[str, Dialer] = {}
        """Dialers of former connectors, the newest by name: a new connector of that name dials after it has closed."""
        self._dialling = False
        self._names = NamesByForwarder(store.state)
        router.participate(self._names)
        self._losses = InboundLosses(store.state, store.ledger, router)
        router.participate(self._losses)

    def __iter__(self) -> Iterator[AnyConnector]:
        return iter(list(self._by_name.values()))

    async def load(self, configuration: BrokerConfiguration) -> None:
        """Import the modules for the connectors of this configuration on a thread; otherwise `configure` does it in the
        loop. Raises ImportError, or what a module raises."""
        to_hub = [connector.type is ConnectorType.WAYPOST for connector in configuration.connectors]
        for name in (*((TO_HUB,) if any(to_hub) else ()), *((TO_PEER,) if not all(to_hub) else ())):
            if name not in sys.modules:
                await asyncio.to_thread(importlib.import_module, name)

    def configure(self, configuration: BrokerConfiguration) -> list[AnyConnector]:
        """Make new connectors, and return those that are no longer configured. The caller closes them; a connector
        of the same name dials when that is done. The subscription of a removed forwarder stays: configuration never
        touches messages."""
        wanted = {connector.name: connector for connector in configuration.connectors}
        self._leaving = {name: dialer for name, dialer in self._leaving.items() if not dialer.closed}
        gone = [uplink for uplink in self if wanted.get(uplink.connector.name) != uplink.connector]
        for uplink in gone:
            uplink.release()
            self._leaving[uplink.connector.name] = uplink.dialer
            del self._by_name[uplink.connector.name]
        for connector in configuration.connectors:
            uplink = self._by_name.get(connector.name) or self._make(connector, configuration)
            self._by_name[connector.name] = uplink
            mine = [forwarder for forwarder in configuration.forwarders if forwarder.connector == connector.name]
            uplink.forward(sorted(mine, key=lambda forwarder: -forwarder.priority))
            uplink.explain()
            if self._dialling:
                uplink.dialer.start(self._leaving.pop(connector.name, None))
        incoming = (forwarder for forwarder in configuration.forwarders if forwarder.direction is Direction.IN)
        known = {f"{forwarder.connector}/{forwarder.name}" for forwarder in incoming}
        self._configure_receipts(configuration, gone)
        commands = {each for connector in wanted for each in (_commands_of(connector), _online_commands_of(connector))}
        self._names.forget_all_but(known | commands)
        return gone

    def _configure_receipts(self, configuration: BrokerConfiguration, gone: Sequence[AnyConnector]) -> None:
        """Start receipts if senders may request them, or some are to come."""
        hubs = [uplink for uplink in self if is_to_hub(uplink)]
        if self.landing_receipts is None and not hubs:
            return
        if self.landing_receipts is None:
            from edge.broker.router.landing.receipts import LandingReceipts  # noqa: PLC0415 - as all of connectors

            self.landing_receipts = LandingReceipts(self._router, self._store)
        receipts = self.landing_receipts
        for gone_uplink in gone:
            receipts.set_exchange(gone_uplink.connector.name, None)
        if wants_receipts(configuration) or receipts.in_use:
            receipts.start()
            for uplink in hubs:
                uplink.give_receipts(receipts)

    def start(self) -> None:
        """Start to dial; needs a running loop."""
        self._dialling = True
        for uplink in self:
            uplink.dialer.start()

    async def leave_network(self, patience_s: float = NETWORK_DRAIN_S) -> None:
        """Leave the network of routers before `stop`, so that no message on its way is lost: wait until all are
        answered, at most for this time."""
        network = self.network
        if network is None:
            return
        network.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not network.has_left:
                    await asyncio.sleep(_LOOK_AGAIN_S)

    async def stop(self) -> None:
        """Close the connections to all peers."""
        dialers = (*(uplink.dialer for uplink in self), *self._leaving.values())
        await asyncio.gather(*(dialer.close() for dialer in dialers))
        for uplink in self:
            if is_to_hub(uplink):
                uplink.keep_spent()

    @property
    def network(self) -> RouterNetwork | None:
        """Network of routers; None: this one has had no neighbour."""
        return self._router.network

    @property
    def left(self) -> dict[str, int]:
        """Upper bound of messages for forwarders that are no longer configured, by ``CONNECTOR/NAME``."""
        found = self._router.durable_subscriptions.left_by_forwarders()
        return {each.name.removeprefix(FORWARDER_PREFIX): each.backlog + each.outstanding for each in found}

    @property
    def landing_figures(self) -> dict[str, int]:
        """Counts of landing receipts (`LandingReceipts.figures`), and `waiting` ones; empty while no message requested
        one."""
        receipts = self.landing_receipts
        if receipts is None or not (receipts.figures or receipts.awaited):
            return {}
        return {"waiting": len(receipts.awaited), **receipts.figures}

    @property
    def backlog(self) -> int:
        """Messages for peers that have not accepted them."""
        return sum(uplink.backlog for uplink in self)

    def _make(self, connector: Connector, configuration: BrokerConfiguration) -> AnyConnector:
        gateway = connector.container or configuration.gateway
        if connector.type is not ConnectorType.WAYPOST:
            from edge.broker.router.connector_types import ATTEMPTS  # noqa: PLC0415 - see above
            from edge.broker.router.peer_connector import PeerConnector  # noqa: PLC0415

            make = ATTEMPTS[connector.type]
            return PeerConnector(
                connector,
                make,
                self._names,
                self._losses,
                gateway=gateway,
                router=self._router,
                lineage=self._store.lineage,
                cursors=self._store.cursors,
            )
        from bridge.plain import Hop  # noqa: PLC0415
        from edge.broker.router.commands.inbox import CommandInbox  # noqa: PLC0415
        from edge.broker.router.connector_uplink import ConnectorUplink  # noqa: PLC0415

        inbox = CommandInbox(
            connector.name,
            self._router,
            self._commands,
            self._names.of(_commands_of(connector.name)),
            gateway,
            self._knows,
            self._names.of(_online_commands_of(connector.name)),
        )
        made = ConnectorUplink(
            connector,
            space=configuration.space,
            hop=Hop(gateway, self._store.lineage.epoch),
            router=self._router,
            store=self._store,
            signer=self._signer,
            commands=inbox,
            carried=command_forwarders(connector.name, self._commands),
            clock=self._clock,
            fork=self._fork,
        )
        self._made(made)
        return made

    def _fork(self, shared: str) -> bool:
        """Start a new epoch, because the hub has seen a later state of this store. Return False when the store
        cannot."""
        try:
            self._store.lineage.fork(shared)
        except StoreError as error:
            log.error("%s; nothing is sent to the hub until the store can start a new epoch", error)  # noqa: TRY400
            return False
        for uplink in self:
            uplink.restate()
        return True


def _commands_of(connector: str) -> str:
    """Return the key for the names of a connector's commands; keys of forwarders have a ``/`` and their name."""
    return f"{connector}/commands"


def _online_commands_of(connector: str) -> str:
    """Return the key for the names of a connector's online commands."""
    return f"{connector}/online commands"
