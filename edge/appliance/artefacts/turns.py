"""Turns of parts of images on the event loop: one part at a time, with a pause for messages behind each.

Sending a part takes 0.2 ms of the loop over MQTT and 1.5 ms over HTTP, on a Raspberry Pi five times as much. Without
pauses the parts of 80 devices would all be sent before a PUBACK. The pause grows with the time that the loop needs, so
parts of images take a fifth of the loop at most, also on a slow or busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from edge.appliance.artefacts.limits import PART_PAUSE_S_MAX, PART_PAUSE_S_MIN, PART_PAUSES


class PartTurns:
    """Turns of all protocols of a gateway, first come, first served. For one event loop."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s: Final = monotonic_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """A part is being sent, or the pause behind it lasts."""
        self._late_s = 0.0
        """Time by which the last pause ended too late: other work of the loop."""

    async def take(self) -> None:
        """Wait for a turn. Send the part at once, without waiting: the turn ends by itself."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was given the turn, and does not use it
                    self._give()
                raise
        self._taken = True
        loop.call_soon(self._begin_pause, self._monotonic_s())

    def _begin_pause(self, begun: float) -> None:
        """Begin the pause, in the turn of the loop after that of the part. `begun`: start of the part,
        monotonic seconds."""
        now = self._monotonic_s()
        wanted = PART_PAUSES * (now - begun + self._late_s)
        pause_s = min(PART_PAUSE_S_MAX, max(PART_PAUSE_S_MIN, wanted))
        asyncio.get_running_loop().call_later(pause_s, self._end_pause, now + pause_s)

    def _end_pause(self, due: float) -> None:
        self._late_s = max(0.0, self._monotonic_s() - due)
        self._give()

    def _give(self) -> None:
        """Give the turn to the next part that waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
