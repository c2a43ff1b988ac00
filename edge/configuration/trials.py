"""Trials of the hub's versions: each is on trial until the hub confirms it over a connection of the new configuration.

`edge.configuration.hub_versions` makes the decisions, which are on disk before they have an effect. This module runs
the steps one at a time, the deadline, and the report to the hub. The report about a trial leaves after the gateway has
applied the version, so it uses a connection of the new configuration; the hub's answer to it is the confirmation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bridge.desired import (
    ApplyFailure,
    ApplyOutcome,
    DesiredError,
    DesiredReport,
    SignedDesired,
    SystemReport,
    VerifiedDesired,
    digest_of,
)
from bridge.forwarders.outcome import ForwardOutcome as Settlement
from bridge.hub_addresses import DESIRED
from bridge.resources.errors import ConfigurationRejected
from edge.broker.store.lock import is_held
from edge.configuration.document_inbox import Answer, DocumentInbox
from edge.configuration.file import RepositoryError
from edge.configuration.following import ConfigurationFollower, Reconfigurable
from edge.configuration.hub_versions import HubVersions, Version, VersionNotAccepted
from edge.configuration.options import OptionsRefused, RunOptions
from edge.configuration.repository import Repository
from edge.output.log_history import event

if TYPE_CHECKING:
    from bridge.resources.resource import Resource
    from edge.broker.router.connector_uplink import ConnectorUplink

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""Seconds between attempts to store a decision after a disk error."""

WITH_A_FILE: Final = "this gateway runs with --config, so only that file configures it"


def count_start(options: RunOptions) -> None:
    """Count a start of the gateway: after some of them a version that is still on trial is rolled back. Raises
    `RepositoryError`."""
    repository = Repository(options.data)
    if options.config is None and repository.hub_versions().trial is not None and not is_held(options.data):
        repository.step(lambda versions: versions.started())


def roll_back_start(options: RunOptions, why: str) -> bool:
    """Roll back the version on trial, as the gateway does not start with it. Return False when none is on trial. Raises
    `RepositoryError`."""
    repository = Repository(options.data)
    if options.config is not None or repository.hub_versions().trial is None or is_held(options.data):
        return False
    log.error("the hub's configuration is rolled back, because the gateway does not start with it: %s", why)
    repository.step(lambda versions: versions.rolled_back(f"the gateway does not start with this configuration: {why}"))
    return True


class Deadline(Protocol):
    """Handle from `asyncio.AbstractEventLoop.call_later`."""

    def cancel(self) -> None: ...


