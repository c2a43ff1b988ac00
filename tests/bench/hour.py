"""Time for a single look: first pass of every job over an hour of the demo's traffic, and the report.

Both are measured from the start of their process. The devices are like the demo's: two gateways with four devices each
that send 25 documents a second. A document has the device's name, a number, a time and three or four values; one
gateway's uplink is down for a third of the hour. The lake has the files of a hub with compaction. At the end the rows
of the passes are counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.bench import history
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder

GATEWAYS: Final = 2
KINDS: Final = {
    "cpu": ("cpu_percent", "core_0_percent", "core_1_percent"),
    "memory": ("memory_percent", "used_bytes", "available_bytes", "cached_bytes"),
    "disk": ("read_bytes_per_s", "write_bytes_per_s", "writes_per_s", "disk_percent"),
    "network": ("sent_bytes_per_s", "received_bytes_per_s", "sent_packets_per_s", "received_packets_per_s"),
}
"""Metrics of each of a gateway's devices."""
NUMBERS: Final = ("seq", "at")
"""Numbers of a document in addition to the metrics; the device's name is a text."""
HERTZ: Final = 25
SECONDS: Final = 3_600
CUT: Final = (1_200.0, 2_400.0)
"""Seconds of the outage of the first gateway's uplink."""
FILES: Final = 16
START: Final = datetime(2026, 3, 14, 9, tzinfo=UTC)
PASS_S_MAX: Final = 25.0
REPORT_S_MAX: Final = 20.0
_S_US: Final = 1_000_000


class Written(NamedTuple):
    """Readings in a lake, and the numeric ones of them."""

    readings: int
    numbers: int


def write(lake: Path) -> Written:
    """Write the lake; return its counts."""
    devices = [(gateway, kind) for gateway in range(GATEWAYS) for kind in KINDS]
    randoms = np.random.default_rng(1)
    for steps in np.array_split(np.arange(SECONDS * HERTZ), FILES):
        history.append(lake, "telemetry", len(steps) * len(devices), _columns(steps, devices, randoms))
    messages = SECONDS * HERTZ * len(devices)
    values = SECONDS * HERTZ * GATEWAYS * sum(map(len, KINDS.values()))
    return Written(3 * messages + values, len(NUMBERS) * messages + values)


def _columns(steps: Any, devices: Sequence[tuple[int, str]], randoms: np.random.Generator) -> dict[str, Any]:
    step, device = (each.ravel() for each in np.meshgrid(steps, np.arange(len(devices)), indexing="ij"))
    sent = int(START.timestamp()) * _S_US + step * (_S_US // HERTZ) + device * 1_000
    second = (sent / _S_US) % SECONDS
    gateway = np.array([gateway for gateway, _ in devices])[device]
    waits = (gateway == 0) & (second >= CUT[0]) & (second < CUT[1])
    ended = sent + np.where(waits, (CUT[1] - second) * _S_US, 0).astype("int64")
    kinds = pa.array([kind for _, kind in devices])
    names = pa.array([f"gateway-{gateway}" for gateway, _ in devices])
    documents = [_bodies(f"gateway-{gateway}-{kind}", kind, steps, randoms) for gateway, kind in devices]
    bodies = pa.chunked_array(documents).combine_chunks()
    return {
        "gateway": names.take(pa.array(device)),
        "address": pc.binary_join_element_wise("plant", kinds, "/").take(pa.array(device)),
        "device": pc.binary_join_element_wise(names, kinds, "-").take(pa.array(device)),
        "sequence": step,
        "lane": pa.array(["live", "backlog"]).take(pa.array(waits.astype("int64"))),
        "event_time": sent - 4_000,
        "received_at": sent,
        "ingested_at": ended + 1_200_000,
        "body": bodies.take(pa.array(device * len(steps) + step - steps[0])),
    }


def _bodies(device: str, kind: str, steps: Any, randoms: np.random.Generator) -> pa.Array:
    at = np.round(START.timestamp() + steps / HERTZ, 6)
    columns = {"seq": pa.array(steps), "at": pa.array(at)}
    columns |= {name: pa.array(np.round(randoms.normal(60, 5, len(steps)), 4)) for name in KINDS[kind]}
    parts: list[Any] = [f'{{"device":"{device}"']
    for name, column in columns.items():
        parts += [f',"{name}":', column.cast(pa.string())]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _taken(*arguments: str) -> float:
    begun = time.monotonic()
    command = [sys.executable, "-m", "edge.appliance.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"{arguments[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return time.monotonic() - begun


def _check(lake: Path, written: Written) -> None:
    """Raise LoadFailed unless the tables have every reading once."""
    found = {"readings": int(DeltaTable(lake / "readings").count())}
    for name in ("rollup_1m", "rollup_1h", "rollup_1d"):
        found[name] = pc.sum(DeltaTable(lake / name).to_pyarrow_table(columns=["count"])["count"]).as_py()
    if any(count != (written.readings if name == "readings" else written.numbers) for name, count in found.items()):
        raise LoadFailed(f"of {written} the tables have {found}")


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    passes, reports = [], []
    with scratch_folder() as scratch:
        for number in range(settings.rounds):
            lake = Path(scratch) / str(number)
            written = write(lake)
            passes.append(_taken("lake", "run", "--lake", str(lake)))
            reports.append(_taken("report", "--lake", str(lake), "--out", str(lake / "report.html")))
            _check(lake, written)
            say(f"  {number + 1}/{settings.rounds}: {passes[-1]:.1f} s, the report {reports[-1]:.1f} s")
    return [
        _result("pass", "every job for the first time, over an hour of the demo's data", passes, PASS_S_MAX),
        _result("report", "the report of it", reports, REPORT_S_MAX),
    ]


def _result(name: str, about: str, seconds: Sequence[float], most: float) -> Result:
    value = statistics.median(seconds)
    return Result(f"hour-{name}", about, "s", value, at_most(most, value), details={"rounds": list(seconds)})


BENCHMARK: Final = Benchmark("hour", "a first pass over an hour of the demo's data, and its report", 240, _run)
