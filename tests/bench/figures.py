"""The store without a broker: reproduces the figures in its README.

Everything runs on one thread in addition to the store's own two, as in the gateway, in a folder under ``build``.
"""

from __future__ import annotations

import queue
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bridge.message import Run
from edge.broker.store.contract import Store
from edge.broker.store.limits import KIB, MIB, StoreLimits
from edge.broker.store.records import Committed
from edge.broker.store.sqlite import open_store
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result
from tests.bench.scratch import scratch_folder
from tests.support.memory_store import MemoryStore

BODY: Final = bytes(100)
ADDRESSES: Final = 50
READ_BYTES: Final = 512 * KIB
PAGES: Final = (1024, 2048, 4096, 8192, 16384)
CHECKPOINTS_MIB: Final = (1, 4, 16, 64)
INTERVALS_S: Final = (0.005, 0.001, 0.0002)


class Shape(NamedTuple):
    """Shape of a group: `runs` of `messages` each."""

    runs: int
    messages: int

    @property
    def size(self) -> int:
        return self.runs * self.messages


class Bench:
    """Store with its callbacks on this thread, one commit at a time."""

    def __init__(self, store: Store, posted: queue.SimpleQueue[Callable[[], object]]) -> None:
        self.store = store
        self._posted = posted
        self.log = store.logs.open("bench")
        self.cursor = store.cursors.open("consumer", self.log, 0)
        self.commit()

    def commit(self) -> float:
        """Commit the pending group; return the seconds from sealing to the callback."""
        begin = time.perf_counter()
        if self.store.commits.flush():
            self._posted.get(timeout=60)()
        return time.perf_counter() - begin

    def append(self, shape: Shape, number: int) -> None:
        for i in range(shape.runs):
            which = (number * shape.runs + i) % ADDRESSES
            bodies = [BODY] * shape.messages
            self.store.logs.append(self.log, Run(f"load/{which}", f"device-{which}", 1, b"", bodies, 1))

    def follow(self) -> None:
        """Attach a consumer that acknowledges everything as soon as it is committed."""

        def committed(commit: Committed) -> None:
            if commit.appended:
                first, last = commit.appended[0][1], commit.appended[-1][1]
                self.store.cursors.acknowledge(self.cursor, first.position, last.position + len(last.run.bodies) - 1)

        self.store.commits.listeners.append(committed)

    def read(self, position: int) -> tuple[int, int]:
        """Read from a position; return the messages and the next position."""
        found: list[tuple[int, int]] = []

        def done(runs: object) -> None:
            assert isinstance(runs, list | tuple)
            end = runs[-1].position + len(runs[-1].run.bodies) if runs else position
            found.append((sum(len(each.run.bodies) for each in runs), end))

        self.store.logs.read(self.log, position, READ_BYTES, done)
        while not found:
            self._posted.get(timeout=60)()
        return found[0]


@contextmanager
def sqlite_bench(limits: StoreLimits | None = None) -> Iterator[Bench]:
    with scratch_folder() as folder:
        posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        store = open_store(Path(folder), post=posted.put, limits=limits)
        try:
            yield Bench(store, posted)
        finally:
            store.close()


class Taken(NamedTuple):
    """Costs of a series of commits."""

    commits_per_s: float
    messages_per_s: float
    cpu_us: float
    """Processor time of all threads, for a message."""
    loop_cpu_us: float
    """Processor time of the appending thread."""
    p50_ms: float
    p99_ms: float


def series(bench: Bench, shape: Shape, groups: int) -> Taken:
    """Measure consecutive commits; each one is gathered after the previous one has ended."""
    begin, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
    latencies = []
    for number in range(groups):
        bench.append(shape, number)
        latencies.append(bench.commit())
    seconds = time.perf_counter() - begin
    messages = groups * shape.size
    cuts = statistics.quantiles(latencies, n=100)
    return Taken(
        groups / seconds, messages / seconds, (time.process_time() - cpu) / messages * 1e6,
        (time.thread_time() - loop) / messages * 1e6, cuts[49] * 1e3, cuts[98] * 1e3,
    )  # fmt: skip


