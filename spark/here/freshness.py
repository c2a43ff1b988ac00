"""How fresh the data of gateways and devices is, made in this process, column by column: as
`spark.transforms.freshness`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark import schemas
from spark.here import delays
from spark.here.delays import Delays
from spark.here.groups import Groups, Numbers, key, numbers
from spark.here.times import TIME, or_unknown, seconds_between, trusted
from spark.transforms.freshness import LATE_SECONDS

MESSAGE: Final = ("tenant", "gateway", "device", "event_time", "ingested_at", "lane")
"""Columns of messages that are looked at."""
ROWS_MAX: Final = 100_000
"""Gateways and devices of a batch that are held in this process: with sketches of up to 5 KB each they take 500 MB."""
_SHARES: Final = (0.5, 0.95)
_TIMES: Final = ("first_event_time", "last_event_time", "last_ingested_at")
_QUANTILES: Final = ("lag_p50_s", "lag_p95_s")


def of_devices(messages: pa.Table) -> pa.Table:
    """One row per device, as table `gateway_freshness` has them; see `spark.transforms.freshness.freshness`."""
    ingested = numbers(messages["ingested_at"])
    at, suspect = trusted(or_unknown(messages["event_time"]), ingested)
    lag = seconds_between(at, ingested)
    is_late = pc.equal(messages["lane"], "backlog").to_numpy() | (~suspect & (lag > LATE_SECONDS))
    groups = Groups(key(messages, schemas.GATEWAY_FRESHNESS.keys))
    found = {
        "first_event_time": groups.least(at),
        "last_event_time": groups.greatest(at),
        "last_ingested_at": groups.greatest(ingested),
        "rows": groups.counts,
        "late_rows": groups.sum(is_late.astype(np.int64)),
        "suspect_rows": groups.sum(suspect.astype(np.int64)),
    }
    return _table(messages, groups, found, delays.of_messages(groups, lag, ~suspect, _SHARES))


def with_gateways(devices: pa.Table) -> pa.Table:
    """Rows of devices, and one more for each gateway, which has no device."""
    place = devices.schema.get_field_index("device")
    nobody = pa.nulls(len(devices), pa.string())
    return pa.concat_tables([devices, combined(devices.set_column(place, devices.schema.field(place), nobody))])


def combined(rows: pa.Table) -> pa.Table:
    """Rows of the table, those of one gateway or device made one, as `spark.transforms.freshness.FOLD` has it."""
    groups = Groups(_key(rows))
    found = {
        "first_event_time": groups.least(numbers(rows["first_event_time"])),
        "last_event_time": groups.greatest(numbers(rows["last_event_time"])),
        "last_ingested_at": groups.greatest(numbers(rows["last_ingested_at"])),
        **{name: groups.sum(numbers(rows[name])) for name in ("rows", "late_rows", "suspect_rows")},
    }
    sketch, longest, *quantiles = (rows[name].combine_chunks() for name in ("lags", "lag_max_s", *_QUANTILES))
    return _table(rows, groups, found, delays.combined(groups, Delays(sketch, quantiles, longest), _SHARES))


def _key(rows: pa.Table) -> Numbers:
    """A gateway, whose device is null, is not a device without a name."""
    device = rows["device"].cast(pa.string())
    named = rows.select(["tenant", "gateway"]).append_column("device", pc.fill_null(device, ""))
    return key(named, schemas.GATEWAY_FRESHNESS.keys, pc.is_null(device).to_numpy().astype(np.int64))


def _table(rows: pa.Table, groups: Groups, found: Mapping[str, Numbers], lags: Delays) -> pa.Table:
    columns = {name: rows[name].take(pa.array(groups.first)) for name in schemas.GATEWAY_FRESHNESS.keys}
    columns |= {name: pa.array(column) for name, column in found.items()}
    columns |= {name: columns[name].cast(TIME) for name in _TIMES}
    columns |= dict(zip(_QUANTILES, lags.quantiles, strict=True))
    columns |= {"lag_max_s": lags.longest, "lags": lags.sketch}
    columns["late_share"] = delays.share(found["late_rows"], found["rows"])
    names = schemas.GATEWAY_FRESHNESS.columns.names
    return pa.table({name: columns[name] for name in names}).cast(schemas.GATEWAY_FRESHNESS.arrow)
