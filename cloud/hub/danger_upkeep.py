"""Keeps the columns of danger right while hubs of an older version serve: on a thread of its own, a little at a time.

It may wait for landings of other hubs, so it is apart from the looks by which a hub shows that it is there.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa

from cloud.hub.ended_task import end_task
from cloud.hub.registry.danger_filling import DangerFilling
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

FILL_S: Final = 0.5
"""Time of filling columns without a pause: some thousand rows."""
FILL_EVERY_S: Final = 5.0
"""Time between two looks for rows of an older hub."""
FILL_PAUSE_S: Final = 1.0
"""The same, while there are some: 100 000 rows take half a minute."""


class DangerUpkeep:
    """Fills columns in intervals. `start`, later `close`."""

    def __init__(self, registry: sa.URL, hub: str) -> None:
        """`hub`: writer id of this hub."""
        self._registry = registry
        self._hub = hub
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="columns of gateways")
        self._filling: DangerFilling | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to fill columns."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="columns of gateways")

    async def close(self) -> None:
        """Stop. Idempotent."""
        task, self._task = self._task, None
        await end_task(task)
        filling, self._filling = self._filling, None
        if filling is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, filling.close)
        self._executor.shutdown(wait=False)

    async def _run(self) -> None:
        loop, trouble = asyncio.get_running_loop(), False
        self._filling = await loop.run_in_executor(self._executor, DangerFilling, self._registry, self._hub)
        while True:
            filled = 0
            try:
                filled = await loop.run_in_executor(self._executor, self._filling.fill, FILL_S)
                trouble = False
            except RegistryError as error:
                if not trouble:
                    log.warning("gateways of hubs of an older version are listed by their connection only: %s", error)
                trouble = True
            except Exception:  # an internal error must not end the task silently
                log.exception("columns of gateways are not filled: internal error")
            await asyncio.sleep(FILL_PAUSE_S if filled else FILL_EVERY_S)
