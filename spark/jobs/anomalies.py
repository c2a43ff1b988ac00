"""`anomalies`: readings -> anomalies, detector_states.

Each series (device, address, metric) has a detector, whose state is kept with the tables: a pass judges the new
readings and rewrites the states of their series, some 40 KB each. A value that comes after a later one is not judged,
nor are numbers that only number readings (`seq`, `ts`).
"""

from __future__ import annotations

from spark import session
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


def _take(batch: Batch) -> None:
    # Judged once for both outputs. The states are last: while they are those of before, the same is judged again.
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
