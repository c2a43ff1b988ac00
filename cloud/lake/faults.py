"""Errors of the landing; their class decides what happens to the received content.

    LandingError
    ├── CannotLand      the hub cannot land it now: the content is held and retried
    │   ├── LakeError       the tables cannot be written or read
    │   │   └── TableMismatch   one table demands what this program cannot write; other tables are not affected
    │   ├── RegistryError   the registry cannot be used
    │   ├── CommitSettled   another hub has confirmed or forgotten the commit
    │   └── StreamInDoubt   the landed sequences of one stream are unknown; other streams are not affected
    │       ├── StreamDamaged   its record is damaged, or an older copy: it is rebuilt from the lake
    │       └── StreamElsewhere a hub with another lake has an unfinished landing of it
    └── ContentError    the content can never become rows: it goes raw into `quarantine`

Other exceptions (`MemoryError`, `OSError`, internal errors) are faults of the hub too: the content is held.
"""

from __future__ import annotations

from cloud.lake.sequences import SequenceStream


class LandingError(Exception):
    """The landing failed; the message says why."""


class CannotLand(LandingError):
    """The hub cannot land the content now."""


class LakeError(CannotLand):
    """The lake cannot be written or read."""


class TableMismatch(LakeError):
    """A table has other columns than the contract, or a feature that this program cannot write."""

    def __init__(self, table: str, why: str, next_step: str) -> None:
        super().__init__(f"table {table} {why}: {next_step}")
        self.table = table
        self.why = why
        self.next_step = next_step


class RegistryError(CannotLand):
    """The registry failed; the message says why and what to do."""


class CommitSettled(CannotLand):
    """Another hub has taken over a gateway, and confirmed or forgotten the commit."""


class StreamInDoubt(CannotLand):
    """The landed sequences of one stream are unknown."""

    def __init__(self, stream: SequenceStream, why: str) -> None:
        super().__init__(f"what has landed of {stream.address!r} of gateway {stream.gateway} is not known: {why}")
        self.stream = stream


class StreamDamaged(StreamInDoubt):
    """The record of one stream is damaged, or an older copy."""

    def __init__(self, stream: SequenceStream, why: str, connection: tuple[int | None, int]) -> None:
        super().__init__(stream, why)
        self.connection = connection
        """Number of the gateway's connection, and of that to the registry. Before another one, other hubs may have
        landed more of it, or the registry was restored and gives the same numbers again."""


class StreamElsewhere(StreamInDoubt):
    """A hub with another lake has an unfinished landing of the stream."""


class ContentError(LandingError):
    """The content cannot become rows."""