def commits() -> Iterator[Result]:
    """Measure commits a second, alone and in groups."""
    shapes = (
        ("store-commits", "commits of 1 message, one after the other", Shape(1, 1), 2_000),
        ("store-groups", "groups of 1 000 messages in 50 runs, a consumer following", Shape(50, 20), 500),
        ("store-runs", "groups of 1 000 runs of 1 message, a consumer following", Shape(1_000, 1), 200),
    )
    for name, about, shape, groups in shapes:
        with sqlite_bench() as bench:
            bench.follow()
            taken = series(bench, shape, groups)
        say(
            f"  {about}: {taken.commits_per_s:,.0f} commits/s, {taken.messages_per_s:,.0f} msg/s, "
            f"CPU {taken.cpu_us:.2f} us a message (loop {taken.loop_cpu_us:.2f}), "
            f"p50 {taken.p50_ms:.2f}, p99 {taken.p99_ms:.2f} ms"
        )
        yield Result(name, about, "msg/s", taken.messages_per_s, details=taken._asdict())


def in_memory() -> Iterator[Result]:
    """Measure a commit without a medium."""
    posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    bench = Bench(MemoryStore(post=posted.put), posted)
    bench.follow()
    taken = series(bench, Shape(1, 1), 20_000)
    bench.store.close()
    yield Result("store-memory", "a commit of 1 message without a medium", "us", taken.p50_ms * 1e3)