class SystemUpdates(Protocol):
    """Follows the version of the system that a configuration wants."""

    def fault(self, applied: Sequence[Resource]) -> str | None:
        """Return the reason why the system in these resources cannot be installed, or None."""

    def report(self) -> SystemReport | None:
        """Return the progress of the update; None: no version is wanted. Raises `RepositoryError`."""

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follow while the gateway runs; call `changed` when `report` has changed."""


class Trials:
    """Runs the trials of one gateway. Create it inside a running loop; call `start`, later `stop`."""

    def __init__(
        self,
        data: Path,
        following: ConfigurationFollower,
        *,
        certificate: Path,
        verify: Callable[[SignedDesired], VerifiedDesired],
        system: SystemUpdates,
        restart: Callable[[], None],
    ) -> None:
        """`certificate`: certificate file of the connector to the hub of this gateway's enrolment. `verify` runs in a
        thread and raises `DesiredError`. `restart` stops the gateway cleanly and starts it again in this process."""
        self._certificate = str(certificate)
        self._verify = verify
        self._system = system
        self._repository = Repository(data)
        self._following = following
        self._restart = restart
        self._gateway: Reconfigurable | None = None
        self._uplink: ConnectorUplink | None = None
        """Uplink to the hub of the enrolment."""
        self._unread: ApplyFailure | None = None
        """Failure of the last document, when it had no version that can be trusted."""
        self._one_at_a_time = asyncio.Lock()
        self._deadline: Deadline | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self, uplink: ConnectorUplink) -> None:
        """Receive documents over this connector, if it leads to the hub of the enrolment."""
        tls = uplink.connector.tls
        if tls is None or tls.certificate != self._certificate:
            return
        self._uplink = uplink
        uplink.inboxes.append(DocumentInbox(f"configuration of {uplink.connector.name}", DESIRED, self._offered))
        uplink.reports.begin_configuration(self.send_report)

    def start(self, gateway: Reconfigurable) -> None:
        """Start with a running gateway; a trial in progress continues with its full time."""
        self._gateway = gateway
        trial = self._versions().trial
        if trial is not None:
            log.warning("version %d of the hub's configuration is still on trial", trial.number)
            self._await_confirmation(trial)
        self._do(self._system.watch(self.send_report))
        self.send_report()

    async def stop(self) -> None:
        """Stop; a trial stays in progress."""
        self._stop_waiting()
        self._gateway = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def report(self) -> DesiredReport:
        """Return the report for the hub. Raises `RepositoryError`."""
        report = msgspec.structs.replace(self._versions().report(), system=self._system.report())
        return report if self._unread is None else msgspec.structs.replace(report, failure=self._unread)

    def send_report(self) -> None:
        """Send the report to the hub, or at the end of the step that is running."""
        if self._uplink is None or self._gateway is None or self._one_at_a_time.locked():
            return
        try:
            report = self.report()
        except RepositoryError as error:
            log.warning("cannot report the configuration to the hub: %s", error)
            return
        document: dict[str, Any] = msgspec.to_builtins(report)
        self._uplink.reports.send_configuration(document, partial(self._reported, report.trying))

    # --- events -----------------------------------------------------------------------------------------------

    def _offered(self, body: bytes, answer: Answer) -> None:
        self._do(self._take(body, answer))

    def _reported(self, trying: int | None, kept: bool) -> None:
        """Confirm the version on trial when the hub has stored the report about it."""
        if kept and trying is not None:
            self._do(self._confirm(trying))

    def _overdue(self, number: int) -> None:
        self._do(self._expire(number))

    # --- steps ------------------------------------------------------------------------------------------------

    async def _take(self, body: bytes, answer: Answer) -> None:
        async with self._one_at_a_time:
            try:
                await self._decide(body)
                outcome, words = Settlement.ACCEPTED, ""
            except DesiredError as error:
                log.warning("a configuration from the hub is refused: %s", error)
                self._unread = ApplyFailure(0, ApplyOutcome.REFUSED, str(error))
                outcome, words = Settlement.REJECTED, str(error)
            except VersionNotAccepted as why:
                log.info("a configuration from the hub is ignored: %s", why)
                busy = self._versions().trial is not None
                outcome, words = Settlement.RELEASED if busy else Settlement.ACCEPTED, str(why)
            except RepositoryError as error:
                log.error("cannot store a configuration from the hub: %s", error)  # noqa: TRY400
                outcome, words = Settlement.RELEASED, str(error)
                await asyncio.sleep(AGAIN_S)  # the hub sends it again at once
        answer(outcome, words)
        self.send_report()

    async def _decide(self, body: bytes) -> None:
        """Decide about a document. Raises `DesiredError`, `VersionNotAccepted`, `RepositoryError`."""
        try:
            signed = msgspec.json.decode(body, type=SignedDesired)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise DesiredError(f"the document cannot be decoded: {error}") from None
        verified = await asyncio.to_thread(self._verify, signed)
        if self._following.fixed:
            raise DesiredError(WITH_A_FILE)
        self._unread = None
        desired = verified.desired
        fault = partial(self._fault, restart=desired.restart)
        take = partial(self._repository.take, desired, verified.authority, fault, digest=digest_of(signed.content))
        known = await asyncio.to_thread(take)
        if known.trial is not None:
            log.warning(
                "version %d of the hub's configuration is on trial", desired.version, extra=event("configuration")
            )
            self._await_confirmation(known.trial)
            await self._take_over()
        elif known.failure is not None:
            log.warning(
                "version %d of the hub's configuration is refused: %s",
                desired.version,
                known.failure.why,
                extra=event("configuration"),
            )

    def _fault(self, applied: Sequence[Resource], *, restart: bool) -> str | None:
        return self._following.fault(applied, restart=restart) or self._system.fault(applied)

    async def _confirm(self, number: int) -> None:
        async with self._one_at_a_time:
            known = await self._step(lambda versions: versions.confirmed_by_hub(number))
            if known is None:
                self._later(AGAIN_S, self.send_report)
                return
            if known.confirmed is not None and known.confirmed.number == number:
                self._stop_waiting()
                log.info("version %d of the hub's configuration is confirmed", number, extra=event("configuration"))
        self.send_report()

    async def _expire(self, number: int) -> None:
        async with self._one_at_a_time:
            trial = self._versions().trial
            if trial is None or trial.number != number:
                return
            await self._roll_back(f"the hub did not confirm it within {trial.confirm_s:g} s{self._last_error()}")
        self.send_report()

    async def _roll_back(self, why: str) -> None:
        log.error("the hub's configuration is rolled back: %s", why, extra=event("configuration"))
        known = await self._step(lambda versions: versions.rolled_back(why))
        if known is None:
            self._later(AGAIN_S, partial(self._overdue, self._versions().newest))
            return
        self._stop_waiting()
        await self._take_over()

    async def _take_over(self) -> None:
        """Apply the version in force to the gateway."""
        gateway = self._gateway
        if gateway is None:
            return
        try:
            if self._following.needs_restart():
                log.warning("the gateway restarts for the hub's configuration")
                self._restart()
            else:
                await self._following.follow(gateway)
        except (OptionsRefused, ConfigurationRejected, RepositoryError) as error:
            if self._versions().trial is None:
                log.error("the gateway's configuration is unchanged: %s", error)  # noqa: TRY400
            else:
                await self._roll_back(str(error))

    # --- inside -----------------------------------------------------------------------------------------------

    def _versions(self) -> HubVersions:
        return self._repository.hub_versions()

    async def _step(self, step: Callable[[HubVersions], HubVersions]) -> HubVersions | None:
        """Store the result of a step; return None after a disk error."""
        try:
            return await asyncio.to_thread(self._repository.step, step)
        except RepositoryError as error:
            log.error("cannot store the decision about the hub's configuration: %s", error)  # noqa: TRY400
            return None

    def _last_error(self) -> str:
        state = self._uplink.dialer.state if self._uplink is not None else None
        return f"; last error of the link: {state.last_error}" if state is not None and state.last_error else ""

    def _await_confirmation(self, trial: Version) -> None:
        self._stop_waiting()
        self._deadline = self._later(trial.confirm_s, partial(self._overdue, trial.number))

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _later(self, delay_s: float, call: Callable[[], None]) -> Deadline:
        return asyncio.get_running_loop().call_later(delay_s, call)

    def _do(self, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
