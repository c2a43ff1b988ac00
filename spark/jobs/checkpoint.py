"""Progress of a streaming query: its checkpoint in the lake, which belongs to the very tables that it reads and writes.

A checkpoint's folder is named after the ids of these tables and the revision of the job. When one of them is created
again, or the job computes otherwise, it is the checkpoint of other tables: a new one is started, and the outputs are
rebuilt from the start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from cloud.place.place import LakePlace

FOLDER: Final = "_checkpoints"
"""In the lake."""
_VERSION_LINES: Final = 2
"""Lines of an offsets file before those of the sources: its version, and settings."""


class SourceLost(RuntimeError):
    """A source or an output is not the one that the progress is of; the message says what to do."""


class Checkpoint:
    """The checkpoint of query `name` between these tables. Spark writes it; here it is read."""

    def __init__(self, lake: LakePlace, name: str, generation: Iterable[str]) -> None:
        """`generation`: what it belongs to: revision of the job, ids of the tables."""
        self._all = lake.at(FOLDER).at(name)
        self._place = self._all.at(hashlib.sha256("|".join(generation).encode()).hexdigest()[:16])

    @property
    def uri(self) -> str:
        """Return where Spark keeps it."""
        return self._place.spark_uri

    def is_started(self) -> bool:
        """Return whether the query has been started once."""
        return self._place.size("metadata") is not None

    def query_id(self) -> str:
        """Return the id of the query, which every start of it from this checkpoint has."""
        content = self._place.read("metadata")
        if content is None:
            raise SourceLost(f"{self._place.uri}/metadata is missing. `waypost analytics rebuild` rebuilds the tables")
        return str(json.loads(content)["id"])

    def last_batch(self) -> int:
        """Return the number of the last completed micro-batch; -1 before the first."""
        return max((int(name) for name in self._place.names("commits") if name.isdigit()), default=-1)

    def has_begun(self, batch: int) -> bool:
        """Return whether it is known what a micro-batch reads; Spark writes that down before the batch begins."""
        return self._place.size(f"offsets/{batch}") is not None

    def end(self, batch: int) -> int | None:
        """Return the version of the source that a micro-batch has read to its end; None where it ends within one."""
        content = self._place.read(f"offsets/{batch}")
        if content is None:
            return None
        offset = json.loads(content.decode().splitlines()[_VERSION_LINES])
        whole = offset["index"] < 0 and not offset["isStartingVersion"]
        return int(offset["reservoirVersion"]) - 1 if whole else None

    def clear(self) -> None:
        """Delete the checkpoints of this query, those of other tables too."""
        self._all.clear()
