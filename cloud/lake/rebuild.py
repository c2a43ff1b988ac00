"""Rebuilding of a gateway's landed sequences from the lake, a few data files at a time."""

from __future__ import annotations

from itertools import islice

from cloud.lake.lake import LandingLake
from cloud.lake.sequences import SequenceSet, SequenceStream

REBUILD_FILES = 500
"""Data files read at a time, some milliseconds each: landings of other gateways wait for them."""


class Rebuild:
    """Rebuild of one gateway; nothing of its streams in doubt lands until it is done."""

    def __init__(self, lake: LandingLake, tenant: str, gateway: str, connection: tuple[int | None, int]) -> None:
        """`connection`: see `StreamDamaged.connection`; what was read is complete for it alone."""
        self.connection = connection
        self.landed: dict[SequenceStream, SequenceSet] = {}
        self.files = 0
        """Number of files read so far."""
        self._parts = lake.landed(tenant, gateway)

    def advance(self) -> bool:
        """Read more files; return whether all were read. Raises `LakeError`; then start again with a new rebuild."""
        before = self.files
        for ranges in islice(self._parts, REBUILD_FILES):
            self.files += 1
            for part in ranges:
                self.landed.setdefault(part.stream, SequenceSet()).add(part.first, part.last)
        return self.files - before < REBUILD_FILES
