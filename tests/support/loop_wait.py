"""Waiting for a condition on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "", *, timeout_s: float = 20.0) -> None:
    """Wait for a condition. Raise TimeoutError with `what` if it does not hold in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline_s:
            raise TimeoutError(what)
        await asyncio.sleep(0.002)
