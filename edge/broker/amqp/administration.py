"""Who changes addresses when an AMQP client asks for it: the gateway's configuration. Known without any of AMQP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from bridge.hidden import hides


@hides("body")
class ManagementResponse(NamedTuple):
    """Status as HTTP has it, words for a person, and a body."""

    status: int
    description: str
    body: Any = None
    results: int | None = None


class Administration(Protocol):
    """Who keeps the addresses: the configuration of the gateway."""

    def change(
        self, operation: str, name: str, attributes: Mapping[str, Any], done: Callable[[ManagementResponse], None]
    ) -> None:
        """Make, change or delete (one of `CHANGES`) the address `name`. `done` is called on the loop's thread when it
        is on disk and in force, or with what is wrong."""
        ...
