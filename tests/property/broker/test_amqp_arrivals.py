"""Lanes for AMQP connections that send and receive: clients and logs see no difference."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.engine import Condition, DeliveryState, Detached, Dispositions, Engine, Event, Link, Transfers
from bridge.engine.loops import LOOPS
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.sasl import SaslClient
from bridge.transport.driver import ConnectionDriver
from bridge.transport.tcp import TcpTransport
from edge.broker.amqp.arrivals import AmqpLanes, AnycastMessages, Member
from edge.broker.amqp.session import AmqpSession
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.router.batch import CollectedBatch, Publication
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError, StoreFull
from tests.support.examples import examples
from tests.support.machines import take_all
from tests.support.memory_store import MemoryStore
from tests.unit.amqp.wire import NOW, message

T = TypeVar("T")
CLIENTS = 3
TURNS = 16
"""A turn serves at least one socket, however slow the machine is."""
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


def run_loop(what: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(what)


class Counting(Router):
    """Router that records the batches it is given."""

    together: tuple[int, ...] = ()
    handed_on: tuple[int, ...] = ()

    def publish(self, batch: Any) -> None:
        if isinstance(batch, CollectedBatch):
            self.together += (batch.messages,)
        elif isinstance(batch, AnycastMessages):
            batch = Noted(batch)
        super().publish(batch)
        if isinstance(batch, Noted) and batch.encoded and len(batch.left) < len(batch.encoded):
            self.handed_on += (len(batch.encoded) - len(batch.left),)


class Noted:
    """Batch that records the messages which are not handed on."""

    def __init__(self, batch: AnycastMessages) -> None:
        self._batch = batch
        self.left: list[Publication] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def members(self, start: int) -> list[Publication]:
        self.left = list(self._batch.members(start))
        return self.left


class Client:
    """Client on a socket, with a link to each target, and its connection at the broker."""

    def __init__(self, world: World, name: str) -> None:
        self.engine = Engine(container_id=name, server=False, sasl=SaslClient(), now=NOW)
        here, self.socket = socket.socketpair()
        here.setblocking(False)
        self.socket.setblocking(False)
        server = Engine(container_id="broker", server=True, now=asyncio.get_running_loop().time())
        self.driver = ConnectionDriver(server, lambda driver: world.session(driver, server), write_bytes_max=1 << 20)
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

    def consume(self, address: str, credit: int = 500, snd_settle_mode: int = 2, max_message_size: int = 0) -> None:
        self.receiver = self.engine.attach_receiver(
            "from", address, snd_settle_mode=snd_settle_mode, max_message_size=max_message_size
        )
        self.engine.grant(self.receiver, credit)

    def grant(self, credit: int) -> None:
        if self.receiver is not None:
            self.engine.grant(self.receiver, credit)

    def send(self, target: str | None, messages: Sequence[bytes], *, settled: bool) -> None:
        link = self.links[target]
        if not link.closed:
            self.engine.send_all(link, self.tags, messages, settled=settled)
            self.tags += len(messages)

    def carry(self, size: int = 1 << 30) -> bool:
        """Send up to this much pending output, and process all input; return whether anything moved."""
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
        """Change a byte of the pending output."""
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
                assert event.link.credit >= 0
                self.received += event.messages
                self.outstanding += event.deliveries

    def settle(self, state: DeliveryState) -> None:
        if self.receiver is not None:
            self.engine.settle(self.receiver, self.outstanding, state, Condition("amqp:not-found", "no"))
            self.outstanding.clear()


class World:
    """Router with clients; the test decides when commits end."""

    def __init__(self, *, lanes: bool) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(post=self.posted.append)
        self.router = Counting(self.store, AddressTable(RULES), clock_ns=lambda: 1, flush_soon=lambda: None)
        self.arrivals = AmqpLanes(LOOPS, self.router) if lanes else None
        self.owners: list[AmqpSession] = []
        self.kept: dict[tuple[str, int], list[Any]] = {}
        self.store.commits.listeners.append(lambda commit: self._keep(commit.appended))
        self.clients = [Client(self, f"c{number}") for number in range(CLIENTS)]
        self.consumer = Client(self, "consumer")
        self.former: list[Client] = []
        """Former consumers."""

    def session(self, driver: ConnectionDriver, engine: Engine) -> AmqpSession:
        lane = self.arrivals.lane(driver, engine) if self.arrivals is not None else None
        self.owners.append(AmqpSession(driver, engine, self.router, clock_ns=lambda: 1, lane=lane))
        return self.owners[-1]

    def _keep(self, appended: Sequence[tuple[int, Stored]]) -> None:
        for log, (_, _, run) in appended:
            flat = [(run.address, run.flags, run.properties, body) for body in run.bodies]
            self.kept.setdefault((run.device, log), []).extend(flat)

    @property
    def every(self) -> list[Client]:
        return [*self.clients, self.consumer]

    async def begin(self, **consumer: int) -> None:
        self.consumer.consume("anycast/a", **consumer)
        await self.rest()
        for client in self.clients:
            client.attach()
        await self.rest()

    async def turns(self) -> None:
        """Process and answer all input, as far as possible."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.router.flush()

    def end_commit(self, failure: StoreError | None) -> None:
        if self.posted:
            self.store.failure = failure
            self.posted.popleft()()
            self.store.failure = None

    async def rest(self) -> None:
        """Run until no client or server has anything to send."""
        quiet = 0
        while quiet < 3:
            heard = sum([client.carry() for client in self.every])
            await self.turns()
            quiet = 0 if heard or self.posted else quiet + 1
            while self.posted:
                self.end_commit(None)

    async def replace_consumer(self) -> None:
        """Replace the consumer by one that takes one message at a time."""
        self.consumer.socket.close()
        await self.turns()
        self.former.append(self.consumer)
        self.consumer = Client(self, f"consumer-{len(self.former)}")
        await self.rest()
        self.consumer.consume("anycast/a", 1)

    async def finish(self) -> list[Any]:
        await self.rest()
        self.consumer.grant(500)
        await self.rest()
        self.consumer.settle(DeliveryState.ACCEPTED)
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
        figures = self.router.figures
        counted = (figures.received, figures.acknowledged, figures.refused)
        received = [each.received for each in (*self.former, self.consumer)]
        return [[each.answers for each in self.clients], self.kept, list(map(sorted, received)), counted, unsettled]


