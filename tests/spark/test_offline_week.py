"""Part of a large fleet was offline for a week and sends everything at once.

The windows are correct, and the jobs rewrite little else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.jobs import catalog, runner
from spark.lake import SparkLake
from tests.spark import lakes
from tests.spark.lakes import START, message
from tests.spark.truth import ROLLUPS, differences
from tests.support import delta_commits

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

GATEWAYS, OFFLINE = 1_000, 25
BEGIN = START.replace(minute=0)
EVERY, PAIR = timedelta(hours=4), timedelta(minutes=20)
"""Each gateway sends two messages, `PAIR` apart, and repeats this every `EVERY`."""
DAYS, PASSES = 8, 2
"""Days of traffic before the backlog, and the passes that processed it."""
LOST = BEGIN + EVERY + timedelta(minutes=18)
"""Time when the uplinks are cut: between two messages of one hour, within a day."""
FOUND = LOST + timedelta(days=7)
DRAIN_PASSES = 3
"""Passes that process the backlog, each gateway's oldest messages first."""
REWRITTEN_MAX = 3.0
"""Most bytes that those passes write, relative to the affected windows alone."""
VALUES = (
    "CREATE VIEW truth AS SELECT *, 't' AS metric, CAST(decode(body)::JSON->>'t' AS DOUBLE) AS value FROM telemetry"
)

Row = dict[str, Any]


def rows(gateways: Iterable[int], begin: datetime, end: datetime) -> Iterator[Row]:
    """Yield messages that gateways receive in that time; each gateway has its own second."""
    for number in gateways:
        first = BEGIN + timedelta(seconds=number)
        sequence = 2 * max(0, (begin - first) // EVERY)
        while (at := first + sequence // 2 * EVERY + sequence % 2 * PAIR) < end:
            value = (number * 31 + sequence * 17) % 1_000 / 8
            if at >= begin:
                yield message(sequence, at=at, gateway=f"gw{number:04}", body=b'{"t": %a}' % value)
            sequence += 1


def late(backlog: Iterable[Row]) -> list[Row]:
    """Return the backlog as it lands once the uplinks are back."""
    landed = FOUND + timedelta(minutes=10)
    return [row | {"ingested_at": landed, "ingest_date": landed.date(), "lane": "backlog"} for row in backlog]


def run(lake: SparkLake) -> delta_commits.Written:
    """Run a pass; return its writes to windows."""
    before = {name: delta_commits.version(Path(lake.path(name))) for name in ROLLUPS}
    steps = runner.run_pass(lake, catalog.select(["rollups", "hours"]), lambda _: None)
    assert [step.error for step in steps] == [None] * len(steps)
    total = delta_commits.Written()
    for name, version in before.items():
        wrote = delta_commits.written(Path(lake.path(name)), version)
        print(f"{name}: {wrote}")
        total = total.plus(wrote)
    return total


def test_their_week_is_in_the_windows_and_the_others_are_left_alone(
    lake: SparkLake, lake_of_the_offline: SparkLake
) -> None:
    """25 of 1 000 gateways were offline. Live messages land first; the backlog follows in its own lane."""
    offline = range(0, GATEWAYS, GATEWAYS // OFFLINE)
    online = sorted(set(range(GATEWAYS)) - set(offline))
    for number in range(PASSES):
        begin, end = (BEGIN + timedelta(days=DAYS / PASSES * each) for each in (number, number + 1))
        of_the_offline = [row for row in rows(offline, begin, end) if not LOST <= row["received_at"] < FOUND]
        lakes.write(lake.place, "telemetry", [*rows(online, begin, end), *of_the_offline])
        run(lake)
    backlog = late(rows(offline, LOST, FOUND))
    lakes.write(lake_of_the_offline.place, "telemetry", backlog)
    alone = run(lake_of_the_offline)
    wrote = delta_commits.Written()
    for part in range(DRAIN_PASSES):
        share = timedelta(days=7) / DRAIN_PASSES
        first, last = LOST + part * share, LOST + (part + 1) * share
        lakes.write(lake.place, "telemetry", [row for row in backlog if first <= row["received_at"] < last])
        wrote = wrote.plus(run(lake))
    assert differences(Path(lake.place.uri), ["telemetry"], VALUES, ROLLUPS) == {}
    ratio = wrote.size / alone.size
    print(f"{len(backlog)} messages: {wrote} for {alone}: {ratio:.2f} times")
    assert ratio <= REWRITTEN_MAX


@pytest.fixture
def lake_of_the_offline(lake: SparkLake) -> SparkLake:
    """Lake with only the backlog."""
    return SparkLake(lake.session, Path(lake.place.uri).with_name("offline"))
