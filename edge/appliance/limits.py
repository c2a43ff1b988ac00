"""Bounds of the gateway's process. Each has a unit, and a reason."""

from __future__ import annotations

from typing import Final

from bridge.limits import LINGERING_MAX
from edge.broker.http.limits import HTTP_POLLS_MAX, HTTP_STRANGERS_MAX, HTTP_USERS_MAX, HTTPS_STRANGERS_MAX

FILES_BESIDE_CONNECTIONS: Final = (
    100 + HTTP_STRANGERS_MAX + HTTPS_STRANGERS_MAX + HTTP_USERS_MAX + HTTP_POLLS_MAX + LINGERING_MAX
)
"""Files. Connections over HTTP and sockets that linger; store, logs, listeners and uplinks are a few dozen."""
