"""Messages as they land of gateways with all sorts of clocks and links, at random; and batches of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark import columns, schemas
from spark.jobs.following import Batch
from spark.tables import Lake
from spark.transaction import Transaction
from tests.spark import lakes
from tests.spark.lakes import START, Row

WRONG = (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC))
AFTER_S = (-400.0, -200.0, -0.25, 0.0, 0.5, 0.5, 2.000001, 90.0, 4_000.0)
"""From reception to landing: a gateway's clock that is ahead by more than can be believed, and less, among them."""


def message(randoms: random.Random, within_s: float) -> Row:
    landed = START + timedelta(seconds=randoms.random() * within_s)
    received = landed - timedelta(seconds=randoms.choice(AFTER_S))
    return lakes.message(
        at=randoms.choice((received, received, received, received, *WRONG)),
        ingested_at=landed,
        tenant=randoms.choice(("t", "u")),
        gateway=randoms.choice(("g", "h", "gé")),
        lane=randoms.choice(("live", "backlog")),
        clock_quality=randoms.choice(("good", "unknown")),
    )


def arrow(rows: Sequence[Row], names: Sequence[str]) -> pa.Table:
    """These columns of messages, as they are read."""
    kept = [{name: row[name] for name in names} for row in rows]
    arrow_ = pa.schema([schemas.TELEMETRY.arrow.field(name) for name in names])
    return columns.fitted(pa.Table.from_pylist(kept, arrow_), arrow_)


def landed(lake: Lake, rows: Sequence[Row], output: str) -> Batch:
    """A batch of these messages, which land in one commit, for the one table that is made of them."""
    lakes.write(lake.place, "telemetry", rows)
    source = lake.state("telemetry")
    assert source is not None
    entry = lake.commit("telemetry", source.version)
    assert entry is not None
    marker = Transaction("job", source.version, source.version - 1, lake.ensure(output).id)
    return Batch(lake, "telemetry", entry.added, len(rows), None, {output: marker})


def rows_of(lake: Lake, output: str) -> list[dict[str, Any]]:
    """Of a table, read without Spark."""
    found: list[dict[str, Any]] = lake.at(output).delta().to_pyarrow_table().to_pylist()
    return found


def from_spark(lake: Lake, overwrite: Callable[..., bool], name: str, rows: Any, *others: Any) -> bool:
    """`Lake.overwrite` for rows that are not of this process."""
    assert not isinstance(rows, pa.Table)
    return overwrite(lake, name, rows, *others)
