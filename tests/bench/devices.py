"""`python -m tests.bench.devices`: the detector on realistic series of devices, healthy ones and with one fault each.

It counts false reports of healthy series by day, and faults that are reported soon.

Each kind has its own difficulty: steps of a sensor's resolution, noise with rare outliers, a season, its own cycle, a
counter that restarts. Readings arrive a little early or late, one in a hundred not at all, and a device is sometimes
off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import product
from typing import Final, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from spark.detector.detector import REPORTED, Detector

DAY_S: Final = 86_400
BEGIN_S: Final = 1_767_225_600.0
"""A Thursday."""
MISSING: Final = 0.01
"""Share of missing readings."""
OFF_EACH_DAYS: Final = 10
"""Days between two outages of a device, each of up to three hours and followed by a restart."""

Numbers = NDArray[np.float64]


PACES: Final = ((300.0, 60), (60.0, 30), (10.0, 10))
"""Seconds between readings, and number of days."""


LEAST_SCORES: Final = (REPORTED, 0.75)
"""Lowest scores of reported values: the default, and one for fewer reports."""


class Readings(NamedTuple):
    """Readings of one series."""

    times_s: Numbers
    values: Numbers


Kind = Callable[[Numbers, np.random.Generator], Numbers]
"""Returns values at these times."""


def outdoor_temperature(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Daily cycle and weather, in tenths of a degree."""
    day = 6 * np.sin(2 * np.pi * (times_s / DAY_S - 0.4))
    return np.round(12 + day + 4 * _wandering(times_s, 3 * DAY_S, source) + source.normal(0, 0.15, len(times_s)), 1)


