"""What a derived table was made of: kept as `userMetadata` in its Delta commit, read by the report without a JVM."""

from __future__ import annotations

from datetime import datetime

import msgspec

TELEMETRY = "telemetry"


class State(msgspec.Struct, frozen=True):
    """What a table is at one moment: `id` changes when the table is made anew, `version` with every commit."""

    id: str
    version: int
    committed_at: datetime | None = None
    """When the version was committed, where its log says so."""


class Provenance(msgspec.Struct, frozen=True):
    """The landed tables, at the versions that were read."""

    sources: dict[str, State]

    @property
    def telemetry(self) -> State | None:
        """The state of `telemetry`, which every derived table is made of."""
        return self.sources.get(TELEMETRY)

    def text(self) -> str:
        """As it stands in a commit."""
        return msgspec.json.encode(self).decode()


def parsed(text: object) -> Provenance | None:
    """What a commit's `userMetadata` says; None when it is of something else, or of a Waypost before this."""
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=Provenance)
    except msgspec.DecodeError:
        return None
