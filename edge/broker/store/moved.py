"""Marks of a data directory that was moved elsewhere, or that is being moved to. Neither may be opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreMoved

MOVED_NAME: Final = "moved.json"
"""Mark of the directory that a gateway has left."""
ARRIVING_NAME: Final = "arriving.json"
"""Mark of the directory that an interrupted move was replacing."""


def require_unmoved(directory: Path) -> None:
    """Raise StoreMoved for a directory with a mark."""
    if (directory / MOVED_NAME).exists():
        raise StoreMoved(
            f"the gateway of {directory} was moved to another card or machine: it must not run here too. "
            "To cancel the move: waypost replace cancel"
        )
    if (directory / ARRIVING_NAME).exists():
        raise StoreMoved(f"a move to {directory} was interrupted: run `waypost replace import` again")
