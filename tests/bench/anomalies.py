"""`python -m tests.bench.anomalies FOLDER`: the detector on the Numenta Anomaly Benchmark, beside published ones.

FOLDER is a checkout of the benchmark (public, github.com/numenta/NAB): data, labels, and the scores that others
published. Scored as its `sweeper.py` does: the first 15 % of a file (750 rows at most) do not count; of a labelled
window the earliest hit counts, the earlier the more; a false report costs 0.11 (`low-fp` 0.22), a window missed 1
(`low-fn` 2). 0 is reporting nothing, 100 is perfect. Published detectors have their best threshold over all files;
ours has the one it ships with, 0.5.

`--held-out`: what the detector's numbers are worth on files they were not chosen on. For each half of the files the
numbers are chosen that are best on the other one, with their neighbours in a grid around those it ships with.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spark.detector import limits
from spark.detector.detector import REPORTED, Detector
from spark.detector.running import MeasureRecords
from spark.detector.running import Numbers as Column

PEERS = ("ARTime", "numenta", "contextOSE", "earthgeckoSkyline", "knncad", "randomCutForest", "twitterADVec")
PROBATION = 0.15
PROBATION_ROWS_MAX = 750


class Profile(NamedTuple):
    """What a false report and a missed window cost, where a hit gives 1."""

    false_report: float
    missed: float


PROFILES = {"standard": Profile(0.11, 1), "low-fp": Profile(0.22, 1), "low-fn": Profile(0.11, 2)}


class Place(NamedTuple):
    """What a report in one row is worth. `window`: its label; None outside of all."""

    worth: float
    window: str | None


class Series(NamedTuple):
    """One file. `places`: its rows after the first `probation`; `windows`: the labels among them."""

    name: str
    times: Sequence[datetime]
    values: Sequence[float]
    probation: int
    places: Sequence[Place]
    windows: frozenset[str]


Scores = Mapping[str, Sequence[float]]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--held-out", is_flag=True, help="Numbers chosen on one half of the files, judged on the other.")
def main(folder: Path, as_json: bool, held_out: bool) -> None:
    """Score the detector on the benchmark in FOLDER."""
    corpus = load(folder)
    if held_out:
        _say_held_out(corpus)
        return
    begun = time.process_time()
    ours = {series.name: judged(series) for series in track(corpus, "detecting", console=Console(stderr=True))}
    per_value_us = (time.process_time() - begun) / sum(len(series.values) for series in corpus) * 1e6
    odd = [series for series in corpus if _odd(series.name)]
    even = [series for series in corpus if not _odd(series.name)]
    rows: dict[str, dict[str, float]] = {}
    for name, files in (("Waypost", corpus), ("Waypost, half A", odd), ("Waypost, half B", even)):
        rows[name] = {each: score(files, ours, REPORTED, profile) for each, profile in PROFILES.items()}
    for peer in PEERS:
        theirs = {series.name: published(folder, peer, series.name) for series in corpus}
        rows[peer] = {each: best_score(corpus, theirs, profile) for each, profile in PROFILES.items()}
    if as_json:
        json.dump({"scores": rows, "cpu_us_per_value": per_value_us}, sys.stdout, indent=2)
        return
    table = Table("detector", *PROFILES)
    for name, figures in rows.items():
        table.add_row(name, *(f"{figure:.1f}" for figure in figures.values()))
    Console().print(table)
    click.echo(f"{per_value_us:.0f} µs of processor time a value")


def load(folder: Path) -> list[Series]:
    """Every file of the benchmark with its labels."""
    windows = json.loads((folder / "labels" / "combined_windows.json").read_text())
    found = []
    for name, labelled in sorted(windows.items()):
        with (folder / "data" / name).open(newline="") as file:
            rows = [(datetime.fromisoformat(row["timestamp"]), float(row["value"])) for row in csv.DictReader(file)]
        times = [time_ for time_, _ in rows]
        probation = min(math.floor(PROBATION * len(rows)), PROBATION_ROWS_MAX)
        ends = [(datetime.fromisoformat(first), datetime.fromisoformat(last)) for first, last in labelled]
        places = list(_places(name, times, ends))[probation:]
        labels = frozenset(place.window for place in places if place.window is not None)
        found.append(Series(name, times, [value for _, value in rows], probation, places, labels))
    return found


def judged(series: Series) -> list[float]:
    """Our scores of a file's rows."""
    return Detector().judge(*columns(series)).scores.tolist()


def columns(series: Series) -> tuple[Column, Column]:
    """Seconds since 1970, and values."""
    return np.array([time_.replace(tzinfo=UTC).timestamp() for time_ in series.times]), np.array(series.values)


