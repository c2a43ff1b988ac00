"""Configuration of a running gateway: changes that are in force on return, and trials with a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from bridge.resources.diff import masked, unified
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.parse import to_yaml
from bridge.resources.plan import ResourceChange
from bridge.resources.resource import Resource
from edge.appliance.configuring.documents import (
    AppliedConfigurationDocument,
    ConfigurationChange,
    ConfigurationCheck,
    ConfigurationDocument,
    ConfigurationFault,
    ConfigurationHistoryDocument,
    ConfigurationRequest,
    EarlierConfiguration,
    HistoryEntry,
    ManagedResource,
    TrialDocument,
)
from edge.broker.configuration import BrokerConfiguration
from edge.configuration.file import RepositoryError
from edge.configuration.hub_part import name_of
from edge.configuration.kinds import KINDS
from edge.configuration.local import AppliedChange, CheckedChange, LocalConfiguration
from edge.configuration.local_trial import TriedChange
from edge.configuration.management import AddressAdministration
from edge.configuration.options import OptionsRefused

log = logging.getLogger(__name__)

TRY_S_MAX: Final = 3_600.0
"""Longest trial: a person who comes back after it has forgotten it."""
REVERT_AGAIN_S: Final = 5.0
"""Seconds between attempts to take a change back while the card cannot be written."""

BridgePlan = Callable[[BrokerConfiguration, BrokerConfiguration], Sequence[str]]
"""Returns what changes at connectors and forwarders, as sentences. It blocks."""


class TrialRunning(Exception):
    """Another change is on trial."""


class ConfigurationService:
    """Configuration of one gateway. Create it inside a running loop; `stop` at the end."""

    def __init__(
        self,
        local: LocalConfiguration,
        addresses: AddressAdministration,
        reload: Callable[[], Awaitable[None]],
        bridge_plan: BridgePlan,
    ) -> None:
        """`reload` applies the stored resources to the gateway."""
        self.addresses: Final = addresses
        self._local = local
        self._reload = reload
        self._bridge_plan = bridge_plan
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Stop; a trial is taken back at the next start."""
        self._stop_waiting()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- looking ------------------------------------------------------------------------------------------------

    async def document(self) -> ConfigurationDocument:
        """Return the configuration in force. Raises `RepositoryError`, `ConfigurationRejected`."""
        return await asyncio.to_thread(self._document)

    async def check(self, text: str) -> ConfigurationCheck:
        """Return what a text would change, or its mistakes. Raises `RepositoryError`."""
        return await asyncio.to_thread(self._checked, partial(self._local.check, text))

    async def history(self) -> ConfigurationHistoryDocument:
        """Return the kept versions, the latest first."""
        versions = await asyncio.to_thread(self._local.history)
        return ConfigurationHistoryDocument(
            versions=[
                HistoryEntry(version=each.version, at=each.at, by=each.by, resources=len(each.resources))
                for each in versions
            ]
        )

    async def earlier(self, version: int) -> EarlierConfiguration | None:
        """Return one version; None if it is not kept. Raises `RepositoryError`."""
        return await asyncio.to_thread(self._earlier, version)

    def resource_of(self, address: str) -> Resource | None:
        """Return the Address resource with this name or pattern; None without one."""
        return self._local.resource_of(address)

    # --- changing -----------------------------------------------------------------------------------------------

    async def change(self, wanted: ConfigurationRequest, by: str) -> AppliedConfigurationDocument | None:
        """Make a change; it is on disk and in force on return. None: the version to return to is not kept.

        Raises `TrialRunning`, `ConfigurationChanged`, `ConfigurationRejected`, `RepositoryError`, `OptionsRefused`.
        """
        async with self._one_at_a_time:
            running = await asyncio.to_thread(self._local.trial.current)
            if running is not None and wanted.try_s is not None:
                raise TrialRunning(f"version {running.version} is on trial: keep it, or take it back")
            make = partial(self._change, wanted, by)
            applied = await asyncio.to_thread(make)
            if applied is None:
                return None
            self._stop_waiting()
            trial = await asyncio.to_thread(self._local.trial.current)
            if trial is not None:
                self._deadline = asyncio.get_running_loop().call_later(trial.seconds, self._overdue)
            await self._reload()
            changes = _documents(applied.changes)
            return AppliedConfigurationDocument(version=applied.version, changes=changes, trial=self._trial(trial))

    async def keep(self) -> bool:
        """Keep the change on trial. Return False without a trial. Raises `RepositoryError`."""
        async with self._one_at_a_time:
            if await asyncio.to_thread(self._local.trial.current) is None:
                return False
            await asyncio.to_thread(self._local.trial.keep)
            self._stop_waiting()
            return True

    async def revert(self, why: str) -> bool:
        """Take the change on trial back. Return False without a trial. Raises as `change`."""
        async with self._one_at_a_time:
            reverted = await asyncio.to_thread(self._local.trial.revert, why)
            self._stop_waiting()
            if reverted:
                await self._reload()
            return reverted

    # --- inside -------------------------------------------------------------------------------------------------

    def _change(self, wanted: ConfigurationRequest, by: str) -> AppliedChange | None:
        try_s = None if wanted.try_s is None else min(wanted.try_s, TRY_S_MAX)
        if wanted.restore is not None:
            return self._local.restore(wanted.restore, expected=wanted.version, by=by, try_s=try_s)
        return self._local.apply(wanted.text or "", expected=wanted.version, by=by, try_s=try_s)

    def _document(self) -> ConfigurationDocument:
        local = self._local
        resources, managed = local.in_force()
        return ConfigurationDocument(
            version=local.version,
            text=local.text(),
            fixed="",
            managed=[
                ManagedResource(kind=each.kind, name=each.name, text=to_yaml(masked(KINDS, each.document)))
                for each in resources
                if name_of(each) in managed
            ],
            hub_version=local.hub_version,
            trial=self._trial(local.trial.current()),
        )

    def _trial(self, trial: TriedChange | None) -> TrialDocument | None:
        if trial is None:
            return None
        deadline = self._deadline
        left = trial.seconds if deadline is None else max(0.0, deadline.when() - self._loop.time())
        return TrialDocument(version=trial.version, by=trial.by, seconds_left=round(left, 1))

    def _checked(self, check: Callable[[], CheckedChange]) -> ConfigurationCheck:
        try:
            found = check()
        except ConfigurationRejected as rejected:
            errors = [_fault(error) for error in sorted(rejected.errors, key=lambda one: one.line)]
            return ConfigurationCheck(ok=False, errors=errors, changes=[], bridge=[], notes=[])
        bridge = list(self._bridge_plan(found.before, found.after))
        return ConfigurationCheck(
            ok=True, errors=[], changes=_documents(found.changes), bridge=bridge, notes=list(found.notes)
        )

    def _earlier(self, version: int) -> EarlierConfiguration | None:
        found = self._local.text_of(version)
        if found is None:
            return None
        kept, text = found
        check = self._checked(partial(self._local.check_version, version))
        return EarlierConfiguration(version=version, at=kept.at, by=kept.by, text=text, check=check)

    def _overdue(self) -> None:
        task = asyncio.get_running_loop().create_task(self._revert_overdue())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _revert_overdue(self) -> None:
        try:
            await self.revert("it was not kept in time")
        except (RepositoryError, ConfigurationRejected, OptionsRefused) as error:
            log.error("cannot take the configuration back: %s", error)  # noqa: TRY400
            self._deadline = asyncio.get_running_loop().call_later(REVERT_AGAIN_S, self._overdue)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _documents(changes: Sequence[ResourceChange]) -> list[ConfigurationChange]:
    return [
        ConfigurationChange(kind=each.kind, name=each.name, change=each.verb, diff=unified(KINDS, each))
        for each in changes
        if each.before != each.after
    ]


def _fault(error: ConfigurationError) -> ConfigurationFault:
    return ConfigurationFault(line=error.line, path=error.path, message=error.message)
