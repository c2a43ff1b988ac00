"""Landing against a model: the process dies between any two steps."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.batch import decode, encode
from bridge.lane import BatchLane
from bridge.message import CLOCK_GOOD, Run, Stored
from cloud.hub.registry import marks
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.lake import landing, parts
from cloud.lake.commits import FAILPOINTS
from cloud.lake.delta import DeltaLake
from cloud.lake.landing import Landing, LedgerRange
from cloud.lake.parts import parts_of
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import SequenceSet
from tests.support.medium import fast_folder
from tests.support.simulated_kill import SimulatedKill

EPOCH = "e" * 32
NOW_US = 1_795_250_665_237_000


class Hub:
    """Hub that can die at a step and restart on its remaining state."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.crash_at: str | None = None
        self.steps_before = 0
        """Number of steps of this name before the fatal one."""
        self.start()

    def start(self) -> None:
        self.registry = Registry(sqlite_url(self.directory / "registry.db"), "a" * 32)
        self.landing = Landing(
            DeltaLake(self.directory / "lake", failpoint=self.failpoint),
            self.registry.commits,
            failpoint=self.failpoint,
        )

    def failpoint(self, step: str) -> None:
        if step == self.crash_at:
            if self.steps_before:
                self.steps_before -= 1
                return
            self.crash_at = None
            raise SimulatedKill(step)

    def attempt(self, what: list[ReceivedBatch] | list[LedgerRange], crash_at: str | None) -> bool:
        """Return True when the data was acknowledged; otherwise the process died and has been restarted."""
        self.crash_at = crash_at
        try:
            if what and isinstance(what[0], LedgerRange):
                self.land_ledger(what)  # type: ignore[arg-type]
            else:
                self.land(what)  # type: ignore[arg-type]
        except SimulatedKill:
            self.registry.close()
            self.start()
            return False
        finally:
            self.crash_at = None
        return True

    def land_ledger(self, what: list[LedgerRange]) -> None:
        """Land one document per entry, with time for only one document in each landing."""
        left = [[entry] for entry in what]
        while left:
            landed = self.landing.land_ledger(left, NOW_US, clock=itertools.count(0.0).__next__, seconds=1.0)
            left = left[len(left) - landed.left :]

    def land(self, what: list[ReceivedBatch]) -> None:
        """Land in slices, with time for only one slice in each landing."""
        left = [part for received in what for part in parts_of(received)]
        while left:
            landed = self.landing.land(left, NOW_US, clock=itertools.count(0.0).__next__, seconds=1.0)
            left = left[len(left) - landed.left :]

    def rows(self, table: str, columns: list[str]) -> Counter[tuple[object, ...]]:
        found: Counter[tuple[object, ...]] = Counter()
        for file in DeltaTable(self.directory / "lake" / table).file_uris():
            part = pq.ParquetFile(file).read(columns=columns)
            found.update(zip(*(part.column(name).to_pylist() for name in columns), strict=True))
        return found


def received(gateway: str, address: str, first: int, count: int, lane: BatchLane = BatchLane.LIVE) -> ReceivedBatch:
    bodies = [f"{gateway} {address} {sequence}".encode() for sequence in range(first, first + count)]
    properties = b"\x03\0\1x"  # messages with properties are processed one by one
    run = Run(address, "device", 1 | CLOCK_GOOD, properties, bodies, NOW_US * 1_000)
    return ReceivedBatch(
        "default", gateway, decode(encode([Stored(-1, first, run)], space="s", epoch=EPOCH, lane=lane))
    )


ranges = st.tuples(
    st.sampled_from(["g1", "g2"]), st.sampled_from(["a", "b"]), st.integers(0, 30), st.integers(1, 12),
    st.sampled_from(BatchLane),
)  # fmt: skip
steps = st.tuples(st.lists(ranges, min_size=1, max_size=3), st.sampled_from([None, *FAILPOINTS]))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=5), st.sampled_from([None, 2, 5]))
def test_acknowledged_messages_are_in_the_lake_once(
    script: list[tuple[list[tuple], str | None]], rows_max: int | None
) -> None:
    """Acknowledged messages are in the lake exactly once, after a death at any step.

    The data has overlaps, repetitions, lanes out of order, and landings in one or several parts.
    """
    acknowledged: set[tuple[object, ...]] = set()
    sent: set[tuple[object, ...]] = set()
    with tempfile.TemporaryDirectory(dir=fast_folder()) as directory, pytest.MonkeyPatch.context() as patch:
        if rows_max is not None:
            patch.setattr(parts, "PART_ROWS_MAX", rows_max)
            patch.setattr(landing, "SLICE_BYTES_MAX", 1)
        hub = Hub(Path(directory))
        for sent_now, crash_at in script:
            batches = [received(*batch) for batch in sent_now]
            messages = {(g, a, s, f"{g} {a} {s}".encode()) for g, a, f, n, _ in sent_now for s in range(f, f + n)}
            sent |= messages
            hub.steps_before = len(sent_now) - 1
            if hub.attempt(batches, crash_at):
                acknowledged |= messages
            hub.steps_before = 0
            rows = hub.rows("telemetry", ["gateway", "address", "sequence", "body"])
            assert set(rows.values()) <= {1}, "a message is there twice"
            assert acknowledged <= set(rows) <= sent
            assert not hub.registry.commits.unresolved()
            marked = {
                (stream.gateway, stream.address, sequence)
                for gateway in ("g1", "g2")
                for stream, coverage in hub.registry.commits.marks("default", gateway).landed.items()
                for first, last in coverage.spans
                for sequence in range(first, last + 1)
            }
            assert marked == {row[:3] for row in rows}, "the marks say what is in the lake, no more and no less"
        for batches, _ in script:
            assert hub.attempt([received(*batch) for batch in batches], None)
        assert hub.rows("telemetry", ["gateway", "address", "sequence", "body"]) == Counter(sent)
        hub.registry.close()


