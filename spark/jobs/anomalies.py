"""`anomalies`: readings -> anomalies, detector_states.

Each series (device, address, metric) has a detector. Its state is a row of some 40 KB: a pass judges the new readings
and rewrites the states of their series. A value that comes after a later one is not judged, nor are numbers that only
number readings (`seq`, `ts`).
"""

from __future__ import annotations

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from spark import session
from spark.jobs.outcome import Job
from spark.jobs.stream import MicroBatch, StreamStep
from spark.transforms import anomalies

TASK_SERIES = 100
"""Series that one task judges: half a second of a core, which no other task gets before."""
SERIES_MAX = 1_000
"""Series that are expected while no state says how many there are."""


def _take(batch: MicroBatch) -> None:
    # Judged once for both outputs. The states come last: before, a retry judges by the old ones, with the same result.
    series = batch.lake.rows("detector_states") or SERIES_MAX
    tasks = max(1, series // TASK_SERIES)
    seen = Observation()
    judged = anomalies.judged(batch.rows, batch.lake.read("detector_states"), tasks)
    judged = session.kept(judged.observe(seen, F.count("score").alias("anomalies")))
    if seen.get["anomalies"]:
        batch.append("anomalies", anomalies.anomalies(judged))
    else:  # none is a result, too
        batch.sink.note("anomalies")
    batch.fold("detector_states", anomalies.states(judged), anomalies.FOLD)


_STREAM = StreamStep("anomalies", "readings", ("anomalies", "detector_states"), revision=4, take=_take)
JOB = Job(
    "anomalies",
    "values that are unusual for their series, with the rule that says so",
    (_STREAM,),
    rhythm="messages",
)
