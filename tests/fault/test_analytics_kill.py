"""SIGKILL of a pass, driver and JVM, during the writes of each job: no row is lost or duplicated in any table.

Each kill has a place: a job and one of its tables, with a new data file or a new commit at the time of the signal; or a
job and one of its queries, with a new start or a new end of a batch in its checkpoint. The test goes through all places
job by job, then again. Landed messages are processed up to the place of the kill, so that a pass has little else to do.
Messages land when a job has processed everything, and now and then during its work; some of them are late or
unreadable. The kills are split into parts, with a lake each, as passes become slower with longer logs. `WAYPOST_SEED=n`
makes the same choices again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest

from spark import java
from spark.connector.jar_set import DELTA
from spark.connector.repository import ConnectorMissing
from spark.jobs import catalog
from spark.jobs.stream import StreamStep
from tests.spark import lakes
from tests.spark.lakes import START, message
from tests.spark.truth import ROLLUPS, Truth, differences
from tests.support.delta_commits import version
from tests.support.seeds import chosen_seed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(7_200)]

ROOT = Path(__file__).resolve().parents[2]
SEED = 20_261_123
PARTS = 4
KILLS = 25
"""Kills in each part: 100 in all."""
WRITTEN: Final = {
    "readings": ("reject", "readings"),
    "rollups": ("rollup_1m",),
    "messages": ("gateway_freshness", "delivery_slo", "throughput", "outages", "landed_ranges"),
    "hours": ("rollup_1h", "rollup_1d"),
    "anomalies": ("detector_states",),
    "gaps": (
        "given_up_ranges",
        "gateway_backlog",
        "completeness_hourly",
        "settled_ranges",
        "open_statements",
        "gaps",
        "completeness",
    ),
    "health": ("device_days", "device_health"),
}
"""Tables that each pass of a job writes."""
QUERIES: Final = {job.name: [step.name for step in job.steps if isinstance(step, StreamStep)] for job in catalog.JOBS}
"""Streaming queries of each job; each pass runs a batch of each."""
JITTER_S = 0.05
"""Maximum delay after the moment."""
PASS_S_MAX = 900.0
TRIES_MAX = 3
"""Average limit of passes for each kill: some end before it."""
LANDS_AMID = 0.2
"""Share of kills before which messages land, whether or not others are pending."""

Row = dict[str, Any]


Moment = Literal["file", "commit", "offsets", "commits"]
"""New item at the kill: a table's data file or commit, or the start or end of a batch in a query's checkpoint."""


class Place(NamedTuple):
    """Place at which a pass is killed. `written` is a table or a query of the job."""

    job: str
    written: str
    moment: Moment


@dataclass(slots=True)
class Campaign:
    """Lake with passes that are killed. `killed` counts the kills by place; a pass may end before its kill."""

    folder: Path
    chance: random.Random
    killed: Counter[Place] = field(default_factory=Counter)
    landings: int = 0
    passes: int = 0

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def kill(self, place: Place) -> bool:
        """Start a pass of one job, and kill it during its writes. Return False when it ended before."""
        reached = _reached(self.lake, place)
        late_s = self.chance.random() * JITTER_S
        process = self._pass(("--job", place.job))
        deadline = time.monotonic() + PASS_S_MAX
        while process.poll() is None and time.monotonic() < deadline:
            if reached():
                time.sleep(late_s)
                break
            time.sleep(0.005)
        ended = process.poll()
        assert ended in (None, 0), (self.folder / "pass.txt").read_text()
        with contextlib.suppress(ProcessLookupError):  # it ended before, and left nothing
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if ended is None:
            self.killed[place] += 1
        return ended is None

    def finish(self) -> None:
        """Run a pass of every job to its end."""
        process = self._pass(())
        assert process.wait(PASS_S_MAX) == 0, (self.folder / "pass.txt").read_text()

    def land(self) -> None:
        number = self.landings
        self.landings += 1
        now = START + timedelta(minutes=7 * number)
        rows = list(self._rows(number, now))
        lakes.write(self.lake, "telemetry", rows)
        lakes.write(self.lake, "ledger", [lakes.ledger(1_000 + number, 1_000 + number, gateway="gw0", epoch="e1")])
        lakes.write(self.lake, "manifests", [_statement(rows, now)])
        waiting = number + 1  # the gap before the ledger's sequences is waiting, not missing
        lakes.write(self.lake, "gateway_status", [lakes.status(now, waiting, gateway="gw0")])

    def _rows(self, number: int, now: Any) -> Iterator[Row]:
        """Yield 60 messages of three gateways that continue the sequences of the last landing."""
        for gateway in range(3):
            for sequence in range(number * 20, number * 20 + 20):
                values = {"t": self.chance.randrange(1_000) / 8, "h": sequence % 7}
                body = b"unreadable" if sequence % 20 == gateway else json.dumps(values).encode()
                late = timedelta(hours=self.chance.randrange(100)) if sequence % 5 == 0 else timedelta()
                lane = "backlog" if late else "live"
                at = now + timedelta(seconds=sequence % 20) - late
                landed = now + timedelta(seconds=30)
                yield message(sequence, at=at, gateway=f"gw{gateway}", body=body, lane=lane, ingested_at=landed)

    def _pass(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        self.passes += 1
        command = [sys.executable, "-m", "spark.cli", "run", "--lake", str(self.lake), *options]
        with (self.folder / "pass.txt").open("wb") as said:
            return subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)


def _statement(rows: list[Row], now: Any) -> Row:
    sequences = [row["sequence"] for row in rows if row["gateway"] == "gw0"]
    return lakes.manifest(min(sequences), max(sequences), gateway="gw0", hour=now, until=now, ingested_at=now)


def _reached(lake: Path, place: Place) -> Callable[[], bool]:
    """Return a function that reports whether the place has something new from now on."""
    table = lake / place.written
    if place.moment == "commit":
        entry = table / "_delta_log" / f"{version(table) + 1:020}.json"
        return entry.exists
    before = _files(lake, place)
    return lambda: bool(_files(lake, place) - before)


def _files(lake: Path, place: Place) -> set[Path]:
    """Return the data files of the table, or the numbered files of the query's checkpoint."""
    if place.moment == "file":
        return {path for path in (lake / place.written).rglob("*.parquet") if "_delta_log" not in path.parts}
    return set((lake / "_checkpoints" / place.written).glob(f"*/{place.moment}/[0-9]*"))


