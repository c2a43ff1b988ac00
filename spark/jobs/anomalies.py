"""`anomalies`: readings -> anomalies, detector_states.

Each series (device, address, metric) has a detector with a state of some 40 KB in one row. A pass judges the new
readings and rewrites the states of their series. Values that arrive after a later one are not judged, nor are numbers
that only number readings (`seq`, `ts`).
"""

from __future__ import annotations

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from spark import session
from spark.jobs.job import AnalyticsJob
from spark.jobs.stream import MicroBatch, StreamStep
from spark.transforms import anomalies

TASK_SERIES = 100
"""Series per task: half a second of a core, for which other tasks wait."""
SERIES_MAX = 1_000
"""Series to expect before states show how many there are."""


def _process(batch: MicroBatch) -> None:
    # Judged once for both outputs. The states come last: before, a retry judges by the old ones, with the same result.
    series = batch.lake.rows("detector_states") or SERIES_MAX
    tasks = max(1, series // TASK_SERIES)
    seen = Observation()
    judged = anomalies.judge(batch.rows, batch.lake.read("detector_states"), tasks)
    at_once = session.background_tasks(batch.rows.sparkSession)
    if at_once is not None:
        judged = judged.coalesce(at_once)
    judged = session.checkpoint(judged.observe(seen, F.count("score").alias("anomalies")))
    if seen.get["anomalies"]:
        batch.append("anomalies", anomalies.anomalies(judged))
    else:  # none is a result, too
        batch.sink.commit_empty("anomalies")
    batch.fold("detector_states", anomalies.states(judged), anomalies.FOLD)


_STREAM = StreamStep("anomalies", "readings", ("anomalies", "detector_states"), revision=4, process=_process)
JOB = AnalyticsJob(
    "anomalies",
    "values that are unusual for their series, with the rule that says so",
    (_STREAM,),
    rhythm="messages",
)
