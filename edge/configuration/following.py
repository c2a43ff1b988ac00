"""Apply changes of the configuration in the data directory to a running gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from bridge.resources.effects import in_force, restarts
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource
from edge.broker.configuration import BrokerConfiguration
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.options import OptionsRefused, RunOptions, configuration_of, resources_of
from edge.configuration.repository import Repository

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0
"""Seconds between checks for a change: one stat(2)."""


class AppliedConfiguration(NamedTuple):
    """Applied resources, with the stamp of their files."""

    resources: Sequence[Resource]
    mark: object
    """Stamp of the files before the resources were read; it differs after a later change."""

    @classmethod
    def read(cls, options: RunOptions) -> AppliedConfiguration:
        """Read the applied resources. Raises OptionsRefused, `ConfigurationRejected`, `RepositoryError`."""
        mark = Repository(options.data).mark
        return cls(resources_of(options), mark)


class Reconfigurable(Protocol):
    """Gateway that can change its configuration while it runs."""

    async def reconfigure(self, configuration: BrokerConfiguration) -> None: ...


class ConfigurationFollower:
    """Applies changed resources to a running gateway."""

    def __init__(self, options: RunOptions, started: AppliedConfiguration) -> None:
        """`started`: the configuration at the start of the gateway."""
        self._options = options
        self._started = self._latest = started.resources
        self._one_at_a_time = asyncio.Lock()
        self._repository = Repository(options.data)
        self._mark = started.mark

    @property
    def fixed(self) -> bool:
        """True when the resources are those of --config, so that changes are not applied."""
        return self._options.config is not None

    @property
    def latest(self) -> Sequence[Resource]:
        """Resources that were applied last."""
        return self._latest

    def fault(self, applied: Sequence[Resource], *, restart: bool) -> str | None:
        """Return the reason why these resources cannot replace the current ones, or None. `restart`: the gateway may
        restart."""
        try:
            configuration_of(self._options, applied)
        except OptionsRefused as refused:
            return str(refused)
        needed = restarts(KINDS, self._latest, applied)
        return None if restart else "; ".join(f"{each}, and this gateway must not restart" for each in needed) or None

    def needs_restart(self) -> bool:
        """Return True when the applied resources differ from the latest ones in fields that need a restart.

        Raises `ConfigurationRejected`, `RepositoryError`."""
        return bool(restarts(KINDS, self._latest, resources_of(self._options)))

    async def watch(self, gateway: Reconfigurable, followed: Callable[[], None]) -> None:
        """Apply changes while the gateway runs, and call `followed` after each. Resources of --config do not change."""
        while not self.fixed:
            await asyncio.sleep(WATCH_S)
            try:
                mark = self._repository.mark
                if mark != self._mark:
                    self._mark = mark
                    await self.follow(gateway)
                    followed()
            except (RepositoryError, ConfigurationRejected, OptionsRefused) as error:
                log.warning("the configuration is unchanged: %s", error)
            except Exception:  # the next change may succeed, and this failure must be reported
                log.exception("unexpected error: the configuration may be in force in part; restart the gateway")

    async def follow(self, gateway: Reconfigurable) -> None:
        """Apply the current resources.

        Raises OptionsRefused, `ConfigurationRejected`, `RepositoryError`; the gateway is then unchanged.
        """
        async with self._one_at_a_time:  # otherwise an older configuration could be applied last
            self._mark = self._repository.mark
            await self.take_over(gateway, resources_of(self._options))

    async def take_over(self, gateway: Reconfigurable, applied: Sequence[Resource]) -> None:
        """Apply these resources in place of the previous ones; log the changes that need a restart.

        Raises OptionsRefused.
        """
        configuration = configuration_of(self._options, in_force(KINDS, self._started, applied))
        for change in restarts(KINDS, self._latest, applied):
            log.warning("%s", change)
        self._latest = applied
        await gateway.reconfigure(configuration)
