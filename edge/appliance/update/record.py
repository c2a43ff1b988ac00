"""Record of the last update: a file on the data partition, which both slots share, replaced as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from edge.appliance.first_boot.places import write_whole
from edge.appliance.update.limits import FILE_BYTES_MAX

FILE: Final = "data/update/update.json"
ON_TRIAL: Final = "data/update/on-trial"
"""File with the letter of the slot on trial, for shell scripts of either system."""

State = Literal["installing", "cut off", "trial", "kept", "given up"]
"""`cut off`: the installation was interrupted, or the hub was away during the trial; it can be repeated.
The last state: rolled back or refused."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Update of the system."""

    slot: str
    """Letter of the slot it is written to."""
    version: str
    build: str
    before: str
    """Version of Waypost that it replaces."""
    state: State
    errors: tuple[str, ...] = ()
    """Problems that the gateway had before the update."""
    connected: bool = False
    """True when the gateway was connected to its hub before the update."""
    why: str = ""
    """Reason why it was interrupted, rolled back or refused."""
    begun: int = 1
    """Number of attempts to install it."""
    ran: bool = False
    """True when its system was started, or a start was attempted."""
    waits_for_hub: bool = False
    """True when it was interrupted because the hub was away. It is repeated when the gateway is connected."""

    @property
    def undecided(self) -> bool:
        return self.state in ("installing", "trial")


class UpdateRecord:
    """Record of one machine, below its root folder."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE
        self._on_trial = root / ON_TRIAL

    def last(self) -> Update | None:
        """Return the last update; None: there was none, or the record is damaged. Raises OSError."""
        try:
            with self._file.open("rb") as source:
                return msgspec.json.decode(source.read(FILE_BYTES_MAX), type=Update)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write(self, update: Update) -> None:
        """Write the record, on disk on return. Raises OSError."""
        if update.state == "trial":
            write_whole(self._on_trial, f"{update.slot}\n".encode(), mode=0o644)
        write_whole(self._file, msgspec.json.encode(update), mode=0o644)  # the gateway's user reads it for the hub
        if update.state != "trial":
            self._on_trial.unlink(missing_ok=True)
