"""Any sequence of calls on the store on disk, with crashes and reopening, against a model of plain dictionaries."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
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
    segment_bytes_max=40,
    counted_commits_max=3,
    counted_commits_many_max=8,
    counted_addresses_max=3,
    counted_addresses_many_max=4,
    counted_at_once=1,
    counted_logs_few=2,
    reclaim_rows_max=2,
    reclaim_logs_max=2,
    addresses_cached_max=2,
    segments_cached_max=1,
    checkpoint_bytes=20_000,
    page_bytes=512,
)
LOGS = st.sampled_from(["a", "b", "c"])
CURSORS = st.sampled_from(["x", "y"])
BODIES = st.lists(st.binary(max_size=15), min_size=1, max_size=6)
Message = tuple[int, str, int, bytes]


class StoreMachine(RuleBasedStateMachine):
    """`messages`, `cursors` and `state` are the expected content; `gathered` is the addition of the next commit."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=fast_folder()))
        self.rig: Rig
        self.messages: dict[str, list[Message]] = {}
        self.sequences: dict[str, int] = {}
        self.cursors: dict[tuple[str, str], set[int]] = {}
        self.state: dict[str, bytes] = {}
        self.gathered: list[tuple[str, str, list[bytes]]] = []
        self.gathered_state: dict[str, bytes | None] = {}

    @initialize()
    def start(self) -> None:
        self.rig = sqlite_rig(self.directory / "0", LIMITS)

    def teardown(self) -> None:
        self.rig.store.close()
        shutil.rmtree(self.directory)

    def first_possible(self, log: str) -> int:
        """Return the first position that the store must still have."""
        done = [acknowledged for (_, name), acknowledged in self.cursors.items() if name == log]
        end = len(self.messages.get(log, []))
        return min((next((p for p in range(end) if p not in d), end) for d in done), default=end)

    @rule(log=LOGS, address=st.sampled_from(["p", "q", "r"]), bodies=BODIES)
    def append(self, log: str, address: str, bodies: list[bytes]) -> None:
        self.rig.store.logs.append(self.rig.store.logs.open(log), run_of(*bodies, address=address))
        self.gathered.append((log, address, bodies))

    @rule(log=LOGS, name=CURSORS, position=st.integers(0, 3))
    def open_cursor(self, log: str, name: str, position: int) -> None:
        number = self.rig.store.logs.open(log)
        cursor = self.rig.store.cursors.open(name, number, position)
        if (name, log) not in self.cursors:
            made_at = self.rig.store.cursors.record(cursor).position
            assert made_at == min(position, len(self.messages.get(log, []))) or made_at <= self.first_possible(log)
            self.cursors[name, log] = set(range(made_at))

    @rule(log=LOGS, name=CURSORS)
    def drop_cursor(self, log: str, name: str) -> None:
        if self.cursors.pop((name, log), None) is not None:
            self.rig.store.cursors.drop(self.rig.store.cursors.open(name, self.rig.store.logs.open(log), 0))

    @rule(log=LOGS, name=CURSORS, data=st.data())
    def acknowledge(self, log: str, name: str, data: st.DataObject) -> None:
        end = len(self.messages.get(log, []))
        if (name, log) in self.cursors and end:
            first = data.draw(st.integers(0, end - 1))
            last = data.draw(st.integers(first, min(first + 9, end - 1)))
            number = self.rig.store.logs.open(log)
            self.rig.store.cursors.acknowledge(self.rig.store.cursors.open(name, number, 0), first, last)
            self.cursors[name, log] |= set(range(first, last + 1))

    @rule(log=LOGS, name=CURSORS)
    def rest(self, log: str, name: str) -> None:
        """Make a cursor idle: its row then contains its whole state."""
        if (name, log) in self.cursors:
            self.rig.store.cursors.make_idle(self.rig.store.cursors.open(name, self.rig.store.logs.open(log), 0))

    @rule(log=LOGS, data=st.data())
    def pass_cursors(self, log: str, data: st.DataObject) -> None:
        store, number = self.rig.store, self.rig.store.logs.open(log)
        names = sorted(name for name, its in self.cursors if its == log)
        position = data.draw(st.integers(0, len(self.messages.get(log, []))))
        store.cursors.pass_all(number, [store.cursors.open(name, number, 0) for name in names], position)
        for name in names:
            self.cursors[name, log] |= set(range(position))

    @rule(key=st.sampled_from("klm"), value=st.one_of(st.none(), st.binary(max_size=9)))
    def put_or_delete(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.rig.store.state.delete("kind", key)
        else:
            self.rig.store.state.put("kind", key, value)
        self.gathered_state[key] = value

    @rule(seconds=st.sampled_from([0.0, 0.1]))
    def flush(self, seconds: float) -> None:
        self.rig.now += seconds
        expected = bool(self.gathered or self.gathered_state)
        started = self.rig.store.commits.flush()
        assert started or not expected
        while self.rig.store.commits.committing:
            self.rig.turn()
        if started:
            assert self.rig.commits[-1].error is None
            self.keep()

    @precondition(lambda self: self.gathered)
    @rule()
    def a_commit_fails(self) -> None:
        """Make a commit fail while another program locks the file.

        The messages are refused; the next commit contains all the rest.
        """
        assert isinstance(self.rig.store.medium, SqliteMedium)
        execute_on(self.rig.store.medium.writer, "PRAGMA busy_timeout = 0")
        other = sqlite3.connect(self.rig.store.medium.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert self.rig.store.commits.flush()
        while self.rig.store.commits.committing:
            self.rig.turn()
        other.execute("ROLLBACK")
        other.close()
        assert self.rig.commits[-1].error is not None
        assert self.rig.commits[-1].appended == ()
        self.gathered = []
        self.rig.now += 10  # past the pause before the next attempt

    @rule()
    def reopen(self) -> None:
        self.rig.reopen()
        self.keep()

    @rule()
    def crash(self) -> None:
        """Continue with a copy of the files; uncommitted data is lost, and lazy moves may be."""
        self.flush_all()
        place = self.directory / str(len(list(self.directory.iterdir())))
        place.mkdir()
        assert isinstance(self.rig.store.medium, SqliteMedium)
        for path in self.rig.store.medium.path.parent.iterdir():
            shutil.copyfile(path, place / path.name)
        self.rig.store.close()
        self.rig = sqlite_rig(place, LIMITS)

    def flush_all(self) -> None:
        self.rig.settle()
        self.keep()

    def keep(self) -> None:
        """Record the gathered changes as committed."""
        for log, address, bodies in self.gathered:
            messages = self.messages.setdefault(log, [])
            for body in bodies:
                sequence = self.sequences.get(address, 0)
                messages.append((len(messages), address, sequence, body))
                self.sequences[address] = sequence + 1
        self.gathered = []
        for key, value in self.gathered_state.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        self.gathered_state = {}

    @invariant()
    def what_must_be_there_is_there(self) -> None:
        store = self.rig.store
        for log, messages in self.messages.items():
            number = store.logs.open(log)
            first, end = store.logs.bounds(number)
            assert end == len(messages)
            assert first <= self.first_possible(log)
            assert self.rig.read_all(number, 0, 30) == messages[first:]
            assert store.info().logs[number - 1].bytes == sum(len(body) for *_, body in messages[first:])

    @invariant()
    def cursors_are_where_they_were_put(self) -> None:
        store = self.rig.store
        for (name, log), acknowledged in self.cursors.items():
            [record] = [each for each in store.cursors.named(name) if each.log == store.logs.open(log)]
            assert record.cursor == store.cursors.open(name, record.log, 0)
            above = {p for first, last in record.acknowledged for p in range(first, last + 1)}
            assert set(range(record.position)) | above == acknowledged

    @invariant()
    def state_is_what_was_put(self) -> None:
        put = {**self.state, **self.gathered_state}
        assert list(self.rig.store.state.items("kind")) == sorted((k, v) for k, v in put.items() if v is not None)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=70, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
