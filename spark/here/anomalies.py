"""Readings judged in this process: as `spark.transforms.anomalies` judges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark import schemas
from spark.detector.series import Judged, Stopped, judge
from spark.here import workers
from spark.here.groups import Groups, Numbers, key, numbers
from spark.here.times import TIME, kept_under

SERIES: Final = schemas.DETECTOR_STATES.keys
READING: Final = (*SERIES, "event_time", "sequence", "value", "suspect", "ingested_at")
"""Columns of readings that are looked at."""
STATE: Final = (*SERIES, "state", "last_at")
"""Columns of states that are looked at."""
SERIES_VALUES: Final = 200
"""What a series costs beside its values, in values: its state is read and written, and few are judged no faster."""
VALUES_A_PROCESS: Final = 500_000
"""Values from which on another process is begun to judge them: 1.5 s of judging."""
Name = tuple[str, ...]
"""The values of `SERIES`, the last of which is the metric."""


def to_judge(readings: pa.Table) -> pa.Table:
    """Those that are numbers, of a time that is to be believed."""
    chosen = pc.and_not(pc.is_valid(readings["value"]), readings["suspect"])
    return readings.filter(chosen).drop_columns("suspect")


class Readings:
    """Readings to judge, by series."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: as `to_judge` gives them."""
        self._rows = rows.combine_chunks()
        self._groups = Groups(key(rows, SERIES))
        self._at = numbers(rows["event_time"])

    def __len__(self) -> int:
        """How many series there are."""
        return len(self._groups)

    def judged(self, states: Iterable[pa.Table]) -> tuple[pa.Table, pa.Table]:
        """Their anomalies, and the states after them, as the tables `anomalies` and `detector_states` have them.

        `states`: where series stopped, these and others, in some parts.
        """
        names = _names(self._rows.take(pa.array(self._groups.first)))
        before = _stopped(states, set(names))
        values, sequences = numbers(self._rows["value"]), numbers(self._rows["sequence"])
        ordered = [_ordered(rows, self._at, sequences) for rows in self._groups.each()]
        series = (
            (name[-1], self._at[rows], values[rows], before.get(name))
            for name, rows in zip(names, ordered, strict=True)
        )
        processes = workers.processes(len(self._at) + SERIES_VALUES * len(names), VALUES_A_PROCESS)
        judged = list(workers.spread(_judge, series, processes))
        found = [rows[list(each.anomalies)] for rows, each in zip(ordered, judged, strict=True)]
        return self._anomalies(found, judged), _states(names, judged)

    def _anomalies(self, rows: Sequence[Numbers], judged: Sequence[Judged]) -> pa.Table:
        places = np.concatenate((np.empty(0, np.int64), *rows))
        findings = [finding for each in judged for finding in each.anomalies.values()]
        found = self._rows.take(pa.array(places))
        columns = {name: found[name] for name in found.column_names} | {
            "score": pa.array([finding.score for finding in findings], pa.float64()),
            "rule": pa.array([finding.rule for finding in findings], pa.string()),
            "expected": pa.array([finding.expected for finding in findings], pa.float64()),
            "event_date": kept_under(self._at[places]),
        }
        return pa.table({name: columns[name] for name in schemas.ANOMALIES.columns.names}).cast(schemas.ANOMALIES.arrow)


def combined(states: pa.Table) -> pa.Table:
    """Rows of `detector_states`, those of one series made one, as `spark.transforms.anomalies.FOLD` has it: the last
    row of each is the newest."""
    groups = Groups(key(states, SERIES))
    newest = states.take(pa.array(groups.greatest(np.arange(len(states)))))
    sums = {
        "last_at": pa.array(groups.greatest(numbers(states["last_at"]))).cast(TIME),
        "judged": pa.array(groups.sum(numbers(states["judged"]))),
        "late": pa.array(groups.sum(numbers(states["late"]))),
    }
    names = schemas.DETECTOR_STATES.columns.names
    return pa.table({name: sums[name] if name in sums else newest[name] for name in names})


def _judge(series: tuple[str, Numbers, Numbers, Stopped | None]) -> Judged:
    return judge(*series)


def _names(rows: pa.Table) -> list[Name]:
    return list(zip(*(rows[name].to_pylist() for name in SERIES), strict=True))


def _stopped(states: Iterable[pa.Table], wanted: set[Name]) -> Mapping[Name, Stopped]:
    """Where each of these series stopped that is known."""
    found: dict[Name, Stopped] = {}
    for part in states:
        names = _names(part)
        rows = [row for row, name in enumerate(names) if name in wanted]
        chosen = part.take(pa.array(rows, pa.int64()))
        last = numbers(chosen["last_at"]).tolist()
        found.update(zip((names[row] for row in rows), map(Stopped, chosen["state"].to_pylist(), last), strict=True))
    return found


def _ordered(rows: Numbers, at: Numbers, sequences: Numbers) -> Numbers:
    """Rows in the order of their times, and of their numbers where that is the same."""
    times = at[rows]
    if np.all(times[1:] > times[:-1]):  # as they are, as a rule
        return rows
    ordered: Numbers = rows[np.lexsort((sequences[rows], times))]
    return ordered


def _states(names: Sequence[Name], judged: Sequence[Judged]) -> pa.Table:
    columns: dict[str, Sequence[object]] = {name: [of[at] for of in names] for at, name in enumerate(SERIES)}
    columns |= {
        "state": [each.stopped.state for each in judged],
        "last_at": [each.stopped.last_us for each in judged],
        "judged": [each.judged for each in judged],
        "late": [each.late for each in judged],
    }
    return pa.Table.from_pydict(columns, schemas.DETECTOR_STATES.arrow)
