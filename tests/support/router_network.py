"""Routers of a network in this process, over real sockets, with origins and consumers at each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

import msgspec

from bridge.connectors.settings import RouterSettings
from bridge.message import AMQP, Run, Stored
from bridge.plain import body_of
from bridge.resources.endpoint import ListenEndpoint
from edge.broker.configuration import (
    AddressConfiguration,
    AuthenticationMode,
    BrokerConfiguration,
    Connector,
    ConnectorType,
    EndpointHost,
    Listener,
    PeerCredentials,
    Protocol,
)
from edge.broker.limits import Limits
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.authorization import NETWORK, AccessRule, Operation
from edge.broker.model.interfaces import DeliveryOutcome, Explanation, Origin, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.networking.network import RouterNetwork
from edge.broker.router.uplinks import Uplinks
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.broker.server import Broker
from tests.simulation.gateway import NoKey
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

ADDRESSES = tuple(
    AddressConfiguration(AddressRule(pattern, kind))
    for pattern, kind in (("jobs/#", AddressType.ANYCAST), ("news/#", AddressType.MULTICAST))
)


@cache
def _users() -> CredentialSnapshot:
    """Return a user with the right of a router."""
    user = new_user("router", (AccessRule((NETWORK,), frozenset((Operation.RELAY,))),))
    return CredentialSnapshot({"router": with_secret(user, "secret", at_s=0.0)}, b"k")


def data(body: bytes) -> bytes:
    """Encode a bare message with one short data section."""
    return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


class NetworkOrigin(Origin):
    """Publishes at one router, as far as it has credit, and keeps the answers."""

    name = "sender"

    def __init__(self, router: NetworkRouter, address: str) -> None:
        self.address = address
        self.answers: dict[int, Refusal | str] = {}
        self.explanations: dict[int, Explanation] = {}
        self.sent = 0
        self.accepted_count = 0
        self._router = router.broker.router

    @property
    def credit(self) -> int:
        return self._router.credit.of(self, self.address)

    def publish(self, *bodies: str, qos: int = 1) -> None:
        tokens = range(self.sent, self.sent + len(bodies))
        self.sent += len(bodies)
        run = Run(self.address, self.name, AMQP | qos, b"", [data(body.encode()) for body in bodies])
        self._router.publish(Publication(self, run, tokens if qos else ()))

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answers.update(dict.fromkeys(tokens, "accepted"))
        self.accepted_count += len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answers.update(dict.fromkeys(tokens, why))

    def explained(self, tokens: Sequence[int], explanation: Explanation) -> None:
        self.explanations.update(dict.fromkeys(tokens, explanation))

    @property
    def outcomes(self) -> Counter[Refusal | str]:
        return Counter(self.answers.values())


class NetworkConsumer(RunConsumer):
    """Receives at one router and settles each message, or keeps it unanswered."""

    credit = 0

    def __init__(
        self,
        router: NetworkRouter,
        address: str,
        credit: int = 1_000,
        outcome: DeliveryOutcome | None = DeliveryOutcome.ACCEPTED,
    ) -> None:
        self.name = f"receiver at {router.name}"
        self.credit = credit
        self.outcome = outcome
        self.got: list[str] = []
        self.runs: list[Run] = []
        self.held: list[tuple[Subscription, int]] = []
        self._router = router.broker.router
        self._subscription = self._router.subscriptions.subscribe(self, address, SubscribeOptions())
        self._subscription.pump()

    def take(self, subscription: Subscription, stored: Stored) -> None:
        count = len(stored.run.bodies)
        self.runs.append(stored.run)
        self.got += [body_of(body).decode() for body in stored.run.bodies]
        if self.outcome is None:
            self.credit -= count
            self.held += [(subscription, stored.position + i) for i in range(count)]
        elif stored.position >= 0:
            subscription.settle(self, stored.position, stored.position + count - 1, self.outcome)

    def grant(self, credit: int) -> None:
        self.credit += credit
        self._subscription.pump()

    def leave(self) -> None:
        self._router.subscriptions.unsubscribe(self, self._subscription, forget=True)


class NetworkRouter:
    """One broker of a network."""

    def __init__(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.configuration = BrokerConfiguration(
            gateway=name,
            addresses=ADDRESSES,
            authentication=AuthenticationMode.STANDARD,
            listeners=(Listener(Protocol.AMQP, ListenEndpoint("127.0.0.1", 0)),),
            limits=Limits(free_floor_bytes=0),
        )
        self.store = MemoryStore(post=loop.call_soon_threadsafe)
        self.broker = Broker(self.configuration, self.store, resident=lambda: 0)
        self.broker.gate.update(_users())
        self.uplinks = Uplinks(self.broker.router, self.store, NoKey())
        self.port = 0

    async def start(self) -> None:
        bound = await self.broker.start()
        self.port = bound["amqp"][1]
        self.uplinks.start()

    async def stop(self) -> None:
        await self.uplinks.stop()
        await self.broker.stop()
        self.store.close()

    async def stop_orderly(self, patience_s: float = 10.0) -> None:
        """Stop as a gateway does: leave the network first."""
        await self.uplinks.leave_network(patience_s)
        await self.stop()

    def dial(self, port: int, *, cost: int = 1, name: str = "") -> None:
        """Add a connector to a neighbour."""
        connector = Connector(
            name=name or f"to-{port}",
            type=ConnectorType.ROUTER,
            hosts=(EndpointHost(host="127.0.0.1", port=port),),
            credentials=PeerCredentials(username="router", password="secret"),
            router=RouterSettings(cost=cost),
        )
        connectors = (*self.configuration.connectors, connector)
        self.configuration = msgspec.structs.replace(self.configuration, connectors=connectors)
        self.uplinks.configure(self.configuration)

    @property
    def network(self) -> RouterNetwork:
        found = self.broker.router.network
        assert found is not None
        return found

    @property
    def reached(self) -> set[str]:
        """Names of the routers that it reaches, itself included."""
        network = self.broker.router.network
        return set() if network is None else set(network.protocol.paths.tree(self.name))


@asynccontextmanager
async def routers(*names: str, links: Sequence[tuple[str, str, int]] = ()) -> AsyncIterator[list[NetworkRouter]]:
    """Yield linked routers that know each other. `links`: the router that dials, its neighbour, and the cost."""
    made = {name: NetworkRouter(name) for name in names}
    try:
        for each in made.values():
            await each.start()
        for dialing, other, cost in links:
            made[dialing].dial(made[other].port, cost=cost)
        if links:
            await eventually(lambda: all(each.reached == set(names) for each in made.values()), "a whole network")
        yield list(made.values())
    finally:
        for each in made.values():
            await each.stop()


async def eventually(condition: object, what: str = "", deadline_s: float = 20.0) -> None:
    """Wait until the condition holds."""
    assert callable(condition)
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what or condition}") from None
