"""A gateway that runs follows what is applied to its data directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bridge.resources.effects import in_force, restarts
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource
from edge.appliance.configuration.repository import Repository, RepositoryError
from edge.appliance.gateway import Gateway
from edge.appliance.options import OptionsRefused, RunOptions, configuration_of, resources_of
from edge.configuration.kinds import KINDS

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0
"""How often it is looked whether something was applied: one stat(2)."""


class Following:
    """What a gateway was started with, and what it has heard of since."""

    def __init__(self, options: RunOptions, started: Sequence[Resource]) -> None:
        """`started`: the resources the gateway was started with."""
        self._options = options
        self._started = self._heard = started
        self._one_at_a_time = asyncio.Lock()

    async def watch(self, gateway: Gateway) -> None:
        """Take over what is applied, for as long as the gateway runs. Resources of --config are what they were."""
        repository = Repository(self._options.data)
        version = repository.version
        while self._options.config is None:
            await asyncio.sleep(WATCH_S)
            try:
                if repository.version != version:
                    version = repository.version
                    await self.follow(gateway)
            except (RepositoryError, ConfigurationRejected, OptionsRefused) as error:
                log.warning("the configuration is unchanged: %s", error)

    async def follow(self, gateway: Gateway) -> None:
        """Take over what is applied now.

        Raises OptionsRefused, `ConfigurationRejected`, `RepositoryError`; the gateway is then as it was.
        """
        async with self._one_at_a_time:  # or an older configuration could be the last to be taken over
            await self.take_over(gateway, resources_of(self._options))

    async def take_over(self, gateway: Gateway, applied: Sequence[Resource]) -> None:
        """Take these over in place of what was applied before; what only a start takes up is said in the log.

        Raises OptionsRefused.
        """
        configuration = configuration_of(self._options, in_force(KINDS, self._started, applied))
        for change in restarts(KINDS, self._heard, applied):
            log.warning("%s", change)
        self._heard = applied
        await gateway.reconfigure(configuration)
