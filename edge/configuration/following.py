"""A gateway that runs follows what is applied to its data directory."""

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
"""How often it is looked whether something was applied: one stat(2)."""


class AppliedConfiguration(NamedTuple):
    """What is applied."""

    resources: Sequence[Resource]
    mark: object
    """The repository's from before they were read: what is applied later has another."""

    @classmethod
    def read(cls, options: RunOptions) -> AppliedConfiguration:
        """Raises OptionsRefused, `ConfigurationRejected`, `RepositoryError`."""
        mark = Repository(options.data).mark
        return cls(resources_of(options), mark)


class Reconfigurable(Protocol):
    """The gateway, as far as it follows its configuration."""

    async def reconfigure(self, configuration: BrokerConfiguration) -> None: ...


class ConfigurationFollower:
    """Applies changed resources to a running gateway."""

    def __init__(self, options: RunOptions, started: AppliedConfiguration) -> None:
        """`started`: what the gateway was started with."""
        self._options = options
        self._started = self._heard = started.resources
        self._one_at_a_time = asyncio.Lock()
        self._repository = Repository(options.data)
        self._mark = started.mark

    @property
    def fixed(self) -> bool:
        """The resources are those of --config, and nothing is applied."""
        return self._options.config is not None

    def fault(self, applied: Sequence[Resource], *, restart: bool) -> str | None:
        """Why these cannot be taken over in place of what is applied now; `restart`: the gateway may start anew."""
        try:
            configuration_of(self._options, applied)
        except OptionsRefused as refused:
            return str(refused)
        needed = restarts(KINDS, self._heard, applied)
        return None if restart else "; ".join(f"{each}, and it may not restart" for each in needed) or None

    def needs_restart(self) -> bool:
        """What is applied now differs from what was taken over last in what only a start takes up.

        Raises `ConfigurationRejected`, `RepositoryError`."""
        return bool(restarts(KINDS, self._heard, resources_of(self._options)))

    async def watch(self, gateway: Reconfigurable, followed: Callable[[], None]) -> None:
        """Take over what is applied, for as long as the gateway runs, and call `followed` each time. Resources of
        --config stay as they were."""
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
            except Exception:  # what is applied next may be followed, and somebody has to hear of this one
                log.exception("the configuration may be in force in part: this is a fault of the program; restart it")

    async def follow(self, gateway: Reconfigurable) -> None:
        """Take over what is applied now.

        Raises OptionsRefused, `ConfigurationRejected`, `RepositoryError`; the gateway is then as it was.
        """
        async with self._one_at_a_time:  # or an older configuration could be the last to be taken over
            self._mark = self._repository.mark
            await self.take_over(gateway, resources_of(self._options))

    async def take_over(self, gateway: Reconfigurable, applied: Sequence[Resource]) -> None:
        """Take these over in place of what was applied before; what only a start takes up is said in the log.

        Raises OptionsRefused.
        """
        configuration = configuration_of(self._options, in_force(KINDS, self._started, applied))
        for change in restarts(KINDS, self._heard, applied):
            log.warning("%s", change)
        self._heard = applied
        await gateway.reconfigure(configuration)
