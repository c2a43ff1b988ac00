"""Every message with a wrong stamp gets its time or bounds of it, whatever the clock does at any moment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from bridge import plain
from bridge.clock_offset import BOOT_ENDED, CAPABILITY, SET_TOO_OFTEN, ClockDocument, ClockSpan, OffsetState
from bridge.engine import DeliveryState, Link
from bridge.message import CLOCK_GOOD, Run
from bridge.reports import Reports
from edge.broker.limits import CLOCK_STEP_S_MAX
from edge.broker.model.clock import ClockReading
from edge.broker.model.isolation import EventListeners
from edge.broker.retention import clock_offsets as module
from edge.broker.retention.clock_offsets import ClockOffsetReports
from tests.contract.store.rig import AnyStore, Rig, fail_commits, heal, sqlite_rig
from tests.support.medium import fast_folder

S = 1_000_000_000
START = 1_780_000_000 * S
"""True time at the beginning: in 2026."""


class Machine:
    """Two clocks, and the true time."""

    def __init__(self) -> None:
        self.true = START
        self.boots = 0
        self.changes: EventListeners[[ClockReading, ClockReading]] = EventListeners("changes")
        self.start(wall=0)

    def start(self, *, wall: int) -> None:
        """Boot with this wall clock."""
        self.boots += 1
        self.mono, self.wall, self.good = 5 * S, wall, False
        self.changes = EventListeners("changes")

    def passes(self, seconds: float) -> None:
        span = int(seconds * S)
        self.true, self.mono, self.wall = self.true + span, self.mono + span, self.wall + span

    def reading(self) -> ClockReading:
        return ClockReading(f"boot{self.boots}", self.wall, self.mono, self.good)

    def set(self, wall: int, *, good: bool = False) -> None:
        before = self.reading()
        self.wall, self.good = wall, good
        self.changes.notify(before, self.reading())

    def found_right(self) -> None:
        self.set(self.true, good=True)


class Wire:
    """Engine that records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, _link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        self.sent.append((tag, msgspec.json.decode(plain.body_of(message), type=ClockDocument)))

    def settle_sent(self, _link: Link, _tag: int) -> None:
        """Do nothing: settled messages are not tracked."""


