"""Messages for jobs that ask how long they took, and what comes of them on one machine beside what Spark makes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark import delta_log, schemas
from spark.here.sketches import quantiles
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.tables import Lake
from spark.transaction import Transaction
from tests.spark.lakes import START, Row, message

WRONG = (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC))
"""What clocks say that have started at zero, or do not stop."""
AHEAD = tuple(timedelta(seconds=300, microseconds=each) for each in (-1, 0, 1))
"""How far a clock may be ahead of the ingestion, and a bit less and more."""
Known = dict[tuple[Any, ...], Row]


def sent(randoms: Random, number: int) -> Row:
    """A message of one of eight gateways, which may have a clock that nobody can believe, or come from its backlog."""
    at = START + timedelta(seconds=number * 613, microseconds=randoms.randrange(1_000_000))
    landed = at + timedelta(seconds=randoms.choice((0, 1, 59, 60, 61, 5_000)), microseconds=randoms.choice((0, 0, 1)))
    stamps = [at, at, at, at, landed, landed + timedelta(seconds=7), *WRONG, *(landed + ahead for ahead in AHEAD)]
    return message(
        number,
        tenant=randoms.choice(("default", "default", "other")),
        gateway=randoms.choice(("g", "h", "Gerät", "")),
        device=randoms.choice(("", "d", "e", "Fühler")),
        event_time=randoms.choice(stamps),
        received_at=randoms.choice(stamps),
        ingested_at=landed,
        lane=randoms.choice(("live", "live", "backlog")),
    )


def columns(rows: Sequence[Row], names: Sequence[str]) -> pa.Table:
    """These columns of messages as a job reads them: texts are dictionaries, here of two parts."""
    arrow = pa.schema([schemas.TELEMETRY.arrow.field(name) for name in names])
    kept = [{name: row.get(name) for name in names} for row in rows]
    parts = [pa.Table.from_pylist(part, arrow) for part in (kept[::2], kept[1::2])]
    return pa.concat_tables(map(_encoded, parts))


def _encoded(part: pa.Table) -> pa.Table:
    texts = {field.name for field in part.schema if pa.types.is_string(field.type)}
    return pa.table(
        {name: part[name].dictionary_encode() if name in texts else part[name] for name in part.schema.names}
    )


def by_key(table: str, rows: pa.Table, sketch: str, shares: Sequence[float]) -> Known:
    """Rows of a table by its keys: doubles are equal to what is near, and of sketches the quantiles stand there."""
    known = {tuple(row[name] for name in schemas.DERIVED[table].keys): row for row in rows.to_pylist()}
    assert len(known) == len(rows)
    assert rows.column_names == schemas.DERIVED[table].columns.names
    return {key: _shown(row, sketch, shares) for key, row in known.items()}


def _shown(row: Row, sketch: str, shares: Sequence[float]) -> Row:
    near = {name: pytest.approx(value, rel=1e-9) for name, value in row.items() if isinstance(value, float)}
    return row | near | {sketch: None if row[sketch] is None else quantiles(row[sketch], shares)}


def take(lake: Lake, job: Job, version: int) -> None:
    """Have a job take all messages that have landed, as one batch."""
    (step,), state = job.steps, lake.state("telemetry")
    assert isinstance(step, Following)
    assert state is not None
    files = delta_log.files(lake.opened("telemetry", state.version))
    markers = {output: Transaction("job", version) for output in step.outputs}
    step.take(Batch(lake, "telemetry", files, sum(file.rows or 0 for file in files), None, markers))
