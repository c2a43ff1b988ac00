"""`anomalies`: readings -> anomalies, detector_states.

Each series (device, address, metric) has a detector, whose state is kept with the tables: a pass judges the new
readings and rewrites the states of their series, some 40 KB each. Of a value that comes after a later one nothing is
said, nor of numbers that only say which reading it is (`seq`, `ts`).
"""

from __future__ import annotations

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import anomalies

FEW_ROWS_MAX = 5_000
"""What a row costs here is its series' state."""


def _take(batch: Batch) -> None:
    # Judged once for both outputs. The states are last: while they are those of before, the same is judged again.
    judged = anomalies.judged(batch.rows, batch.lake.read("detector_states")).localCheckpoint()
    found = anomalies.anomalies(judged)
    if not found.isEmpty():
        batch.append("anomalies", found)
    batch.fold("detector_states", anomalies.states(judged), anomalies.FOLD)


_FOLLOWING = Following(
    "anomalies", "readings", ("anomalies", "detector_states"), revision=4, take=_take, few_rows=FEW_ROWS_MAX
)
JOB = Job(
    "anomalies",
    "values that are unusual for their series, with the rule that says so",
    (_FOLLOWING,),
    round="series",
)
