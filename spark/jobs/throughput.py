"""`throughput`: telemetry -> throughput.

On one machine messages are counted in this process, column by column (`spark.here`); on a cluster, and where buckets
are many, by Spark.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from spark import delta_log
from spark.here import throughput as here
from spark.jobs import changes, stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.tables import Lake
from spark.transforms import throughput


def _take(batch: Batch) -> None:
    if not _take_here(batch):
        _take_by_spark(batch)


def _take_here(batch: Batch) -> bool:
    """False, and nothing is done, where that is Spark's."""
    messages = stamps.delivered_here(batch, here.MESSAGE)
    if messages is None:
        return False
    there = _reach(batch.lake)
    new = here.counted(messages, there)
    if new is None:
        return False
    rows, width = new
    if there.width_s in (0, width):
        batch.fold_here("throughput", rows, partial(here.widened, width_s=width), throughput.FOLD)
        return True
    # The lake has outgrown its buckets, as it does ten times at most.
    whole = here.put_together(chain(batch.lake.read_here("throughput", here.BUCKET), [rows]), width)
    if whole is None:
        return False
    batch.overwrite("throughput", whole)
    return True


def _reach(lake: Lake) -> here.Reach:
    """Of the table. The first of its dates has the first of its buckets, and all of them are as wide."""
    state = lake.state("throughput")
    if state is None:
        return here.Reach()
    lake.check_readable("throughput", state.version)
    files = delta_log.files(lake.opened("throughput", state.version))
    first = min((changes.folder(file.path) for file in files), default="")
    return here.reach(
        lake.columns_of("throughput", [file for file in files if changes.folder(file.path) == first], here.REACH)
    )


def _take_by_spark(batch: Batch) -> None:
    there, messages = batch.lake.read("throughput"), stamps.delivered(batch.lake, batch.rows)
    known = throughput.reach(there).first()
    width = known["width_s"] if known is not None else None
    span = throughput.span(messages, known["since"] if known is not None else None).first()
    wanted = max(throughput.bucket_seconds(span["span_s"] or 0.0 if span is not None else 0.0), width or 0)
    rows = throughput.throughput(messages, wanted).coalesce(1)
    if width is not None and wanted != width:  # as above
        batch.overwrite("throughput", throughput.widened(there.unionByName(rows), wanted))
    else:
        batch.fold("throughput", rows, throughput.FOLD)


_FOLLOWING = Following("throughput", "telemetry", ("throughput",), revision=4, take=_take)
JOB = Job("throughput", "rows received and landed over time", (_FOLLOWING,))
