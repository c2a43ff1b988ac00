"""`anomalies`: readings -> anomalies, detector_states.

Each series (device, address, metric) has a detector, whose state is kept with the tables: a pass judges the new
readings and rewrites the states of their series, some 40 KB each. Of a value that comes after a later one nothing is
said, nor of numbers that only say which reading it is (`seq`, `ts`).

On one machine values are judged in this process (`spark.here`); on a cluster, and where series are many, by Spark's
Python workers. It is the same detector.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark import session
from spark.here import anomalies as here
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import anomalies

FEW_ROWS_MAX = 5_000
"""What a row costs here is its series' state."""
TASK_SERIES = 100
"""What one task judges: half a second of a core, which nobody else gets before it is over."""
SERIES_ROWS, SERIES_MAX = 200, 10_000
"""Readings of a series, and how many series, that are taken for granted while no state says how many there are."""
BATCH_ROWS_MAX = 4_000_000
"""Of some columns: a batch more costs a state of each series more."""
HERE_MAX: Final = 4_000_000
"""Readings of a batch whose columns are held in this process: 300 MB."""
HERE_SERIES_MAX: Final = 12_000
"""Series whose states are held in this process, as they were and as they are then: of 14 KB each, 700 MB."""


def _take(batch: Batch) -> None:
    # Judged once for both outputs. The states are last: while they are those of before, the same is judged again.
    readings = _readings_here(batch)
    if readings is None:
        _take_by_spark(batch)
        return
    found, states = readings.judged(batch.lake.read_here("detector_states", here.STATE))
    if found.num_rows:
        batch.append("anomalies", found)
    batch.fold_here("detector_states", states, here.combined, anomalies.FOLD)


def _readings_here(batch: Batch) -> here.Readings | None:
    """What is to be judged, in this process; None where that is Spark's."""
    is_small = batch.count <= HERE_MAX and batch.lake.rows("detector_states") <= HERE_SERIES_MAX
    parts = batch.here(here.READING) if is_small else None
    if parts is None:
        return None
    readings = here.Readings(pa.concat_tables(map(here.to_judge, parts)))
    return readings if len(readings) <= HERE_SERIES_MAX else None


def _take_by_spark(batch: Batch) -> None:
    session.shorten_tasks(batch.lake.session)
    series = batch.lake.rows("detector_states") or min(batch.count // SERIES_ROWS, SERIES_MAX)
    tasks = max(1, series // TASK_SERIES)
    judged = anomalies.judged(batch.rows, batch.lake.read("detector_states"), tasks)
    judged = session.kept(batch.aside(judged))
    found = anomalies.anomalies(judged)
    if not found.isEmpty():
        batch.append("anomalies", found)
    batch.fold("detector_states", anomalies.states(judged), anomalies.FOLD)


_FOLLOWING = Following(
    "anomalies",
    "readings",
    ("anomalies", "detector_states"),
    revision=4,
    take=_take,
    few_rows=FEW_ROWS_MAX,
    batch_rows=BATCH_ROWS_MAX,
)
JOB = Job(
    "anomalies",
    "values that are unusual for their series, with the rule that says so",
    (_FOLLOWING,),
    round="series",
)
