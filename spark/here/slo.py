"""How long messages take to the lake, made in this process, column by column: as `spark.transforms.slo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from spark import schemas
from spark.here import delays
from spark.here.delays import Delays
from spark.here.groups import Groups, Numbers, key, numbers
from spark.here.times import (
    DAY_US,
    HOUR_US,
    SECOND_US,
    TIME,
    kept_under,
    or_unknown,
    seconds_between,
    trusted_reception,
)
from spark.transforms.slo import TARGET_SECONDS

MESSAGE: Final = ("tenant", "gateway", "received_at", "ingested_at")
"""Columns of messages that are looked at."""
ROWS_MAX: Final = 100_000
"""Hours of gateways of a batch that are held in this process: with sketches of up to 5 KB each they take 500 MB."""
_GATEWAY: Final = ("tenant", "gateway")
_SHARES: Final = (0.5, 0.95, 0.99)
_QUANTILES: Final = ("p50_s", "p95_s", "p99_s")


def of_hours(messages: pa.Table) -> pa.Table:
    """One row per gateway and hour, as table `delivery_slo` has them; see `spark.transforms.slo.slo`."""
    ingested = numbers(messages["ingested_at"])
    at, suspect = trusted_reception(or_unknown(messages["received_at"]), ingested)
    took = seconds_between(at, ingested)
    hour = at // HOUR_US
    groups = Groups(key(messages, _GATEWAY, hour))
    found = {
        "messages": groups.counts,
        "timed": groups.sum((~suspect).astype(np.int64)),
        "within": groups.sum((~suspect & (took <= TARGET_SECONDS)).astype(np.int64)),
        "revised_at": groups.greatest(ingested),
    }
    begun = hour[groups.first] * HOUR_US
    times = delays.of_messages(groups, took, ~suspect, _SHARES)
    return _table(messages, groups, _windows(begun, HOUR_US), found, times)


def with_days(hours: pa.Table) -> pa.Table:
    """Rows of hours, and one more for each day of a gateway."""
    begun = numbers(hours["window_start"]) // DAY_US * DAY_US
    there = {name: hours[name] for name in hours.column_names}
    return pa.concat_tables([hours, combined(pa.table(there | _windows(begun, DAY_US)))])


def combined(rows: pa.Table) -> pa.Table:
    """Rows of the table, those of one gateway and window made one, as `spark.transforms.slo.FOLD` has it."""
    width, begun = numbers(rows["width_s"]), numbers(rows["window_start"])
    groups = Groups(key(rows, _GATEWAY, width, begun))
    found = {
        **{name: groups.sum(numbers(rows[name])) for name in ("messages", "timed", "within")},
        "revised_at": groups.greatest(numbers(rows["revised_at"])),
    }
    windows = {name: rows[name].take(pa.array(groups.first)) for name in ("width_s", "window_start", "event_date")}
    sketch, longest, *quantiles = (rows[name].combine_chunks() for name in ("times", "max_s", *_QUANTILES))
    return _table(rows, groups, windows, found, delays.combined(groups, Delays(sketch, quantiles, longest), _SHARES))


def _windows(begun: Numbers, width_us: int) -> dict[str, pa.Array]:
    """What says which window a row is of."""
    return {
        "width_s": pa.array(np.full(len(begun), width_us // SECOND_US, np.int32)),
        "window_start": pa.array(begun).cast(TIME),
        "event_date": kept_under(begun),
    }


def _table(
    rows: pa.Table, groups: Groups, windows: Mapping[str, pa.Array], found: Mapping[str, Numbers], times: Delays
) -> pa.Table:
    columns = {name: rows[name].take(pa.array(groups.first)) for name in _GATEWAY} | dict(windows)
    columns |= {name: pa.array(column) for name, column in found.items()}
    columns |= {"revised_at": columns["revised_at"].cast(TIME), "max_s": times.longest, "times": times.sketch}
    columns |= dict(zip(_QUANTILES, times.quantiles, strict=True))
    columns["within_share"] = delays.share(found["within"], found["timed"])
    names = schemas.DELIVERY_SLO.columns.names
    return pa.table({name: columns[name] for name in names}).cast(schemas.DELIVERY_SLO.arrow)
