"""Messages that C reads for all connections at once: clients, logs and subscribers see no difference."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import Run, Stored
from bridge.native import functions as native
from bridge.transport.driver import ConnectionDriver
from edge.broker.delivery.batches import LiveBatch
from edge.broker.delivery.durable import Declaration
from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.authorization import AccessRule, Grant, Operation
from edge.broker.model.interfaces import SubscribeOptions, Subscription
from edge.broker.mqtt import packets
from edge.broker.mqtt.arrivals import MqttLanes
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.handler import ConnectionHandler, HandlerContext
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.tracing.tracer import PacketTracer
from edge.broker.tracing.watch import TraceFilter, TraceWatch
from tests.property.mqtt.strategies import encoded_publishes
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore
from tests.support.models.lanes import NoLanes
from tests.support.run_consumer import RunConsumer

T = TypeVar("T")
CLIENTS = 3
ADDRESSES = ("a", "a/b", "a/b/c", "a/ä", "plant/7/temp", "plant/7/hum", "plant/8/temp")
RULES = (
    AddressRule("queue/#", AddressType.QUEUE),
    AddressRule("anycast/#", AddressType.ANYCAST),
    AddressRule("#", AddressType.TOPIC),
)
EVERYTHING = AccessRule(("#",), frozenset(Operation))
ALL_BUT = AccessRule(("a", "queue/#"), frozenset(Operation))
BELOW = AccessRule(("plant/7/#", "a/b"), frozenset(Operation))


class StillLoop(asyncio.SelectorEventLoop):
    """Event loop in which no time passes: the duration of a read has no effect."""

    def time(self) -> float:
        return 1000.0


def run_still(what: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(what)


class Transport(asyncio.Transport):
    """Socket with the test at its other end."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""
        self.stuck = b""
        """Output while the peer did not read."""
        self.reads = True
        self.paused = self.lost = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        if self.reads:
            self.written += data
        elif not self.lost:
            self.stuck += data

    def read_on(self, *, reads: bool) -> None:
        self.reads = reads
        if reads:
            self.written, self.stuck = self.written + self.stuck, b""

    def get_write_buffer_size(self) -> int:
        return len(self.stuck)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: output here stays small."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.lost

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self._lose)

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, None  # as transports of the loop do
        protocol.connection_lost(None)

    def receive(self, data: bytes) -> None:
        """Receive this data of the peer; empty data is its end."""
        if data:
            self.protocol.data_received(data)
        elif not self.protocol.eof_received():
            self.close()


class Follower(RunConsumer):
    """Live subscriber."""

    name = "follower"
    credit = 1 << 30

    def __init__(self) -> None:
        self.heard: list[tuple[Subscription, Run]] = []
        """Deliveries. Each subscription has its own order; two of them have no common order."""

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        assert isinstance(batch, LiveBatch)
        assert batch.acknowledged_messages == sum(len(stored.run) for stored in batch if stored.position >= 0)
        super().deliver(subscription, batch)

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.heard.append((subscription, stored.run))


