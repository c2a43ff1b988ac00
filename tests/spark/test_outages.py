"""The job `outages` equals plain Python on waiting times of the backlog lane, in one pass and in several."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark import schemas
from spark.jobs import runner
from spark.jobs.messages import JOB
from spark.lake import SparkLake
from spark.sink import Sink
from spark.transforms.outages import PAUSE_SECONDS, outages
from tests.spark.conftest import Make
from tests.spark.lakes import START, message
from tests.spark.test_jobs import land, run, table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = ("gateway", "began", "until", "drain_began", "drained", "messages", "lag_max_s")


def waited(received: float, landed: float, gateway: str = "gw1", **override: Any) -> dict[str, Any]:
    """Build a message of the backlog lane; times are seconds after START."""
    at, landed_at = START + timedelta(seconds=received), START + timedelta(seconds=landed)
    return message(int(received), at=at, ingested_at=landed_at, gateway=gateway, lane="backlog") | override


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute table `outages` from messages of the backlog lane with correct clocks."""
    found: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: (row["gateway"], row["received_at"])):
        received, landed, pause = row["received_at"], row["ingested_at"], timedelta(seconds=PAUSE_SECONDS)
        lag = (landed - received).total_seconds()
        last = found[-1] if found and found[-1][0] == row["gateway"] else None
        if last is None or received > max(last[2], last[4]) + pause:
            found.append([row["gateway"], received, received, landed, landed, 1, lag])
        else:
            ends = max(last[2], received), min(last[3], landed), max(last[4], landed)
            last[2:] = [*ends, last[5] + 1, max(last[6], lag)]
    return sorted((tuple(each) for each in found), key=repr)


def test_an_outage_lasts_until_all_has_landed(frame: Make) -> None:
    landed = START + timedelta(seconds=40)
    of: dict[str, list[tuple[float, float]]] = {
        "sends once in a while": [(0, 600), (300, 601), (599, 602)],
        "is cut off again while it drains": [(0, 10), (1, 30), (20, 40)],
        "comes back in time": [(0, 5), (5 + PAUSE_SECONDS, 70)],
        "comes back too late": [(0, 5), (5.5 + PAUSE_SECONDS, 70)],
        "has a clock ahead": [(10, 5), (12, 6)],
    }
    rows = [waited(*pair, name) for name, pairs in of.items() for pair in pairs]
    wrong = waited(0, 40, "has a clock at 1970", received_at=datetime(1970, 1, 1, tzinfo=UTC))
    found = outages(frame("telemetry", *rows, wrong, message(0, gateway="live")))
    assert found.schema.names == schemas.OUTAGES.columns.names
    times: dict[str, list[tuple[Any, ...]]] = {}
    for row in sorted(found.collect(), key=lambda row: row["began"]):
        ends = (row[name].astimezone(UTC) - START for name in COLUMNS[1:5])
        stretch = (*(end.total_seconds() for end in ends), row["messages"], row["lag_max_s"])
        times.setdefault(row["gateway"], []).append(stretch)
    assert times == {
        "sends once in a while": [(0, 599, 600, 602, 3, 600)],
        "is cut off again while it drains": [(0, 20, 10, 40, 3, 29)],
        "comes back in time": [(0, 65, 5, 70, 2, 5)],
        "comes back too late": [(0, 0, 5, 5, 1, 5), (65.5, 65.5, 70, 70, 1, 4.5)],
        "has a clock ahead": [(10, 12, 5, 6, 2, 0)],
        "has a clock at 1970": [((landed - START).total_seconds(),) * 4 + (1, None)],
    }


@pytest.mark.slow
def test_several_passes_equal_one_whatever_dies_between(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(8)
    rows = [
        waited(at, at + source.choice((0.5, 5, 90)), f"gw{source.randrange(3)}")
        for at in (source.randrange(4_000) for _ in range(120))
    ]
    rows += [waited(10_000, 10_001), waited(10_300, 10_301)]
    land(lake, *rows[80:], message(0))
    overwrite = Sink.overwrite

    def dies_after(self: Sink, name: str, *rest: Any, **named: Any) -> bool:
        done = overwrite(self, name, *rest, **named)
        if name == "outages":
            raise RuntimeError("power cut")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "overwrite", dies_after)
        (step,) = runner.run_pass(lake, [JOB], lambda _: None)
        assert "power cut" in (step.error or "")
    assert table(lake, "outages", *COLUMNS) == plain(rows[80:])
    rows.append(waited(10_000, 10_300))  # merges the last two outages
    land(lake, *rows[:80], rows[-1])
    assert run(lake, "messages")["messages"].rows_in == len(rows) + 1
    found = table(lake, "outages", *COLUMNS)
    assert found == plain(rows)
    assert run(lake, "messages")["messages"].rows_out == 0
    of_all = [(row["gateway"], row["messages"]) for row in outages(lake.read("telemetry")).collect()]
    assert sorted(of_all) == sorted((row[0], row[5]) for row in found)
