"""Messages that could not be read as a whole, and the rows of them, found in this process, column by column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark.here import parts
from spark.here.groups import Groups, alike, dictionary, key, numbers
from spark.here.times import DAY_US, dates

_TEXTS: Final = ("tenant", "gateway", "epoch", "address")
MESSAGE: Final = (*_TEXTS, "sequence", "ingested_at")
"""Columns that name a message, and say under which day it is kept."""
REJECT: Final = (*MESSAGE, "metric", "reason")
"""Columns of table `reject` that say what could not be read."""
MESSAGES_MAX: Final = 100_000
"""Messages that are read again in this process: 1 s of decoding, and what names them takes 30 MB."""

Mask = NDArray[np.bool_]
Which = Callable[[pa.Table], Mask]


def messages(rows: Iterable[pa.Table], messages_max: int) -> pa.Table | None:
    """The messages that these rows are of (`MESSAGE`, and each once); None where they are more."""
    found = parts.summed(rows, each_once, each_once, messages_max)
    return None if found is None or len(found) > messages_max else found


def each_once(rows: pa.Table) -> pa.Table:
    """The messages that these rows are of."""
    texts = {name: dictionary(rows[name]) for name in _TEXTS}
    named = pa.table({name: texts.get(name, rows[name]) for name in MESSAGE})
    of = Groups(key(named, _TEXTS, numbers(named["sequence"]), _days(named)))
    return named.take(pa.array(of.first))


def whole(rejects: pa.Table, reason: str | None = None, address: re.Pattern[str] | None = None) -> pa.Table:
    """Of rejects (`REJECT`) those of whole messages, with this reason, of addresses like these."""
    chosen = is_whole(rejects)
    if reason is not None:
        chosen &= pc.equal(rejects["reason"], reason).to_numpy()
    if address is not None:
        one = dictionary(rejects["address"])
        is_like = np.array([address.search(each) is not None for each in one.dictionary.to_pylist()], bool)
        chosen &= is_like[one.indices.to_numpy()]
    return rejects.filter(pa.array(chosen))


def is_whole(rejects: pa.Table) -> Mask:
    """Which are of whole messages, and not of a value."""
    found: Mask = pc.equal(rejects["metric"], "").to_numpy()
    return found


def are_of(rows: pa.Table, messages: pa.Table) -> Mask:
    """Which rows are of these messages, kept under the same day (`MESSAGE` of both)."""
    sequences = numbers(rows["sequence"]), numbers(messages["sequence"])
    found: Mask = np.isin(*alike(rows, messages, _TEXTS, sequences, (_days(rows), _days(messages))))
    return found


def replayed(readings: pa.Table, version: int) -> pa.Table:
    """Readings of messages that were rejects until this version of them."""
    place = readings.schema.get_field_index("replay")
    return readings.set_column(place, "replay", pa.array(np.full(len(readings), version)))


def days(messages: pa.Table) -> list[date]:
    """The days under which these are kept."""
    found: list[date] = dates(np.unique(_days(messages))).to_pylist()
    return found


def _days(rows: pa.Table) -> NDArray[np.int64]:
    found: NDArray[np.int64] = numbers(rows["ingested_at"]) // DAY_US
    return found