class World:
    """Router with clients; the test decides when commits end."""

    def __init__(
        self,
        lanes: bool,
        version: int,
        *,
        rights: bool,
        kept: str = "#",
    ) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.clock = asyncio.get_running_loop().time
        self.store = MemoryStore(post=self.posted.append)
        self.router = Router(self.store, AddressTable(RULES), clock_ns=lambda: 1, flush_soon=lambda: None)
        self.sessions = SessionRegistry(self.router, self.store, MqttTranslator())
        self.arrivals = MqttLanes(self.router, asyncio.get_running_loop()) if lanes else NoLanes()
        self.follower = Follower()
        self.router.subscriptions.declare(Declaration(name="kept", pattern=kept, all_qos=True))
        self.kept: list[tuple[int, Stored]] = []
        self.store.commits.listeners.append(lambda commit: self.kept.extend(commit.appended))
        self.handlers: list[ConnectionHandler] = []
        self.tracer = PacketTracer(
            lambda: [handler._driver for handler in self.handlers], loop=asyncio.get_running_loop(), now_ns=lambda: 1
        )
        self.watch: TraceWatch | None = None
        self.transports: list[Transport] = []
        self.grants: list[Grant] = []
        for number in range(CLIENTS):
            self._connect(f"c{number}", version, rights=rights)

    def _connect(self, name: str, version: int, *, rights: bool) -> None:
        connection = MqttConnection(Limits(packet_bytes_max=20_000, receive_maximum=12), self.clock())

        def owner(driver: ConnectionDriver) -> ConnectionHandler:
            handler = ConnectionHandler(
                driver, connection, HandlerContext(self.router, self.sessions, self.clock, self.arrivals)
            )
            self.handlers.append(handler)
            return handler

        driver = ConnectionDriver(connection, owner, write_bytes_max=1 << 16, unread_bytes_max=1 << 20)
        transport = Transport(driver)
        self.transports.append(transport)
        driver.connection_made(transport)
        driver.data_received(packets.Connect(name, version).encode())
        if rights:
            grant = Grant("joe", name, (EVERYTHING,))
            self.handlers[-1]._grant = grant
            self.grants.append(grant)

    def take(self, client: int, data: bytes) -> None:
        transport = self.transports[client]
        if not (transport.lost or self.driver(client)._paused_for):
            transport.receive(data)

    def driver(self, client: int) -> ConnectionDriver:
        return self.handlers[client]._driver

    def end_commit(self, failure: StoreError | None) -> None:
        if self.posted:
            self.store.failure = failure
            self.posted.popleft()()
            self.store.failure = None

    async def end_turn(self) -> None:
        self.router.flush()
        for _ in range(3):
            await asyncio.sleep(0)

    def subscribe(self, pattern: str) -> None:
        """Subscribe after the earlier messages of this turn.

        Lanes keep those messages for the end of the turn. Either order is correct, but the two worlds must use the
        same.
        """
        self.router.publish_collected()
        self.router.subscriptions.subscribe(self.follower, pattern, SubscribeOptions())

    def trace(self, client: str) -> None:
        """Trace a client from now on, instead of the former one; the world without lanes traces nothing."""
        self.untrace()
        if self.arrivals is not None:
            self.watch = self.tracer.watch(TraceFilter(client), lambda: None)

    def untrace(self) -> None:
        """End the trace."""
        if self.watch is not None:
            self.tracer.leave(self.watch)
            self.watch = None

    def allow(self, client: int, rule: AccessRule) -> None:
        if self.grants:
            self.grants[client].replace("joe", (rule,))

    async def finish(self) -> list[Any]:
        """Commit everything; return the view of clients, logs and subscribers."""
        for transport in self.transports:
            transport.read_on(reads=True)
        await self.end_turn()
        while self.posted:
            self.end_commit(None)
            await self.end_turn()
        outstanding = [
            handler.connection.receiver.outstanding
            for handler, transport in zip(self.handlers, self.transports, strict=True)
            if not transport.lost
        ]
        for transport in self.transports:
            transport.close()
        await self.end_turn()
        assert not self.router.answers.awaiting_commit
        kept: dict[tuple[str, int], list[Any]] = {}
        for log, (_, _, run) in self.kept:
            kept.setdefault((run.device, log), []).extend(flat(run))
        heard: dict[tuple[str, str], list[Any]] = {}
        for subscription, run in self.follower.heard:
            heard.setdefault((subscription.pattern, run.device), []).extend(flat(run))
        return [[each.written for each in self.transports], kept, heard, self.router.figures, outstanding]


def flat(run: Run) -> list[Any]:
    return [(run.address, run.flags, run.properties, run.received_at, body) for body in run.bodies]


Step = tuple[Any, ...]


async def play(world: World, steps: Sequence[Step]) -> list[Any]:
    for what, *arguments in steps:
        match what:
            case "take":
                world.take(*arguments)
            case "turn":
                await world.end_turn()
            case "commit":
                world.end_commit(*arguments)
            case "subscribe":
                world.subscribe(*arguments)
            case "allow":
                world.allow(*arguments)
            case "trace":
                world.trace(*arguments)
            case "untrace":
                world.untrace()
            case "reads":
                client, reads = arguments
                world.transports[client].read_on(reads=reads)
            case "pause":
                client, pause = arguments
                driver = world.driver(client)
                (driver.pause_reading if pause else driver.resume_reading)("the test says so")
            case "end":
                world.take(arguments[0], b"")
                await asyncio.sleep(0)
            case "lose":
                world.transports[arguments[0]].close()
                await asyncio.sleep(0)
    return await world.finish()


def both(version: int, steps: Sequence[Step], *, rights: bool = False, kept: str = "#") -> World:
    """Run the steps with and without lanes, and compare; return the world with lanes."""

    async def run() -> World:
        with_lanes, without = (World(lanes, version, rights=rights, kept=kept) for lanes in (True, False))
        for _ in range(3):
            await asyncio.sleep(0)  # all share one loop: each CONNACK is written before a peer stops reading
        assert await play(with_lanes, steps) == await play(without, steps)
        return with_lanes

    return run_still(run())


