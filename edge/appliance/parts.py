"""Import at start-up the modules that a gateway uses later.

A broken module is thus reported when the gateway is started, not by the first client that needs it months later. All
of them take 4.4 MiB of memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from edge.broker.router.uplinks import TO_HUB, TO_PEER

COMPRESSION: Final = "edge.broker.store.compression"

LATE: Final = (TO_HUB, TO_PEER, COMPRESSION)
"""Modules that import the rest of each part."""


def fault_of(modules: Sequence[str] = LATE) -> str:
    """Import these modules. Return the error of the first that fails, or an empty text."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module may raise anything; its name is what the user needs
            return f"{name}: {type(error).__name__}: {error}"
    return ""