# --- expected results
# ---------------------------------------------------------------------------------------------------

_LANDED = ("telemetry", "ledger", "manifests")
_VIEWS = """
    CREATE VIEW messages AS SELECT *, body = 'unreadable'::BLOB AS unreadable FROM telemetry;
    CREATE VIEW read AS SELECT * FROM messages WHERE NOT unreadable;
    CREATE VIEW truth AS
        SELECT gateway, sequence, event_time, metric, CAST(decode(body)::JSON->>metric AS DOUBLE) AS value
        FROM read, (VALUES ('t'), ('h')) AS metrics(metric)"""
TRUTHS: Final = {
    **ROLLUPS,
    "readings": Truth(
        "SELECT gateway, sequence, metric, value FROM truth", "SELECT gateway, sequence, metric, value FROM readings"
    ),
    "reject": Truth("SELECT gateway, sequence FROM messages WHERE unreadable", "SELECT gateway, sequence FROM reject"),
    "gateway_freshness": Truth(
        "SELECT gateway, count(*), count_if(lane = 'backlog'), max(event_time) FROM messages GROUP BY ALL",
        "SELECT gateway, rows, late_rows, last_event_time FROM gateway_freshness WHERE device IS NULL",
    ),
    "throughput": Truth(
        "SELECT gateway, lane, count(*), count(*) FROM messages GROUP BY ALL",
        "SELECT gateway, lane, sum(received), sum(ingested) FROM throughput GROUP BY ALL",
    ),
    "outages": Truth(
        "SELECT gateway, count(*) FROM messages WHERE lane = 'backlog' GROUP BY ALL",
        "SELECT gateway, sum(messages) FROM outages GROUP BY ALL",
    ),
    "delivery_slo": Truth(
        "SELECT gateway, date_trunc('hour', received_at), count(*) FROM messages GROUP BY ALL",
        "SELECT gateway, window_start, messages FROM delivery_slo WHERE width_s = 3600",
    ),
    "device_days": Truth(
        "SELECT gateway, CAST(received_at AS DATE), count(*) FROM read GROUP BY ALL",
        "SELECT gateway, event_date, messages FROM device_days",
    ),
    "landed_ranges": Truth(
        "SELECT gateway, min(sequence), max(sequence), count(*) FROM messages GROUP BY ALL",
        "SELECT gateway, first_sequence, last_sequence, rows FROM landed_ranges",
    ),
    "given_up_ranges": Truth(
        "SELECT min(first_sequence), max(last_sequence) FROM ledger",
        "SELECT first_sequence, last_sequence FROM given_up_ranges",
    ),
    "completeness": Truth(
        "SELECT gateway, count(*), 0, 0 FROM messages GROUP BY ALL",
        "SELECT gateway, rows, duplicates, unexplained FROM completeness",
    ),
    "completeness_hourly": Truth(
        "SELECT gateway, first_sequence, last_sequence, count FROM manifests",
        "SELECT gateway, first_sequence, last_sequence, landed FROM completeness_hourly WHERE hour IS NOT NULL",
    ),
    "detector_states": Truth(
        "SELECT gateway, metric, count(*) FROM truth GROUP BY ALL",
        "SELECT gateway, metric, judged + late FROM detector_states",
    ),
}


def places() -> list[Place]:
    """Return all places, each job's after those of its input jobs: a job that runs lets these run."""
    found = []
    for job, tables in WRITTEN.items():
        moments: tuple[Moment, ...] = ("file", "commit")
        found += [Place(job, table, moment) for table in tables for moment in moments]
        moments = ("offsets", "commits")
        found += [Place(job, query, moment) for query in QUERIES[job] for moment in moments]
    return found


def campaign(folder: Path, kills: Sequence[Place], seed: int) -> Campaign:
    """Kill a pass at each of these places."""
    made = Campaign(folder, random.Random(seed))
    made.land()
    for place in kills:
        if made.chance.random() < LANDS_AMID:
            made.land()
        while not made.kill(place):
            assert made.passes < TRIES_MAX * len(kills), f"no pass was there to be killed at {place}"
            made.land()
        print(f"{made.killed.total()} kills in {made.passes} passes: {place}", flush=True)
    made.finish()
    return made


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_passes_lose_and_duplicate_no_row(tmp_path: Path, part: int) -> None:
    try:
        DELTA.paths()
        java.find()
    except (ConnectorMissing, java.JavaMissing) as missing:
        pytest.skip(str(missing))
    seed = chosen_seed(SEED)
    kills = itertools.islice(itertools.cycle(places()), part * KILLS, (part + 1) * KILLS)
    done = campaign(tmp_path, tuple(kills), seed + part)
    assert differences(done.lake, _LANDED, _VIEWS, TRUTHS) == {}
