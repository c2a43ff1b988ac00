"""Probes of simulated devices: figures of this machine, read by psutil.

A probe is called with the time (monotonic seconds) and returns one value for each metric. Counters become rates over
the last second, because a kernel counter that is read 25 times a second moves in steps of its tick (10 ms).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import psutil

RATE_WINDOW_S = 1.0
"""Window of a rate: a hundred ticks of the kernel's CPU accounting."""

Probe = Callable[[float], dict[str, float]]


class ProbeError(Exception):
    """The requested kind or metric does not exist, or this machine cannot measure it."""


class ProbeRates:
    """Turn growing counters into rates per second over a sliding window."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def update(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Return the rate of each counter over the window; 0 for the first sample."""
        samples = self._samples
        samples.append((now, counters))
        while len(samples) > 2 and now - samples[1][0] >= self._window_s:
            samples.popleft()
        then, old = samples[0]
        span = now - then
        if span <= 0:
            return dict.fromkeys(counters, 0.0)
        return {name: (value - old.get(name, value)) / span for name, value in counters.items()}


def _cpu() -> Probe:
    """Measure the busy share of each core and of all, in percent."""
    rates = ProbeRates()

    def probe(now: float) -> dict[str, float]:
        cores = psutil.cpu_times(percpu=True)
        counters = {
            f"core_{i}_percent": sum(core) - core.idle - getattr(core, "iowait", 0.0) for i, core in enumerate(cores)
        }
        busy = {name: min(100.0, rate * 100) for name, rate in rates.update(now, counters).items()}
        return {"cpu_percent": sum(busy.values()) / len(busy), **busy}

    return probe


def _memory() -> Probe:
    """Measure memory in use: percent, and bytes used, available and cached."""

    def probe(now: float) -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {
            "memory_percent": memory.percent,
            "used_bytes": memory.used,
            "available_bytes": memory.available,
            "cached_bytes": getattr(memory, "cached", 0),
        }

    return probe


def _disk() -> Probe:
    """Measure traffic of all disks, bytes and operations per second, and the use of the root file system."""
    if psutil.disk_io_counters() is None:
        raise ProbeError("this machine shows no disk counters")
    rates = ProbeRates()

    def probe(now: float) -> dict[str, float]:
        counters = psutil.disk_io_counters()
        if counters is None:
            raise ProbeError("this machine's disk counters disappeared")
        moving = {
            "read_bytes_per_s": float(counters.read_bytes),
            "write_bytes_per_s": float(counters.write_bytes),
            "writes_per_s": float(counters.write_count),
        }
        return {**rates.update(now, moving), "disk_percent": psutil.disk_usage("/").percent}

    return probe


def _network() -> Probe:
    """Measure traffic of all network interfaces, bytes and packets per second."""
    rates = ProbeRates()

    def probe(now: float) -> dict[str, float]:
        counters = psutil.net_io_counters()
        moving = {
            "sent_bytes_per_s": float(counters.bytes_sent),
            "received_bytes_per_s": float(counters.bytes_recv),
            "sent_packets_per_s": float(counters.packets_sent),
            "received_packets_per_s": float(counters.packets_recv),
        }
        return rates.update(now, moving)

    return probe


def _load() -> Probe:
    """Measure load averages over 1, 5 and 15 minutes, and context switches per second."""
    rates = ProbeRates()

    def probe(now: float) -> dict[str, float]:
        one, five, fifteen = psutil.getloadavg()
        switches = rates.update(now, {"context_switches_per_s": float(psutil.cpu_stats().ctx_switches)})
        return {"load_1m": one, "load_5m": five, "load_15m": fifteen, **switches}

    return probe


def _temperature() -> Probe:
    """Measure all temperature sensors, in degrees Celsius."""
    if not _sensors():
        raise ProbeError("this machine has no temperature sensors")
    return lambda now: _sensors()


def _sensors() -> dict[str, float]:
    found: dict[str, float] = {}
    for chip, sensors in psutil.sensors_temperatures().items():
        for index, sensor in enumerate(sensors):
            name = (sensor.label or str(index)).lower().replace(" ", "_")
            found[f"{chip}_{name}_celsius"] = sensor.current
    return found


_PROBES: dict[str, Callable[[], Probe]] = {
    "cpu": _cpu,
    "memory": _memory,
    "disk": _disk,
    "network": _network,
    "load": _load,
    "temperature": _temperature,
}

KINDS = tuple(_PROBES)
"""All kinds of devices; `temperature` needs a machine with sensors."""


def make_probe(kind: str, metrics: Sequence[str] = ()) -> Probe:
    """Return the probe of a kind, reduced to `metrics` if any are named.

    Raises ProbeError when the kind or a metric is unknown, or the machine cannot measure it.
    """
    if kind not in _PROBES:
        raise ProbeError(f"unknown kind {kind!r}: it is one of {', '.join(KINDS)}")
    probe = _PROBES[kind]()
    if not metrics:
        return probe
    known = probe(0.0)
    unknown = [name for name in metrics if name not in known]
    if unknown:
        raise ProbeError(f"{kind} has no metric {', '.join(unknown)}: it has {', '.join(known)}")
    # a new probe, as the call above would count as the first sample of its rates
    whole = _PROBES[kind]()
    return lambda now: {name: value for name, value in whole(now).items() if name in metrics}
