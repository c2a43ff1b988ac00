"""Interface for changing addresses over `$management`, independent of AMQP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from bridge.hidden import hides


@hides("body")
class ManagementResponse(NamedTuple):
    """HTTP status, description and body."""

    status: int
    description: str
    body: Any = None
    results: int | None = None


class Administration(Protocol):
    """Changes addresses; implemented by the configuration of the gateway."""

    def change(
        self, operation: str, name: str, attributes: Mapping[str, Any], done: Callable[[ManagementResponse], None]
    ) -> None:
        """Create, update or delete (one of `CHANGES`) the address `name`.

        `done` is called on the loop's thread once the change is on disk and in force, or with an error.
        """
        ...
