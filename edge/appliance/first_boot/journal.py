"""What a gateway is to be made into, and how far that is: two files in its data directory, each replaced whole.

Every step can be done again. The journal is for the one thing that is asked for once: before a token is used, the key
it is used with is noted, so that a start that was cut off knows whether the certificate it finds is of this token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.proxy import Proxy
from edge.appliance.first_boot.places import FOLDER, STATE, WANTED, write_whole

FILE_BYTES_MAX: Final = 1 << 20
"""Of either file."""


@hides("token")
class FirstBootSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's part of the settings."""

    settings: str
    """SHA-256 of the file."""
    name: str
    url: str | None
    """Of the hub; None: messages stay here."""
    failover: tuple[str, ...] = ()
    """Further URLs of it, in the order they are tried."""
    proxy: Proxy | None = None
    """What it is reached through."""
    token: str | None
    forward: tuple[str, ...]
    keep_free: int | None

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the hub, in order; none where messages stay here."""
        return () if self.url is None else (self.url, *self.failover)


class FirstBootState(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is, with the settings of this digest."""

    settings: str = ""
    used: str = ""
    """The token's id (`bridge.enrolment.EnrolmentToken`)."""
    key: str = ""
    """SHA-256 of the public key it is used with."""
    configured: bool = False
    """The gateway sends to its hub."""
    attested: bool = False
    """The hub knows what was set up."""
    done_at: str = ""
    """ISO 8601, UTC."""
    trouble: str = ""
    """What keeps it from going on."""
    next_step: str = ""
    attestation: dict[str, object] = {}
    """`bridge.enrolment.Attestation`."""

    def told(self) -> dict[str, object]:
        """What people see of it; empty where no card has said anything."""
        return {"done_at": self.done_at, "trouble": self.trouble, **self.attestation} if self.settings else {}


class FirstBootJournal:
    """Of one data directory."""

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER
        self.state = state_of(data)

    def wanted(self) -> FirstBootSettings | None:
        """None: nobody has said anything. Raises OSError."""
        try:
            return msgspec.json.decode(_small(self._folder / WANTED), type=FirstBootSettings)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def note(self, **changes: object) -> None:
        """Change the state; on disk on return. Raises OSError."""
        changed = msgspec.structs.replace(self.state, **changes)
        if changed != self.state:
            write_whole(self._folder / STATE, msgspec.json.encode(changed), mode=0o600)
            self.state = changed

    def begin(self, wanted: FirstBootSettings) -> None:
        """Settings other than those the state is of begin anew; a token that was used stays so. Raises OSError."""
        if self.state.settings != wanted.settings:
            fresh = FirstBootState(settings=wanted.settings, used=self.state.used, key=self.state.key)
            self.note(**msgspec.structs.asdict(fresh))


def state_of(data: Path) -> FirstBootState:
    """What the file says; nothing where it cannot be read."""
    try:
        return msgspec.json.decode(_small(data / FOLDER / STATE), type=FirstBootState)
    except (OSError, msgspec.DecodeError):
        return FirstBootState()


def _small(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(FILE_BYTES_MAX)
