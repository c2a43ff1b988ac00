"""Uplink against intake over unreliable pipes: every message lands once and in order, and every position settles.

The world models the environment of the two machines: a router with logs and a cursor each, and a hub that lands batches
in order. The hub trims by its high-water marks, which survive everything, and may die before it answers.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.amqp_connection import AmqpConnection, LinkDown, LinkUp
from bridge.batch import Batch
from bridge.engine import Engine
from bridge.flow import Outcomes
from bridge.hub_links import HubLinks
from bridge.intake import Intake, IntakeLimits
from bridge.message import AMQP, Run, Stored
from bridge.plain import Arrival, Hop
from bridge.reports import Reports
from bridge.uplink import Uplink, UplinkLimits
from tests.support.machines import take_all
from tests.support.shell import Shell

ADDRESSES = ["plant/1", "plant/2", "yard/ü", "old"]
BASE_OF_OLD = 40
"""Sequences of `old` below this one are older than its forwarder."""
EPOCH = "0123456789abcdef0123456789abcdef"
LIMITS = UplinkLimits(live_window_bytes=4000, batch_bytes=700, batches_undelayed=2)
INTAKE_LIMITS = IntakeLimits(batches_unsettled=6, messages_unsettled=12, bytes_unsettled=3000, bytes_a_turn=1200)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


class Forwarder:
    """Subscription of the model router: a log, the delivered positions, and their outcomes."""

    def __init__(self, uplink: Uplink) -> None:
        self.uplink = uplink
        self.log: list[Stored] = []
        self.end = 0
        self.outcomes: dict[int, str] = {}
        self._next = 0

    def append(self, sequence: int, run: Run) -> None:
        self.log.append(Stored(self.end, sequence, run))
        self.end += len(run)
        self.pump()

    def pump(self) -> None:
        while (credit := self.uplink.live.credit) and self._next < self.end:
            stored = next(item for item in self.log if self._next < item.position + len(item.run))
            skip = self._next - stored.position
            part = stored.run.part(skip, skip + credit)
            self._next += len(part)
            self.uplink.live.deliver(self, [Stored(stored.position + skip, stored.sequence + skip, part)])

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        assert consumer is self.uplink.live
        assert 0 <= first <= last < self._next, "settled what was not delivered"
        for position in range(first, last + 1):
            assert position not in self.outcomes, "settled twice"
            self.outcomes[position] = outcome


class Hub:
    """Hub with marks and a lake, which survive, and a queue of batches that have not landed, which does not."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, str, str], int] = {}
        self.lake: dict[str, list[bytes]] = defaultdict(list)
        self.plain_lake: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.waiting: list[tuple[Intake, int, Batch | Arrival]] = []
        self.connected: Counter[str] = Counter()
        self.statuses: list[dict[str, Any]] = []
        self.ledger: list[tuple[Intake, int, dict[str, Any]]] = []

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        self.connected[gateway] += 1

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        self.connected[gateway] -= 1
        self.waiting = [item for item in self.waiting if item[0] is not intake]

    def has_room(self, intake: Intake) -> bool:
        return True

    def unread_changed(self, intake: Intake, by: int) -> None:
        """Do nothing: bytes are not counted."""

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        assert gateway == "gw1"
        self.waiting.append((intake, token, batch))

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        self.waiting += [(intake, token, arrival) for token, arrival in messages]

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        self.statuses.append(document)

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        self.ledger.append((intake, token, document))

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        intake.accept([token])

    def land(self, batches: int) -> list[tuple[Intake, int]]:
        """Make the first batches durable; return those that may now be accepted."""
        landed, self.waiting = self.waiting[:batches], self.waiting[batches:]
        for _, _, what in landed:
            if isinstance(what, Batch):
                self._land(what)
            else:
                assert (what.gateway, what.epoch, what.hops) == ("gw1", EPOCH, ("gw1",))
                assert what.sequence is not None
                self.plain_lake[what.run.address][what.sequence] = what.run.bodies[0]
        return [(intake, token) for intake, token, _ in landed]

    def _land(self, batch: Batch) -> None:
        base = {piece.address: piece.base for piece in batch.ranges}
        for _, first, run in batch.stored():
            key = ("gw1", batch.epoch, run.address)
            expected = max(self.marks.get(key, -1) + 1, base[run.address])
            assert first <= expected, f"gap before {first} of {run}"
            self.lake[run.address] += run.bodies[expected - first :]
            self.marks[key] = max(self.marks.get(key, -1), first + len(run) - 1)


