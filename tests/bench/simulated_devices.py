"""Five thousand simulated devices at one gateway: time until PUBACK, processor and memory of the gateway.

The devices are those of `waypost device simulate --example capacity`: steady, by the time of day, in bursts, and with a
link that breaks. The benchmark runs that command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import simulator.cli
from simulator.kinds import read_simulation
from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result
from tests.bench.sessions import absent_session

FILE: Final = Path(simulator.cli.__file__).parent / "examples" / "capacity.yaml"
DEVICES: Final = 5_000
RATES: Final = (1.0, 10.0)
"""Factors of the readings in a second; 1: one reading of each device in 10 s."""
SECONDS: Final = 60.0
SECONDS_FULL: Final = 600.0


def _measured(waypost: WaypostBroker, rate: float, seconds: float) -> dict[str, Any]:
    """Return the figures of one round, without the time in which the devices connect."""
    connect_s = read_simulation(str(FILE)).connect
    place = ("--url", f"mqtt://127.0.0.1:{waypost.port('mqtt')}")
    times = ("--duration", f"{connect_s + seconds:.0f}s", "--rate", str(rate), "--json")
    command = [sys.executable, "-m", "edge.appliance.main", "device", "simulate", str(FILE), *place, *times]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(connect_s)
        if process.poll() is not None:
            raise LoadFailed("the devices have not connected")
        cpu_s, started = waypost.cpu_s, time.monotonic()
        time.sleep(seconds)
        cpu = (waypost.cpu_s - cpu_s) / (time.monotonic() - started)
        resident_mib = waypost.resident_mib
        output, _ = process.communicate()
    if not output:
        raise LoadFailed("the devices have no result")
    document = json.loads(output)
    total: dict[str, Any] = document["summary"]
    breaks = sum(row["link_breaks"] for row in document["items"])
    figures = {name: total[f"{name}_ms"] for name in ("p50", "p99", "p999")}
    return {
        **figures,
        "per_s": total["acknowledged_per_s"],
        "breaks": breaks,
        "devices": total["connected"],
        "errors": sum(total["errors"].values()),
        "cpu_percent": 100 * cpu,
        "resident_mib": resident_mib,
    }


def run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    seconds, results = SECONDS_FULL if settings.full else SECONDS, []
    for rate in RATES:
        with WaypostBroker() as waypost:
            absent_session(waypost)
            found = _measured(waypost, rate, seconds)
        interval_s = 10.0 / rate
        name = f"{BENCHMARK.name}-{interval_s:g}s"
        say(f"  {name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in found.items()))
        about = f"{DEVICES} devices, a reading each {interval_s:g} s: PUBACK"
        resident_mib = found["resident_mib"]
        results.append(Result(name, about, "ms, p99", found["p99"], resident_mib=resident_mib, details=found))
    return results


BENCHMARK: Final = Benchmark(
    "simulated-devices", f"{DEVICES} simulated devices of several shapes: PUBACK, processor, memory", 250, run
)
