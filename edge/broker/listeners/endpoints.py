"""Endpoints of a running gateway or hub: a file in its data directory, read by the commands that query it.

The system may choose the ports, or options of the command line set them, so the configuration does not have them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from bridge.resources.endpoint import ListenEndpoint, authority
from edge.broker.store.lock import HUB_LOCK_NAME, is_held

FILE_NAME: Final = "endpoints.json"


def write_endpoints(data: Path, bound: Mapping[str, tuple[str, int]]) -> None:
    """Write the bound address of each listener by its name. Raises OSError."""
    places = {name: authority(*place) for name, place in bound.items()}
    replace_file(data / FILE_NAME, msgspec.json.encode(places))


def remove_endpoints(data: Path) -> None:
    """Remove the file. A killed process leaves it behind; `running_endpoints` then ignores it."""
    with contextlib.suppress(OSError):
        (data / FILE_NAME).unlink()


def running_endpoints(data: Path) -> Mapping[str, ListenEndpoint] | None:
    """Return the listeners of the gateway or hub that runs on this data directory; None when none runs, or it wrote
    none."""
    if not (is_held(data) or is_held(data, HUB_LOCK_NAME)):
        return None
    try:
        places = msgspec.json.decode((data / FILE_NAME).read_bytes(), type=dict[str, str])
        return {name: ListenEndpoint.parse(place) for name, place in places.items()}
    except (OSError, ValueError):
        return None