class World:
    """A gateway's uplink, a hub, and at most one pair of pipes between them."""

    def __init__(self, *, batches: bool = True) -> None:
        self.batches = batches
        self.uplink = Uplink(
            "uplink",
            Hop("gw1", EPOCH),
            space="default",
            outcomes=Outcomes("accepted", "rejected"),
            bases={"old": BASE_OF_OLD},
            limits=LIMITS,
        )
        self.reports = Reports()
        self.forwarders = [Forwarder(self.uplink), Forwarder(self.uplink)]
        for forwarder in self.forwarders:
            self.uplink.live.add(forwarder)
        self.hub = Hub()
        self.published: dict[str, list[bytes]] = defaultdict(list)
        self.ledger_done: Counter[int] = Counter()
        self.ups = self.downs = 0
        self.now = 0.0
        self.client: AmqpConnection | None = None
        self.server: Engine | None = None
        self.shell = Shell()
        self.intake: Intake | None = None
        self.to_server = self.to_client = b""

    # steps that hypothesis draws

    def publish(self, which: int, count: int, size: int) -> None:
        address = ADDRESSES[which]
        already = self.published[address]
        first = len(already) + (BASE_OF_OLD if address == "old" else 0)
        bodies = [f"{address} {first + i} ".encode() + b"x" * size for i in range(count)]
        already += bodies
        self.forwarders[which % 2].append(first, Run(address, f"dev{which}", 1, b"", bodies, 1_000 + first))

    def connect(self) -> None:
        if self.client is None:
            engine = Engine(container_id="gw1", server=False, now=self.now)
            self.client = AmqpConnection(engine, HubLinks(self.uplink, self.reports))
            self.server = Engine(container_id="hub", server=True, now=self.now)
            self.intake = Intake(self.server, self.hub, self.shell, limits=INTAKE_LIMITS)
            if not self.batches:
                _forget_capability(self.server)

    def up_bytes(self, limit: int) -> None:
        if self.client is not None and self.server is not None and self.intake is not None:
            self.to_server += self.client.data_to_send()
            data, self.to_server = self.to_server[:limit], self.to_server[limit:]
            if data:
                self.intake.handle(take_all(self.server, data, self.now))
            self.shell.turn()
            self._finish()

    def down_bytes(self, limit: int) -> None:
        if self.client is not None and self.server is not None:
            self.to_client += self.server.data_to_send()
            data, self.to_client = self.to_client[:limit], self.to_client[limit:]
            if data:
                self._told(take_all(self.client, data, self.now))
            self._finish()

    def cut(self) -> None:
        """Break the connection; data in flight is lost."""
        if self.client is not None and self.server is not None and self.intake is not None:
            self._told(self.client.receive_eof(self.now))
            self.intake.handle(self.server.receive_eof(self.now))
            self.client = self.server = self.intake = None
            self.to_server = self.to_client = b""

    def land(self, batches: int) -> None:
        for intake, token in self.hub.land(batches):
            intake.accept([token])

    def land_and_die(self, batches: int) -> None:
        """Make batches durable, and die before the answer."""
        self.hub.land(batches)
        self.cut()

    def release(self, skip: int) -> None:
        batches = self.hub.waiting
        if skip < len(batches):
            intake, token, _ = batches[skip]
            intake.release([token])
            self.hub.waiting = batches[:skip]

    def report(self, number: int) -> None:
        self.reports.status({"number": number})
        key = len(self.ledger_done) + sum(self.ledger_done.values())
        self.ledger_done[key] += 0
        self.reports.ledger({"number": key}, lambda accepted: self.ledger_done.update({key: 1 if accepted else 100}))

    # until nothing is pending

    def drain(self) -> None:
        for _ in range(2000):
            self.connect()
            before = self._progress()
            self.up_bytes(1 << 20)
            self.down_bytes(1 << 20)
            self.land(len(self.hub.waiting))
            waiting, self.hub.ledger = self.hub.ledger, []
            for intake, token, _ in waiting:
                intake.accept([token])
            self.up_bytes(1 << 20)
            self.down_bytes(1 << 20)
            if self._progress() == before and self._quiet():
                return
        raise AssertionError(f"never quiet: {self.uplink.figures}, in flight {self.uplink.in_flight}")

    def _quiet(self) -> bool:
        return all(len(f.outcomes) == f.end for f in self.forwarders) and all(self.ledger_done.values())

    def _progress(self) -> tuple[int, int]:
        return sum(len(f.outcomes) for f in self.forwarders), self.uplink.figures.batches_sent

    def _told(self, events: Sequence[LinkUp | LinkDown]) -> None:
        for event in events:
            if isinstance(event, LinkUp):
                assert event.batching == self.batches
                self.ups += 1
            else:
                self.downs += 1

    def _finish(self) -> None:
        """Close the sockets of a side that has closed in good order."""
        if self.client is not None and self.server is not None and (self.client.closed or self.server.closed):
            self.cut()


def _forget_capability(engine: Engine) -> None:
    """Make the peer look like one without support for batches."""
    accept = engine.accept
    engine.accept = lambda link, **_: accept(link)  # type: ignore[method-assign]
    receive = engine.receive_data

    def receive_data(data: bytes, now: float) -> Sequence[Any]:
        events = receive(data, now)
        for event in events:
            link = getattr(event, "link", None)
            if link is not None:
                link.desired_capabilities = ()
        return events

    engine.receive_data = receive_data  # type: ignore[method-assign]


