"""Registry of the containers that are connected: which of them want one connection only, and who has which link."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class LinkName(NamedTuple):
    """Identity of a link between a container and this broker (section 2.6.1); `user` keeps those of others apart."""

    user: str
    container_id: str
    name: str
    is_sender: bool


Steal = Callable[[], None]
"""Detaches the link that has been attached again elsewhere."""


class Containers:
    """Containers of all connections of one broker or address space."""

    __slots__ = ("_links", "sole")

    def __init__(self) -> None:
        self.sole: set[tuple[str, str]] = set()
        """Users (empty: anybody) and container ids that are over one connection only."""
        self._links: dict[LinkName, Steal] = {}

    def take_link(self, name: LinkName, steal: Steal) -> None:
        """Record the link that has this name from now on, and detach the one that had it."""
        before = self._links.pop(name, None)
        if before is not None:
            before()
        self._links[name] = steal

    def release_link(self, name: LinkName, steal: Steal) -> None:
        """Forget the link, unless another one has its name by now."""
        if self._links.get(name) is steal:
            del self._links[name]