def published(folder: Path, peer: str, name: str) -> list[float]:
    """What a detector's authors published for a file."""
    path = folder / "results" / peer / Path(name).parent / f"{peer}_{Path(name).name}"
    with path.open(newline="") as file:
        return [float(row["anomaly_score"]) for row in csv.DictReader(file)]


def score(corpus: Iterable[Series], scores: Scores, threshold: float, profile: Profile) -> float:
    """From 0 (nothing is reported) to 100, of reports at `threshold`."""
    corpus = list(corpus)
    reports = {each.name: [row for row, value in enumerate(scores[each.name]) if value >= threshold] for each in corpus}
    return score_of(corpus, reports, profile)


def score_of(corpus: Iterable[Series], reports: Mapping[str, Iterable[int]], profile: Profile) -> float:
    """The same of reports in these rows."""
    corpus = list(corpus)
    points = sum(points_of(series, reports[series.name], profile) for series in corpus)
    return scaled(points, sum(len(series.windows) for series in corpus), profile)


def points_of(series: Series, reports: Iterable[int], profile: Profile) -> float:
    """What reports in these rows of one file are worth, in hits."""
    hits = dict.fromkeys(series.windows, -profile.missed)
    total = 0.0
    for row in reports:
        if row < series.probation:
            continue
        place = series.places[row - series.probation]
        if place.window is None:
            total += place.worth * profile.false_report
        else:
            hits[place.window] = max(hits[place.window], place.worth)
    return total + sum(hits.values())


def scaled(points: float, windows: int, profile: Profile) -> float:
    """From 0, where nothing is reported, to 100, where each of so many windows is hit at once."""
    return 100 * (points + profile.missed * windows) / ((1 + profile.missed) * windows)


def best_score(corpus: Iterable[Series], scores: Scores, profile: Profile) -> float:
    """The score at the best threshold of all: rows are taken from the highest value on down."""
    rows: list[tuple[float, Place]] = []
    for series in corpus:
        rows += zip(scores[series.name][series.probation :], series.places, strict=True)
    rows.sort(key=lambda row: -row[0])
    hits = {place.window: -profile.missed for _, place in rows if place.window is not None}
    nothing = total = best = -profile.missed * len(hits)
    for i, (value, place) in enumerate(rows):
        if place.window is None:
            total += place.worth * profile.false_report
        elif place.worth > hits[place.window]:
            total += place.worth - hits[place.window]
            hits[place.window] = place.worth
        if i + 1 == len(rows) or rows[i + 1][0] < value:
            best = max(best, total)
    return 100 * (best - nothing) / (len(hits) - nothing)


# --- numbers chosen on one half, judged on the other ----------------------------------------------------------------


class Numbers(NamedTuple):
    """Of `spark.detector.limits`, those of which records and reports are made."""

    memory_values: int
    margin: float
    votes: float
    learning_values: int
    quiet_values: int


class _Grid(NamedTuple):
    """All of which combinations are tried."""

    memory_values: Sequence[int]
    margin: Sequence[float]
    votes: Sequence[float]
    learning_values: Sequence[int]
    quiet_values: Sequence[int]


_GRID = _Grid(
    (5_000, 10_000, 20_000),
    (0.01, 0.02, 0.03, 0.05),
    (1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.25),
    (750, 1_500, 3_000, 6_000),
    (50, 100, 200),
)
_SMOOTHED = (1, 2, 3)
"""Margin, votes, learning: numbers are chosen by their score and those of their neighbours in these, as one window
more or less makes single ones lucky."""
_SPLITS = 20
"""Halves of the files at random, beside those that are named."""


