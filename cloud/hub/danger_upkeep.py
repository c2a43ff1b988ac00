"""Keeps the columns of danger right while hubs of an older version serve: on a thread of its own, a little at a time.

It may wait for landings of other hubs, so it is apart from the looks by which a hub shows that it is there.
"""

from __future__ import annotations

import logging
from typing import Final

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.registry.danger_filling import DangerFilling
from cloud.hub.registry_thread import RegistryThread
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
        self._thread = RegistryThread("columns of gateways", lambda: DangerFilling(registry, hub))
        self._filling = PeriodicTask(
            "columns of gateways", self._fill, FILL_EVERY_S,
            log=log, failed="gateways of hubs of an older version are listed by their connection only",
            expected=(RegistryError,),
        )  # fmt: skip

    def start(self) -> None:
        """Start to fill columns."""
        self._filling.start()

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._filling.stop()
        await self._thread.close()

    async def _fill(self) -> float:
        """Fill some columns, and return the seconds until the next time."""
        if not self._thread.is_open:
            await self._thread.open()
        filled = await self._thread.run(lambda filling: filling.fill(FILL_S))
        return FILL_PAUSE_S if filled else FILL_EVERY_S