def room_temperature(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Thermostat with a cycle of an hour, lower at night, in steps of a sixteenth."""
    night = np.where((times_s / 3600) % 24 < 6, -2.0, 0.0)
    cycle = 0.4 * np.sin(2 * np.pi * times_s / 3_700 + 3 * _wandering(times_s, DAY_S, source))
    return np.round((21 + night + cycle + source.normal(0, 0.05, len(times_s))) * 16) / 16


def humidity(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Whole percents that follow the weather."""
    return np.round(np.clip(60 + 15 * _wandering(times_s, DAY_S, source) + source.normal(0, 1, len(times_s)), 0, 100))


def processor_load(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Percent: a base load, random and nightly jobs, short peaks of any height."""
    base = 5 + source.gamma(2, 1.5, len(times_s))
    jobs = np.where(source.random(len(times_s)) < 0.02, source.uniform(10, 90, len(times_s)), 0)
    nightly = np.where((times_s / 3600) % 24 % 23 < 0.5, 40, 0)
    return np.clip(base + jobs + nightly, 0, 100)


def machine_power(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Watts of a machine that runs on working days and is otherwise on standby."""
    hour, weekday = times_s / 3600 % 24, (times_s // DAY_S + 3) % 7
    running = (hour >= 7) & (hour < 17) & (weekday < 5)
    return np.where(running, source.normal(800, 60, len(times_s)), source.normal(35, 2, len(times_s)))


def energy_counter(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Watt-hours that grow faster by day; the device restarts them about every three weeks."""
    rate = 1 + np.sin(2 * np.pi * (times_s / DAY_S - 0.4)) * 0.5 + source.normal(0, 0.05, len(times_s))
    total = np.cumsum(np.maximum(0, rate) * np.diff(times_s, prepend=times_s[0])) / 36
    starts = np.searchsorted(times_s, times_s[0] + np.arange(1, 10) * 21.3 * DAY_S)
    for start in starts[starts < len(total)]:
        total[start:] -= total[start]
    return np.round(total)


def battery(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Volts that fall over two weeks until a recharge; steps of 10 millivolts."""
    empty = ((times_s - times_s[0]) / DAY_S / 14) % 1
    return np.round(4.15 - 0.6 * empty**1.5 + source.normal(0, 0.005, len(times_s)), 2)


def signal_strength(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Decibels of a radio with occasional fading."""
    return np.round(-70 + 4 * _wandering(times_s, 6 * 3600, source) + source.standard_t(4, len(times_s)) * 1.5)


def requests(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Requests since the last reading: people by day, fewer at the weekend."""
    weekday = (times_s // DAY_S + 3) % 7
    usual = (20 + 15 * np.sin(2 * np.pi * (times_s / DAY_S - 0.35))) * np.where(weekday < 5, 1.0, 0.6)
    return source.poisson(usual).astype(float)


def constant(times_s: Numbers, source: np.random.Generator) -> Numbers:
    """Setting that never changes."""
    del source
    return np.full(len(times_s), 45.0)


KINDS: Final[tuple[Kind, ...]] = (
    outdoor_temperature,
    room_temperature,
    humidity,
    processor_load,
    machine_power,
    energy_counter,
    battery,
    signal_strength,
    requests,
    constant,
)


def healthy(kind: Kind, *, interval_s: float, days: int, seed: int) -> Readings:
    """Build the readings of a healthy device."""
    source = np.random.default_rng(seed)
    times_s = BEGIN_S + np.arange(0, days * DAY_S, interval_s)
    times_s += source.normal(0, 0.02 * interval_s, len(times_s))
    times_s = np.sort(times_s)
    there = source.random(len(times_s)) >= MISSING
    for off_s in BEGIN_S + source.uniform(0, days * DAY_S, days // OFF_EACH_DAYS):
        there &= (times_s < off_s) | (times_s > off_s + source.uniform(600, 3 * 3600))
    return Readings(times_s[there], kind(times_s[there], source))


Fault = Callable[[Numbers, Numbers, float], Numbers]
"""Adds a fault to values, given the hours since its start (negative before) and the values' usual spread."""


def spike(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Move one value by twelve spreads."""
    return np.where(np.arange(len(values)) == np.argmax(hours >= 0), values + 12 * spread, values)


def level_shift(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Raise all later values by six spreads."""
    return np.where(hours >= 0, values + 6 * spread, values)


def flatline(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Repeat the same value for a day."""
    del spread
    return np.where((hours >= 0) & (hours < 24), values[np.argmax(hours >= 0)], values)


def dropout(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Return 0 for an hour, or a far lower value where 0 is usual."""
    far = 0.0 if abs(float(np.median(values))) > 6 * spread else float(np.median(values)) - 8 * spread
    return np.where((hours >= 0) & (hours < 1), far, values)


def noise(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Add noise of three times the usual spread, for six hours."""
    source = np.random.default_rng(len(values))
    return np.where((hours >= 0) & (hours < 6), values + source.normal(0, 3 * spread, len(values)), values)


def drift(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Drift by ten spreads over two days."""
    return values + np.clip(hours / 48, 0, 1) * 10 * spread


def other_season(values: Numbers, hours: Numbers, spread: float) -> Numbers:
    """Invert a day."""
    del spread
    return np.where((hours >= 0) & (hours < 24), 2 * float(np.median(values)) - values, values)


FAULTS: Final[tuple[tuple[Fault, float, tuple[Kind, ...]], ...]] = (
    (spike, 1, KINDS),
    (level_shift, 12, KINDS),
    (flatline, 24, (outdoor_temperature, room_temperature, humidity, processor_load, signal_strength, requests)),
    (dropout, 2, tuple(kind for kind in KINDS if kind is not energy_counter)),
    (noise, 6, KINDS),
    (drift, 72, KINDS),
    (other_season, 24, (outdoor_temperature, machine_power, requests)),
)
"""Faults with the hours within which each must be reported, and the affected kinds."""


def faulty(kind: Kind, fault: Fault, *, interval_s: float, days: int, seed: int) -> tuple[Readings, float]:
    """Build a device with a fault in its last quarter; return when the fault began as well."""
    times_s, values = healthy(kind, interval_s=interval_s, days=days, seed=seed)
    begin_s = BEGIN_S + (0.75 + 0.1 * np.random.default_rng(seed).random()) * days * DAY_S
    spread = float(np.std(values)) if kind is not energy_counter else float(np.abs(np.diff(values)).mean())
    return Readings(times_s, fault(values, (times_s - begin_s) / 3600, spread or 1.0)), begin_s


def false_reports(interval_s: float, days: int, seeds: range) -> dict[str, dict[float, float]]:
    """Count the reports of a healthy series by day, kind and lowest score."""
    found: dict[str, dict[float, float]] = {}
    for kind in KINDS:
        series = [healthy(kind, interval_s=interval_s, days=days, seed=seed) for seed in seeds]
        scores = np.concatenate([Detector().judge(*each).scores for each in series])
        found[kind.__name__] = {
            least: int(np.count_nonzero(scores >= least)) / days / len(seeds) for least in LEAST_SCORES
        }
    every = {least: float(np.mean([by_score[least] for by_score in found.values()])) for least in LEAST_SCORES}
    return {"all": every, **found}


def reported_faults(interval_s: float, days: int, seeds: range) -> dict[str, dict[float, float]]:
    """Return the share of each fault that was reported in time, by lowest score."""
    found: dict[str, dict[float, float]] = {}
    for fault, hours, kinds in FAULTS:
        highest: list[float] = []
        for kind, seed in product(kinds, seeds):
            readings, begin_s = faulty(kind, fault, interval_s=interval_s, days=days, seed=seed)
            soon = (readings.times_s >= begin_s) & (readings.times_s < begin_s + hours * 3600)
            highest.append(float(Detector().judge(*readings).scores[soon].max(initial=0.0)))
        found[fault.__name__] = {least: float(np.mean(np.array(highest) >= least)) for least in LEAST_SCORES}
    return found


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
def main(as_json: bool) -> None:
    """Count false reports of healthy series, and reported faults."""
    false = {f"{interval_s:g} s": false_reports(interval_s, days, range(2)) for interval_s, days in PACES}
    faults = reported_faults(PACES[0][0], 30, range(2, 5))
    if as_json:
        json.dump({"false_reports_per_series_day": false, "faults_reported": faults}, sys.stdout, indent=2)
        return
    table = Table(
        "false reports of a series a day", *(f"{pace}, ≥ {least}" for pace, least in product(false, LEAST_SCORES))
    )
    for kind in ("all", *(kind.__name__ for kind in KINDS)):
        figures = (by_kind[kind][least] for by_kind, least in product(false.values(), LEAST_SCORES))
        table.add_row(kind.replace("_", " "), *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    table = Table("faults reported", *(f"≥ {least}" for least in LEAST_SCORES))
    for name, shares in faults.items():
        table.add_row(name.replace("_", " "), *(f"{share:.0%}" for share in shares.values()))
    Console().print(table)


def _wandering(times_s: Numbers, over_s: float, source: np.random.Generator) -> Numbers:
    """Build a random walk around 0 with spread 1 that returns after about this time."""
    knots = np.arange(times_s[0] - over_s, times_s[-1] + 2 * over_s, over_s / 2)
    return np.asarray(np.interp(times_s, knots, source.normal(0, 1, len(knots))))


if __name__ == "__main__":
    main()
