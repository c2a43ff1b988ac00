"""Counters that each commit writes in part: every address and log continues correctly after a kill at any time."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, run_of, sqlite_rig
from tests.support.medium import fast_folder
from tests.support.writer_thread import execute_on

LIMITS = StoreLimits(
    logs_in_use_max=0,
    counted_commits_max=50,
    counted_commits_many_max=12,
    counted_addresses_max=50,
    counted_addresses_many_max=9,
    counted_at_once=2,
    counted_bytes_deleting_max=150,
    reclaim_rows_max=3,
    checkpoint_bytes=40_000,
    page_bytes=512,
)
LOGS = ("a", "b")
ADDRESSES = [f"plant/{i:02}" for i in range(16)]
SPREAD = st.lists(st.tuples(st.sampled_from(LOGS), st.sampled_from(ADDRESSES), st.integers(0, 9)), min_size=1)


class SweepMachine(RuleBasedStateMachine):
    """Counters against a model; `ends` and `sequences` follow from the committed messages."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=fast_folder()))
        self.rig: Rig
        self.ends = dict.fromkeys(LOGS, 0)
        self.sequences: dict[str, int] = {}
        self.sizes: dict[str, list[int]] = {log: [] for log in LOGS}
        self.given: dict[str, list[tuple[str, int]]] = {log: [] for log in LOGS}
        """Addresses and sequences by position."""

    @initialize()
    def start(self) -> None:
        self.rig = sqlite_rig(self.directory / "0", LIMITS)
        for log in LOGS:
            self.rig.store.cursors.open("c", self.rig.store.logs.open(log), 0)
        self.rig.commit()

    def teardown(self) -> None:
        self.rig.store.close()
        shutil.rmtree(self.directory)

    @rule(messages=SPREAD)
    def commit(self, messages: list[tuple[str, str, int]]) -> None:
        store = self.rig.store
        for log, address, size in messages:
            store.logs.append(store.logs.open(log), run_of(b"x" * size, address=address))
        given = [(log, stored.position, stored.sequence) for log, stored in self.rig.commit().appended]
        expected = []
        for log, address, size in messages:
            expected.append((store.logs.open(log), self.ends[log], self.sequences.get(address, 0)))
            self.given[log].append((address, self.sequences.get(address, 0)))
            self.ends[log] += 1
            self.sequences[address] = self.sequences.get(address, 0) + 1
            self.sizes[log].append(size)
        assert given == expected

    @rule(messages=SPREAD)
    def fail(self, messages: list[tuple[str, str, int]]) -> None:
        assert isinstance(self.rig.store.medium, SqliteMedium)
        for log, address, size in messages:
            self.rig.store.logs.append(self.rig.store.logs.open(log), run_of(b"x" * size, address=address))
        execute_on(self.rig.store.medium.writer, "PRAGMA busy_timeout = 0")
        other = sqlite3.connect(self.rig.store.medium.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert self.rig.commit().error is not None
        other.execute("ROLLBACK")
        other.close()
        self.rig.now += 10  # past the pause before the next attempt

    @precondition(lambda self: any(self.ends.values()))
    @rule(log=st.sampled_from(LOGS), count=st.integers(1, 20))
    def acknowledge(self, log: str, count: int) -> None:
        """Acknowledge the oldest messages; a later commit deletes them."""
        store = self.rig.store
        cursor = store.cursors.open("c", store.logs.open(log), 0)
        position = store.cursors.record(cursor).position
        if position < self.ends[log]:
            store.cursors.acknowledge(cursor, position, min(position + count, self.ends[log]) - 1)

    @rule()
    def die(self) -> None:
        """Continue with a copy of the present files."""
        place = self.directory / str(len(list(self.directory.iterdir())))
        place.mkdir()
        assert isinstance(self.rig.store.medium, SqliteMedium)
        for path in self.rig.store.medium.path.parent.iterdir():
            shutil.copyfile(path, place / path.name)
        self.rig.store.close()
        self.rig = sqlite_rig(place, LIMITS)

    @rule()
    def rest(self) -> None:
        """Become idle: fully acknowledged messages are gone, whatever was counted at their acknowledgement."""
        store = self.rig.store
        self.rig.settle()
        for log, end in self.ends.items():
            if store.cursors.record(store.cursors.open("c", store.logs.open(log), 0)).position == end:
                assert store.logs.bounds(store.logs.open(log)) == (end, end)

    @rule()
    def reopen(self) -> None:
        self.rig.reopen()

    @invariant()
    def the_medium_has_counters_of_what_is_counted(self) -> None:
        """The counters on the medium match the counted messages, so that opening reads only newer ones."""
        assert isinstance(self.rig.store.medium, SqliteMedium)
        with closing(sqlite3.connect(self.rig.store.medium.path)) as file:
            counted = dict(file.execute("SELECT name, next FROM log"))
            counters = dict(file.execute("SELECT name, next FROM address"))
        for log, end in counted.items():
            assert all(counters.get(address, 0) > sequence for address, sequence in self.given[log][:end])

    @invariant()
    def logs_are_what_they_hold(self) -> None:
        store = self.rig.store
        assert {address: following for address, following in store.lineage.sequences() if following} == self.sequences
        for log, end in self.ends.items():
            first, found = store.logs.bounds(store.logs.open(log))
            assert found == end
            assert store.info().logs[store.logs.open(log) - 1].bytes == sum(self.sizes[log][first:])


TestSweepMachine = SweepMachine.TestCase
TestSweepMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
