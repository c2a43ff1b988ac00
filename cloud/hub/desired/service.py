"""Between gateways, which report how they are configured, and the registry, which has what they are to be.

On the event loop; the registry's part is in a thread of its own with a connection of its own, as enrolment's is: a
gateway's trial does not wait for a landing. A gateway is sent what is due when it reports, and when somebody changes
what is wanted; what it does not take it is not sent again over the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from bridge import plain
from bridge.desired import DesiredError, DesiredReport, signed_text, to_sign
from bridge.downlink import GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.desired.making import Tables, making_of
from cloud.hub.enrolment.authority import Authority
from cloud.hub.groups import Key
from cloud.hub.limits import (
    CONFIGURATIONS_LOOKED_AT_S,
    FAILED_SHOWN_MAX,
    FALLING_AT_ONCE_MAX,
    FALLING_REST,
    REPORTS_AT_ONCE_MAX,
)
from cloud.hub.registry.configurations import GatewayRecord, Offer, Sign
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import opened
from cloud.hub.registry.rollouts import RolloutRecord
from cloud.hub.registry.selectors import Making
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNTED_EVERY = 5
"""One of so many looks counts all gateways by state."""


class NotReady(Exception):
    """The hub starts or stops, or has no authority that could sign."""


class _Reported(NamedTuple):
    key: Key
    report: DesiredReport
    kept: Callable[[], None]


class Figures(NamedTuple):
    """How many, and which."""

    gateways: Counter[str]
    """By state (`GatewayRecord.state`)."""
    rollouts: Counter[str]
    """By state, of those that are not over."""
    failed: Sequence[GatewayRecord]
    """Gateways that have not taken what is wanted of them; some, where there are many."""
    halted: Sequence[RolloutRecord]


class _Registry(NamedTuple):
    database: Database
    tables: Tables


def signing(authority: Authority) -> Sign:
    """Signs documents with an authority's key."""
    return lambda content: signed_text(authority.sign(to_sign(content)))


