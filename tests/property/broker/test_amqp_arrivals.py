"""Connections that are received from and answered at once: to clients and logs it makes no difference."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.engine import Condition, Detached, Dispositions, Engine, Event, Link, State, Transfers
from bridge.engine.compiled import CompiledLoops
from bridge.message import Stored
from bridge.sasl import SaslClient
from bridge.transport.driver import Driver
from bridge.transport.ready import Together
from bridge.transport.tcp import TcpTransport
from bridge.transport.turn import turn_of
from edge.broker.amqp.arrivals import Arrivals
from edge.broker.amqp.session import AmqpSession
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.router.batch import Batch
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError, StoreFull
from tests.support.loops import form, running
from tests.support.machines import take_all
from tests.support.memory_store import MemoryStore
from tests.unit.amqp.wire import NOW, message

T = TypeVar("T")
CLIENTS = 3
TURNS = 16
"""A turn serves one socket at least, however slow the machine is."""
TARGETS = ("queue/a", "queue/b", "anycast/a", "topic/a", None)
RULES = [AddressRule(f"{kind.value}/#", kind) for kind in (AddressType.QUEUE, AddressType.ANYCAST, AddressType.TOPIC)]
PLAIN = message(b"one"), message(b"two", durable=True), message(b"", durable=True)
OTHERS = (
    b"\x00\x53\x70\xc0\x04\x03\x41\x40\x43" + message(b"with another header"),
    b"\x00\x53\x73\xc0\x0c\x09" + b"\x40" * 8 + b"\x83" + (1 << 40).to_bytes(8, "big") + message(b"expires"),
    b"\x00\x53\x73\xc0\x0b\x03\x40\x40\xa1\x07queue/b" + message(b"says where"),
    b"\x00\x53\x75",
    b"nonsense",
    message(bytes(3_900)),
    message(bytes(6_000), durable=True),
)
FAILURES = (None, None, None, StoreFull("full"), StoreError("failed"))


def loops() -> CompiledLoops:
    chosen = form("C").loops
    assert isinstance(chosen, CompiledLoops)
    return chosen


def run(what: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(what)


class Counting(Router):
    """A router that notes what it is given together."""

    together: tuple[int, ...] = ()

    def publish_all(self, batch: Batch) -> None:
        self.together += (batch.messages,)
        super().publish_all(batch)


class Client:
    """A client on a socket, with a link to each target, and its connection at the broker."""

    def __init__(self, world: World, name: str) -> None:
        self.engine = Engine(container_id=name, server=False, sasl=SaslClient(), now=NOW)
        here, self.socket = socket.socketpair()
        here.setblocking(False)
        self.socket.setblocking(False)
        server = Engine(container_id="broker", server=True, now=asyncio.get_running_loop().time())
        self.driver = Driver(server, lambda driver: world.session(driver, server), write_bytes_max=1 << 20)
        self.transport = TcpTransport(asyncio.get_running_loop(), here, "peer", self.driver)
        self.driver.connection_made(self.transport)
        self.out = b""
        self.links: dict[str | None, Link] = {}
        self.answers: list[Any] = []
        self.received: list[bytes] = []
        self.outstanding: list[int] = []
        self.receiver: Link | None = None
        self.tags = 0
        self.engine.open()

    def attach(self) -> None:
        for target in TARGETS:
            self.links[target] = self.engine.attach_sender(target or "relay", target)

    def consume(self, address: str) -> None:
        self.receiver = self.engine.attach_receiver("from", address)
        self.engine.grant(self.receiver, 500)

    def send(self, target: str | None, messages: Sequence[bytes], *, settled: bool) -> None:
        link = self.links[target]
        if not link.closed:
            self.engine.send_all(link, self.tags, messages, settled=settled)
            self.tags += len(messages)

    def carry(self, size: int = 1 << 30) -> bool:
        """Send this much of what there is, and take what has come; whether there was anything."""
        self.out += self.engine.data_to_send()
        moved = bool(self.out)
        with contextlib.suppress(OSError):
            self.out = self.out[self.socket.send(self.out[:size]) :]
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 20):
                self._take(take_all(self.engine, data, NOW))
                moved = True
        return moved and self.socket.fileno() >= 0

    def corrupt(self, at: int, byte: int) -> None:
        """Change a byte of what is about to be sent."""
        self.out += self.engine.data_to_send()
        if self.out:
            at %= len(self.out)
            self.out = self.out[:at] + bytes((byte,)) + self.out[at + 1 :]

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Dispositions):
                self.answers += [(event.link.name, *item) for item in event.items]
            elif isinstance(event, Detached):
                self.answers.append((event.link.name, event.condition))
            elif isinstance(event, Transfers):
                self.received += event.messages
                self.outstanding += event.deliveries

    def settle(self, state: State) -> None:
        if self.receiver is not None:
            self.engine.settle(self.receiver, self.outstanding, state, Condition("amqp:not-found", "no"))
            self.outstanding.clear()


class World:
    """A router with clients, whose commits end when the test says so."""

    def __init__(self, *, lanes: bool) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(post=self.posted.append)
        self.router = Counting(self.store, AddressTable(RULES), clock_ns=lambda: 1, flush_soon=lambda: None)
        loop = asyncio.get_running_loop()
        self.arrivals = Arrivals(loops(), self.router, turn_of(loop), partial(Together, loop)) if lanes else None
        self.owners: list[AmqpSession] = []
        self.kept: dict[tuple[str, int], list[Any]] = {}
        self.store.commit_listeners.append(lambda commit: self._keep(commit.appended))
        self.clients = [Client(self, f"c{number}") for number in range(CLIENTS)]
        self.consumer = Client(self, "consumer")

    def session(self, driver: Driver, engine: Engine) -> AmqpSession:
        sent = self.arrivals.lane(driver, engine).learn if self.arrivals is not None else None
        self.owners.append(AmqpSession(driver, engine, self.router, clock_ns=lambda: 1, sent=sent))
        return self.owners[-1]

    def _keep(self, appended: Sequence[tuple[int, Stored]]) -> None:
        for log, (_, _, run) in appended:
            flat = [(run.address, run.flags, run.properties, body) for body in run.bodies]
            self.kept.setdefault((run.device, log), []).extend(flat)

    @property
    def every(self) -> list[Client]:
        return [*self.clients, self.consumer]

    async def begin(self) -> None:
        self.consumer.consume("anycast/a")
        await self.rest()
        for client in self.clients:
            client.attach()
        await self.rest()

    async def turns(self) -> None:
        """What has come is taken, and answered as far as it can be."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.router.flush()

    def end_commit(self, failure: StoreError | None) -> None:
        if self.posted:
            self.store.failure = failure
            self.posted.popleft()()
            self.store.failure = None

    async def rest(self) -> None:
        """Until nobody has anything to say or to write."""
        quiet = 0
        while quiet < 3:
            heard = sum([client.carry() for client in self.every])
            await self.turns()
            quiet = 0 if heard or self.posted else quiet + 1
            while self.posted:
                self.end_commit(None)

    async def finish(self) -> list[Any]:
        await self.rest()
        self.consumer.settle(State.ACCEPTED)
        await self.rest()
        unsettled = [
            len(link._unsettled)
            for client in self.clients
            for link in client.driver.connection.links  # type: ignore[attr-defined]
        ]
        for client in self.every:
            client.socket.close()
        await self.turns()
        await self.turns()
        assert not self.router.answers.awaiting_commit
        assert self.arrivals is None or not self.arrivals._lanes
        figures = self.router.figures
        counted = (figures.received, figures.acknowledged, figures.refused)
        return [[each.answers for each in self.clients], self.kept, sorted(self.consumer.received), counted, unsettled]

    def close(self) -> None:
        if self.arrivals is not None:
            self.arrivals.close()


