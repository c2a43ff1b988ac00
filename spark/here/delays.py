"""How long the messages of groups took: a KLL sketch of the seconds, some quantiles, and the longest.

What nobody knows of any message of a group, as no clock says it, is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark.here import sketches
from spark.here.groups import Groups, Numbers


class Delays(NamedTuple):
    """Of each group. `sketch`: binary; `quantiles`, for each share asked for, and `longest`: seconds."""

    sketch: pa.Array
    quantiles: Sequence[pa.Array]
    longest: pa.Array


def of_messages(
    groups: Groups, seconds: NDArray[np.float64], known: NDArray[np.bool_], shares: Sequence[float]
) -> Delays:
    """Those of messages by their groups. `known`: of which of them these seconds are true."""
    counts = groups.sum(known.astype(np.int64))
    values, starts = groups.ascending(np.where(known, seconds, np.inf))  # the others last
    starts, some = starts[counts > 0], counts[counts > 0]
    made = sketches.of(values, starts, some)
    quantiles = sketches.quantiles_of(values, starts, some, made, shares)
    return _of_all(counts > 0, made, quantiles, values[starts + some - 1])


def combined(groups: Groups, delays: Delays, shares: Sequence[float]) -> Delays:
    """Those of groups of groups. `delays`: the quantiles are those of `shares`."""
    is_known = delays.sketch.is_valid()
    rows = np.flatnonzero(is_known)
    group = groups.of_rows()[rows]
    sketch, longest, *known = (column.filter(is_known) for column in (delays.sketch, delays.longest, *delays.quantiles))
    some = Groups(group)
    made, quantiles = sketches.combined(sketch, [column.to_numpy() for column in known], some, shares)
    there = np.bincount(group, minlength=len(groups)) > 0
    return _of_all(there, made, quantiles, some.greatest(longest.to_numpy()))


def _of_all(there: NDArray[np.bool_], sketch: pa.Array, quantiles: Sequence[Numbers], longest: Numbers) -> Delays:
    """Of all groups what is known of those that are `there`."""
    place = pa.array(np.cumsum(there) - 1, mask=~there)

    def column(found: Numbers) -> pa.Array:
        return pa.array(found, pa.float64()).take(place)

    return Delays(sketch.take(place), [column(each) for each in quantiles], column(longest))


def share(part: Numbers, whole: Numbers) -> pa.Array:
    """Parts of what they are of; null where that is nothing."""
    return pc.divide(pa.array(part, pa.float64()), pa.array(whole, pa.float64(), mask=whole == 0))
