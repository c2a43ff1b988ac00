"""A table after many small commits: time to open it, and its number of files.

Commits are those of a hub with little traffic, which lands once a second: the landing's table, with compaction after
each.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder
from tests.support.processes import resident_mib

COMMITS: Final = 10_000
WARM_COMMITS: Final = 1_000
"""Commits before the first measurement of memory."""
COMMIT_ROWS: Final = 20
OPENS: Final = 15
OPEN_S_MAX: Final = 0.2
GROWTH_MIB_MAX: Final = 32.0
"""Most resident memory that commits after the first `WARM_COMMITS` may add to the writer."""
_START_US: Final = int(datetime(2026, 3, 14, tzinfo=UTC).timestamp()) * 1_000_000


def _rows(number: int) -> list[dict[str, Any]]:
    at = _START_US + number * 1_000_000
    usual = {"tenant": "default", "epoch": "e1", "address": "plant/load", "clock_quality": "good", "lane": "live"}
    return [
        usual
        | {"gateway": f"gw{each}", "device": f"dev{each}", "sequence": number, "event_time": at, "received_at": at}
        | {"body": b'{"temperature": %d.5}' % (number % 40)}
        for each in range(COMMIT_ROWS)
    ]


def _cpu_s(what: Callable[[], object]) -> float:
    """Return the processor time of a call, which other programs disturb less than elapsed time."""
    begin = time.process_time()
    what()
    return time.process_time() - begin


def _run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    from cloud.lake.delta import DeltaLake  # noqa: PLC0415 - other benchmarks need none of it
    from cloud.lake.rows import record_rows  # noqa: PLC0415
    from cloud.place.place import place_of  # noqa: PLC0415

    with scratch_folder() as folder:
        lake = DeltaLake(Path(folder))
        warm_mib, begin = 0.0, time.process_time()
        for number in range(COMMITS):
            lake.append("telemetry", record_rows("telemetry", _rows(number), _START_US + number * 1_000_000))
            lake.compact()
            if number == WARM_COMMITS:
                warm_mib = resident_mib(os.getpid())
        commit_ms = (time.process_time() - begin) / COMMITS * 1e3
        grown_mib = resident_mib(os.getpid()) - warm_mib
        place = place_of(Path(folder)).at("telemetry")
        open_s = statistics.median(_cpu_s(place.delta) for _ in range(OPENS))
        files, entries = len(place.delta().file_uris()), len(place.names("_delta_log"))
    say(f"  {files:,} data files, {entries:,} files in the log, {commit_ms:.1f} ms of processor time a commit")
    about = f"a table that has had {COMMITS:,} commits of {COMMIT_ROWS} rows"
    details = {"files": files, "log_files": entries, "commit_cpu_ms": commit_ms}
    return [
        Result("commits-open", f"{about}, opened", "CPU s", open_s, at_most(OPEN_S_MAX, open_s), details=details),
        Result(
            "commits-memory", f"{about}, memory of who commits: the last {COMMITS - WARM_COMMITS:,}", "MiB more",
            grown_mib, at_most(GROWTH_MIB_MAX, max(grown_mib, 0.0)),
        ),
    ]  # fmt: skip


BENCHMARK: Final = Benchmark("commits", "a table of 10 000 small commits: opened, and memory", 200, _run)