Step = tuple[Any, ...]


async def play(world: World, steps: Sequence[Step]) -> list[Any]:
    await world.begin()
    for what, *arguments in steps:
        match what:
            case "send":
                number, target, messages, settled = arguments
                world.clients[number].send(target, messages, settled=settled)
            case "carry":
                number, size = arguments
                world.clients[number].carry(size)
            case "corrupt":
                number, at, byte = arguments
                world.clients[number].corrupt(at, byte)
            case "turn":
                for client in world.every:
                    client.carry()
                await world.turns()
            case "commit":
                world.end_commit(*arguments)
            case "settle":
                world.consumer.settle(*arguments)
            case "detach":
                client, target = world.clients[arguments[0]], arguments[1]
                client.engine.detach(client.links[target])
            case "lose":
                world.clients[arguments[0]].socket.close()
        if what != "turn":
            await world.turns()
    return await world.finish()


def both(steps: Sequence[Step]) -> tuple[int, ...]:
    """How many messages were published together each time, where there were lanes; all else was as without."""

    async def told(*, lanes: bool) -> tuple[list[Any], tuple[int, ...]]:
        world = World(lanes=lanes)
        try:
            return await play(world, steps), world.router.together
        finally:
            world.close()

    with running("C"):
        without, none = run(told(lanes=False))
        found, together = run(told(lanes=True))
    assert found == without, steps
    assert none == ()
    return together


