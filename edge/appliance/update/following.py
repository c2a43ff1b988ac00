"""Follow the `System` resource: pass the wanted system to the update services, and report their progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bridge.desired import SystemReport
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource, of_kind
from edge.appliance.update.hub_source import hub_fault, hub_urls
from edge.appliance.update.limits import FOLLOW_INTERVAL_S
from edge.appliance.update.wanted import MachineSystems, WantedFiles, WantedSystem, report
from edge.configuration.file import RepositoryError
from edge.configuration.repository import Repository
from edge.configuration.resources import GatewaySpec, SystemSpec

log = logging.getLogger(__name__)

SLOTS: Final = "etc/rauc/system.conf"
"""File that exists on a machine with two slots for systems."""


class SystemFollower:
    """Follower of one gateway. `watch` runs until it is cancelled."""

    def __init__(self, data: Path, root: Path = Path("/")) -> None:
        """`root`: root folder of the machine."""
        self._repository = Repository(data)
        self._files = WantedFiles(data)
        self._root = root
        self._mark: object = None
        self._wanted: WantedSystem | None = None
        self._reported: SystemReport | None = None

    def fault(self, applied: Sequence[Resource]) -> str | None:
        """Return why these resources cannot be followed on this machine."""
        system = next((spec for _, spec in of_kind(applied, SystemSpec)), None)
        if system is None:
            return None
        if not (self._root / SLOTS).exists():
            return "System: this gateway has no slots for systems, as it is not from a card; update its package instead"
        return hub_fault(system, next((spec for _, spec in of_kind(applied, GatewaySpec)), None))

    def report(self) -> SystemReport | None:
        """Return the progress with the wanted system; None: none is wanted. Raises `RepositoryError`."""
        mark = self._repository.mark
        if mark != self._mark:
            try:
                self._wanted = wanted_of(self._repository.decided())
            except ConfigurationRejected as rejected:
                log.warning("the wanted system is not known: %s", rejected)
                self._wanted = None
            self._mark = mark
        if self._wanted is None:
            return None
        return report(self._wanted, MachineSystems.of(self._root), self._files.fetched())

    async def watch(self, changed: Callable[[], None]) -> None:
        """Pass on the wanted system; call `changed` when the report changes."""
        while True:
            try:
                await self._check_once(changed)
            except (RepositoryError, OSError) as error:
                log.warning("the wanted system cannot be followed: %s", error)
            await asyncio.sleep(FOLLOW_INTERVAL_S)

    async def _check_once(self, changed: Callable[[], None]) -> None:
        """Check once. Raises `RepositoryError`, OSError."""
        now = self.report()
        await asyncio.to_thread(self._files.set_wanted, self._wanted if now is not None and now.under_way else None)
        if now != self._reported:
            if now is not None:
                log.info("system %s: %s%s", now.version, now.phase.value, f": {now.why}" if now.why else "")
            self._reported = now
            changed()


def wanted_of(resources: Sequence[Resource]) -> WantedSystem | None:
    """Return the system that a gateway with these resources should run; None: any."""
    system = next((spec for _, spec in of_kind(resources, SystemSpec)), None)
    if system is None:
        return None
    name, gateway = next(((resource.name, spec) for resource, spec in of_kind(resources, GatewaySpec)), ("", None))
    hub = gateway.hub if gateway is not None else None
    urls = hub_urls(system, hub)
    return WantedSystem(
        version=system.version,
        build=system.build,
        url=urls[0] if urls else system.url,
        sha256=system.sha256,
        size=system.size,
        rate=system.rate,
        quiet_hours=system.quiet_hours,
        start_jitter_s=system.start_jitter_s,
        gateway=name,
        keep_free=gateway.limits.free_floor_bytes if gateway is not None else 0,
        proxy=hub.proxy if hub is not None else None,
        more_urls=tuple(urls[1:]),
        tls=hub.tls if hub is not None and urls else None,
    )
