"""Logs in memory under any calls, with full rings and crashes at any moment.

No name is given twice, the ledger names every loss, and no cursor waits for a missing message.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.message import Stored
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.limits import StoreLimits
from edge.broker.store.reservation import MEMORY
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, flat, run_of, sqlite_rig
from tests.support.medium import fast_folder
from tests.support.writer_thread import execute_on

LIMITS = StoreLimits(
    logs_in_use_max=0,
    segment_bytes_max=60,
    counted_commits_max=3,
    counted_commits_many_max=8,
    counted_addresses_max=2,
    counted_addresses_many_max=3,
    counted_at_once=1,
    reclaim_rows_max=2,
    addresses_cached_max=2,
    memory_bytes_max=600,
    memory_total_bytes_max=1500,
    memory_reserve_min=4,
    memory_reserve_max=40,
    memory_addresses_max=4,
    memory_idle_s=60,
    page_bytes=512,
)
LOGS = st.sampled_from(["a", "b"])
ADDRESSES = st.sampled_from(["p", "q", "r"])
CURSORS = st.sampled_from(["x", "y"])
BODIES = st.lists(st.binary(max_size=15), min_size=1, max_size=6)
Name = tuple[str, int]


class MemoryMachine(RuleBasedStateMachine):
    """`promised` has the messages reported as safe to senders, `done` those that each cursor has acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=fast_folder()))
        self.rig: Rig
        self.promised: dict[str, dict[int, tuple[Name, bytes]]] = {"a": {}, "b": {}}
        self.given: set[Name] = set()
        self.done: dict[tuple[str, str], set[int]] = {}
        self.shared: set[str] = set()
        """Addresses of both logs: it is unknown which log a number was reserved for."""

    @initialize()
    def start(self) -> None:
        self.rig = sqlite_rig(self.directory / "0", LIMITS)
        self.begin()

    def begin(self, *, keep: bool = True) -> None:
        """Start as a router does: logs and cursors, then the remains of a crash, then the durability of each log."""
        store = self.rig.store
        for log in "ab":
            for cursor in "xy":
                number = store.cursors.open(cursor, store.logs.open(log), 0)
                self.done.setdefault((cursor, log), set())
                if log == "b" and cursor == "y":
                    store.cursors.set_filter(number, lambda run: run.address != "q")
        store.ledger.account_for_crash()
        for log in "ab":
            store.logs.keep_in_memory(store.logs.open(log), keep=keep)

    def teardown(self) -> None:
        self.rig.store.close()
        assert not verify(self.path()).damaged, verify(self.path()).findings
        shutil.rmtree(self.directory)

    def path(self) -> Path:
        assert isinstance(self.rig.store.medium, SqliteMedium)
        return self.rig.store.medium.path

    def promise(self, log: str, stored: Stored) -> None:
        for position, address, sequence, body in flat([stored]):
            name = (address, sequence)
            if any(name[0] == address for name, _ in self.promised["b" if log == "a" else "a"].values()):
                self.shared.add(address)
            assert name not in self.given, f"{name} is given twice"
            assert position not in self.promised[log], f"position {position} is given twice"
            assert position > max(self.promised[log], default=-1)
            self.given.add(name)
            self.promised[log][position] = (name, body)

    @rule(log=LOGS, address=ADDRESSES, bodies=BODIES)
    def append(self, log: str, address: str, bodies: list[bytes]) -> None:
        stored = self.rig.store.logs.append(self.rig.store.logs.open(log), run_of(*bodies, address=address))
        if isinstance(stored, Stored):
            self.promise(log, stored)

    @rule(seconds=st.sampled_from([0.0, 0.1, 6.0, 70.0, 700.0]))
    def flush(self, seconds: float) -> None:
        self.rig.now += seconds
        before = len(self.rig.commits)
        self.rig.store.commits.flush()
        self.finish(before)

    def finish(self, before: int) -> None:
        while self.rig.store.commits.committing:
            self.rig.turn()
        for commit in self.rig.commits[before:]:
            for log, stored in commit.appended:
                self.promise("ab"[log - 1], stored)

    @rule(log=LOGS, address=ADDRESSES, bodies=BODIES, seconds=st.sampled_from([0.0, 6.0]))
    def append_during_a_commit(self, log: str, address: str, bodies: list[bytes], seconds: float) -> None:
        self.rig.now += seconds
        before = len(self.rig.commits)
        self.rig.store.commits.flush()
        self.append(log, address, bodies)
        self.acknowledge_all(log, "x")
        self.finish(before)

    @rule(log=LOGS, name=CURSORS, data=st.data())
    def acknowledge(self, log: str, name: str, data: st.DataObject) -> None:
        positions = sorted(self.promised[log])
        if positions:
            first = data.draw(st.integers(0, len(positions) - 1))
            last = data.draw(st.integers(first, min(first + 9, len(positions) - 1)))
            self.ack(log, name, positions[first], positions[last])

    @rule(log=LOGS, name=CURSORS)
    def acknowledge_all(self, log: str, name: str) -> None:
        if self.promised[log]:
            self.ack(log, name, 0, max(self.promised[log]))

    def ack(self, log: str, name: str, first: int, last: int) -> None:
        number = self.rig.store.logs.open(log)
        self.rig.store.cursors.acknowledge(self.rig.store.cursors.open(name, number, 0), first, last)
        self.done[name, log] |= {p for p in self.promised[log] if first <= p <= last}

    @rule(log=LOGS, keep=st.booleans())
    def configure(self, log: str, keep: bool) -> None:
        self.rig.store.logs.keep_in_memory(self.rig.store.logs.open(log), keep=keep)

    @rule()
    def a_commit_fails(self) -> None:
        assert isinstance(self.rig.store.medium, SqliteMedium)
        execute_on(self.rig.store.medium.writer, "PRAGMA busy_timeout = 0")
        other = sqlite3.connect(self.path(), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        self.rig.now += 6
        before = len(self.rig.commits)
        self.rig.store.commits.flush()
        self.finish(before)
        other.execute("ROLLBACK")
        other.close()

    @rule()
    def reopen(self) -> None:
        before = len(self.rig.commits)
        self.rig.reopen()
        self.finish(before)
        self.begin()

    @rule(keep=st.booleans())
    def crash(self, keep: bool) -> None:
        """Continue with a copy of the present files."""
        place = self.directory / str(len(list(self.directory.iterdir())))
        place.mkdir()
        for path in self.path().parent.iterdir():
            shutil.copyfile(path, place / path.name)
        self.rig.store.close()
        while not self.rig.posted.empty():
            self.rig.posted.get()
        assert not verify(place / FILE_NAME).damaged, verify(place / FILE_NAME).findings
        self.rig = sqlite_rig(place, LIMITS)
        self.begin(keep=keep)
        before = len(self.rig.commits)
        while self.rig.store.commits.flush():
            self.finish(before)
            before = len(self.rig.commits)

    @rule(log=LOGS, size=st.integers(1, 60), exactly=st.booleans())
    def evict(self, log: str, size: int, exactly: bool) -> None:
        self.rig.store.retention.evict(self.rig.store.logs.open(log), size, size if exactly else None)

    @invariant()
    def what_was_promised_is_there_or_in_the_ledger(self) -> None:
        store = self.rig.store
        losses = [loss[1:] for loss in store.ledger.entries(0, 10_000)]
        losses += [*store._rings._ended, *store._rings._losses.values()]  # not in the ledger yet
        losses += store._gatherer.open.losses
        assert all(loss[6] in ("evicted", MEMORY) for loss in losses)
        lost = {(loss[0], loss[1], n) for loss in losses for n in range(loss[2], loss[3] + 1)}
        for log, promised in self.promised.items():
            there = {position: name for position, *name, _ in self.rig.read_all(store.logs.open(log))}
            for position, (name, _) in promised.items():
                for cursor in "xy":
                    owed = not (log == "b" and cursor == "y" and name[0] == "q")
                    if owed and position not in self.done[cursor, log]:
                        assert there.get(position) == [*name] or (cursor, *name) in lost, (log, position, name, cursor)

    @invariant()
    def nothing_is_lost_twice(self) -> None:
        names: set[tuple[str, str, int]] = set()
        for entry in self.rig.store.ledger.entries(0, 10_000):
            if entry.messages == entry.last - entry.first + 1:
                for name in ((entry.subscription, entry.address, n) for n in range(entry.first, entry.last + 1)):
                    assert name not in names or entry.address in self.shared, name
                    names.add(name)

    @invariant()
    def what_is_read_is_what_was_taken(self) -> None:
        for log, promised in self.promised.items():
            for position, address, sequence, body in self.rig.read_all(self.rig.store.logs.open(log)):
                assert promised[position] == ((address, sequence), body)

    @invariant()
    def memory_is_bounded(self) -> None:
        memory = self.rig.store._rings
        for ring in memory.rings.values():
            assert ring.cost <= LIMITS.memory_bytes_max
            assert ring.cost == sum(run.size + 64 * len(run.stored.run.bodies) for run in ring.runs)
        assert memory.cost == sum(ring.cost for ring in memory.rings.values()) <= LIMITS.memory_total_bytes_max
        waiting = [runs for ring in memory.rings.values() for each in ring.waiting for runs in each.runs]
        assert memory.waiting_bytes == sum(size for _, size in waiting)
        assert memory._waiting == {ring.log for ring in memory.rings.values() if ring.waiting}
        assert len(memory.numbers.reservations) <= LIMITS.memory_addresses_max

    @invariant()
    def only_rings_have_reservations(self) -> None:
        memory = self.rig.store._rings
        pairs = {(address, log) for log, ring in memory.rings.items() for address in ring.addresses}
        assert pairs == {(address, log) for address, each in memory.numbers.reservations.items() for log in each.logs}
        held = dict.fromkeys(memory.numbers.reservations, 0)
        for ring in memory.rings.values():
            for run in ring.runs:
                held[run.stored.run.address] += 1
        assert held == {address: each.held for address, each in memory.numbers.reservations.items()}
        assert all(log.isdecimal() for key, _ in self.rig.store.state.items(MEMORY) for log in [key.partition(" ")[0]])


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
