"""The rebuilding of what has landed of a gateway, from the lake itself, a few data files at a time."""

from __future__ import annotations

from itertools import islice

from cloud.lake.lake import Lake
from cloud.lake.sequences import SequenceSet, Stream

REBUILD_FILES = 500
"""Data files read at a time, some milliseconds each: other gateways' landings wait for it."""


class Rebuild:
    """Of one gateway, of whose streams in doubt nothing lands meanwhile."""

    def __init__(self, lake: Lake, tenant: str, gateway: str) -> None:
        self.landed: dict[Stream, SequenceSet] = {}
        self.files = 0
        """Read so far."""
        self._parts = lake.landed(tenant, gateway)

    def advance(self) -> bool:
        """Read on; true when everything has been read. Raises `LakeError`; then it has to begin anew."""
        before = self.files
        for ranges in islice(self._parts, REBUILD_FILES):
            self.files += 1
            for part in ranges:
                self.landed.setdefault(part.stream, SequenceSet()).add(part.first, part.last)
        return self.files - before < REBUILD_FILES
