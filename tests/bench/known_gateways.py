"""A registry of very many gateways: its size, a landing, a fold, a move from another hub, and a page of the list.

The rows are made in bulk, as hubs would have left them; what is measured is the registry of the product, without a lake
and without connections. A landing has `LANDED` gateways.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import psutil
import sqlalchemy as sa

from cloud.hub.groups import Key, Presence
from cloud.hub.observed import ObservedState
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import Directory
from cloud.hub.registry.fleet_pages import FleetFilter, read_page
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import gateways, marks, tenants
from cloud.lake.commits import GatewayStore
from cloud.lake.sequences import SequenceRange
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder
from tests.support.postgres import Postgres, binaries

GATEWAYS: Final = 100_000
GATEWAYS_FULL: Final = 1_000_000
ADDRESSES: Final = 2
"""Addresses of each gateway: each has a row of its marks."""
LANDED: Final = 2_000
LANDINGS: Final = 10
"""Landings that are folded together, in a minute."""
AT_ONCE: Final = 4_000
"""Gateways that are added in one transaction."""
FIRST: Final = 10_000_000
"""Number in the name of the first gateway."""
TENANT: Final = "default"
EPOCH: Final = "e" * 32
PER_BATCH: Final = 10
PAGE: Final = 50
PAGE_S_MAX: Final = 0.05
"""Longest time of a page at the hub."""
NOW_US: Final = time.time_ns() // 1_000
STATUS: Final = {"reported_at": NOW_US // 1_000, "version": "1.0.0", "backlog_oldest_at": None, "about": "x" * 700}


class RegistryFigures(NamedTuple):
    """Figures of one registry."""

    bytes_each: float
    """Bytes of the database for each gateway."""
    landing_s: float
    landing_cpu_s: float
    statements: int
    """Statements of a landing."""
    fold_s: float
    """Time to fold `LANDINGS` landings."""
    fold_cpu_s: float
    """Processor time of that, without the database server."""
    move_s: float
    """Time to take over `LANDED` gateways of another hub."""
    page_s: float
    kib_each: float
    """Memory of a gateway that is connected."""


def name_of(number: int) -> str:
    return f"gateway-{FIRST + number}"


def fill(database: Database, count: int) -> None:
    """Add gateways with their marks. The database makes the rows, as marks without a checksum, which are valid."""
    common = {"first_seen": NOW_US, "last_seen": NOW_US, "connected": False, "remote": "192.0.2.1", "generation": 1}
    common |= {"tenant": TENANT, "landed": ADDRESSES * PER_BATCH, "writer": "left"}
    common |= {"observed": msgspec.json.encode(ObservedState(STATUS, NOW_US)).decode()}
    landed = {"tenant": TENANT, "epoch": EPOCH, "mark": PER_BATCH - 1}
    landed |= {"spans": msgspec.msgpack.encode([(0, PER_BATCH - 1)])}
    database.transaction(lambda tx: tx.execute(tenants.insert(), [{"name": TENANT, "created_at": NOW_US}]))
    for first in range(0, count, AT_ONCE):
        rows = partial(add_rows, of=range(first, min(first + AT_ONCE, count)))
        database.transaction(partial(rows, table=gateways, named="name", values=common))
        for address in range(ADDRESSES):
            values = {**landed, "address": f"address/{address}"}
            database.transaction(partial(rows, table=marks, named="gateway", values=values))


def add_rows(tx: sa.Connection, table: sa.Table, named: str, of: range, values: Mapping[str, Any]) -> None:
    """Add a row of a table for each of some gateways."""
    numbers = sa.select(sa.literal(FIRST + of.start).label("number")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.number + 1).where(numbers.c.number < FIRST + of.stop - 1))
    name = sa.literal("gateway-") + sa.cast(numbers.c.number, sa.String)
    columns = [sa.literal(value, table.c[column].type) for column, value in values.items()]
    tx.execute(table.insert().from_select([named, *values], sa.select(name, *columns)))


def ranges_of(names: Sequence[str], batch: int) -> Iterator[SequenceRange]:
    """Yield the ranges of one batch of each gateway."""
    first = batch * PER_BATCH
    for name in names:
        for address in range(ADDRESSES):
            yield SequenceRange(TENANT, name, EPOCH, f"address/{address}", first, first + PER_BATCH - 1)


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Collect statements."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


def connect(directory: Directory, names: Sequence[str]) -> None:
    """Record that gateways have connected to a hub."""
    keys: list[Key] = [(TENANT, name) for name in names]
    directory.presence({key: Presence("192.0.2.1", connected=True, at_us=NOW_US, connects=1) for key in keys})


def land(registry: Registry, names: Sequence[str], batch: int) -> None:
    """Land one batch of each gateway, as far as the registry is concerned."""
    reached = {GatewayStore(TENANT, name, EPOCH): {1: batch} for name in names}
    assert not registry.commits.take_over((TENANT, name) for name in names)
    commit = registry.commits.prepare("telemetry", list(ranges_of(names, batch)), len(names) * PER_BATCH, reached)
    registry.commits.confirm(commit, commit.commit)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(url: sa.URL, count: int) -> RegistryFigures:
    """Fill a registry, and measure it. It has `LANDED` gateways at least that are not in a landing."""
    with contextlib.closing(Registry(url, "first")) as first, contextlib.closing(Database(url)) as database:
        empty = first.size_bytes()
        fill(database, count)
        bytes_each = (first.size_bytes() - empty) / count
        database.transaction(lambda tx: tx.exec_driver_sql("ANALYZE"))
        names = [name_of(number) for number in range(0, count, count // LANDED)][:LANDED]
        connect(first.directory, names)
        land(first, names, 1)
        landing_s, cpu_s = [], []
        for batch in range(2, LANDINGS + 2):
            cpu = time.process_time()
            with counted_statements() as statements:
                landing_s.append(seconds_of(partial(land, first, names, batch)))
            cpu_s.append(time.process_time() - cpu)
        cpu = time.process_time()
        fold_s = seconds_of(first.commits.fold)
        fold_cpu_s = time.process_time() - cpu
        wanted = FleetFilter(None, NOW_US)
        page = partial(read_page, wanted=wanted, never=(), after=None, limit=PAGE)
        page_s = statistics.median(seconds_of(lambda: database.transaction(page)) for _ in range(5))
        with contextlib.closing(Registry(url, "second")) as second:
            connect(second.directory, names)
            move_s = seconds_of(partial(land, second, names, LANDINGS + 2))
        others = [name_of(number) for number in range(count) if number % (count // LANDED)]
        kib_each = memory_of(first, others[: 10 * LANDED])
    return RegistryFigures(
        bytes_each, statistics.median(landing_s), statistics.median(cpu_s), len(statements), fold_s,
        fold_cpu_s, move_s, page_s, kib_each,
    )  # fmt: skip


def memory_of(registry: Registry, names: Sequence[str]) -> float:
    """Return the memory in KiB that the registry's part of a hub takes for each connected gateway."""
    process = psutil.Process()
    before = process.memory_info().rss
    for start in range(0, len(names), LANDED):
        part = names[start : start + LANDED]
        connect(registry.directory, part)
        registry.commits.take_over((TENANT, name) for name in part)
    return float(process.memory_info().rss - before) / len(names) / 1024


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    count = GATEWAYS_FULL if settings.full else GATEWAYS
    results: list[Result] = []
    with ExitStack() as stack:
        urls = {"sqlite": sqlite_url(Path(stack.enter_context(scratch_folder())) / "registry.db")}
        if binaries() is not None:
            postgres = stack.enter_context(Postgres())
            urls["postgresql"] = sa.make_url(postgres.url(postgres.schema()))
        for kind, url in urls.items():
            found = measure(url, count)
            say(f"  registry: {kind}, {count:,} gateways: {found}")
            details = found._asdict()
            goal = at_most(PAGE_S_MAX * 1e3, found.page_s * 1e3, " ms")
            about = f"a page of {PAGE} of {count:,} gateways in {kind}"
            results.append(Result(f"registry-{kind}-page", about, "ms", found.page_s * 1e3, goal, details=details))
    return results


BENCHMARK: Final = Benchmark("registry", "a registry of 100 000 gateways, or a million: landing, fold, page", 900, _run)
