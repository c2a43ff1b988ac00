"""Names on the wire of links between routers."""

from __future__ import annotations

from typing import Final

CAPABILITY: Final = "waypost:router/1"
"""Desired capability of all links between routers."""
KIND: Final = "waypost:kind"
DESTINATION: Final = "waypost:destination"
"""Properties of a link with messages: address type, and name of the router to which they go."""
