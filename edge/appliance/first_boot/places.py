"""Paths on a gateway from a card, below a root folder that tests choose, and durable writing of files.

`/data` is the card's fourth partition and persists. `/run` is in memory; its files are created at each start.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from bridge.durable_file import FILE_MODE, FOLDER_MODE, replace_file, sync_path
from edge.card.location import FILE

APPLIED: Final = "waypost.applied.yaml"
ENDED: Final = "waypost.old"
"""Name of the file with its secrets, while it is being removed."""
REFUSED: Final = "waypost.error.txt"
FOLDER: Final = "first-boot"
"""Folder of `WANTED`, `STATE` and `REFUSAL` in the gateway's data directory."""
WANTED: Final = "wanted.json"
STATE: Final = "state.json"
REFUSAL: Final = "refused.json"
"""File next to `WANTED`, while the file on the card is not applied."""
LIGHT: Final = "run/waypost/light"
"""File with one word (`WORKING`, `WAITING` or `DONE`), for the service that controls the machine's light."""
RESTART: Final = "run/waypost/restart"
"""File that requests a restart of the gateway's service (`waypost-restart.path`)."""
WORKING, WAITING, DONE = "working", "waiting", "done"


class CardPaths:
    """Paths below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.card = root / "boot/firmware"
        """Mount point of the card's first partition: FAT, without a journal."""
        self.file = self.card / FILE
        self.applied = self.card / APPLIED
        self.ended = self.card / ENDED
        self.refused = self.card / REFUSED
        self.kept = root / "data/settings" / FILE
        """The applied file, with its secrets."""
        self.ssh_keys = root / "data/ssh/authorized_keys"
        self.data = root / "var/lib/waypost"
        """The gateway's data directory."""


def write_whole(file: Path, content: bytes, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Create or replace a file atomically; it is on disk on return. `owner`: user and group of the file, by default
    those of this process. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE if mode == FILE_MODE else 0o755)
    replace_file(file, content, mode=mode, owner=owner)


def set_light(places: CardPaths, light: str) -> None:
    """Set the state of the light, one of `LIGHT`'s words. Raises OSError."""
    write_whole(places.root / LIGHT, f"{light}\n".encode(), mode=0o644)


def request_restart(places: CardPaths) -> None:
    """Request a restart of the gateway's service. Raises OSError."""
    write_whole(places.root / RESTART, b"", mode=0o644)


def remove_secret(file: Path) -> None:
    """Overwrite a file, then remove it. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        with file.open("r+b") as out:
            out.write(b"\n" * file.stat().st_size)
            out.flush()
            os.fsync(out.fileno())
        file.unlink()
        sync_path(file.parent)
