"""Trial pass over a lake of three messages: loads the classes that real passes use. For `spark.class_archive` only.

`python -m spark.warmup LAKE JVM_OPTION...`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa

from spark import schemas, session
from spark.jobs.catalog import JOBS
from spark.lake import SparkLake

_BODIES = (b"21.5", b'{"load": 0.5}', b"\xff")


def write_lake(root: Path) -> None:
    """Land three messages under `root`, one of them unreadable, in one commit each."""
    schema = schemas.TELEMETRY.arrow
    at = datetime.now(UTC)
    for sequence, body in enumerate(_BODIES):
        row: dict[str, object] = dict.fromkeys(("tenant", "gateway", "epoch", "address", "device"), "trial")
        row |= dict.fromkeys(("event_time", "received_at"), at)
        row |= {"sequence": sequence, "ingested_at": at + timedelta(seconds=sequence), "ingest_date": at.date()}
        row |= {"clock_quality": "good", "lane": "live", "content_type": None, "properties": None, "body": body}
        rows = pa.Table.from_pylist([row], schema=schema)
        deltalake.write_deltalake(root / "telemetry", rows, mode="append", partition_by=["ingest_date"])


def main(arguments: Sequence[str]) -> None:
    """Write the lake, run every job once, and let the JVM exit normally, so that it writes its archive."""
    root = Path(arguments[0])
    write_lake(root)
    started = session.start("waypost-warmup", session.SessionOptions(load="small", jvm=tuple(arguments[1:])))
    lake = SparkLake(started, root)
    for job in JOBS:
        job.run(lake)
    session.stop(started)


if __name__ == "__main__":
    main(sys.argv[1:])