Step = tuple[Any, ...]


async def play(world: World, steps: Sequence[Step], **consumer: int) -> list[Any]:
    await world.begin(**consumer)
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
            case "grant":
                world.consumer.grant(*arguments)
            case "replace":
                await world.replace_consumer()
            case "detach":
                client, target = world.clients[arguments[0]], arguments[1]
                client.engine.detach(client.links[target])
            case "lose":
                world.clients[arguments[0]].socket.close()
        if what != "turn":
            await world.turns()
    return await world.finish()


AtOnce = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes of the batches that were published together: for logs, for consumers."""


def compared(steps: Sequence[Step], **consumer: int) -> AtOnce:
    """Check that lanes change nothing for clients and logs; return the batch sizes with lanes."""

    async def told(*, lanes: bool) -> tuple[list[Any], AtOnce]:
        world = World(lanes=lanes)
        return await play(world, steps, **consumer), (world.router.together, world.router.handed_on)

    without, none = run_loop(told(lanes=False))
    found, together = run_loop(told(lanes=True))
    assert found == without, steps
    assert none == ((), ())
    return together


def both(steps: Sequence[Step]) -> tuple[int, ...]:
    """Run `compared` for logs."""
    return compared(steps)[0]


def handed_on(steps: Sequence[Step], **consumer: int) -> tuple[int, ...]:
    """Run `compared` for consumers."""
    return compared(steps, **consumer)[1]


STATES = (DeliveryState.ACCEPTED, DeliveryState.REJECTED, DeliveryState.RELEASED, DeliveryState.MODIFIED_FAILED)
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
    st.tuples(st.just("settle"), st.sampled_from(STATES)),
    st.tuples(st.just("grant"), st.integers(1, 4)),
    st.just(("replace",)),
    st.tuples(st.just("detach"), numbers, st.sampled_from(TARGETS)),
    st.tuples(st.just("lose"), numbers),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, max_size=25), st.sampled_from((500, 3)))
def test_lanes_change_nothing(steps: list[Step], credit: int) -> None:
    compared(steps, credit=credit)


def each(target: str, what: bytes = PLAIN[1]) -> list[Step]:
    return [*(("send", number, target, [what], False) for number in range(CLIENTS)), ("turn",)]


class TestLanes:
    def test_messages_of_many_connections_are_stored_and_answered_together(self) -> None:
        steps: list[Step] = [*each("queue/a"), ("commit", None), *each("queue/a"), ("commit", None)]
        assert both(steps) == (CLIENTS,)  # the first messages teach their form

    def test_messages_to_two_queues_in_a_turn_are_one_batch(self) -> None:
        steps: list[Step] = [*each("queue/a"), *each("queue/b"), ("commit", None)]
        steps += [("send", 0, "queue/a", [PLAIN[1]], False), *each("queue/b")[1:], ("commit", None)]
        assert CLIENTS in both(steps)

    def test_failed_commit_refuses_them_all(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("commit", StoreError("failed"))])

    def test_connection_lost_before_the_commit_gets_no_answer(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("lose", 1), ("turn",), ("commit", None)])

    def test_link_detached_before_the_commit_gets_no_answer(self) -> None:
        both([*each("queue/a"), ("commit", None), *each("queue/a"), ("detach", 1, "queue/a"), ("turn",)])

    @pytest.mark.parametrize("other", OTHERS)
    def test_different_message_takes_the_general_path(self, other: bytes) -> None:
        both([*each("queue/a"), *each("queue/a", other), *each("queue/a"), ("commit", None), *each("queue/a")])

    @pytest.mark.parametrize("size", [1, 8, 30])
    def test_message_in_several_transfers_is_read(self, size: int) -> None:
        sent: list[Step] = [("send", 0, "queue/a", [PLAIN[1]], False), ("carry", 0, size), ("carry", 0, size)]
        both([*each("queue/a"), *sent, ("turn",), ("commit", None), *each("queue/a")])

    def test_many_unsettled_messages_are_read(self) -> None:
        both([*(each("queue/a") * 12), ("commit", None), *(each("queue/a") * 3)])

    def test_ended_connection_is_released(self) -> None:
        async def ended() -> weakref.ref[AmqpSession]:
            world = World(lanes=True)
            await world.begin()
            client = world.clients[0]
            client.send("queue/a", [PLAIN[0]], settled=False)
            await world.rest()
            client.socket.close()
            await world.turns()
            owner = weakref.ref(world.owners[0])
            del client, world.clients[0], world.owners[0]
            await world.finish()
            return owner

        gc.disable()
        try:
            assert run_loop(ended())() is None
        finally:
            gc.enable()


WITH_TTL = b"\x00\x53\x70\xc0\x0b\x03\x41\x40\x70\x00\x0f\x42\x40\x40\x40" + message(b"lives a while")


class TestAnycast:
    """Messages that lanes read for the consumers of an address are handed on together."""

    @pytest.mark.parametrize("state", STATES)
    def test_outcomes_go_to_their_senders(self, state: DeliveryState) -> None:
        steps = [*each("anycast/a"), ("settle", state), ("turn",), *each("anycast/a"), ("settle", state), ("turn",)]
        assert handed_on(steps)[-1] == CLIENTS

    def test_deliveries_are_limited_by_the_credit(self) -> None:
        steps = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",), ("turn",)]
        steps += [("grant", 2), ("turn",), *each("anycast/a"), ("grant", 1), ("turn",)]
        assert max(handed_on(steps, credit=CLIENTS)) == 2

    def test_unanswered_messages_go_to_the_next_consumer(self) -> None:
        steps: list[Step] = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",), *each("anycast/a")]
        assert CLIENTS in handed_on([*steps, ("replace",), ("turn",), *each("anycast/a")])

    def test_lost_connection_gets_no_answer(self) -> None:
        steps: list[Step] = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",), *each("anycast/a")]
        assert CLIENTS in handed_on([*steps, ("lose", 1), ("turn",), ("settle", DeliveryState.ACCEPTED), ("turn",)])

    def test_detached_link_gets_no_answer(self) -> None:
        steps: list[Step] = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",), *each("anycast/a")]
        handed_on([*steps, ("detach", 1, "anycast/a"), ("turn",), ("settle", DeliveryState.ACCEPTED), ("turn",)])

    @pytest.mark.parametrize("consumer", [{"snd_settle_mode": 1}, {"max_message_size": 12}, {"max_message_size": 1000}])
    def test_consumer_with_a_selector_examines_each_message(self, consumer: dict[str, int]) -> None:
        steps: list[Step] = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",), *each("anycast/a")]
        handed_on([*steps, ("settle", DeliveryState.ACCEPTED), ("turn",)], **consumer)

    def test_header_with_a_time_to_live_takes_the_general_path(self) -> None:
        steps = [
            *each("anycast/a", WITH_TTL),
            ("settle", DeliveryState.ACCEPTED),
            ("turn",),
            *each("anycast/a", WITH_TTL),
        ]
        assert handed_on([*steps, ("settle", DeliveryState.ACCEPTED), ("turn",)]) == ()

    def test_messages_without_a_consumer_are_answered(self) -> None:
        steps: list[Step] = [*each("anycast/a"), ("settle", DeliveryState.ACCEPTED), ("turn",)]
        sent: Step = ("send", 0, "anycast/a", [PLAIN[0]], False)
        handed_on([*steps, sent, ("carry", 0, 1 << 30), ("replace",), ("turn",)])

    def test_answered_messages_are_released(self) -> None:
        class Sender:
            name = "d"
            address = "anycast/a"

            def accept_one(self, number: int, deliveries: list[int]) -> None:
                accepted.append(number)

        accepted: list[int] = []
        members = [cast(Member, (Sender(), number, b"", 1, bytes([number]))) for number in range(3)]
        handed = AnycastMessages(LOOPS, "anycast/a", members, 5, CLOCK_GOOD)
        assert handed.run(1) == Run("anycast/a", "d", CLOCK_GOOD | 1, b"", [b"\1"], 5)
        handed.accepted([0, 1])
        assert accepted == [0, 1]
        assert handed.encoded == [b"", b"", b"\2"]
        assert handed._members[:2] == [None, None]
        handed.accepted([0])  # already answered
        assert accepted == [0, 1]