numbers = st.integers(0, CLIENTS - 1)
some = st.lists(st.sampled_from((*PLAIN, *PLAIN, *OTHERS)), min_size=1, max_size=3)
usual = st.tuples(
    st.just("send"), numbers, st.sampled_from(("queue/a", "queue/b", "anycast/a")), st.sampled_from([[PLAIN[1]]]),
    st.just(False),
)  # fmt: skip
STEPS = st.one_of(
    usual,
    usual,
    st.tuples(st.just("send"), numbers, st.sampled_from(TARGETS), some, st.booleans()),
    st.just(("turn",)),
    st.just(("turn",)),
    st.tuples(st.just("carry"), numbers, st.sampled_from((1, 9, 40, 100, 1 << 30))),
    st.tuples(st.just("corrupt"), numbers, st.integers(0, 200), st.integers(0, 255)),
    st.tuples(st.just("commit"), st.sampled_from(FAILURES)),
    st.tuples(st.just("settle"), st.sampled_from((State.ACCEPTED, State.REJECTED))),
    st.tuples(st.just("detach"), numbers, st.sampled_from(TARGETS)),
    st.tuples(st.just("lose"), numbers),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_lanes_change_nothing(steps: list[Step]) -> None:
    both(steps)


def each(target: str, what: bytes = PLAIN[1]) -> list[Step]:
    return [*(("send", number, target, [what], False) for number in range(CLIENTS)), ("turn",)]


class TestLanes:
    def test_messages_of_many_connections_are_stored_and_answered_together(self) -> None:
        steps: list[Step] = [*each("queue/a"), ("commit", None), *each("queue/a"), ("commit", None)]
        assert both(steps) == (CLIENTS,)  # the first teach what their messages are like

    def test_messages_of_two_queues_in_a_turn_are_one_batch(self) -> None:
        steps: list[Step] = [*each("queue/a"), *each("queue/b"), ("commit", None)]
        steps += [("send", 0, "queue/a", [PLAIN[1]], False), *each("queue/b")[1:], ("commit", None)]
        assert CLIENTS in both(steps)

    def test_a_commit_that_fails_refuses_them_all(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("commit", StoreError("failed"))])

    def test_a_connection_that_is_lost_before_the_commit_is_answered_no_more(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("lose", 1), ("turn",), ("commit", None)])

    def test_a_link_that_is_detached_before_the_commit_is_answered_no_more(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("detach", 1, "queue/a"), ("turn",)])

    @pytest.mark.parametrize("other", OTHERS)
    def test_another_message_goes_the_usual_way(self, other: bytes) -> None:
        both([*each("queue/a"), *each("queue/a", other), *each("queue/a"), ("commit", None), *each("queue/a")])

    @pytest.mark.parametrize("size", [1, 8, 30])
    def test_a_message_in_pieces(self, size: int) -> None:
        sent: list[Step] = [("send", 0, "queue/a", [PLAIN[1]], False), ("carry", 0, size), ("carry", 0, size)]
        both([*each("queue/a"), *sent, ("turn",), ("commit", None), *each("queue/a")])

    def test_more_than_a_few_unsettled(self) -> None:
        both([*(each("queue/a") * 12), ("commit", None), *(each("queue/a") * 3)])

    def test_a_connection_that_has_ended_is_not_kept(self) -> None:
        async def ended() -> weakref.ref[AmqpSession]:
            world = World(lanes=True)
            await world.begin()
            client = world.clients[0]
            client.send("queue/a", [PLAIN[0]], settled=False)
            await world.rest()
            assert world.arrivals is not None
            assert client.transport.get_extra_info("descriptor") in world.arrivals._lanes
            client.socket.close()
            await world.turns()
            owner = weakref.ref(world.owners[0])
            del client, world.clients[0], world.owners[0]
            await world.finish()
            world.close()
            return owner

        gc.disable()
        try:
            with running("C"):
                assert run(ended())() is None
        finally:
            gc.enable()
