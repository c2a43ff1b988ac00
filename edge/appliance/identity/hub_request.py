"""Requests of a running gateway to its hub, tried at one endpoint after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.proxy import PeerRoute


class HubRequestFailure(NamedTuple):
    """Failure of a request to the hub."""

    words: str
    away: bool
    """True when the hub did not answer, or the connection broke."""


class HubRequest:
    """Request to the hub. `trouble`: reason why the hub refuses it; None: it does not, or is away."""

    def __init__(
        self, ask: Callable[[PeerRoute], HubRequestFailure | None], log: logging.Logger, *, away: str, refused: str
    ) -> None:
        """`ask` sends the request, in a thread, and returns None on success. `away`, `refused`: log messages of a
        failure; a refusal for the same reason is logged once."""
        self.trouble: str | None = None
        self._ask = ask
        self._log = log
        self._away = away
        self._refused = refused

    async def send(self, ways: Sequence[PeerRoute]) -> bool:
        """Send the request to each endpoint in turn; return True at the first success."""
        for way in ways:
            failure = await asyncio.to_thread(self._ask, way)
            if failure is None:
                self.trouble = None
                return True
            if failure.away:
                self._log.info(self._away, failure.words)
                continue
            if failure.words != self.trouble:
                self._log.warning(self._refused, failure.words)
            self.trouble = failure.words
        return False
