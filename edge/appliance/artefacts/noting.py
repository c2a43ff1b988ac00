"""Notes of reports that devices publish over MQTT: they outlive the connection, as a device may restart at once.

The message of a report is on disk before its acknowledgement. The note for the next offers follows within milliseconds;
of several reports about one artefact only the newest has to be noted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from edge.appliance.artefacts.limits import NOTES_MAX
from edge.appliance.artefacts.reports import UpdateReport
from edge.appliance.artefacts.serving import ArtefactServing
from edge.broker.http.refusal import RequestRefused

log = logging.getLogger(__name__)

_Key = tuple[str, str, str]
"""Device, name and version."""


class ReportNotes:
    """Reports that wait for being noted, in order."""

    def __init__(self, serving: ArtefactServing) -> None:
        self._serving: Final = serving
        self._waiting: dict[_Key, UpdateReport] = {}
        self._running: asyncio.Task[None] | None = None

    def add(self, device: str, name: str, version: str, report: UpdateReport) -> bool:
        """Note a report soon. Return False if too many wait; then the device has to repeat it."""
        key = device, name, version
        if key not in self._waiting and len(self._waiting) >= NOTES_MAX:
            return False
        self._waiting.pop(key, None)  # the newest is the last one
        self._waiting[key] = report
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())
        return True

    async def close(self) -> None:
        """Note what waits. Idempotent."""
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            await self._note(key, self._waiting.pop(key))

    async def _note(self, key: _Key, report: UpdateReport) -> None:
        device, name, version = key
        try:
            artefact = await self._serving.reported(device, name, version, report.sha256)
            await self._serving.reporting.note(device, artefact, report)
        except RequestRefused as refused:  # its message matters more
            log.warning("device %s: its report is published, and not noted here: %s", device, refused)
        except Exception:  # the others are noted
            log.exception("device %s: unexpected error", device)
