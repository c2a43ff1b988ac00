"""Why a landing did not happen: the classes that decide what becomes of what was received.

    LandingError
    ├── CannotLand      the hub cannot do it now: what was received is held and tried again
    │   ├── LakeError       the tables cannot be written or read
    │   ├── RegistryError   the registry cannot be used
    │   └── StreamInDoubt   what has landed of one stream is not known; the other streams are not concerned
    │       ├── StreamDamaged   the record of it is damaged, or an older copy: it is made again from the lake
    │       └── StreamElsewhere another hub is landing something of it
    └── ContentError    what was received can never be made into rows: it goes raw into `quarantine`

Everything else that is raised (`MemoryError`, `OSError`, a mistake of ours) is a fault of the hub too: it is held.
"""

from __future__ import annotations

from cloud.lake.sequences import Stream


class LandingError(Exception):
    """A landing did not happen; the message says why."""


class CannotLand(LandingError):
    """The hub cannot land it now."""


class LakeError(CannotLand):
    """The lake cannot be written or read."""


class TableMismatch(LakeError):
    """A table is there with columns other than the contract's."""


class RegistryError(CannotLand):
    """The registry cannot do what was asked; the message says why and what to do next."""


class StreamInDoubt(CannotLand):
    """Nobody can say what has landed of one stream."""

    def __init__(self, stream: Stream, why: str) -> None:
        super().__init__(f"what has landed of {stream.address!r} of gateway {stream.gateway} is not known: {why}")
        self.stream = stream


class StreamDamaged(StreamInDoubt):
    """The record of what has landed of one stream is damaged, or an older copy."""


class StreamElsewhere(StreamInDoubt):
    """Another hub is landing something of the stream."""


class ContentError(LandingError):
    """No rows can be made of what was received."""
