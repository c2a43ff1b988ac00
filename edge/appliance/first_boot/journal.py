"""Settings, state and refusal of a first boot: files in the data directory, each replaced as a whole.

Every step can be repeated, except that a token is used once. The key is therefore recorded before the token is used:
after an interruption the gateway knows whether a certificate that it finds is this token's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.proxy import Proxy
from edge.appliance.first_boot.places import FOLDER, REFUSAL, STATE, WANTED, write_whole

FILE_BYTES_MAX: Final = 1 << 20
"""Largest size of one of them."""


@hides("token")
class FirstBootSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the card that concern the gateway."""

    settings: str
    """SHA-256 of the card's file."""
    name: str
    url: str | None
    """URL of the hub; None: messages stay on the gateway."""
    failover: tuple[str, ...] = ()
    """Further URLs of the hub, in the order in which they are tried."""
    proxy: Proxy | None = None
    """Proxy through which the hub is reached."""
    token: str | None
    forward: tuple[str, ...]
    keep_free: int | None

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of the hub in order; none when messages stay on the gateway."""
        return () if self.url is None else (self.url, *self.failover)


class FirstBootState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress with the settings of this digest."""

    settings: str = ""
    used: str = ""
    """Id of the used token (`bridge.enrolment.EnrolmentToken`)."""
    key: str = ""
    """SHA-256 of the public key that was sent with the token."""
    configured: bool = False
    """True when the gateway is configured to forward to its hub."""
    attested: bool = False
    """True when the hub has the report of the set-up."""
    done_at: str = ""
    """ISO 8601, UTC."""
    trouble: str = ""
    """Reason why the set-up cannot continue; empty when it can."""
    next_step: str = ""
    attestation: dict[str, object] = {}
    """`bridge.enrolment.Attestation`."""

    def summary(self) -> dict[str, object]:
        """Return the part that the console shows; empty without settings from a card."""
        return {"done_at": self.done_at, "trouble": self.trouble, **self.attestation} if self.settings else {}


class SettingsRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why the file on the card is not applied."""

    why: str
    next_step: str


class FirstBootJournal:
    """Journal in one data directory."""

    def __init__(self, data: Path, owner: tuple[int, int] | None = None) -> None:
        """`owner`: user and group of its files, by default those of this process."""
        self._data = data
        self._folder = data / FOLDER
        self._owner = owner
        self.state = state_of(data)

    def read(self) -> None:
        """Read the state again: another program may have changed it."""
        self.state = state_of(self._data)

    def wanted(self) -> FirstBootSettings | None:
        """Return the settings; None without any. Raises OSError."""
        try:
            return msgspec.json.decode(_small(self._folder / WANTED), type=FirstBootSettings)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def note(self, **changes: object) -> None:
        """Change the state, on disk on return. Raises OSError."""
        changed = msgspec.structs.replace(self.state, **changes)
        if changed != self.state:
            write_whole(self._folder / STATE, msgspec.json.encode(changed), mode=0o600, owner=self._owner)
            self.state = changed

    def begin(self, wanted: FirstBootSettings) -> None:
        """Start over when the settings have changed; a used token stays used. Raises OSError."""
        if self.state.settings != wanted.settings:
            fresh = FirstBootState(settings=wanted.settings, used=self.state.used, key=self.state.key)
            self.note(**msgspec.structs.asdict(fresh))

    def keep_gateway(self) -> None:
        """Leave the gateway as it is configured: its token is not used, and neither hub nor name are set. Settings that
        are given later apply. Raises OSError."""
        wanted = self.wanted()
        if wanted is not None:
            self.begin(wanted)
            self.note(configured=True, attested=False, trouble="", next_step="")


def state_of(data: Path) -> FirstBootState:
    """Return the state in the file; an empty one when it cannot be read."""
    try:
        return msgspec.json.decode(_small(data / FOLDER / STATE), type=FirstBootState)
    except (OSError, msgspec.DecodeError):
        return FirstBootState()


def refusal_of(data: Path) -> SettingsRefusal | None:
    """Return why the file on the card is not applied; None when it is, or without a file."""
    try:
        return msgspec.json.decode(_small(data / FOLDER / REFUSAL), type=SettingsRefusal)
    except (OSError, msgspec.DecodeError):
        return None


def _small(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(FILE_BYTES_MAX)
