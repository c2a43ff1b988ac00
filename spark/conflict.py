"""Two passes over one lake: each transaction of a job is committed once, and the second to come is told.

Nobody but another pass writes what a job writes, under the same transactions. So who comes second has mostly nothing
left to do; if not, the next pass goes on from what is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import CommitFailedError

_SPARKS: Final = re.compile(r"Concurrent\w*Exception|MetadataChangedException|DELTA_(CONCURRENT|METADATA_CHANGED)")


class Overtaken(RuntimeError):
    """Another pass has changed a table meanwhile; the message says what to do."""

    def __init__(self, table: str | None = None) -> None:
        what = "one of its tables" if table is None else f"table {table}"
        super().__init__(
            f"{what} was changed by another pass over this lake, or by maintenance, while this one was at it. "
            "Nothing is lost or there twice, and the next pass goes on: run one at a time"
        )


@contextmanager
def settled(table: str, is_done: Callable[[], bool]) -> Iterator[None]:
    """Around what commits to a table. Of a conflict nothing comes where `is_done` then, else `Overtaken`."""
    try:
        yield
    except Exception as error:  # Spark's own have no class in common
        if not is_conflict(error):
            raise
        if not is_done():
            raise Overtaken(table) from error


def is_conflict(error: Exception) -> bool:
    """Whether another one's commit is why this failed."""
    return isinstance(error, CommitFailedError) or bool(_SPARKS.search(f"{type(error).__name__}: {error}"))
