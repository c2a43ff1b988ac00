"""Imports at the start what a gateway uses later.

A broken part is told to the person who starts the gateway, not to the first client that connects months later. All
parts take 4.4 MiB of memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from edge.broker.router.uplinks import TO_HUB, TO_PEER

COMPRESSION: Final = "edge.broker.store.compression"

LATE: Final = (TO_HUB, TO_PEER, COMPRESSION)
"""The modules that import the rest of each part."""


def fault_of(modules: Sequence[str] = LATE) -> str:
    """Import these modules. Return what is wrong with the first that cannot be imported; empty where all can be."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module raises, its name is what the person needs
            return f"{name}: {type(error).__name__}: {error}"
    return ""
