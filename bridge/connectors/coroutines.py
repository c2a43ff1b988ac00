"""Run the coroutines of one connection, such as sender, receiver and keep-alive, together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def all_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently until all have ended, and raise the first exception."""
    for ended in await asyncio.gather(*coroutines, return_exceptions=True):
        if ended is not None:
            raise ended


async def first_to_end(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently until one ends or raises, and cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