sizes = st.one_of(st.integers(1, 60), st.integers(1, 5000))
operations = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(1, 30), st.sampled_from([0, 10, 100, 900])),
    st.tuples(st.just("connect")),
    st.tuples(st.just("up_bytes"), sizes),
    st.tuples(st.just("down_bytes"), sizes),
    st.tuples(st.just("up_bytes"), st.just(1 << 20)),
    st.tuples(st.just("down_bytes"), st.just(1 << 20)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("land"), st.integers(1, 5)),
    st.tuples(st.just("land_and_die"), st.integers(1, 5)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("report"), st.integers(0, 9)),
)
script = st.lists(operations, max_size=60)


def play(world: World, operations_: list[tuple[Any, ...]]) -> None:
    for name, *arguments in operations_:
        getattr(world, name)(*arguments)
    world.drain()


@given(script)
@settings(max_examples=120, deadline=None)
def test_every_message_lands_once_and_in_order(operations_: list[tuple[Any, ...]]) -> None:
    world = World()
    play(world, operations_)
    assert {address: bodies for address, bodies in world.hub.lake.items() if bodies} == dict(world.published)
    assert all(outcome == "accepted" for f in world.forwarders for outcome in f.outcomes.values())
    assert world.uplink.held_bytes == 0
    assert world.uplink.in_flight == (0, 0)
    figures = world.uplink.figures
    assert figures.messages_accepted == sum(map(len, world.published.values()))
    assert figures.messages_sent == figures.messages_accepted + figures.messages_resent
    assert set(world.ledger_done.values()) <= {1}


@given(script)
@settings(max_examples=60, deadline=None)
def test_peer_without_batches_gets_every_message_with_its_name(operations_: list[tuple[Any, ...]]) -> None:
    world = World(batches=False)
    play(world, operations_)
    for address, bodies in world.published.items():
        base = BASE_OF_OLD if address == "old" else 0
        landed = world.hub.plain_lake[address]
        assert sorted(landed) == list(range(base, base + len(bodies)))
        assert all(body in landed[base + i] for i, body in enumerate(bodies))
    assert all(outcome == "accepted" for f in world.forwarders for outcome in f.outcomes.values())


@given(script, script)
@settings(max_examples=40, deadline=None)
def test_peer_may_change_between_connections(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> None:
    """After a change of endpoint, messages in flight are repeated in the form that the new endpoint supports."""
    world = World(batches=False)
    for name, *arguments in before:
        getattr(world, name)(*arguments)
    world.cut()
    settled_plain = {(id(f), p) for f in world.forwarders for p in f.outcomes}
    world.batches = True
    world.hub._land = lambda batch: [  # type: ignore[method-assign]
        world.hub.plain_lake[run.address].__setitem__(sequence, body)
        for _, first, run in batch.stored()
        for sequence, body in enumerate(run.bodies, first)
    ]
    play(world, after)
    assert settled_plain <= {(id(f), p) for f in world.forwarders for p in f.outcomes}
    for address, bodies in world.published.items():
        assert len(world.hub.plain_lake[address]) == len(bodies)


def test_window_bounds_the_buffered_messages() -> None:
    world = World()
    for _ in range(50):
        world.publish(0, 20, 80)
    assert world.uplink.held_bytes == 0, "nothing is taken before there is a link"
    world.connect()
    for _ in range(10):
        world.up_bytes(1 << 20)
        world.down_bytes(1 << 20)
    largest_delivery = 20 * (80 + 64 + 20)
    assert 0 < world.uplink.held_bytes <= LIMITS.live_window_bytes + largest_delivery
    assert world.uplink.live.credit == 0
    world.drain()
    assert world.hub.lake["plant/1"] == world.published["plant/1"]


def test_batches_grow_while_the_window_is_busy() -> None:
    world = World()
    world.connect()
    for _ in range(4):
        world.up_bytes(1 << 20)
        world.down_bytes(1 << 20)
    for _ in range(10):
        world.publish(0, 1, 3)
        world.up_bytes(1 << 20)
    assert world.uplink.in_flight == (2, 2), "two at once, the others wait for an answer or for company"
    world.drain()
    assert world.uplink.figures.batches_sent == 3


def test_amqp_bodies_are_unchanged() -> None:
    world = World()
    body = b"\x00\x53\x75\xa0\x03abc"
    world.forwarders[0].append(0, Run("plant/1", "sensor", 1 | AMQP, b"\x00\x53\x70\xc0\x02\x01\x41", [body], 5))
    world.published["plant/1"].append(body)
    world.drain()
    assert world.hub.lake["plant/1"] == [body]


def test_messages_of_a_removed_forwarder_are_neither_sent_nor_settled() -> None:
    world = World()
    world.connect()
    for _ in range(4):
        world.up_bytes(1 << 20)
        world.down_bytes(1 << 20)
    world.publish(0, 5, 10)
    world.up_bytes(1 << 20)
    world.publish(0, 5, 10)
    world.uplink.remove(world.forwarders[0])
    world.cut()
    assert world.uplink.held_bytes == 0
    world.forwarders[0].end = 0
    world.publish(1, 3, 10)
    world.drain()
    assert world.forwarders[0].outcomes == {}
    assert world.hub.lake == {"plant/2": world.published["plant/2"]}
