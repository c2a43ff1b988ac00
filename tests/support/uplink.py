"""Uplink of a running gateway, as its status shows it."""

from __future__ import annotations

from typing import Any

from tests.support.http_client import status
from tests.support.processes import Waypost


def uplink(gateway: Waypost) -> dict[str, Any]:
    """Return the part of the status that describes the uplink."""
    found: dict[str, Any] = status(gateway)["uplink"]
    return found


def backlog(gateway: Waypost) -> int:
    """Return the number of messages that wait for the hub; -1 while the hub is not connected."""
    found = uplink(gateway)
    return int(found.get("backlog_messages", -1)) if found["state"] == "connected" else -1
