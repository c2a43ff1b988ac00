"""Limits of the gateway's process."""

from __future__ import annotations

from typing import Final

from bridge.limits import LINGERING_MAX
from edge.broker.http.limits import HTTP_POLLS_MAX, HTTP_STRANGERS_MAX, HTTP_USERS_MAX, HTTPS_STRANGERS_MAX

FILES_BESIDE_CONNECTIONS: Final = (
    100 + HTTP_STRANGERS_MAX + HTTPS_STRANGERS_MAX + HTTP_USERS_MAX + HTTP_POLLS_MAX + LINGERING_MAX
)
"""Open files in addition to one for each connection: HTTP connections, lingering sockets, and a few dozen for store,
logs, listeners and uplinks."""
