"""Progress of a streaming query: its checkpoint in the lake, which belongs to certain tables.

The folder of a checkpoint is named after the ids of the tables that the query reads and writes, and the revision of the
job. If a table is created again, or the computation changes, a new checkpoint is started and the outputs are rebuilt
from scratch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from cloud.place.place import LakePlace

FOLDER: Final = "_checkpoints"
"""Folder in the lake."""
_VERSION_LINES: Final = 2
"""Lines of an offsets file before those of the sources: version and settings."""


class SourceLost(RuntimeError):
    """A source or an output does not match the progress; the message says what to do."""


class Checkpoint:
    """Checkpoint of a query between certain tables. Spark writes it, this class reads it."""

    def __init__(self, lake: LakePlace, name: str, generation: Iterable[str]) -> None:
        """Set the place. `generation`: revision of the job and ids of the tables."""
        self._all = lake.at(FOLDER).at(name)
        self._place = self._all.at(hashlib.sha256("|".join(generation).encode()).hexdigest()[:16])

    @property
    def uri(self) -> str:
        """Location for Spark."""
        return self._place.spark_uri

    def is_started(self) -> bool:
        """Return whether the query was started once."""
        return self._place.size("metadata") is not None

    def query_id(self) -> str:
        """Return the id of the query, which is the same for every start from this checkpoint."""
        content = self._place.read("metadata")
        if content is None:
            raise SourceLost(f"{self._place.uri}/metadata is missing. `waypost lake rebuild` rebuilds the tables")
        return str(json.loads(content)["id"])

    def last_batch(self) -> int:
        """Return the number of the last completed micro-batch; -1 before the first."""
        return max((int(name) for name in self._place.names("commits") if name.isdigit()), default=-1)

    def is_planned(self, batch: int) -> bool:
        """Return whether the range of a micro-batch is recorded; Spark records it before the batch begins."""
        return self._place.size(f"offsets/{batch}") is not None

    def end(self, batch: int) -> int | None:
        """Return the version of the source that a micro-batch reads completely; None if it ends within one."""
        content = self._place.read(f"offsets/{batch}")
        if content is None:
            return None
        offset = json.loads(content.decode().splitlines()[_VERSION_LINES])
        whole = offset["index"] < 0 and not offset["isStartingVersion"]
        return int(offset["reservoirVersion"]) - 1 if whole else None

    def clear(self) -> None:
        """Delete all checkpoints of this query, also those for former tables."""
        self._all.clear()
