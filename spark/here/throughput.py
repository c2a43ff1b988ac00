"""Messages received and landed over time, counted in this process, column by column: as `spark.transforms.throughput`
counts them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark import schemas
from spark.here import parts
from spark.here.groups import Groups, Numbers, key, numbers, numbers_or
from spark.here.times import SECOND_US, TIME, kept_under, or_unknown, seconds_between, trusted_reception
from spark.transforms.throughput import bucket_seconds

KEY: Final = ("tenant", "gateway", "lane")
MESSAGE: Final = (*KEY, "received_at", "ingested_at")
"""Columns of messages that are counted."""
REACH: Final = ("bucket", "bucket_s")
"""Columns of the table that say where it begins and how wide its buckets are."""
BUCKET: Final = (*KEY, "bucket", "received", "ingested", "lag_max_s")
"""Columns of the table that wider buckets are made of."""
HERE_MAX: Final = 4_000_000
"""Buckets that are held in this process: with the sums made of them they take 650 MB."""
_UNKNOWN: Final = -np.inf
"""A lag that no clock tells: less than all others."""


class Reach(NamedTuple):
    """Of a table: when its first bucket begins, and how wide its buckets are; of one without rows that is 0."""

    since_us: int = 2**63 - 1
    width_s: int = 0


class Counted(NamedTuple):
    """Rows as table `throughput` has them, all of one width."""

    rows: pa.Table
    width_s: int


def reach(there: Iterable[pa.Table]) -> Reach:
    """Of a table of these parts (`REACH`)."""
    found = Reach()
    for part in there:
        since = numbers(part["bucket"]).min(initial=found.since_us)
        found = Reach(int(since), int(numbers(part["bucket_s"]).max(initial=found.width_s)))
    return found


def counted(messages: Iterable[pa.Table], there: Reach) -> Counted | None:
    """These parts of messages (`MESSAGE`), in buckets as wide as the table and they ask for together; None where there
    are more than `HERE_MAX`."""
    first, last, width = there.since_us, 0, max(1, there.width_s)
    made: list[pa.Table] = []
    for part in messages:
        received, ingested = or_unknown(part["received_at"]), numbers(part["ingested_at"])
        first = int(trusted_reception(received, ingested).at.min(initial=first))
        last = int(ingested.max(initial=last))
        # No wider than those of all parts, which are put together of these.
        width = max(width, bucket_seconds((last - first) / SECOND_US))
        made.append(throughput(part, width))
        if sum(map(len, made)) > HERE_MAX:
            return None
    return Counted(widened(pa.concat_tables(made), width), width)


def throughput(messages: pa.Table, width_s: int) -> pa.Table:
    """One row per gateway, lane and bucket that has messages; see `spark.transforms.throughput.throughput`."""
    ingested = numbers(messages["ingested_at"])
    received = trusted_reception(or_unknown(messages["received_at"]), ingested)
    lag = np.where(received.suspect, _UNKNOWN, seconds_between(received.at, ingested))
    at, landed = (Groups(_key(messages, times, width_s)) for times in (received.at, ingested))
    none = np.zeros(len(at), np.int64), np.zeros(len(landed), np.int64)
    unknown = np.full(len(at), _UNKNOWN)
    roles = (
        _table(messages, at, received.at, width_s, (at.counts, none[0], unknown)),
        _table(messages, landed, ingested, width_s, (none[1], landed.counts, landed.greatest(lag))),
    )
    return widened(pa.concat_tables(roles), width_s)


def put_together(buckets: Iterable[pa.Table], width_s: int) -> pa.Table | None:
    """Buckets (`BUCKET`) of a table and further ones as buckets of `width_s`; None where these are more than
    `HERE_MAX`."""
    of_width = partial(widened, width_s=width_s)
    return parts.summed(buckets, of_width, of_width, HERE_MAX)


def widened(buckets: pa.Table, width_s: int) -> pa.Table:
    """Rows of narrower buckets, or several of one, put together; see `spark.transforms.throughput.widened`."""
    begin = numbers(buckets["bucket"])
    lag = numbers_or(buckets["lag_max_s"], _UNKNOWN)
    groups = Groups(_key(buckets, begin, width_s))
    received, ingested = (groups.sum(numbers(buckets[name])) for name in ("received", "ingested"))
    return _table(buckets, groups, begin, width_s, (received, ingested, groups.greatest(lag)))


def _key(rows: pa.Table, times: Numbers, width_s: int) -> Numbers:
    return key(rows, KEY, times // (width_s * SECOND_US))


def _table(
    rows: pa.Table, groups: Groups, times: Numbers, width_s: int, sums: tuple[Numbers, Numbers, Numbers]
) -> pa.Table:
    """`times`: of each row; `sums`: received, ingested and the longest lag of each group."""
    width_us = width_s * SECOND_US
    bucket = times[groups.first] // width_us * width_us
    received, ingested, lag = sums
    columns = {name: rows[name].take(pa.array(groups.first)) for name in KEY} | {
        "bucket": pa.array(bucket).cast(TIME),
        "bucket_s": pa.array(np.full(len(groups), width_s, np.int32)),
        "received": pa.array(received),
        "ingested": pa.array(ingested),
        "lag_max_s": pa.array(lag, mask=lag == _UNKNOWN),
        "event_date": kept_under(bucket),
    }
    return pa.table({name: columns[name] for name in schemas.THROUGHPUT.columns.names})