class _Amounts(MeasureRecords):
    """Keeps what the measures of one family said."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.kept: list[Column] = []

    def votes(self, amounts: Column, count: int, memory: int) -> Column:
        self.kept.append(amounts)
        return np.zeros_like(amounts)


def amounts(series: Series) -> NDArray[np.float64]:
    """What every measure said of every row."""
    families: list[_Amounts] = []

    def listening(count: int) -> MeasureRecords:
        families.append(_Amounts(count))
        return families[-1]

    Detector(listening).judge(*columns(series))
    return np.vstack([np.hstack(family.kept) for family in families]).T


def voted(said: Column, records: Sequence[tuple[int, float]]) -> Column:
    """The votes of every row, for records of each memory and margin: as `Records`, all at once."""
    fading = np.array([0.5 ** (1 / memory) for memory, _ in records])[:, None]
    margin = np.array([margin for _, margin in records])[:, None]
    highest = np.zeros((len(records), said.shape[1]))
    votes = np.zeros((len(said), len(records)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for row, now in enumerate(said):
            highest *= fading
            if (now > highest).any():
                times = now / highest
                clear = np.minimum((times - 1) / margin, 1.0) + np.where(
                    highest > 0, np.minimum(np.log2(times), 1.0), 0
                )
                votes[row] = np.where(now > highest, clear, 0.0).sum(axis=1)
                np.maximum(highest, now, out=highest)
    return votes


def reported(votes: Column, numbers: Numbers) -> list[int]:
    """Rows that are reported, as `Detector` says."""
    count = np.arange(1, len(votes) + 1)
    strength = votes / (numbers.votes * (1 + np.exp(-count / numbers.learning_values)))
    found: list[int] = []
    strongest = 0.0
    for row in np.flatnonzero((strength >= 1) & (count > limits.WARM_UP_VALUES)):
        quiet = bool(found) and row - found[-1] < numbers.quiet_values
        if not quiet or strength[row] >= limits.LOUDER * strongest:
            found.append(int(row))
            strongest = strength[row]
    return found


class Tried:
    """What each of all numbers is worth on each file."""

    def __init__(self, corpus: Sequence[Series]) -> None:
        self._windows = sum(len(series.windows) for series in corpus)
        records = list(product(_GRID.memory_values, _GRID.margin))
        shape = [len(each) for each in _GRID]
        self._points = np.zeros((len(corpus), len(PROFILES), *shape))
        for points, series in zip(self._points, track(corpus, console=Console(stderr=True)), strict=True):
            votes = dict(zip(records, voted(amounts(series), records).T, strict=True))
            for place in np.ndindex(*shape):
                numbers = self.numbers(place)
                found = reported(votes[numbers.memory_values, numbers.margin], numbers)
                for number, profile in enumerate(PROFILES.values()):
                    points[(number, *place)] = points_of(series, found, profile)

    @staticmethod
    def numbers(place: tuple[int, ...]) -> Numbers:
        """Those at a place of the grid."""
        memory, margin, votes, learning, quiet = place
        return Numbers(
            _GRID.memory_values[memory],
            _GRID.margin[margin],
            _GRID.votes[votes],
            _GRID.learning_values[learning],
            _GRID.quiet_values[quiet],
        )

    def best(self, files: NDArray[np.bool_]) -> tuple[int, ...]:
        """The place of the numbers that are best on these files, by the standard profile."""
        points = self._points[files, 0].sum(axis=0)
        for axis in _SMOOTHED:
            padded = np.pad(points, [(int(axis == each),) * 2 for each in range(points.ndim)], constant_values=np.nan)
            points = np.nanmean(sliding_window_view(padded, 3, axis), axis=-1)
        return tuple(int(at) for at in np.unravel_index(np.argmax(points), points.shape))

    def scores(self, half: NDArray[np.bool_]) -> dict[str, float]:
        """Of all files, by profile, each half with the numbers that are best on the other one."""
        here, there = (slice(None), *self.best(half)), (slice(None), *self.best(~half))
        points = sum(each[there] for each in self._points[half]) + sum(each[here] for each in self._points[~half])
        return {
            name: scaled(float(found), self._windows, profile)
            for (name, profile), found in zip(PROFILES.items(), points, strict=True)
        }


def _say_held_out(corpus: Sequence[Series]) -> None:
    tried = Tried(corpus)
    half = np.array([_odd(series.name) for series in corpus])
    for name, other in (("A", ~half), ("B", half)):
        click.echo(f"half {name} is judged with {tried.numbers(tried.best(other))}")
    source = np.random.default_rng(1)
    at_random = [tried.scores(source.permutation(len(corpus)) < len(corpus) // 2)["standard"] for _ in range(_SPLITS)]
    table = Table("numbers", *PROFILES)
    table.add_row("chosen on the other half", *(f"{figure:.1f}" for figure in tried.scores(half).values()))
    Console().print(table)
    click.echo(f"of {_SPLITS} halves at random, standard: {np.mean(at_random):.1f} ± {np.std(at_random):.1f}")


def _places(name: str, times: Sequence[datetime], windows: Sequence[tuple[datetime, datetime]]) -> Iterable[Place]:
    bounds = [(bisect_left(times, first), bisect_left(times, last)) for first, last in windows]
    for i in range(len(times)):
        window = next((each for each in bounds if each[0] <= i <= each[1]), None)
        if window is not None:
            first, last = window
            position = -(last - i + 1) / (last - first + 1)
            yield Place(_worth(position) / _worth(-1.0), f"{name}|{first}")
            continue
        before = [each for each in bounds if each[1] < i]
        if not before:
            yield Place(-1.0, None)
            continue
        first, last = before[-1]
        yield Place(_worth((i - last) / (last - first)), None)


def _worth(position: float) -> float:
    """1 at the begin of a window, 0 at its end, -1 far behind it; `position` in lengths of the window."""
    return -1.0 if position > 3.0 else 2 / (1 + math.exp(5 * position)) - 1.0


def _odd(name: str) -> bool:
    """Two halves of the files that nobody chose."""
    return hashlib.sha256(name.encode()).digest()[-1] % 2 == 1


if __name__ == "__main__":
    main()
