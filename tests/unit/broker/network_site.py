"""The network of one router, with neighbours that the test plays: real classes, engines without a socket."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from bridge.engine import DeliveryState
from bridge.message import AMQP, Run, Stored
from edge.broker.delivery import AnycastGroup, WaitingPool
from edge.broker.delivery.anycast import HeldMessages
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import MessageCounts, Origin, Refusal
from edge.broker.model.isolation import EventListeners
from edge.broker.model.tracing import UNTRACED
from edge.broker.network.statements import Hello, NetworkDocument, Statement, encode_document
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.networking.egress_link import EgressLink
from edge.broker.router.networking.network import RouterNetwork
from tests.support.run_consumer import RunConsumer


class SiteLink:
    """AMQP link of a neighbour's engine."""

    is_sender = True
    max_message_size = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.credit = 0
        self.attached = True
        self.closed = False
        self.context: Any = None

    def bind(self, context: Any) -> None:
        self.context = context

    def report_accepted_by_tag(self) -> None:
        pass


class SiteEngine:
    """Keeps what the router attaches and sends."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.sent: list[tuple[SiteLink, int, list[bytes]]] = []

    @property
    def links(self) -> list[Any]:
        return [link for link in self.made if not link.closed]

    def attach_sender(self, name: str, *_: object, **__: object) -> SiteLink:
        made = SiteLink(name)
        self.made.append(made)
        return made

    def detach(self, link: SiteLink, **_: object) -> None:
        link.closed = True

    def send_all(self, link: SiteLink, first: int, messages: list[bytes]) -> None:
        link.credit -= len(messages)
        self.sent.append((link, first, messages))

    def send(self, *_: object, **__: object) -> None:
        pass

    def settle_sent(self, *_: object) -> None:
        pass


class Neighbour:
    """A neighbour of the router `a`; what it says is given by the test."""

    def __init__(self, site: NetworkSite, name: str, cost: int = 1) -> None:
        self.engine = SiteEngine()
        self.ended_for: list[str] = []
        self._site = site
        engine: Any = self.engine
        self.peering = site.network.open(engine, lambda: None, self.ended_for.append, cost=cost)
        self.name = name
        self.say(Hello(name, 1))

    def say(self, document: NetworkDocument) -> None:
        encoded = encode_document(document)
        section = b"\x00\x53\x75\xb0" + len(encoded).to_bytes(4, "big") + encoded
        self._site.network.document_received(self.peering, section)

    def end_link(self, egress: EgressLink) -> None:
        """End a link with messages, as a neighbour that refuses it."""
        link = egress._link
        assert link is not None
        link.closed = True
        egress.detached()


class NetworkSite:
    """Router `a` with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.groups: dict[str, AnycastGroup] = {}
        self.forgotten_routes = 0
        self.figures = MessageCounts()
        self.held = HeldMessages()
        ready: Any = SimpleNamespace(add=lambda _: None, discard=lambda _: None)
        live = SimpleNamespace(match=lambda _: [], sinks=lambda _: [])
        competing = SimpleNamespace(anycast=self.groups, anycast_filters={}, anycast_group=self.groups.__getitem__)
        subscriptions = SimpleNamespace(competing=competing, live=_Live(live), direct_listeners=EventListeners("x"))
        host: Any = SimpleNamespace(
            now_ns=lambda: 10**18,
            now_s=lambda: self.now_s,
            subscriptions=subscriptions,
            addresses=SimpleNamespace(table=SimpleNamespace(rules=[]), type_of=lambda _: AddressType.ANYCAST),
            figures=self.figures,
            pool=WaitingPool(ready),
            tick_listeners=EventListeners("t"),
            address_listeners=EventListeners("a"),
            stamp=lambda: (0, 0),
            tracer=UNTRACED,
            forget_routes=self._forget_routes,
        )
        self.network = RouterNetwork("a", host, CreditWatchers())

    def group(self, address: str) -> AnycastGroup:
        """Make the group of an address; its senders look at its credit whenever that may have changed."""
        made = self.groups[address] = AnycastGroup(
            address, self.figures, lambda: self._look(address), lambda: self.now_s, self.held
        )
        self.network.group_made(made)
        self._look(address)
        return made

    def links_to(self, address: str) -> dict[str, EgressLink]:
        return {egress.destination: egress for egress in self.network._remote[address].egress}

    def grant(self, egress: EgressLink, credit: int) -> None:
        """Grant the credit of a neighbour; the link is attached if it is not."""
        _ = egress.own_credit
        link = egress._link
        assert link is not None
        link.credit = credit
        egress.flow()

    def pass_time(self, seconds: float, *neighbours: Neighbour) -> None:
        """Let time pass in which these neighbours greet."""
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += 0.25
            for neighbour in neighbours:
                neighbour.say(Hello(neighbour.name, 1))
            self.network.tick()

    def _look(self, address: str) -> None:
        """Look at the credit of a group, as waiting senders do."""
        _ = self.groups[address].credit

    def _forget_routes(self) -> None:
        self.forgotten_routes += 1


class _Live(list[Any]):
    """No live subscriptions."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.match, self.sinks = parts.match, parts.sinks


class SiteOrigin(Origin):
    """Keeps the answers to its messages."""

    name = "sender"
    user = ""

    def __init__(self) -> None:
        self.answers: dict[int, Refusal | str] = {}

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers.update(dict.fromkeys(tokens, "accepted"))

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers.update(dict.fromkeys(tokens, why))


class SiteConsumer(RunConsumer):
    """Consumer of the router itself that keeps its messages."""

    name = "local"
    credit = 0

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.positions: list[int] = []

    def take(self, subscription: Any, stored: Stored) -> None:
        self.credit -= 1
        self.positions.append(stored.position)


def message(address: str = "jobs", body: bytes = b"\x00\x53\x75\xa0\x01x") -> Run:
    """Return a run of one message."""
    return Run(address, "d", AMQP | 1, b"", [body])


def answer(egress: EgressLink, tag: int, state: DeliveryState) -> None:
    """Answer a message as the neighbour."""
    event: Any = SimpleNamespace(link=egress._link, items=[(tag, state, True, None)])
    egress.settled(event)


def statement(router: str, neighbours: dict[str, int], added: Sequence[str] = (), version: int = 1) -> Statement:
    """Return a complete statement."""
    return Statement(router, 5, version, 0, neighbours, list(added))