def backlog(messages: int = 2_000_000) -> Iterator[Result]:
    """Measure appending to a backlog, opening it, and reading it from its start."""
    shape = Shape(50, 20)
    with scratch_folder() as folder:
        posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        bench = Bench(open_store(Path(folder), post=posted.put), posted)
        fifths = [series(bench, shape, messages // shape.size // 5).messages_per_s for _ in range(5)]
        yield Result("store-append", "append by fifths of 2 M messages: slowest to first", "x", min(fifths) / fifths[0],
                     details={"per_s": fifths})  # fmt: skip
        bench.store.close()
        begin = time.perf_counter()
        bench = Bench(open_store(Path(folder), post=posted.put), posted)
        bench.read(0)
        yield Result(
            "store-open", "open 2 M messages, to the first one read", "ms", (time.perf_counter() - begin) * 1e3
        )
        rates, position, cpu = [], 0, time.process_time()
        for fifth in range(1, 6):
            begin, first = time.perf_counter(), position
            while position < messages * fifth // 5:
                _, position = bench.read(position)
            rates.append((position - first) / (time.perf_counter() - begin))
        cpu_us = (time.process_time() - cpu) / messages * 1e6
        yield Result("store-read", "read from the start of a backlog", "msg/s", statistics.median(rates),
                     details={"per_s": rates, "cpu_us": cpu_us})  # fmt: skip
        bench.store.close()


def rows(messages: int = 200_000) -> Iterator[Result]:
    """Measure the simple design with a row for each message (decision 0001)."""
    with scratch_folder() as folder:
        connection = sqlite3.connect(Path(folder) / "rows.sqlite")
        connection.execute(
            "CREATE TABLE message (id INTEGER PRIMARY KEY, address, device, received_at, properties, body)"
        )
        row = ("load/1", "device-1", 1, b"", BODY)
        connection.executemany(
            "INSERT INTO message (address, device, received_at, properties, body) VALUES (?, ?, ?, ?, ?)",
            (row for _ in range(messages)),
        )
        connection.commit()
        begin = time.perf_counter()
        last, query = 0, "SELECT * FROM message WHERE id > ? ORDER BY id LIMIT 1000"
        while found := connection.execute(query, (last,)).fetchall():
            runs = [Run(each[1], each[2], each[3], each[4], [each[5]], 1) for each in found]
            last += len(runs)
        seconds = time.perf_counter() - begin
        connection.close()
    yield Result("store-read-rows", "the same from a table with a row a message", "msg/s", messages / seconds)


def after_crash() -> Iterator[Result]:
    """Measure opening after a crash, with nearly the largest uncounted part."""
    shape = Shape(50, 20)
    with scratch_folder() as folder:
        posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        bench = Bench(open_store(Path(folder) / "a", post=posted.put), posted)
        for number in range(1_024 + 60):  # counters are written with every 64th commit
            bench.append(shape, number)
            bench.commit()
        copied = Path(folder) / "b"
        copied.mkdir()
        for file in (Path(folder) / "a").glob("store.sqlite*"):
            (copied / file.name).write_bytes(file.read_bytes())
        begin = time.perf_counter()
        crashed = open_store(copied, post=posted.put)
        opened_ms = (time.perf_counter() - begin) * 1e3
        crashed.close()
        bench.store.close()
    yield Result("store-open-crash", "open 1 M messages after a crash, about 6 MB of them not counted", "ms", opened_ms)


def deleting() -> Iterator[Result]:
    """Measure the largest deletion of one commit, with one message in each segment."""
    limits = StoreLimits()
    with sqlite_bench() as bench:
        series(bench, Shape(1, 1), 3 * limits.reclaim_rows_max)
        last = bench.store.logs.bounds(bench.log)[1] - 1
        bench.store.cursors.acknowledge(bench.cursor, 0, last)
        time.sleep(limits.moves_delay_s)
        times = []
        while bench.store.logs.bounds(bench.log)[0] <= last:
            times.append(bench.commit() * 1e3)
    yield Result("store-delete", f"a commit that deletes {limits.reclaim_rows_max} segments of one message", "ms",
                 max(times), details={"ms": times})  # fmt: skip


def busy_loop(seconds: float = 1.5) -> Iterator[Result]:
    """Measure commits while the loop's thread is always busy, by Python's switch interval."""
    usual = sys.getswitchinterval()
    try:
        for interval in INTERVALS_S:
            sys.setswitchinterval(interval)
            with sqlite_bench() as bench:
                latencies = list(_spinning(bench, seconds))
            yield Result(
                f"store-busy-{interval * 1e3:g}ms", f"commits beside a busy thread: p50, switch {interval:g} s",
                "ms", statistics.median(latencies) * 1e3,
            )  # fmt: skip
    finally:
        sys.setswitchinterval(usual)


def _spinning(bench: Bench, seconds: float) -> Iterator[float]:
    """Yield latencies of commits while this thread computes."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        bench.append(Shape(1, 20), 0)
        begin = time.perf_counter()
        bench.store.commits.flush()
        while bench._posted.empty():
            sum(range(200))
        bench._posted.get()()
        yield time.perf_counter() - begin


def settings_table() -> Iterator[Result]:
    """Measure bytes written by this process per byte of body, by page size and by checkpoint."""
    tried = [("page", size, StoreLimits(page_bytes=size)) for size in PAGES]
    tried += [("checkpoint", size, StoreLimits(checkpoint_bytes=size * MIB)) for size in CHECKPOINTS_MIB]
    for what, size, limits in tried:
        found = {}
        for groups, shape in ((3_000, Shape(1, 1)), (1_000, Shape(50, 20))):
            before = _written()
            with sqlite_bench(limits) as bench:
                bench.follow()
                series(bench, shape, groups)
            found[shape.size] = (_written() - before) / (groups * shape.size * len(BODY))
        unit = "B" if what == "page" else "MiB"
        say(
            f"  {what} {size} {unit}: {found[1]:.1f} bytes a byte in commits of 1, {found[1_000]:.2f} in groups of 1000"
        )
        yield Result(
            f"store-{what}-{size}", f"bytes written per byte of body, {what} of {size} {unit}, groups of 1 000",
            "bytes/byte", found[1_000], details={"commits_of_1": found[1], "groups_of_1000": found[1_000]},
        )  # fmt: skip


def _written() -> int:
    """Return the bytes that this process has written by the kernel (proc(5): write_bytes)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["write_bytes"])


def run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    results: list[Result] = []
    for part in (commits, in_memory, backlog, rows, after_crash, deleting, busy_loop, settings_table):
        for result in part():
            results.append(result)
            say(f"  {result.about}: {result.value:,.2f} {result.unit}")
    return results


BENCHMARK = Benchmark("store", "the store by itself: every figure of its README", 60, run)
