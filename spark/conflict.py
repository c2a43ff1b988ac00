"""Conflicts of two writers that commit to a table at the same moment: one succeeds, the other is notified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import CommitFailedError

_OF_SPARK: Final = re.compile(r"Concurrent\w*Exception|MetadataChangedException|DELTA_(CONCURRENT|METADATA_CHANGED)")


class ConcurrentWrite(RuntimeError):
    """Another pass, or maintenance, has changed a table concurrently; the message says what to do."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table} was changed by another pass over this lake, or by maintenance, while this one wrote to it. "
            "Nothing is lost or duplicated, and the next pass continues: run one at a time"
        )


@contextmanager
def translate_conflict(table: str) -> Iterator[None]:
    """Raise `ConcurrentWrite` if a commit in the body fails because of another writer's commit."""
    try:
        yield
    except Exception as error:  # Spark's own have no class in common
        if is_conflict(error):
            raise ConcurrentWrite(table) from error
        raise


def is_conflict(error: Exception) -> bool:
    """Return whether another writer's commit caused this error."""
    return isinstance(error, CommitFailedError) or bool(_OF_SPARK.search(f"{type(error).__name__}: {error}"))
