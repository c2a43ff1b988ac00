"""Users of the cluster during `--once`: applications at the message broker, and people at the consoles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from tests.demo.accounting import Row
from tests.demo.cluster.application import CommandingApplication
from tests.demo.cluster.copies import CopyReceiver
from tests.demo.cluster.people import ConsolePeople


class UserAccount(Protocol):
    """Comparison of the requests of users with the results."""

    @property
    def adds_up(self) -> bool:
        """True if each request has its result."""
        ...

    def explain(self) -> str:
        """Return the comparison as one line."""
        ...


class ClusterUsers:
    """Start before the hubs restart; compare afterwards: `compare` while devices send, `compare_copies` later."""

    def __init__(
        self, application: CommandingApplication | None, copies: CopyReceiver | None, people: ConsolePeople | None
    ) -> None:
        """Without a message broker or an issuer they are None."""
        self._application = application
        self._copies = copies
        self._people = people
        self._threads = [each for each in (application, copies) if each is not None]

    async def start(self) -> None:
        """Let applications send commands and receive copies, and people sign in. Raises DemoError."""
        for each in self._threads:
            each.start()
        if self._people is not None:
            await self._people.begin()

    async def compare(self) -> Sequence[UserAccount]:
        """Compare commands with their outcomes, and what the hubs show to people. Raises DemoError."""
        found: list[UserAccount] = []
        if self._application is not None:
            found.append(await asyncio.to_thread(self._application.compare))
        if self._people is not None:
            found.append(await self._people.compare())
        return found

    async def compare_copies(self, rows: Iterable[Row]) -> Sequence[UserAccount]:
        """Compare the copies of all readings with the rows of the lake."""
        return [] if self._copies is None else [await asyncio.to_thread(self._copies.compare, rows)]

    async def stop(self) -> None:
        """Stop applications, and close browsers. Idempotent."""
        for each in self._threads:
            await asyncio.to_thread(each.stop)
        if self._people is not None:
            await self._people.close()
