"""`python -m tests.bench.anomalies FOLDER`: the detector on the Numenta Anomaly Benchmark, compared with others.

FOLDER is a checkout of the benchmark (public, github.com/numenta/NAB): data, labels, and the scores of published
detectors. Scores follow its `sweeper.py`: the first 15 % of a file (750 rows at most) do not count. The earliest hit of
a labelled window counts, and more the earlier it is; a false report costs 0.11 (`low-fp` 0.22), a missed window 1
(`low-fn` 2). No reports at all score 0, perfect reports 100. Published detectors use their best threshold over all
files; ours uses its default, 0.5.

`--held-out`: scores of the detector's numbers on files that they were not chosen on. For each half of the files, the
best numbers of the other half are chosen, with their neighbours in a grid around the default.
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
    """Costs of a false report and of a missed window, relative to the value 1 of a hit."""

    false_report: float
    missed: float


PROFILES = {"standard": Profile(0.11, 1), "low-fp": Profile(0.22, 1), "low-fn": Profile(0.11, 2)}


class Place(NamedTuple):
    """Value of a report in one row. `window`: its label; None outside of all windows."""

    worth: float
    window: str | None


class Series(NamedTuple):
    """One file. `places`: its rows after the first `probation`; `windows`: their labels."""

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
    """Read every file of the benchmark with its labels."""
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
    """Return our scores of a file's rows."""
    return Detector().judge(*columns(series)).scores.tolist()


def columns(series: Series) -> tuple[Column, Column]:
    """Return seconds since 1970, and values."""
    return np.array([time_.replace(tzinfo=UTC).timestamp() for time_ in series.times]), np.array(series.values)


def published(folder: Path, peer: str, name: str) -> list[float]:
    """Return the published scores of a detector for a file."""
    path = folder / "results" / peer / Path(name).parent / f"{peer}_{Path(name).name}"
    with path.open(newline="") as file:
        return [float(row["anomaly_score"]) for row in csv.DictReader(file)]


def score(corpus: Iterable[Series], scores: Scores, threshold: float, profile: Profile) -> float:
    """Return the score of reports at `threshold`, from 0 (no reports) to 100."""
    corpus = list(corpus)
    reports = {each.name: [row for row, value in enumerate(scores[each.name]) if value >= threshold] for each in corpus}
    return score_of(corpus, reports, profile)


def score_of(corpus: Iterable[Series], reports: Mapping[str, Iterable[int]], profile: Profile) -> float:
    """Return the score of reports in these rows."""
    corpus = list(corpus)
    points = sum(points_of(series, reports[series.name], profile) for series in corpus)
    return scaled(points, sum(len(series.windows) for series in corpus), profile)


def points_of(series: Series, reports: Iterable[int], profile: Profile) -> float:
    """Return the value of reports in these rows of one file, in hits."""
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
    """Scale from 0 (no reports) to 100 (each window hit immediately)."""
    return 100 * (points + profile.missed * windows) / ((1 + profile.missed) * windows)


def best_score(corpus: Iterable[Series], scores: Scores, profile: Profile) -> float:
    """Return the score at the best threshold: rows are reported from the highest value down."""
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


# --- numbers chosen on one half and evaluated on the other
# --------------------------------------------------------------


class Numbers(NamedTuple):
    """Numbers of `spark.detector.limits` that create records and reports."""

    memory_values: int
    margin: float
    votes: float
    learning_values: int
    quiet_values: int


class _Grid(NamedTuple):
    """Values of each number; all combinations are tried."""

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
"""Margin, votes, learning: numbers are chosen by their score and those of their neighbours in these, because a single
combination may be lucky by one window.
"""
_SPLITS = 20
"""Random halves of the files, in addition to the named ones."""


class _Amounts(MeasureRecords):
    """Collects the amounts of one family of measures."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.kept: list[Column] = []

    def votes(self, amounts: Column, count: int, memory: int) -> Column:
        self.kept.append(amounts)
        return np.zeros_like(amounts)


def amounts(series: Series) -> NDArray[np.float64]:
    """Return the amount of every measure for every row."""
    families: list[_Amounts] = []

    def listening(count: int) -> MeasureRecords:
        families.append(_Amounts(count))
        return families[-1]

    Detector(listening).judge(*columns(series))
    return np.vstack([np.hstack(family.kept) for family in families]).T


def voted(said: Column, records: Sequence[tuple[int, float]]) -> Column:
    """Return the votes of every row for records of each memory and margin, as `Records` does, for all rows at once."""
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
    """Return the rows that `Detector` reports."""
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
    """Value of each combination of numbers on each file."""

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
        """Return the numbers at a place of the grid."""
        memory, margin, votes, learning, quiet = place
        return Numbers(
            _GRID.memory_values[memory],
            _GRID.margin[margin],
            _GRID.votes[votes],
            _GRID.learning_values[learning],
            _GRID.quiet_values[quiet],
        )

    def best(self, files: NDArray[np.bool_]) -> tuple[int, ...]:
        """Return the place of the best numbers on these files, by the standard profile."""
        points = self._points[files, 0].sum(axis=0)
        for axis in _SMOOTHED:
            padded = np.pad(points, [(int(axis == each),) * 2 for each in range(points.ndim)], constant_values=np.nan)
            points = np.nanmean(sliding_window_view(padded, 3, axis), axis=-1)
        return tuple(int(at) for at in np.unravel_index(np.argmax(points), points.shape))

    def scores(self, half: NDArray[np.bool_]) -> dict[str, float]:
        """Return the scores of all files by profile; each half uses the best numbers of the other one."""
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
    """Return 1 at the start of a window, 0 at its end, -1 far after it; `position` is in window lengths."""
    return -1.0 if position > 3.0 else 2 / (1 + math.exp(5 * position)) - 1.0


def _odd(name: str) -> bool:
    """Split the files into two arbitrary halves."""
    return hashlib.sha256(name.encode()).digest()[-1] % 2 == 1


if __name__ == "__main__":
    main()