@st.composite
def streams(draw: st.DrawFn, version: int) -> list[bytes]:
    """Draw the nearly always valid stream of one client, cut anywhere."""
    pool = draw(st.lists(encoded_publishes(version, (*ADDRESSES, "queue/1", "anycast/1")), min_size=1, max_size=4))
    stream = bytearray(b"".join(draw(st.lists(st.sampled_from(pool), max_size=25))))
    if stream and draw(st.integers(0, 9)) == 0:
        stream[draw(st.integers(0, 5_000)) % len(stream)] = draw(st.integers(0, 255))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [bytes(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


OTHER_STEPS = st.one_of(
    st.just(("turn",)),
    st.just(("turn",)),
    st.just(("commit", None)),
    st.just(("commit", None)),
    st.just(("commit", StoreFull("full"))),
    st.just(("commit", StoreError("failed"))),
    st.tuples(st.just("subscribe"), st.sampled_from(("plant/#", "plant/7/+", "a/+/c"))),
    st.tuples(st.just("allow"), st.integers(0, CLIENTS - 1), st.sampled_from((EVERYTHING, ALL_BUT, BELOW))),
    st.tuples(st.just("reads"), st.integers(0, CLIENTS - 1), st.booleans()),
    st.tuples(st.just("pause"), st.integers(0, CLIENTS - 1), st.booleans()),
    st.tuples(st.just("pause"), st.integers(0, CLIENTS - 1), st.just(False)),
    st.tuples(st.just("trace"), st.sampled_from([*(f"c{number}" for number in range(CLIENTS)), ""])),
    st.just(("untrace",)),
    st.tuples(st.just("end"), st.integers(0, CLIENTS - 1)),
    st.tuples(st.just("lose"), st.integers(0, CLIENTS - 1)),
)


def test_lane_pauses_while_its_connection_is_traced() -> None:
    async def run() -> None:
        world = World(True, 5, rights=False)
        for _ in range(3):
            await asyncio.sleep(0)

        async def lane_takes(packet_id: int) -> bool:
            """Send a message; return True when the lane took it."""
            world.take(0, packets.Publish("plant/7/temp", b"", 1, packet_id=packet_id).encode(5))
            lane = world.handlers[0]._lane
            takes = lane is not None and native.mqtt_is_waiting(lane._lane)
            await world.end_turn()
            return takes

        assert [await lane_takes(number) for number in (1, 2, 3)] == [False, True, True]
        world.trace("c0")
        watch = world.watch
        assert watch is not None
        assert [await lane_takes(number) for number in (4, 5, 6)] == [False, False, False]
        shown = [event.id for event in watch.take() if event.name == "PUBLISH" and event.kind == "packet"]
        assert shown == [4, 5, 6]
        world.untrace()
        assert [await lane_takes(number) for number in (7, 8, 9)] == [False, True, True]
        await world.finish()

    run_still(run())


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_lanes_change_nothing(data: Any) -> None:
    version = data.draw(st.sampled_from((3, 4, 5)))
    waiting = [deque((client, part) for part in data.draw(streams(version))) for client in range(CLIENTS)]
    steps: list[Step] = []
    while any(waiting):
        parts = data.draw(st.sampled_from([each for each in waiting if each]))
        steps.append(("take", *parts.popleft()))
        steps += data.draw(st.lists(OTHER_STEPS, max_size=2))
    both(version, steps, rights=data.draw(st.booleans()))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_lanes_change_nothing_where_some_messages_are_answered_at_once(data: Any) -> None:
    """Lanes change nothing where a part of the messages is answered at once.

    The exception is unspecified: whether messages that are not stored are answered before a connection ends.
    """
    topics = st.sampled_from(("a", "a/b", "a/b/c", "plant/7/temp", "plant/7/hum", "queue/1"))
    packet = st.builds(
        lambda topic, qos, retain, number: packets.Publish(topic, b"%d" % number, qos, retain, packet_id=number * qos),
        topics,
        st.integers(0, 1),
        st.sampled_from((False, False, False, True)),
        st.integers(1, 500),
    )
    steps = data.draw(
        st.lists(
            st.one_of(
                st.builds(lambda client, sent: ("take", client, sent.encode(4)), st.integers(0, CLIENTS - 1), packet),
                st.just(("turn",)),
                st.just(("commit", None)),
                st.tuples(st.just("subscribe"), st.sampled_from(("plant/#", "plant/7/+", "a/+/c"))),
                st.tuples(st.just("reads"), st.integers(0, CLIENTS - 1), st.booleans()),
            ),
            max_size=40,
        )
    )
    both(4, steps, kept=data.draw(st.sampled_from(("a/b", "a/#", "plant/#", "none"))))


class TestLanes:
    PUBLISH = packets.Publish("a", b"x", 1, packet_id=1).encode(4)
    NEXT = packets.Publish("a", b"y", 1, packet_id=2).encode(4)

    def test_lane_accepts_messages_similar_to_earlier_ones(self) -> None:
        async def run() -> None:
            world = World(True, 4, rights=False)
            for data in (self.PUBLISH, self.NEXT, self.NEXT, self.NEXT):
                world.take(0, data)
            assert world.store.commits.gathered == 1  # the machine's: the first message makes the lane
            await world.end_turn()
            await world.finish()
            assert [stored.run.bodies for _, stored in world.kept] == [[b"x"], [b"y"], [b"y"], [b"y"]]
            assert world.transports[0].written.endswith(b"\x40\x02\0\x01" + b"\x40\x02\0\x02" * 3)

        run_still(run())

    @pytest.mark.parametrize("cut", [1, 2, 5, 6])
    def test_machine_gets_exactly_the_rest_of_a_split_packet(self, cut: int) -> None:
        async def run() -> None:
            world = World(True, 4, rights=False)
            for data in (self.PUBLISH, self.NEXT[:cut], self.NEXT[cut:] + 3 * self.NEXT):
                world.take(0, data)
            assert world.store.commits.gathered == 2  # the machine's
            await world.finish()
            assert [stored.run.bodies for _, stored in world.kept] == [[b"x"], [b"y"], [b"y"] * 3]

        run_still(run())

    @pytest.mark.parametrize(
        ("topic", "machines"),
        [
            ("a/c", 0),
            ("a/", 0),
            ("a", 1),
            ("b/c", 1),
            ("a/ä", 1),
            ("a/\x01", 1),
            ("a" + "/" * 127, 0),
            ("a/" + "b" * 252, 0),
            ("a/" + "b" * 253, 2),  # too long for the cache
        ],
    )
    def test_topic_with_a_known_prefix_needs_no_general_path(self, topic: str, machines: int) -> None:
        async def run() -> None:
            world = World(True, 4, rights=False)
            for number, name in enumerate(("a/b", "a/b", topic, topic), 1):
                world.take(0, packets.Publish(name, b"x", 1, packet_id=number).encode(4))
            # those of the machine, see above; messages that the lane took before come first
            assert world.store.commits.gathered == (2 + machines if machines else 1)
            await world.end_turn()
            await world.finish()
            assert [stored.run.address for _, stored in world.kept] == ["a/b", "a/b", topic, topic]

        run_still(run())

    def test_live_subscriber_gets_messages_of_all_publishers_of_a_turn_at_once(self) -> None:
        async def run() -> None:
            world = World(True, 4, rights=False)
            world.router.subscriptions.forget("kept")
            world.take(2, packets.Subscribe(1, (SubscriptionRequest("a/#", 1),)).encode(4))
            await world.end_turn()
            for number in range(1, 4):
                for client in (0, 1):
                    body = f"{client}{number}".encode()
                    world.take(client, packets.Publish(f"a/{client}", body, 1, packet_id=number).encode(4))
            await world.end_turn()
            heard = world.transports[2].written
            sent = [
                packets.Publish(f"a/{body[0]}", body.encode(), 1, packet_id=number).encode(4)
                for number, body in enumerate(("01", "11", "02", "12", "03", "13"), 1)
            ]
            assert heard.endswith(b"".join(sent))
            assert [each.written[-12:] for each in world.transports[:2]] == [b"\x40\2\0\1\x40\2\0\2\x40\2\0\3"] * 2
            state = world.handlers[2]._attached.state
            assert list(state.outgoing) == [1, 2, 3, 4, 5, 6]
            world.take(2, b"".join(b"\x40\2\0" + bytes([n]) for n in range(1, 7)))
            assert not state.outgoing
            await world.finish()

        run_still(run())

    def test_overlapping_subscriptions_each_get_all_in_order(self) -> None:
        sent = [packets.Publish("plant/7/temp", b"%d" % n, 1, packet_id=n).encode(4) for n in range(1, 6)]
        filters = [("subscribe", "plant/#"), ("subscribe", "plant/7/+")]
        both(4, [*filters, *(("take", 0, each) for each in (*sent, *sent))])

    def test_answers_keep_their_order_where_some_wait_for_the_disk(self) -> None:
        async def run() -> None:
            world = World(True, 4, rights=False)
            world.router.subscriptions.forget("kept")
            world.router.subscriptions.declare(Declaration(name="some", pattern="kept/#", all_qos=True))
            names = ("kept/a", "b/c", "kept/a", "b/c", "kept/a", "b/c")
            for number, name in enumerate(names, 1):
                world.take(0, packets.Publish(name, b"x", 1, packet_id=number).encode(4))
                world.take(1, packets.Publish("b/c", b"x", 1, packet_id=number).encode(4))
                await world.end_turn()
            assert b"\x40\2\0\1" not in world.transports[0].written
            assert world.transports[1].written.endswith(b"".join(b"\x40\2\0" + bytes([n]) for n in range(1, 7)))
            await world.finish()
            assert world.transports[0].written.endswith(b"".join(b"\x40\2\0" + bytes([n]) for n in range(1, 7)))

        run_still(run())

    def test_wildcard_in_a_name_ends_the_connection_after_any_prefix(self) -> None:
        for name in (b"a/+", b"a/#/b", b"a" + b"/" * 128):
            sent = [packets.Publish("a/b", b"x", 1, packet_id=n).encode(4) for n in (1, 2, 3)]
            body = len(name).to_bytes(2, "big") + name + b"\0\4x"
            length = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])
            world = both(4, [*(("take", 0, each) for each in sent), ("take", 0, b"\x32" + length + body)])
            assert [stored.run.address for _, stored in world.kept] == ["a/b"] * 3

    def test_rights_decide_how_much_of_a_name_is_compared(self) -> None:
        async def run() -> None:
            world = World(True, 4, rights=True)
            world.allow(0, BELOW)
            for number, name in enumerate(("plant/7/a", "plant/7/a", "plant/7/b", "plant/8/a", "plant/7/c"), 1):
                world.take(0, packets.Publish(name, b"x", 1, packet_id=number).encode(4))
            await world.end_turn()
            await world.finish()
            addresses = [stored.run.address for _, stored in world.kept]
            assert addresses[:3] == ["plant/7/a", "plant/7/a", "plant/7/b"]
            assert "plant/8/a" not in addresses

        run_still(run())

    def test_messages_of_a_broken_connection_are_stored_before_its_will(self) -> None:
        both(4, [("take", 0, self.PUBLISH), ("turn",), ("take", 0, self.NEXT), ("lose", 0), ("turn",)])

    def test_message_beyond_receive_maximum_ends_the_connection(self) -> None:
        sent = b"".join(packets.Publish("a", b"x", 1, packet_id=n).encode(5) for n in range(1, 14))
        world = both(5, [("take", 0, sent[: len(sent) // 13]), ("take", 0, sent[len(sent) // 13 :])])
        assert sum(len(stored.run) for _, stored in world.kept) == 12
        assert b"Receive Maximum" in world.transports[0].written

    def test_packet_that_defines_an_alias_takes_the_general_path(self) -> None:
        alias = Properties(topic_alias=1)
        named = [packets.Publish(topic, b"x", 0, properties=alias).encode(5) for topic in ("a", "b")]
        by_alias = packets.Publish("", b"y", 0, properties=alias).encode(5)
        plain = packets.Publish("a", b"x").encode(5)
        order = (plain, plain, plain, *named, *named, named[0], by_alias, named[1], named[0], by_alias)
        world = both(5, [("take", 0, each) for each in order])
        heard = [stored.run.address for _, stored in world.kept if b"y" in stored.run.bodies]
        assert heard == ["a", "a"]

    def test_topics_beyond_the_cache_are_accepted(self) -> None:
        many = [packets.Publish(f"t/{n}", b"x", 1, packet_id=n + 1).encode(4) for n in range(600)]
        both(4, [step for each in (*many, *many) for step in (("take", 0, each), ("turn",), ("commit", None))])

    def test_no_objects_are_left_after_connections_and_broker(self) -> None:
        async def run() -> weakref.ref[Transport]:
            world = World(True, 4, rights=True)
            for data in (self.PUBLISH, self.NEXT, self.NEXT):
                world.take(0, data)
            transport = weakref.ref(world.transports[0])
            await world.finish()
            world.arrivals.close()
            return transport

        transport = run_still(run())
        gc.collect()
        assert transport() is None
