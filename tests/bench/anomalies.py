"""`python -m tests.bench.anomalies FOLDER`: the detector on the Numenta Anomaly Benchmark, beside published ones.

FOLDER is a checkout of the benchmark (public, github.com/numenta/NAB): data, labels, and the scores that others
published. Scored as its `sweeper.py` does: the first 15 % of a file (750 rows at most) do not count; of a labelled
window the earliest hit counts, the earlier the more; a false report costs 0.11 (`low-fp` 0.22), a window missed 1
(`low-fn` 2). 0 is reporting nothing, 100 is perfect. Published detectors have their best threshold over all files;
ours has the one it ships with, 0.5.
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
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spark.detector.detector import REPORTED, Detector

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
    """One file. `places`: its rows after the first `probation`."""

    name: str
    times: Sequence[datetime]
    values: Sequence[float]
    probation: int
    places: Sequence[Place]


Scores = Mapping[str, Sequence[float]]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
def main(folder: Path, as_json: bool) -> None:
    """Score the detector on the benchmark in FOLDER."""
    corpus = load(folder)
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
        found.append(Series(name, times, [value for _, value in rows], probation, places))
    return found


def judged(series: Series) -> list[float]:
    """Our scores of a file's rows."""
    detector = Detector()
    times = (time_.replace(tzinfo=UTC).timestamp() for time_ in series.times)
    return [detector.add(time_s, value).score for time_s, value in zip(times, series.values, strict=True)]


def published(folder: Path, peer: str, name: str) -> list[float]:
    """What a detector's authors published for a file."""
    path = folder / "results" / peer / Path(name).parent / f"{peer}_{Path(name).name}"
    with path.open(newline="") as file:
        return [float(row["anomaly_score"]) for row in csv.DictReader(file)]


def score(corpus: Iterable[Series], scores: Scores, threshold: float, profile: Profile) -> float:
    """From 0 (nothing is reported) to 100, of reports at `threshold`."""
    hits: dict[str, float] = {}
    total = 0.0
    for series in corpus:
        for place, value in zip(series.places, scores[series.name][series.probation :], strict=True):
            if place.window is not None:
                hits.setdefault(place.window, -profile.missed)
            if value < threshold:
                continue
            if place.window is None:
                total += place.worth * profile.false_report
            else:
                hits[place.window] = max(hits[place.window], place.worth)
    nothing = -profile.missed * len(hits)
    return 100 * (total + sum(hits.values()) - nothing) / (len(hits) - nothing)


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
