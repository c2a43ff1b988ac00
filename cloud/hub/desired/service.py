"""Service between gateways, which report their configuration, and the registry, which has the wanted one.

Runs on the event loop. The registry work runs in a thread with a connection of its own, so a gateway's trial does not
wait for a landing. A gateway gets its due version when it reports and when the wanted version changes. A rejected
version is not sent again over the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from bridge import plain
from bridge.desired import DesiredError, DesiredReport, signed_text, to_sign
from bridge.downlink import GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from bridge.periodic_task import end_task
from cloud.hub.desired.making import ConfigurationTables, make_context
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority
from cloud.hub.groups import Key
from cloud.hub.limits import (
    CONFIGURATIONS_CHECK_INTERVAL_S,
    FAILED_SHOWN_MAX,
    MATCHING_REST,
    REPORTS_AT_ONCE_MAX,
    SELECTED_AT_ONCE_MAX,
)
from cloud.hub.registry.configurations import ConfigurationOffer, ConfigurationRecord, Sign, sign_late
from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.rollouts import RolloutRecord
from cloud.hub.registry.selectors import VersionContext
from cloud.hub.registry_thread import RegistryClosed, RegistryThread
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNT_INTERVAL_S = 5.0
"""Interval of counting gateways by state."""


class _Reported(NamedTuple):
    key: Key
    report: DesiredReport
    kept: Callable[[], None]


class ConfigurationFigures(NamedTuple):
    """Figures about configurations and roll-outs."""

    gateways: Counter[str]
    """Gateways by state (`ConfigurationRecord.state`)."""
    rollouts: Counter[str]
    """Open roll-outs by state."""
    failed: Sequence[ConfigurationRecord]
    """Some of the gateways that do not have the wanted version."""
    halted: Sequence[RolloutRecord]


class _Registry(NamedTuple):
    """Tables of configurations on one connection."""

    database: Database
    tables: ConfigurationTables

    def close(self) -> None:
        """Close the connection."""
        self.database.close()


def make_signer(authority: KnownAuthority) -> Sign:
    """Return a function that signs documents with an authority's key; without the key it leaves that to the process
    that has it."""
    if not isinstance(authority, OwnAuthority):
        return sign_late(authority.fingerprint.hex())
    return lambda content: signed_text(authority.sign(to_sign(content)))


class DesiredConfigurations:
    """Sends wanted configurations and stores reports. `open`, later `close`. A `bridge.downlink.DownlinkSource`."""

    def __init__(
        self,
        authority: KnownAuthority,
        registry: sa.URL,
        *,
        now: Callable[[], float] = time.time,
        hint: ChangeHint | None = None,
    ) -> None:
        """`now`: UTC seconds since 1970; `hint` is given when another hub or process changes configurations."""
        self.figures = ConfigurationFigures(Counter(), Counter(), (), ())
        self.trouble: str | None = None
        """Reason why the registry is not read; None if it is."""
        self.refused: dict[Key, str] = {}
        """Gateways that cannot get the configuration of their selector, with the reason."""
        self.sign: Sign = make_signer(authority)
        self._now = now
        self._thread = RegistryThread("configurations", lambda: _open(registry))
        self._lines: dict[Key, GatewayLink] = {}
        self._offers: dict[Key, ConfigurationOffer] = {}
        self._sent: dict[GatewayLink, int] = {}
        """Version sent last over each line."""
        self._reports: list[_Reported] = []
        """Reports that are not stored yet."""
        self._seen: dict[Key, int] = {}
        """Time of the last change handled, by gateway."""
        self._since = 0
        self._match_at = 0.0
        """Time of the next matching of selectors, on the loop's clock."""
        self._came = asyncio.Event()
        self._hint = hint or ChangeHint()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open the registry and start polling. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        await self._thread.open()
        self._since = await self.ask(lambda tables: tables.configurations.last_change())
        await self._count()
        self._tasks = [loop.create_task(each) for each in (self._watch(), self._store_reports())]

    async def close(self) -> None:
        """Stop polling and close the registry. Idempotent."""
        for task in self._tasks:
            await end_task(task)
        self._tasks = []
        await self._thread.close()

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return int(self._now() * 1_000_000)

    async def ask(self, work: Callable[[ConfigurationTables], T]) -> T:
        """Run `work` on the registry's thread. Raises `RegistryError`, and what `work`
        raises."""
        return await self._thread.run(lambda opened: work(opened.tables))

    # --- gateways ---------------------------------------------------------------------------------------------------

    def reported(self, key: Key, report: DesiredReport, kept: Callable[[], None]) -> None:
        """Queue the report of a gateway; `kept` is called once it is stored."""
        self._reports.append(_Reported(key, report, kept))
        self._came.set()

    def ready(self, line: GatewayLink) -> None:
        self._lines[line.gateway] = line
        self._send(line.gateway)

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        key = line.gateway
        if outcome is ForwardOutcome.RELEASED:
            self._sent.pop(line, None)  # the gateway reports when it can take it
        elif (offer := self._offers.get(key)) is not None and offer.version == tag:
            del self._offers[key]
        if outcome is ForwardOutcome.REJECTED:
            log.warning("gateway %s rejected version %d of its configuration: %s", key[1], tag, why)

    def ended(self, line: GatewayLink) -> None:
        self._sent.pop(line, None)
        if self._lines.get(line.gateway) is line:
            del self._lines[line.gateway]
            self._offers.pop(line.gateway, None)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _offer(self, key: Key, offer: ConfigurationOffer | None) -> None:
        if offer is None:
            self._offers.pop(key, None)
            return
        self._offers[key] = offer
        self._send(key)

    def _send(self, key: Key) -> None:
        line, offer = self._lines.get(key), self._offers.get(key)
        if line is None or offer is None or line.credit < 1 or self._sent.get(line, 0) >= offer.version:
            return
        self._sent[line] = offer.version
        line.send(offer.version, plain.data_section(msgspec.json.encode(offer.signed)))
        log.info("gateway %s: sent version %d of its configuration", key[1], offer.version)

    async def _store_reports(self) -> None:
        """Store reports as they arrive, in batches."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._reports:
                part = self._reports[:REPORTS_AT_ONCE_MAX]
                if not await self._store(part):
                    await asyncio.sleep(CONFIGURATIONS_CHECK_INTERVAL_S)
                    continue
                del self._reports[: len(part)]

    async def _store(self, part: Sequence[_Reported]) -> bool:
        """Store reports; return False if the registry fails. A report that cannot be stored does not hold back
        others."""
        entries = [(each.key, each.report) for each in part]
        try:
            offers = await self.ask(lambda tables: tables.configurations.reported(entries, self.now_us()))
        except RegistryError as error:
            self._failed(error)
            return False
        except Exception:
            half = len(part) // 2
            if half:
                return await self._store(part[:half]) and await self._store(part[half:])
            log.exception("gateway %s: its configuration report cannot be stored", part[0].key[1])
            return True
        for each, offer in zip(part, offers, strict=True):
            each.kept()
            self._offer(each.key, offer)
        return True

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        counted_at = clock()
        while True:
            await self._hint.wait(CONFIGURATIONS_CHECK_INTERVAL_S)
            try:
                await self._poll()
                if clock() - counted_at >= COUNT_INTERVAL_S:
                    counted_at = clock()
                    await self._count()
            except RegistryError as error:
                self._failed(error)
            except Exception as error:  # an internal error must not end the polling silently
                log.exception("polling of configurations failed with an internal error")
                self.trouble = f"internal error: {type(error).__name__}"
            else:
                self.trouble = None

    def _failed(self, error: Exception) -> None:
        if self.trouble is None:
            log.warning("configurations cannot be read: %s", error)
        self.trouble = str(error)

    async def _poll(self) -> None:
        """Advance roll-outs, and send versions that others made. A fault of one roll-out or tenant does not hold back
        others; the first fault is raised at the end."""
        faults: list[Exception] = []
        for rollout in await self.ask(lambda tables: tables.rollouts.running()):
            async with _collect(faults, f"of roll-out {rollout}"):
                await self._advance(rollout)
        await self._match_selectors(faults)
        since = self._since
        records = await self.ask(lambda tables: tables.configurations.gateways(since_us=since))
        self._since = max((since, *(each.changed_at for each in records)))
        new = [each for each in records if self._seen.get((each.tenant, each.gateway)) != each.changed_at]
        self._seen.update({(each.tenant, each.gateway): each.changed_at for each in new})
        await self._send_due(each for each in new if (each.tenant, each.gateway) in self._lines)
        if faults:
            raise faults[0]

    async def _advance(self, rollout: str) -> None:
        found = await self.ask(lambda tables: tables.rollouts.advance(rollout, self.now_us(), self.sign))
        if found is not None and found.state is RolloutState.HALTED:
            log.error("roll-out %s is halted: %s", rollout, found.why)
        elif found is not None:
            log.info("roll-out %s: wave %d, %s", rollout, found.wave + 1, found.state.value)

    async def _match_selectors(self, faults: list[Exception]) -> None:
        """Send gateways the configuration of their selector, for example after enrolment or after a roll-out."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if began < self._match_at:
            return
        refused: dict[Key, str] = {}
        for tenant in await self.ask(lambda tables: tables.selectors.tenants()):
            async with _collect(faults, f"of tenant {tenant}"):
                names = await self.ask(partial(_find_outdated, tenant=tenant))
                for start in range(0, len(names), SELECTED_AT_ONCE_MAX):
                    refused |= await self._send_selected(tenant, names[start : start + SELECTED_AT_ONCE_MAX])
        for key in refused.keys() - self.refused.keys():
            log.warning("gateway %s cannot get the configuration of its selector: %s", key[1], refused[key])
        self.refused = refused
        ended = clock()
        self._match_at = ended + MATCHING_REST * (ended - began)

    async def _send_selected(self, tenant: str, names: Sequence[str]) -> dict[Key, str]:
        """Send these gateways the configuration of their selector; return those that cannot get it, with the reason."""
        try:
            await self.ask(partial(_apply, tenant=tenant, names=names, how=make_context(self.now_us(), self.sign)))
        except DesiredError as error:
            if len(names) == 1:
                return {(tenant, names[0]): str(error)}
        else:
            return {}
        half = len(names) // 2
        return {**await self._send_selected(tenant, names[:half]), **await self._send_selected(tenant, names[half:])}

    async def _send_due(self, records: Iterable[ConfigurationRecord]) -> None:
        for each in records:
            key, report = (each.tenant, each.gateway), each.report
            if report is not None:
                self._offer(key, await self.ask(partial(_due, key=key, report=report)))

    async def _count(self) -> None:
        records = await self.ask(lambda tables: tables.configurations.gateways())
        rollouts = await self.ask(lambda tables: tables.rollouts.all())
        over = (RolloutState.DONE, RolloutState.ABORTED)
        self.figures = ConfigurationFigures(
            Counter(each.state for each in records if each.wanted),
            Counter(each.state.value for each in rollouts if each.state not in over),
            [each for each in records if each.failed][:FAILED_SHOWN_MAX],
            [each for each in rollouts if each.state is RolloutState.HALTED],
        )


@contextlib.asynccontextmanager
async def _collect(faults: list[Exception], subject: str) -> AsyncIterator[None]:
    """Collect an exception of the body, with a note about its subject; RegistryClosed passes."""
    try:
        yield
    except RegistryClosed:
        raise
    except Exception as error:
        error.add_note(subject)
        faults.append(error)


def _due(tables: ConfigurationTables, *, key: Key, report: DesiredReport) -> ConfigurationOffer | None:
    return tables.configurations.due(key, report)


def _find_outdated(tables: ConfigurationTables, *, tenant: str) -> list[str]:
    return tables.selectors.find_outdated(tenant)


def _apply(tables: ConfigurationTables, *, tenant: str, names: Sequence[str], how: VersionContext) -> None:
    tables.selectors.apply_to(tenant, names, how)


def _open(url: sa.URL) -> _Registry:
    database = open_registry(url).database
    return _Registry(database, ConfigurationTables.of(database))
