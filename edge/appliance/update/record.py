"""What is known of the last update, on the data partition, which both slots share: one file, replaced whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from edge.appliance.first_boot.places import write_whole
from edge.appliance.update.limits import FILE_BYTES_MAX

FILE: Final = "data/update/update.json"
ON_TRIAL: Final = "data/update/on-trial"
"""The letter of the slot that is tried, while it is: for the shell of whichever system runs."""

State = Literal["installing", "cut off", "trial", "kept", "given up"]
"""`cut off`: it was not installed whole, or its trial met an outage of the hub; it can start again."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """One update."""

    slot: str
    """The letter of the slot it goes into."""
    version: str
    build: str
    before: str
    """Version of Waypost it takes the place of."""
    state: State
    errors: tuple[str, ...] = ()
    """Problems the gateway had before it."""
    connected: bool = False
    """Whether the gateway was connected to its hub then."""
    why: str = ""
    """It was given up, or cut off."""
    begun: int = 1
    """How often it was installed, or begun to be."""
    ran: bool = False
    """Its system was started, or tried to be."""
    waits_for_hub: bool = False
    """Cut off because the hub could not be reached. It starts again when the gateway is connected."""

    @property
    def undecided(self) -> bool:
        return self.state in ("installing", "trial")


class UpdateRecord:
    """Of one machine, below its root."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE
        self._on_trial = root / ON_TRIAL

    def last(self) -> Update | None:
        """None: there was none, or it cannot be read. Raises OSError."""
        try:
            with self._file.open("rb") as source:
                return msgspec.json.decode(source.read(FILE_BYTES_MAX), type=Update)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write(self, update: Update) -> None:
        """On disk on return. Raises OSError."""
        if update.state == "trial":
            write_whole(self._on_trial, f"{update.slot}\n".encode(), mode=0o644)
        write_whole(self._file, msgspec.json.encode(update), mode=0o644)  # the gateway's user tells its hub of it
        if update.state != "trial":
            self._on_trial.unlink(missing_ok=True)
