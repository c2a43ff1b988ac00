"""Times as columns: whole microseconds since 1970 UTC. The rules are those of `spark.transforms.times`."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark.here.groups import Numbers, numbers_or
from spark.transforms.times import AHEAD_SECONDS_MAX, PLAUSIBLE_FROM

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
TIME: Final = pa.timestamp("us", "UTC")
UNKNOWN: Final = -(2**63)
"""A time that nobody knows: before all others, and suspect as the first of them are. Spark has null for it."""
_PLAUSIBLE_FROM_US: Final = int(PLAUSIBLE_FROM.timestamp()) * SECOND_US


def or_unknown(column: pa.ChunkedArray) -> Numbers:
    """A column of times, some of which may be null: these are `UNKNOWN`."""
    return numbers_or(column, UNKNOWN)


def latest(ingested: Numbers) -> Numbers:
    """The last moment at which something can have been that was ingested then."""
    return ingested + AHEAD_SECONDS_MAX * SECOND_US


def is_believable(at: Numbers, ingested: Numbers) -> NDArray[np.bool_]:
    """Whether something can have been then, having landed at `ingested`."""
    found: NDArray[np.bool_] = (at >= _PLAUSIBLE_FROM_US) & (at <= latest(ingested))
    return found


class Trusted(NamedTuple):
    """Times as far as they can be believed, and where they cannot."""

    at: Numbers
    suspect: NDArray[np.bool_]


def trusted(at: Numbers, ingested: Numbers) -> Trusted:
    """Times clamped to what was possible, those that nobody knows to that of the ingestion; see
    `spark.transforms.times.with_trusted_times`."""
    clamped = np.where(at == UNKNOWN, ingested, np.minimum(at, latest(ingested)))
    return Trusted(clamped, ~is_believable(at, ingested))


def trusted_reception(received: Numbers, ingested: Numbers) -> Trusted:
    """When rows were received, if anybody knows; see `spark.transforms.times.with_trusted_reception`."""
    suspect = ~is_believable(received, ingested)
    return Trusted(np.where(suspect, ingested, received), suspect)


def seconds_between(earlier: Numbers, later: Numbers) -> NDArray[np.float64]:
    """Seconds from one time to another; never below zero."""
    seconds: NDArray[np.float64] = np.maximum(later - earlier, 0) / SECOND_US
    return seconds


def kept_under(at: Numbers) -> pa.Array:
    """The dates that rows of these times are kept under."""
    return dates(np.where(at >= _PLAUSIBLE_FROM_US, at // DAY_US, 0))


def hour_kept_under(at: Numbers) -> pa.Array:
    """The hours of the day that rows of these times are kept under."""
    return pa.array(np.where(at >= _PLAUSIBLE_FROM_US, at // HOUR_US % 24, 0).astype(np.int32))


def dates(days: Numbers) -> pa.Array:
    """Dates of days since 1970."""
    return pa.array(days.astype(np.int32)).cast(pa.date32())