class DesiredConfigurations:
    """For one hub: `open`, later `close`. A `bridge.downlink.DownlinkSource`."""

    def __init__(self, authority: Authority, registry: sa.URL, *, now: Callable[[], float] = time.time) -> None:
        """`now`: UTC seconds since 1970."""
        self.figures = Figures(Counter(), Counter(), (), ())
        self.trouble: str | None = None
        """Why the registry is not asked; None: it is."""
        self.refused: dict[Key, str] = {}
        """Gateways that cannot have what their selector has, and why."""
        self.sign: Sign = signing(authority)
        self._url = registry
        self._now = now
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="configurations")
        self._registry: _Registry | None = None
        self._lines: dict[Key, GatewayLink] = {}
        self._offers: dict[Key, Offer] = {}
        self._sent: dict[GatewayLink, int] = {}
        """The version sent last."""
        self._reports: list[_Reported] = []
        """Those the registry has not got yet."""
        self._seen: dict[Key, int] = {}
        """When what is wanted of a gateway was changed, as far as it was looked at."""
        self._since = 0
        self._falls_at = 0.0
        """When it is looked again who is to have what a selector has, on the loop's clock."""
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._registry = await loop.run_in_executor(self._executor, _open, self._url)
        self._since = await self.ask(lambda tables: tables.configurations.changed_last())
        await self._count()
        self._tasks = [loop.create_task(each) for each in (self._watch(), self._keep())]

    async def close(self) -> None:
        """Idempotent."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        registry, self._registry = self._registry, None
        if registry is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, registry.database.close)
        self._executor.shutdown()

    def now_us(self) -> int:
        """UTC microseconds since 1970."""
        return int(self._now() * 1_000_000)

    async def ask(self, work: Callable[[Tables], T]) -> T:
        """Do this with the registry, in its thread. Raises `NotReady`, `RegistryError`, and what `work` raises."""
        registry = self._registry
        if registry is None:
            raise NotReady("the hub starts or stops; ask again in some seconds")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(registry.tables))

    # --- gateways ---------------------------------------------------------------------------------------------------

    def reported(self, key: Key, report: DesiredReport, kept: Callable[[], None]) -> None:
        """A gateway says how it is; `kept` is called once the registry has it."""
        self._reports.append(_Reported(key, report, kept))
        self._came.set()

    def ready(self, line: GatewayLink) -> None:
        self._lines[line.gateway] = line
        self._send(line.gateway)

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        key = line.gateway
        if outcome is ForwardOutcome.RELEASED:
            self._sent.pop(line, None)  # it says so itself when it can take it
        elif (offer := self._offers.get(key)) is not None and offer.version == tag:
            del self._offers[key]
        if outcome is ForwardOutcome.REJECTED:
            log.warning("gateway %s takes no version %d of its configuration: %s", key[1], tag, why)

    def ended(self, line: GatewayLink) -> None:
        self._sent.pop(line, None)
        if self._lines.get(line.gateway) is line:
            del self._lines[line.gateway]
            self._offers.pop(line.gateway, None)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _offer(self, key: Key, offer: Offer | None) -> None:
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
        log.info("gateway %s is sent version %d of its configuration", key[1], offer.version)

    async def _keep(self) -> None:
        """Write reports down as they come, as many at a time as there are."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._reports:
                part = self._reports[:REPORTS_AT_ONCE_MAX]
                if not await self._kept(part):
                    await asyncio.sleep(CONFIGURATIONS_LOOKED_AT_S)
                    continue
                del self._reports[: len(part)]

    async def _kept(self, part: Sequence[_Reported]) -> bool:
        """False: not now. What cannot be kept of one gateway keeps back nobody else."""
        entries = [(each.key, each.report) for each in part]
        try:
            offers = await self.ask(lambda tables: tables.configurations.reported(entries, self.now_us()))
        except (RegistryError, NotReady) as error:
            self._failed(error)
            return False
        except Exception:
            half = len(part) // 2
            if half:
                return await self._kept(part[:half]) and await self._kept(part[half:])
            log.exception("gateway %s: how it is configured cannot be kept", part[0].key[1])
            return True
        for each, offer in zip(part, offers, strict=True):
            each.kept()
            self._offer(each.key, offer)
        return True

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(CONFIGURATIONS_LOOKED_AT_S)
            looks += 1
            try:
                await self._look()
                if not looks % COUNTED_EVERY:
                    await self._count()
            except (RegistryError, NotReady) as error:
                self._failed(error)
            except Exception as error:  # a fault of ours must not end the watch in silence
                log.exception("what gateways are to be configured with is not looked at")
                self.trouble = f"a fault of the program: {type(error).__name__}"
            else:
                self.trouble = None

    def _failed(self, error: Exception) -> None:
        if self.trouble is None:
            log.warning("what gateways are to be configured with cannot be looked at: %s", error)
        self.trouble = str(error)

    async def _look(self) -> None:
        """Take the next steps of roll-outs, and send what somebody else has changed. What cannot be done for one
        roll-out or tenant keeps back nothing of the others; it is raised when they are done."""
        faults: list[Exception] = []
        for rollout in await self.ask(lambda tables: tables.rollouts.running()):
            async with _later(faults, f"of roll-out {rollout}"):
                await self._advance(rollout)
        await self._fall(faults)
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

    async def _fall(self, faults: list[Exception]) -> None:
        """Send gateways what their selector has: those that have enrolled since, or whose roll-out is over."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if began < self._falls_at:
            return
        refused: dict[Key, str] = {}
        for tenant in await self.ask(lambda tables: tables.selectors.tenants()):
            async with _later(faults, f"of tenant {tenant}"):
                names = await self.ask(partial(_falling, tenant=tenant))
                for start in range(0, len(names), FALLING_AT_ONCE_MAX):
                    refused |= await self._refused(tenant, names[start : start + FALLING_AT_ONCE_MAX])
        for key in refused.keys() - self.refused.keys():
            log.warning("gateway %s cannot have what its selector has: %s", key[1], refused[key])
        self.refused = refused
        ended = clock()
        self._falls_at = ended + FALLING_REST * (ended - began)

    async def _refused(self, tenant: str, names: Sequence[str]) -> dict[Key, str]:
        """Which of these gateways cannot have what their selector has, and why; the others are sent it."""
        try:
            await self.ask(partial(_fallen, tenant=tenant, names=names, how=making_of(self.now_us(), self.sign)))
        except DesiredError as error:
            if len(names) == 1:
                return {(tenant, names[0]): str(error)}
        else:
            return {}
        half = len(names) // 2
        return {**await self._refused(tenant, names[:half]), **await self._refused(tenant, names[half:])}

    async def _send_due(self, records: Iterable[GatewayRecord]) -> None:
        for each in records:
            key, report = (each.tenant, each.gateway), each.report
            if report is not None:
                self._offer(key, await self.ask(partial(_due, key=key, report=report)))

    async def _count(self) -> None:
        records = await self.ask(lambda tables: tables.configurations.gateways())
        rollouts = await self.ask(lambda tables: tables.rollouts.all())
        over = (RolloutState.DONE, RolloutState.ABORTED)
        self.figures = Figures(
            Counter(each.state for each in records if each.wanted),
            Counter(each.state.value for each in rollouts if each.state not in over),
            [each for each in records if each.failed][:FAILED_SHOWN_MAX],
            [each for each in rollouts if each.state is RolloutState.HALTED],
        )


@contextlib.asynccontextmanager
async def _later(faults: list[Exception], whose: str) -> AsyncIterator[None]:
    """What is raised within is put to the others, with whose it is; the hub that ends, or has no registry, is not."""
    try:
        yield
    except NotReady:
        raise
    except Exception as error:
        error.add_note(whose)
        faults.append(error)


def _due(tables: Tables, *, key: Key, report: DesiredReport) -> Offer | None:
    return tables.configurations.due(key, report)


def _falling(tables: Tables, *, tenant: str) -> list[str]:
    return tables.selectors.falling(tenant)


def _fallen(tables: Tables, *, tenant: str, names: Sequence[str], how: Making) -> None:
    tables.selectors.fall(tenant, names, how)


def _open(url: sa.URL) -> _Registry:
    database = opened(url).database
    return _Registry(database, Tables.of(database))
