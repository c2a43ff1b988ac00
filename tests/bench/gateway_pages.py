"""Pages of the list of gateways, in a registry of many: every filter and order, first and next pages.

A page has its rows, the position of the next one, and for a search the number of its gateways, as a hub answers it.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.gateways_http import read_query
from cloud.hub.registry.database import Database
from cloud.hub.registry.fleet_pages import SORTS, FleetFilter, FleetPlace, count_search, read_page
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import gateways, labels, problems, tenants
from cloud.hub.version_rank import rank_version
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder
from tests.support.postgres import Postgres, binaries

GATEWAYS: Final = 10_000
GATEWAYS_FULL: Final = 100_000
PAGE: Final = 50
PAGE_S_MAX: Final = 0.05
"""Longest page of 10 000 gateways at a hub, whatever it searches."""
TRIES: Final = 3
"""A page is read so often; its time is the median."""
AT_ONCE: Final = 2_000
NOW_US: Final = time.time_ns() // 1_000
MINUTE_US: Final = 60_000_000
ABOUT: Final = '{"status": {"version": "1.4.0", "about": "' + "x" * 700 + '"}}'
"""Observations of a gateway."""
TENANTS: Final = ("acme", "beta")
VERSIONS: Final = ("1.3.0", "1.4.0", "1.4.0", "1.5.0")
FILTERS: Final[tuple[Mapping[str, str], ...]] = (
    {},
    {"state": "danger"},
    {"state": "offline"},
    {"state": "behind"},
    {"state": "well"},
    {"connected": "true"},
    {"connected": "false"},
    {"q": "777"},
    {"q": "gateway"},
    {"q": "no such name"},
    {"selector": "half=yes"},
    {"selector": "site=s7"},
    {"selector": "site=s7,half=yes"},
    {"selector": "site!=s7"},
    {"selector": "site=nowhere"},
    {"selector": "one"},
    {"version": "1.5.0"},
    {"older_than": "1.4.0"},
    {"older_than": "9.0.0"},
    {"version": "7.7.7"},
    {"problem": "often"},
    {"problem": "seldom"},
    {"problem": "never"},
    {"severity": "error"},
    {"severity": "warning", "selector": "half=yes"},
    {"seen_before": "30d"},
    {"seen_before": "1h"},
    {"seen_after": "1h"},
    {"problem": "often", "older_than": "1.4.0", "selector": "half=yes", "connected": "false", "q": "7"},
)


class TimedPage(NamedTuple):
    """Page that was read."""

    seconds: float
    query: str
    page: str
    """First, next, or last one."""


def fill(database: Database, count: int) -> None:
    """Add gateways of two tenants in all conditions, with labels and problems."""
    database.transaction(lambda tx: tx.execute(tenants.insert(), [{"name": t, "created_at": 1} for t in TENANTS]))
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        database.transaction(partial(_add, numbers=numbers))
    database.transaction(lambda tx: tx.exec_driver_sql("ANALYZE") if tx.dialect.name == "postgresql" else None)


def _add(tx: sa.Connection, numbers: range) -> None:
    tx.execute(gateways.insert(), [_gateway(number) for number in numbers])
    tx.execute(labels.insert(), [row for number in numbers for row in _labels(number)])
    tx.execute(problems.insert(), [row for number in numbers for row in _problems(number)])


def _key(number: int) -> dict[str, Any]:
    # neighbours by number are far from each other by name
    return {"tenant": TENANTS[number % 5 == 0], "gateway": f"gateway-{number * 7919 % 1_000_003:07}"}


def _gateway(number: int) -> dict[str, Any]:
    key, connected = _key(number), number % 3 != 0
    seen_us = NOW_US - (number % 10_000) * 6 * MINUTE_US
    version = VERSIONS[number % len(VERSIONS)]
    return {
        "tenant": key["tenant"], "name": key["gateway"], "first_seen": 1, "last_seen": seen_us, "connected": connected,
        "remote": "192.0.2.1", "generation": 1, "landed": number, "writer": "a" * 32, "observed": ABOUT,
        "refusing": number % 100 == 1, "oldest_at": NOW_US - 60 * MINUTE_US if number % 7 == 0 else 1 << 62,
        "full_at": NOW_US + number * MINUTE_US, "waiting": number % 1_000, "judged_at": seen_us,
        "figures_at": seen_us, "version": version, "version_rank": rank_version(version),
    }  # fmt: skip


def _labels(number: int) -> Iterator[dict[str, Any]]:
    yield {**_key(number), "key": "site", "value": f"s{number % 50}"}
    if number % 2:
        yield {**_key(number), "key": "half", "value": "yes"}
    if number == 17:
        yield {**_key(number), "key": "one", "value": "1"}


def _problems(number: int) -> Iterator[dict[str, Any]]:
    of_gateway = {**_key(number), "hub": "", "what": "w", "next_step": "n", "since": NOW_US}
    if number % 2:
        yield {**of_gateway, "digest": "a", "code": "often", "severity": "warning"}
    if number % 50 == 0:
        yield {**of_gateway, "digest": "b", "code": "seldom", "severity": "error"}


def read_pages(database: Database) -> Iterator[TimedPage]:
    """Read the pages of every filter and order."""
    for query, sort, down, tenant in itertools.product(FILTERS, SORTS, ("", "-"), (None, "acme")):
        asked = read_query({**query, "sort": f"{down}{sort}"}, NOW_US)
        wanted = FleetFilter(
            tenant, NOW_US - 10 * MINUTE_US, asked.part, asked.state, asked.selector, asked.sort, asked.down,
            asked.connected, asked.traits,
        )  # fmt: skip
        words = f"{dict(query)} {down}{sort} of {tenant or 'all'}"
        after: FleetPlace | None = None
        for page in ("first", "next", "deep"):
            found, seconds = _timed(database, wanted, after)
            yield TimedPage(seconds, words, page)
            if len(found) <= PAGE:
                break
            after = found[PAGE - 1].place
            if page == "next":
                far = database.transaction(partial(read_page, wanted=wanted, never=(), after=after, limit=2_000))
                after = far[-1].place


def _timed(database: Database, wanted: FleetFilter, after: FleetPlace | None) -> tuple[Any, float]:
    """Read a page with its count, as a hub does."""
    read = partial(read_page, wanted=wanted, never=(), after=after, limit=PAGE + 1)
    times, found = list[float](), list[Any]()
    for _ in range(TRIES):
        began = time.perf_counter()
        found = database.transaction(read)
        if wanted.searches:
            database.transaction(partial(count_search, wanted=wanted))
        times.append(time.perf_counter() - began)
    return found, statistics.median(times)


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    count = GATEWAYS_FULL if settings.full else GATEWAYS
    results: list[Result] = []
    with ExitStack() as stack:
        urls = {"sqlite": sqlite_url(Path(stack.enter_context(scratch_folder())) / "registry.db")}
        if binaries() is not None:
            postgres = stack.enter_context(Postgres())
            urls["postgresql"] = sa.make_url(postgres.url(postgres.schema()))
        for kind, url in urls.items():
            with contextlib.closing(open_registry(url).database) as database:
                fill(database, count)
            with contextlib.closing(Database(url, reading=True)) as database:
                found = sorted(read_pages(database), reverse=True)
            for each in found[:10]:
                say(f"  {kind}, {count:,} gateways: {each.seconds * 1e3:.1f} ms, {each.page} page of {each.query}")
            longest, median = found[0].seconds * 1e3, statistics.median(each.seconds for each in found) * 1e3
            goal = at_most(PAGE_S_MAX * 1e3, longest, " ms") if count == GATEWAYS else None
            about = f"longest of {len(found)} pages of {PAGE} of {count:,} gateways in {kind}"
            results.append(Result(f"gateway-pages-{kind}", about, "ms", longest, goal, details={"median_ms": median}))
    return results


BENCHMARK: Final = Benchmark("gateway-pages", "pages of the list of gateways: each filter and order", 600, _run)
