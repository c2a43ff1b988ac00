"""End of a task that runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait until it has ended; None: it was not started, or has ended. Raises what it has raised."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
