"""When messages waited at their gateway, found in this process, column by column: as `spark.transforms.outages`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark import schemas
from spark.here import parts
from spark.here.groups import Groups, key, numbers, numbers_or
from spark.here.islands import islands
from spark.here.times import SECOND_US, TIME, or_unknown, seconds_between, trusted_reception
from spark.transforms.outages import PAUSE_SECONDS

KEY: Final = ("tenant", "gateway")
MESSAGE: Final = (*KEY, "lane", "received_at", "ingested_at")
"""Columns of messages that are looked at."""
HERE_MAX: Final = 2_000_000
"""Outages, and those of a batch by parts, that are held in this process: to be joined they take 400 MB."""
_PAUSE_US: Final = PAUSE_SECONDS * SECOND_US
_UNKNOWN: Final = -np.inf
"""A lag that no clock tells: less than all others."""


def all_joined(there: Iterable[pa.Table], messages: Iterable[pa.Table]) -> pa.Table | None:
    """The outages of a table, as it is in these parts, and of these parts of messages (`MESSAGE`); None where there are
    more than `HERE_MAX`."""
    return parts.summed(chain(there, map(outages, messages)), lambda part: part, joined, HERE_MAX)


def outages(messages: pa.Table) -> pa.Table:
    """Those of these messages, as table `outages` has them; see `spark.transforms.outages.outages`."""
    waited = messages.filter(pc.equal(messages["lane"], "backlog"))
    ingested = numbers(waited["ingested_at"])
    received = trusted_reception(or_unknown(waited["received_at"]), ingested)
    lag = seconds_between(received.at, ingested)
    at, landed = (pa.array(times).cast(TIME) for times in (received.at, ingested))
    columns = {name: waited[name] for name in KEY} | {
        "began": at,
        "until": at,
        "drain_began": landed,
        "drained": landed,
        "messages": pa.array(np.ones(len(waited), np.int64)),
        "lag_max_s": pa.array(lag, mask=received.suspect),
    }
    # What was received within a pause belongs together whatever else there is: few rows are left to be sorted.
    together = Groups(key(waited, KEY, received.at // _PAUSE_US))
    return joined(_summed(pa.table(columns), together))


def joined(stretches: pa.Table) -> pa.Table:
    """Rows as in table `outages`, some of which may belong to one outage, as one row each outage."""
    began, until, drained = (numbers(stretches[name]) for name in ("began", "until", "drained"))
    of = islands(key(stretches, KEY), began, np.maximum(until, drained), _PAUSE_US)
    return _summed(stretches, Groups(of))


def _summed(stretches: pa.Table, groups: Groups) -> pa.Table:
    lag = groups.greatest(numbers_or(stretches["lag_max_s"], _UNKNOWN))
    least = {name: groups.least(numbers(stretches[name])) for name in ("began", "drain_began")}
    greatest = {name: groups.greatest(numbers(stretches[name])) for name in ("until", "drained")}
    columns = {name: stretches[name].take(pa.array(groups.first)) for name in KEY} | {
        **{name: pa.array(times).cast(TIME) for name, times in (least | greatest).items()},
        "messages": pa.array(groups.sum(numbers(stretches["messages"]))),
        "lag_max_s": pa.array(lag, mask=lag == _UNKNOWN),
    }
    return pa.table({name: columns[name] for name in schemas.OUTAGES.columns.names})