sent_singly = st.tuples(st.integers(0, 24), st.integers(1, 2), st.sampled_from([None, *FAILPOINTS]), st.integers(0, 1))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sent_singly, min_size=3, max_size=7))
def test_acknowledged_messages_are_in_the_lake_or_in_the_ledger(script: list[tuple[int, int, str | None, int]]) -> None:
    """With few holes allowed, the process dies between any two steps, also between ledger and telemetry."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(landing, "HOLES_MAX", 1)
        patch.setattr(marks, "HOLES_MAX", 1)
        hub = Hub(Path(directory))
        acknowledged: set[int] = set()
        for first, count, crash_at, steps_before in script:
            hub.steps_before = steps_before
            for step in (crash_at, None):
                if hub.attempt([received("g1", "a", first, count)], step):
                    acknowledged |= set(range(first, first + count))
                hub.steps_before = 0
                rows = hub.rows("telemetry", ["sequence"])
                assert set(rows.values()) <= {1}, "a message is there twice"
                landed = {row[0] for row in rows}
                ledger = hub.rows("ledger", ["first_sequence", "last_sequence", "reason"])
                lost = [set(range(low, high + 1)) for low, high, _ in ledger]
                assert {reason for _, _, reason in ledger} <= {"hole-closed"}
                explained = set().union(*lost)
                assert sum(map(len, lost)) == len(explained), "a message is explained twice"
                assert acknowledged <= landed | explained
                for coverage in hub.registry.commits.marks("default", "g1").landed.values():
                    marked = {n for low, high in coverage.spans for n in range(low, high + 1)}
                    assert landed <= marked <= landed | explained, "what counts as landed is there or explained"
                    assert all(n <= coverage.closed for n in marked - landed)
        hub.registry.close()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, *FAILPOINTS])), min_size=1, max_size=5))
def test_ledger_range_lands_once(script: list[tuple[int, str | None]]) -> None:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as directory:
        hub = Hub(Path(directory))
        sent = set()
        for first, crash_at in script:
            ranges = [LedgerRange("default", "g", EPOCH, "a", first, first + 2, 10, "expired", NOW_US)] * 2
            sent.add((first, first + 2, "expired"))
            if not hub.attempt(ranges, crash_at):
                assert hub.attempt(ranges, None)
            assert hub.rows("ledger", ["first_sequence", "last_sequence", "reason"]) == Counter(sent)
        hub.registry.close()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9))), st.integers(0, 40), st.integers(0, 9))
def test_coverage_is_a_set(added: list[tuple[int, int]], first: int, more: int) -> None:
    coverage, model = SequenceSet(), set()
    for start, length in added:
        coverage.add(start, start + length)
        model |= set(range(start, start + length + 1))
    assert {s for a, b in coverage.spans for s in range(a, b + 1)} == model
    assert all(a[1] + 1 < b[0] for a, b in zip(coverage.spans, coverage.spans[1:], strict=False))
    missing = [s for a, b in coverage.missing(first, first + more) for s in range(a, b + 1)]
    assert missing == [s for s in range(first, first + more + 1) if s not in model]
    assert coverage.mark == max(model, default=-1)


@given(st.lists(st.integers(0, 60), min_size=1), st.integers(0, 3))
def test_gaps_are_closed_from_the_lowest(points: list[int], holes_max: int) -> None:
    coverage = SequenceSet()
    for point in points:
        before = coverage.copy()
        before.add(point, point)
        closed = coverage.add(point, point, holes_max)
        assert before.holes == [*closed, *coverage.holes]
        assert len(coverage.holes) <= holes_max
    assert coverage.mark == max(points)
    assert not any(coverage.missing(point, point) for point in points)
