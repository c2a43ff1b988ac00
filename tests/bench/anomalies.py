"""`python -m tests.bench.anomalies FOLDER`: the detector on the Numenta Anomaly Benchmark, beside published ones.

FOLDER is a checkout of the benchmark (public, github.com/numenta/NAB): data, labels, and the scores that others
published. Scored as its `sweeper.py` does: the first 15 % of a file (750 rows at most) do not count; of a labelled
window the earliest hit counts, the earlier the more; a false report costs 0.11 (`low-fp` 0.22), a window missed 1
(`low-fn` 2). 0 is reporting nothing, 100 is perfect. Published detectors have their best threshold over all files;
ours has the one it ships with, 0.5.

`--held-out`: what the detector's numbers are worth on files they were not chosen on. For each half of the files the
numbers are chosen that are best on the other one, of a grid around those it ships with.
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
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spark.detector import limits
from spark.detector.detector import REPORTED, Detector
from spark.detector.running import Numbers as Column
from spark.detector.running import Records

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
    hits: dict[str, float] = {}
    total = 0.0
    for series in corpus:
        hits |= dict.fromkeys(series.windows, -profile.missed)
        for row in reports[series.name]:
            if row < series.probation:
                continue
            place = series.places[row - series.probation]
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


# --- numbers chosen on one half, judged on the other ----------------------------------------------------------------


class Numbers(NamedTuple):
    """Of `spark.detector.limits`, those of which records and reports are made."""

    memory_values: int
    margin: float
    votes: float
    learning_values: int
    quiet_values: int
    louder: float


SHIPPED = Numbers(
    limits.MEMORY_VALUES, limits.MARGIN, limits.VOTES, limits.LEARNING_VALUES, limits.QUIET_VALUES, limits.LOUDER
)
_MEMORIES, _MARGINS = (1_000, 3_000, 10_000, 30_000), (0.01, 0.03, 0.1)
_FURTHER = ((1.5, 1.75, 2.0, 2.25, 2.5, 3.0), (500, 1_500, 3_000), (50, 100, 200), (2.0, 3.0, 5.0))


class HeldOut(NamedTuple):
    """`chosen`: for each half the numbers that are best on the other one; `scores` of all files with these, by profile,
    `seen`: with those that are best on their own half."""

    chosen: Mapping[str, Numbers]
    scores: Mapping[str, float]
    seen: Mapping[str, float]
    shipped: float


class _Amounts(Records):
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

    def listening(count: int) -> Records:
        families.append(_Amounts(count))
        return families[-1]

    Detector(listening).judge(*columns(series))
    return np.vstack([np.hstack(family.kept) for family in families]).T


def voted(said: NDArray[np.float64], records: Sequence[tuple[int, float]]) -> NDArray[np.float64]:
    """The votes of every row, for records of each memory and margin: as `Records`, all at once."""
    fading = np.array([0.5 ** (1 / memory) for memory, _ in records])[:, None]
    margin = np.array([margin for _, margin in records])[:, None]
    highest = np.zeros((len(records), said.shape[1]))
    votes = np.empty((len(said), len(records)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for row, now in enumerate(said):
            highest *= fading
            over = now > highest
            votes[row] = np.where(over, np.minimum(1.0, (now / highest - 1) / margin), 0.0).sum(axis=1)
            np.maximum(highest, now, out=highest)
    return votes


def reported(votes: NDArray[np.float64], numbers: Numbers) -> list[int]:
    """Rows that are reported, as `Detector` says."""
    count = np.arange(1, len(votes) + 1)
    strength = votes / (numbers.votes * (1 + np.exp(-count / numbers.learning_values)))
    found: list[int] = []
    strongest = 0.0
    for row in np.flatnonzero((strength >= 1) & (count > limits.WARM_UP_VALUES)):
        quiet = bool(found) and row - found[-1] < numbers.quiet_values
        if not quiet or strength[row] >= numbers.louder * strongest:
            found.append(int(row))
            strongest = strength[row]
    return found


def held_out(corpus: Sequence[Series]) -> HeldOut:
    """Choose by the standard profile."""
    records = list(product(_MEMORIES, _MARGINS))
    votes = {series.name: voted(amounts(series), records) for series in track(corpus, console=Console(stderr=True))}
    halves = {"A": [each for each in corpus if _odd(each.name)], "B": [each for each in corpus if not _odd(each.name)]}
    best: dict[str, tuple[float, Numbers]] = {}
    for (number, record), further in product(enumerate(records), product(*_FURTHER)):
        numbers = Numbers(*record, *further)
        for half, files in halves.items():
            found = {series.name: reported(votes[series.name][:, number], numbers) for series in files}
            best[half] = max(best.get(half, (-1.0, numbers)), (score_of(files, found, PROFILES["standard"]), numbers))

    def reports(files: Iterable[Series], numbers: Numbers) -> dict[str, list[int]]:
        number = records.index(numbers[:2])
        return {series.name: reported(votes[series.name][:, number], numbers) for series in files}

    chosen = {"A": best["B"][1], "B": best["A"][1]}
    theirs = {name: rows for half, files in halves.items() for name, rows in reports(files, chosen[half]).items()}
    own = {name: rows for half, files in halves.items() for name, rows in reports(files, best[half][1]).items()}
    return HeldOut(
        chosen,
        {name: score_of(corpus, theirs, profile) for name, profile in PROFILES.items()},
        {name: score_of(corpus, own, profile) for name, profile in PROFILES.items()},
        score_of(corpus, reports(corpus, SHIPPED), PROFILES["standard"]),
    )


def _say_held_out(corpus: Sequence[Series]) -> None:
    found = held_out(corpus)
    for half, numbers in found.chosen.items():
        click.echo(f"half {half} is judged with {numbers}")
    table = Table("numbers", *PROFILES)
    table.add_row("chosen on the other half", *(f"{figure:.1f}" for figure in found.scores.values()))
    table.add_row("chosen on the same half", *(f"{figure:.1f}" for figure in found.seen.values()))
    Console().print(table)
    click.echo(f"as it ships, standard: {found.shipped:.1f}")


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