class Bench:
    """A machine, its store, and a hub that accepts its reports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lives = folder, 0
        self.rig, self.machine = self._opened(), Machine()
        self.told: list[ClockSpan] = []
        self.true: dict[tuple[str, int], int] = {}
        """True time by name of a message."""
        self.stamps: dict[tuple[str, int], tuple[int, bool]] = {}
        self.begin()

    @property
    def store(self) -> AnyStore:
        return self.rig.store

    def _opened(self) -> Rig:
        return sqlite_rig(self.folder / str(self.lives))

    def begin(self) -> None:
        self.reports = Reports()
        self.wire: Wire | None = None
        self.offsets = ClockOffsetReports(
            self.store.state,
            self.store.lineage,
            self.reports,
            "hub",
            clock=self.machine,
            sends=lambda address: address.startswith("plant/"),
        )
        self.look()

    def connect(self, *capabilities: str) -> None:
        self.reports.detached()
        self.wire, self.answered = Wire(), 0
        self.link = Link(None, None, "manifests", is_sender=True, ours=True)
        self.link.credit = 1_000
        self.link.offered_capabilities = capabilities or (CAPABILITY,)
        engine: Any = self.wire
        self.reports.attached(engine, manifests=self.link)

    def process_restarts(self) -> None:
        self.rig.settle()
        self.commit_names()
        self.machine.changes = EventListeners("changes")
        self.rig.reopen()
        self.begin()

    def machine_restarts(self, wall: int, off_s: float = 60.0) -> None:
        """Cut the power."""
        self._cut()
        self.machine.passes(off_s)
        self.machine.start(wall=wall)
        self.begin()

    def process_is_killed(self) -> None:
        self._cut()
        self.machine.changes = EventListeners("changes")
        self.begin()

    def _cut(self) -> None:
        """Continue from the files on disk: messages that wait for their commit were never acknowledged."""
        while self.store.commits.committing:
            self.rig.turn()
        self.commit_names()
        before, old = self.folder / str(self.lives), self.rig
        self.lives += 1
        shutil.copytree(before, self.folder / str(self.lives))
        self.rig = self._opened()
        old.store.close()

    def receive(self, address: str = "plant/1", count: int = 1) -> None:
        """Stamp and append messages, without a commit."""
        flags = 1 | (CLOCK_GOOD if self.machine.good else 0)
        bodies = [b"%d" % self.machine.true] * count
        self.store.logs.append(
            self.store.logs.open("topic plant/#"), Run(address, "d", flags, b"", bodies, self.machine.wall)
        )

    def commit_names(self) -> None:
        """Record the name of each committed message."""
        for commit in self.rig.commits:
            for _, stored in commit.appended:
                run = stored.run
                for i, body in enumerate(run.bodies):
                    name = run.address, stored.sequence + i
                    self.true[name] = int(body)
                    self.stamps[name] = run.received_at, bool(run.flags & CLOCK_GOOD)
        self.rig.commits.clear()

    def look(self) -> None:
        self.rig.settle()
        self.offsets.poll()
        self.rig.settle()

    def takes_all(self) -> None:
        """Let the hub accept all reports."""
        if self.wire is None:
            self.connect()
        while True:
            self.look()
            self.look()  # the write of the first call is on disk
            self.reports.flush()
            assert self.wire is not None
            fresh = self.wire.sent[self.answered :]
            if not fresh:
                break
            for tag, document in fresh:
                self.answered += 1
                self.told += document.stretches
                self.reports.settled(self.link, [(tag, DeliveryState.ACCEPTED, True, None)])
        self.commit_names()

    def of(self, address: str, sequence: int) -> list[ClockSpan]:
        """Return the reported spans of one message."""
        stamp = self.stamps[address, sequence][0]
        return [
            stretch
            for stretch in self.told
            for one in stretch.messages
            if one.address == address
            and one.first_sequence <= sequence <= one.last_sequence
            and (one.after is None or stamp > one.after)
            and (one.until is None or stamp <= one.until)
        ]

    def check(self) -> None:
        """Check that exactly one span reports each message with a bad clock, and that its offset is right."""
        for (address, sequence), true in self.true.items():
            stamp, good = self.stamps[address, sequence]
            found = {(one.number, one.known, one.low, one.high) for one in self.of(address, sequence)}
            if good or not address.startswith("plant/"):
                continue
            assert len(found) == 1, (address, sequence, found)
            ((_, known, low, high),) = found
            if known is OffsetState.MEASURED:
                assert low == high
                assert low is not None
                assert abs(stamp + low - true) <= CLOCK_STEP_S_MAX * S, (address, sequence)
            else:
                assert known is OffsetState.NEVER
                assert low is None or stamp + low <= true, (address, sequence)
                assert high is None or true <= stamp + high, (address, sequence)


@contextmanager
def made() -> Iterator[Bench]:
    with TemporaryDirectory(dir=fast_folder()) as folder:
        bench = Bench(Path(folder))
        try:
            yield bench
        finally:
            bench.store.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with made() as bench:
        yield bench


def outcomes(bench: Bench) -> list[tuple[int, OffsetState, bool]]:
    return [(one.number, one.known, one.whole) for one in bench.told]


def test_messages_before_synchronisation_get_their_time(bench: Bench) -> None:
    bench.receive(count=3)
    bench.machine.passes(100)
    bench.receive("plant/2")
    bench.look()
    bench.machine.found_right()
    bench.receive(count=2)
    bench.takes_all()
    bench.check()
    assert outcomes(bench)[0] == (1, OffsetState.MEASURED, False)
    assert outcomes(bench)[-1] == (1, OffsetState.MEASURED, True)
    assert {one.low for one in bench.told} == {START}
    assert {name for name, (_, good) in bench.stamps.items() if good} == {("plant/1", 3), ("plant/1", 4)}
    assert bench.offsets.waiting == 0


def test_wrong_clock_is_reported_with_its_reading(bench: Bench) -> None:
    bench.machine.passes(7)
    bench.takes_all()
    assert bench.wire is not None
    ((_, document),) = bench.wire.sent
    assert outcomes(bench) == [(1, OffsetState.NOT_YET, False)]
    assert document.told_at == bench.machine.wall


def test_messages_waiting_for_a_commit_while_the_clock_is_set_are_separated_by_stamps(bench: Bench) -> None:
    bench.receive(count=2)
    bench.look()
    bench.machine.passes(1000)
    bench.receive()
    bench.machine.set(500 * S)  # back, to a time that the first span has seen
    bench.look()
    bench.receive()
    bench.machine.set(400_000_000 * S)  # and far ahead
    bench.receive()
    bench.machine.passes(50)
    bench.look()
    bench.receive()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert {one.number for one in bench.told} == {1, 2, 3}


def test_messages_of_a_commit_with_two_clock_steps_have_no_time(bench: Bench) -> None:
    bench.receive()
    bench.look()
    bench.receive()
    bench.machine.set(1_000 * S)
    bench.receive()
    bench.machine.set(900_000 * S)
    bench.look()
    bench.receive()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    known = [bench.of("plant/1", number)[0].known for number in range(4)]
    assert known == [OffsetState.MEASURED, OffsetState.NEVER, OffsetState.NEVER, OffsetState.MEASURED]


def test_messages_of_an_earlier_boot_get_bounds(bench: Bench) -> None:
    bench.machine.found_right()
    bench.look()
    bench.machine.passes(10)
    bench.machine_restarts(0)
    bench.receive(count=2)
    bench.machine.passes(100)
    bench.machine_restarts(0)
    bench.receive()
    bench.machine.passes(30)
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    lost = [one for one in bench.told if one.number == 2]
    assert {(one.known, one.reason) for one in lost} == {(OffsetState.NEVER, BOOT_ENDED)}
    assert lost[0].low is not None
    assert lost[0].high is not None
    assert lost[0].high - lost[0].low <= 300 * S
    assert {one.known for one in bench.told if one.number == 3} == {OffsetState.MEASURED}


def test_restarted_process_continues_the_clock_period(bench: Bench) -> None:
    bench.receive()
    bench.machine.passes(10)
    bench.process_restarts()
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert {one.number for one in bench.told} == {1}


def test_clock_set_while_the_process_is_down_ends_the_clock_period(bench: Bench) -> None:
    bench.receive()
    bench.rig.settle()
    bench.machine.wall += 1_000 * S
    bench.process_restarts()
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert {one.number for one in bench.told} == {1, 2}


def test_hub_without_the_capability_gets_nothing_until_it_has_it(bench: Bench) -> None:
    bench.connect("waypost:something")
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.look()
    bench.reports.flush()
    assert bench.wire is not None
    assert not bench.wire.sent
    bench.process_restarts()
    bench.takes_all()
    bench.check()


def test_broken_connection_repeats_the_report(bench: Bench) -> None:
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.connect()
    for _ in range(3):
        bench.look()
        bench.reports.flush()
        bench.connect()
    bench.takes_all()
    bench.check()


def test_full_medium_delays_the_report(bench: Bench) -> None:
    bench.receive()
    bench.rig.settle()
    fail_commits(bench.rig)
    bench.machine.found_right()
    bench.store.commits.flush()
    while bench.store.commits.committing:
        bench.rig.turn()
    bench.offsets.poll()
    heal(bench.rig)
    bench.rig.settle()
    bench.takes_all()
    bench.check()


def test_messages_beyond_the_recorded_periods_are_reported_as_unknown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOCK_RANGES_KEPT_MAX", 6)
    for number in range(10):
        bench.receive()
        bench.machine.passes(10)
        bench.look()
        bench.machine.set((number + 1) * 100_000 * S)
    assert bench.offsets.waiting <= 8
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert [one.reason for one in bench.told if one.whole][-1] == SET_TOO_OFTEN
    bench.machine.set(0)
    bench.receive()
    bench.look()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert outcomes(bench)[-1][1] is OffsetState.MEASURED
    assert bench.offsets.waiting == 0


def test_many_addresses_are_reported_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOCK_RANGES_A_DOCUMENT", 3)
    for number in range(10):
        bench.receive(f"plant/{number}")
        bench.receive(f"office/{number}")
    bench.process_restarts()
    bench.machine.found_right()
    bench.takes_all()
    bench.check()
    assert all(len(one.messages) <= 3 for one in bench.told)
    assert {message.address[:6] for one in bench.told for message in one.messages} == {"plant/"}
    assert not any(list(bench.store.state.items(f"clock {part}/hub")) for part in ("stretch", "ranges", "counters"))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.sampled_from(["plant/1", "plant/2", "office/1"])),
        st.tuples(st.just("commit")),
        st.tuples(st.just("pass"), st.floats(0.0, 100_000.0)),
        st.tuples(st.just("set"), st.sampled_from([-500_000, -4_000, -10, 10, 4_000, 2_000_000_000])),
        st.tuples(st.just("right")),
        st.tuples(st.just("wrong")),
        st.tuples(st.just("process")),
        st.tuples(st.just("killed")),
        st.tuples(st.just("machine"), st.sampled_from([0, 1_700_000_000, 2_200_000_000])),
        st.tuples(st.just("connect")),
        st.tuples(st.just("take")),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_each_message_has_its_time_or_its_bounds(events: list[tuple[Any, ...]]) -> None:
    with made() as bench:
        for event in events:
            happens(bench, *event)
        bench.look()
        bench.machine.found_right()
        bench.takes_all()
        bench.check()
        assert bench.offsets.waiting == 0


def happens(bench: Bench, what: str, *arguments: Any) -> None:
    machine = bench.machine
    if what == "receive":
        bench.receive(*arguments)
        machine.passes(0.001)
    elif what == "commit":
        bench.look()
    elif what == "pass":
        bench.look()  # reports are pending for moments only
        machine.passes(*arguments)
    elif what == "set" and not machine.good:
        machine.set(max(0, machine.wall + arguments[0] * S))
    elif what == "right":
        machine.found_right()
    elif what == "wrong":
        machine.set(machine.wall)
    elif what == "process":
        bench.process_restarts()
    elif what == "killed":
        bench.process_is_killed()
    elif what == "machine":
        bench.machine_restarts(arguments[0] * S)
    elif what == "connect":
        bench.connect()
    elif what == "take":
        bench.takes_all()
