"""Gateway over the store in memory that takes commands of a hub."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bridge.command import HubCommand, ReceiptDocument, message
from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome as Answer
from bridge.plain import parse
from edge.broker.configuration import BrokerConfiguration, Connector, EndpointHost
from edge.broker.model.addresses import AddressTable
from edge.broker.model.interfaces import SubscribeOptions
from edge.broker.router.commands.addresses import PLAIN, with_commands
from edge.broker.router.commands.inbox import CommandInbox
from edge.broker.router.commands.receipts import CommandReceipts
from edge.broker.router.recent_names import RecentNames
from tests.support.router_site import RouterSite

HUB = Connector(name="hub", hosts=(EndpointHost(host="127.0.0.1", port=1),))


class Gateway(RouterSite):
    """Gateway with an inbox for commands of a hub, and a consumer that keeps every receipt."""

    def __init__(self) -> None:
        super().__init__()
        configuration = with_commands(BrokerConfiguration(connectors=(HUB,)), PLAIN)
        self.table = AddressTable(configuration.rules)
        self.policies = configuration.policies
        self.names = RecentNames()
        self.boot()
        self.answers: list[tuple[int, Answer, str]] = []
        self.tokens = 0
        self.receipts = CommandReceipts(self.router, self.store.state, self.store.cursors, PLAIN)
        self.inbox = CommandInbox("hub", self.router, PLAIN, self.names, "gw1", lambda device: device != "stranger")
        self.inbox.attached(self._settle, lambda: None)
        kept = SubscribeOptions(durable_name="hub", all_qos=True)
        self.hub = self.consumer("command-receipt/#", "hub", options=kept)

    def _settle(self, tokens: Sequence[int], outcome: Answer, why: str) -> None:
        self.answers += [(token, outcome, why) for token in tokens]

    def command(self, identifier: str = "a1", device: str = "pump7", ttl_ms: int = 60_000) -> None:
        made = HubCommand(
            id=identifier, device=device, name="on", payload=b"x", content_type=None, ttl_ms=ttl_ms, response=False
        )
        self.arrive(message(made))

    def arrive(self, sent: bytes) -> None:
        said = parse(sent)
        self.tokens += 1
        self.inbox.receive([Incoming(self.tokens, said.destinations, said.name, said.hops, said.run)])
        self.settle_down()

    @property
    def told(self) -> list[tuple[str, str]]:
        self.settle_down()
        documents = [msgspec.json.decode(body, type=ReceiptDocument) for body, _ in self.hub.got]
        return [(each.command, each.receipt.value) for each in documents]
