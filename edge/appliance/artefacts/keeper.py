"""Keeps the artefacts of a gateway: follows its configuration, fetches what is missing, and makes room for messages.

Two tasks, so that a hub that hangs never delays the other one: `keep` follows the configuration and evicts images,
`fetch` moves one range of one image in the quiet lane. It waits for the rate, the quiet hours and the monthly budget of
the connector to the hub, as a backlog does, and counts in them. Files are used on one thread, the network and the
verification of images on another, so the event loop never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from bridge.lane import BatchLane
from bridge.pace import Pacer, PaceSettings
from bridge.periodic_task import PeriodicTask
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import of_kind
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.limits import (
    CHECK_INTERVAL_S,
    EVICTION_MARGIN_BYTES,
    FETCH_MARGIN_BYTES,
    HEADER_BYTES,
    RANGE_BYTES,
    REOPEN_S,
    REQUEST_S,
    RETRY_S,
    STOP_S,
    WAIT_S_MIN,
)
from edge.broker.configuration import Connector, ConnectorType
from edge.configuration.file import RepositoryError
from edge.configuration.repository import Repository
from edge.configuration.resources import ARTEFACTS_MAX, ArtefactsSpec
from edge.health.problems import FoundProblem, Severity
from edge.output.text import line

if TYPE_CHECKING:
    from bridge.device_pages import OfferedUpdate
    from edge.appliance.artefacts.hub_client import ArtefactHub
    from edge.appliance.artefacts.library import ArtefactLibrary, ArtefactTask, HeldArtefact
    from edge.appliance.artefacts.offers import OfferedSpec
    from edge.appliance.artefacts.reports import ReportedArtefact
    from edge.configuration.resources import ArtefactPart

log = logging.getLogger(__name__)

T = TypeVar("T")
FOLDER: Final = "artefacts"


class HubLink(NamedTuple):
    """Link to the hub, as the uplink sees it."""

    connected: bool
    """The uplink is connected: nothing is fetched while it is paused or away."""
    pacer: Pacer | None
    """None: no limits."""


class CardRoom(NamedTuple):
    """Room of the card, in bytes."""

    free: int | None
    """Free bytes: the fewer of those of the file system and those for messages; None: unknown, without a limit."""
    floor: int
    """Free bytes below which messages are refused."""


class OfferSource(Protocol):
    """Devices of the hub, with the versions that its campaigns offer them."""

    @property
    def offers_revision(self) -> int:
        """Number that changes with the offers."""

    @property
    def offered_devices(self) -> int:
        """Number of devices with offers."""

    def offers(self) -> Iterable[tuple[str, OfferedUpdate]]:
        """Return the present offers, by the names of devices. They are read in another thread."""


class ArtefactKeeper:
    """Keeps the artefacts of one gateway. Construct it inside a running loop; call `start`, later `stop`."""

    def __init__(
        self,
        data: Path,
        *,
        connectors: Callable[[], Sequence[Connector]],
        link: Callable[[str], HubLink],
        room: Callable[[], CardRoom],
        clock_good: Callable[[], bool],
        offers: OfferSource | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        utc_s: Callable[[], float] = time.time,
    ) -> None:
        """`connectors`: of the present configuration. `link`: of the connector of this name."""
        self._repository = Repository(data)
        self._data = data
        self._connectors = connectors
        self._link = link
        self._room = room
        self._clock_good = clock_good
        self._offers = offers
        self._monotonic_s = monotonic_s
        self._utc_s = utc_s
        self._files = ThreadPoolExecutor(1, thread_name_prefix="artefacts")
        self._network = ThreadPoolExecutor(1, thread_name_prefix="artefact-requests")
        self._keeping = PeriodicTask("artefacts", self.keep, CHECK_INTERVAL_S, log=log, failed="artefacts are not kept")
        self._fetching = PeriodicTask(
            "artefacts of the hub", self.fetch, CHECK_INTERVAL_S, log=log, failed="artefacts are not fetched"
        )
        self._mark: object = None
        self._own_spec: ArtefactsSpec | None = None
        """The configuration without the offers of the hub."""
        self._own_parts: Mapping[tuple[str, str], ArtefactPart] = {}
        """Its artefacts, by name and version."""
        self._spec: ArtefactsSpec | None = None
        self._offered: OfferedSpec | None = None
        """The configuration with the offers; None without offers."""
        self._unwanted = 0
        """Devices with offers of the hub that no `Artefacts` resource allows."""
        self._stale = True
        """The library does not have the configuration yet."""
        self._library: ArtefactLibrary | None = None
        self._hub: ArtefactHub | None = None
        self._own_pacer: Pacer | None = None
        self._not_before = 0.0
        """Monotonic time before which nothing is fetched."""
        self._reopen_at = 0.0
        """Monotonic time before which the files are not opened again."""
        self._way = 0
        """Place of the endpoint of the hub in use."""
        self._full = False
        """The card had no room for a write."""
        self._stopped = False
        self._trouble: str | None = None
        """Why the card or the configuration cannot be used."""
        self._reading: Counter[int] = Counter()
        """Downloads by devices, by the number of the artefact."""
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._configured: Callable[[bool], None] = lambda _: None
        self._served_at: dict[int, float] = {}
        """Monotonic time of the last download of an image, by the number of its artefact."""

    def start(self) -> None:
        """Start to follow and to fetch."""
        self._keeping.start()
        self._fetching.start()

    async def stop(self) -> None:
        """End the request in progress and close all files, without waiting for the hub. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self._fetching.stop()
        await self._keeping.stop()
        closing = self._close_hub()
        if self._library is not None or self._spec is not None:
            await self._run(self._close)
        if closing is not None:
            await asyncio.wait((asyncio.wrap_future(closing),), timeout=STOP_S)
        for threads in (self._network, self._files):
            threads.shutdown(wait=False)
        while self._closing:
            await self._closing.pop()()

    def call_when_configured(self, change: Callable[[bool], None]) -> None:
        """Call `change` on the loop when the gateway begins to hold artefacts (True) or ends (False)."""
        self._configured = change

    def call_when_stopped(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` at the end of `stop`."""
        self._closing.append(close)

    @property
    def spec(self) -> ArtefactsSpec | None:
        """Configuration in force; None: the gateway holds no artefacts."""
        return self._spec

    @property
    def held(self) -> Mapping[tuple[str, str], HeldArtefact]:
        """Artefacts for devices, by name and version."""
        library = self._library  # the other thread may close it
        return {} if library is None or self._spec is None else library.held

    @property
    def known(self) -> Mapping[tuple[str, str], HeldArtefact]:
        """Artefacts for devices, also those without an image now."""
        library = self._library
        return {} if library is None or self._spec is None else library.known

    def offer(self, key: tuple[str, str], device: str) -> OfferedUpdate | None:
        """Return what a campaign of the hub offers to a device, which may be withheld; None without an offer."""
        offers = None if self._offered is None else self._offered.offers.get(key)
        return None if offers is None else offers.get(device)

    def names(self, key: tuple[str, str], device: str) -> bool:
        """Return whether an artefact is for a device, by the configuration or by an offer, which may be withheld."""
        return self._configures(key, device) or self.offer(key, device) is not None

    def may_fetch(self, key: tuple[str, str], device: str) -> bool:
        """Return whether a device may fetch an artefact now."""
        if self._configures(key, device):
            return True
        offer = self.offer(key, device)
        return offer is not None and not offer.withheld

    def _configures(self, key: tuple[str, str], device: str) -> bool:
        part = self._own_parts.get(key)
        return part is not None and part.names(device)

    @property
    def loaded(self) -> bool:
        """True when `known` is complete for the configuration."""
        return self._spec is None or (self._library is not None and not self._stale)

    async def remembered_version(self, name: str, version: str) -> ReportedArtefact | None:
        """Return an artefact that is, or was, here by its name and version; None if it is unknown."""
        return await self._remembered(lambda library: library.remembered_version(name, version))

    async def remembered_number(self, number: int) -> ReportedArtefact | None:
        """Return an artefact that is, or was, here by its number; None if it is unknown."""
        return await self._remembered(lambda library: library.remembered_number(number))

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Mark an image as read by a device: others are evicted first."""
        self._served_at[number] = self._monotonic_s()
        self._reading[number] += 1
        try:
            yield
        finally:
            self._reading[number] -= 1
            if not self._reading[number]:
                del self._reading[number]

    def problems(self) -> Iterator[FoundProblem]:
        """Yield why artefacts are not here."""
        if self._trouble is not None:
            yield FoundProblem("artefacts", self._trouble, "see the log, and `waypost doctor`", Severity.WARNING)
        if self._unwanted:
            what = f"the hub offers software to {self._unwanted} devices here, and no key of a maker is trusted"
            step = "apply an Artefacts resource with trustedKeys: waypost config apply"
            yield FoundProblem("artefacts", what, step, Severity.WARNING)
        if self._spec is None:
            return
        if self._offered is not None and self._offered.left:
            what = f"{self._offered.left} artefacts that the hub offers are not held: a gateway holds {ARTEFACTS_MAX}"
            yield FoundProblem("artefacts", what, "stop campaigns that are done, at the hub", Severity.WARNING)
        if self._spec.artefacts and self._connector() is None:
            what = "the Artefacts of the configuration are at the hub, and this gateway has no connector to a hub"
            yield FoundProblem("artefacts", what, "enrol it: waypost enrol", Severity.WARNING)
        library = self._library
        for (name, version), trouble in library.troubles.items() if library is not None else ():
            if trouble.fault is None:
                step = "at the hub: waypost artefact list; it is tried again automatically"
                yield FoundProblem(f"artefact {name} {version}", line(trouble.words), step, Severity.WARNING)
                continue
            what = f"it is refused ({trouble.fault.value}): {line(trouble.words)}"
            step = "take the files from their maker again, or correct the Artefacts resource"
            yield FoundProblem(f"artefact {name} {version}", what, step, Severity.WARNING)

    async def keep(self) -> float:
        """Follow the configuration and make room for messages; return the seconds until the next call."""
        trouble: str | None = None
        try:
            if self._monotonic_s() >= self._reopen_at and await self._follow():
                await self._configure()
        except RepositoryError as error:  # what is here stays in use
            trouble = str(error)
        except OSError as error:
            trouble = await self._reopen(str(error))
        except Exception as error:  # the task must not end
            log.exception("artefacts: unexpected error")
            trouble = await self._reopen(f"unexpected error: {type(error).__name__}")
        wait_s = CHECK_INTERVAL_S
        try:  # also with a configuration or an index that cannot be read: messages need the room
            wait_s = await self._make_room()
        except OSError as error:
            trouble = await self._reopen(str(error))
        except Exception as error:  # the task must not end
            log.exception("artefacts: unexpected error")
            trouble = await self._reopen(f"unexpected error: {type(error).__name__}")
        if trouble is not None and trouble != self._trouble:
            log.warning("artefacts cannot be kept now: %s", trouble)
        if trouble is not None or self._monotonic_s() >= self._reopen_at:
            self._trouble = trouble
        return wait_s

    async def fetch(self) -> float:
        """Move one range of one image; return the seconds until the next call."""
        now = self._monotonic_s()
        if now < self._not_before:
            return min(CHECK_INTERVAL_S, self._not_before - now)
        try:
            return await self._fetch_next(now)
        except IndexUnusable as error:
            self._trouble = await self._reopen(str(error))
            log.warning("artefacts cannot be kept now: %s", error)
        except OSError as error:
            self._full = self._full or error.errno in (errno.ENOSPC, errno.EDQUOT)
            log.warning("artefacts: %s", error)
        except Exception:  # the task must not end
            log.exception("artefacts: unexpected error")
        self._not_before = now + RETRY_S[0]
        return RETRY_S[0]

    # --- keeping ----------------------------------------------------------------------------------------------------

    async def _make_room(self) -> float:
        """Evict an image if messages need the room; return the seconds until the next check."""
        room, library = self._room(), self._library
        short = room.free is not None and room.free < room.floor + EVICTION_MARGIN_BYTES
        if not (short or self._full):
            return CHECK_INTERVAL_S
        self._full = False
        if library is None:
            folder = self._data / FOLDER
            deleted = folder.exists() and await self._run(lambda: _delete_largest(folder))
            return WAIT_S_MIN if deleted else CHECK_INTERVAL_S
        evicted = await self._run(lambda: library.evict(self._served_at, self._reading))
        if evicted is None:
            return CHECK_INTERVAL_S
        await self._next_task(library)
        return CHECK_INTERVAL_S if evicted in self._reading else WAIT_S_MIN  # its downloads end first

    async def _follow(self) -> bool:
        """Read the configuration and the offers of the hub if they have changed; return whether the library has to be
        configured. Raises `RepositoryError`. Without offers it needs no thread."""
        mark = self._repository.mark, self._offers.offers_revision if self._offers is not None else 0
        if mark != self._mark:
            own = self._read_configured()
            spec, offered = own, None
            devices = self._offers.offered_devices if self._offers is not None else 0
            if own is not None and self._offers is not None and devices:
                from edge.appliance.artefacts.offers import with_offers  # noqa: PLC0415 - memory without offers

                present = self._offers.offers()  # of the time of the mark
                offered = await self._run(lambda: with_offers(own, present))
                spec = offered.spec
            self._mark, self._own_spec, self._offered = mark, own, offered
            self._own_parts = {each.key: each for each in own.artefacts} if own is not None else {}
            self._unwanted = devices if own is None else 0
            self._want(spec)
        return self._stale and (self._spec is not None or (self._data / FOLDER).exists())

    def _read_configured(self) -> ArtefactsSpec | None:
        """Return the `Artefacts` of the configuration; those before if it cannot be read. Raises `RepositoryError`."""
        try:
            return next((spec for _, spec in of_kind(self._repository.decided(), ArtefactsSpec)), None)
        except ConfigurationRejected as rejected:
            log.warning("the wanted artefacts are not known: %s", rejected)
            return self._own_spec

    def _want(self, spec: ArtefactsSpec | None) -> None:
        """Let a configuration be in force. One that says nothing new changes nothing: refusals and the debt of the
        rate limit stay."""
        before = self._spec
        if spec == before:
            return
        self._spec, self._stale = spec, True
        if (before is None) is not (spec is None):
            self._configured(spec is not None)
        if spec is None:
            self._own_pacer = None
        elif before is None or (before.rate, before.quiet_hours) != (spec.rate, spec.quiet_hours):
            self._own_pacer = self._make_pacer(spec)

    async def _configure(self) -> None:
        """Let the library hold what is configured. Raises OSError."""
        spec = self._spec
        self._library = library = await self._run(lambda: self._open(spec))
        if spec is None:
            await self._run(self._close)
        else:
            await self._next_task(library)
        self._stale = spec is not self._spec

    def _open(self, spec: ArtefactsSpec | None) -> ArtefactLibrary:
        """Return the open library, with a configuration. Raises OSError."""
        from edge.appliance.artefacts.library import ArtefactLibrary  # noqa: PLC0415 - cryptography takes 10 MiB
        from edge.appliance.artefacts.storage import ArtefactStorage  # noqa: PLC0415

        library = self._library
        if library is None:
            library = self._library = ArtefactLibrary(ArtefactStorage.open(self._data))
        library.configure(spec or ArtefactsSpec())
        return library

    async def _reopen(self, why: str) -> str:
        """Close all files, and have them opened again after a time; return `why`."""
        self._reopen_at = self._monotonic_s() + REOPEN_S
        await self._run(self._close)
        return why

    # --- fetching ---------------------------------------------------------------------------------------------------

    async def _fetch_next(self, now: float) -> float:
        library, connector = self._library, self._connector()
        if library is None or self._spec is None:
            return CHECK_INTERVAL_S
        task = await self._next_task(library)
        if task is None:
            return CHECK_INTERVAL_S
        if task.complete:
            await self._verify(library, task)
            return WAIT_S_MIN
        if connector is None or not (link := self._link(connector.name)).connected:
            return CHECK_INTERVAL_S
        pacers = [each for each in (link.pacer, self._own_pacer) if each is not None]
        size = _request_bytes(pacers)
        times = [each.waits_until(BatchLane.BACKLOG, size, now) for each in pacers]
        if waits := [each for each in times if each is not None]:
            return min(CHECK_INTERVAL_S, max(WAIT_S_MIN, max(waits) - now))
        return await self._request(library, task, connector, size, pacers)

    async def _request(
        self, library: ArtefactLibrary, task: ArtefactTask, connector: Connector, size: int, pacers: Sequence[Pacer]
    ) -> float:
        """Fetch a manifest, or up to `size` bytes of an image; return the seconds until the next step."""
        from bridge.artefacts.faults import ArtefactRefused  # noqa: PLC0415 - as all of the library
        from edge.appliance.artefacts.hub_client import ArtefactHub, HubAway, HubRefused  # noqa: PLC0415

        if self._hub is None or self._hub.connector != connector:
            self._close_hub()
            self._hub = ArtefactHub(connector, self._way)
        hub, loop = self._hub, asyncio.get_running_loop()
        overdue = loop.call_later(REQUEST_S, self._abort, hub)
        try:
            content = await loop.run_in_executor(self._network, lambda: _content(hub, task, size))
        except ArtefactRefused as refused:
            why = refused
            await self._run(lambda: library.refuse(task, why, self._monotonic_s()))
        except (HubAway, HubRefused) as failed:
            return await self._failed(library, task, hub, failed)
        else:
            utc_s = self._utc()
            await self._run(lambda: self._take(library, task, content, utc_s))
        finally:
            overdue.cancel()
            self._count(hub.received, pacers)
        return WAIT_S_MIN

    def _take(self, library: ArtefactLibrary, task: ArtefactTask, content: bytes, utc_s: float | None) -> None:
        if task.artefact is None:
            library.take_manifest(task, content, self._monotonic_s(), utc_s)
        else:
            library.take_content(task, content)

    async def _failed(self, library: ArtefactLibrary, task: ArtefactTask, hub: ArtefactHub, why: Exception) -> float:
        """Note a failed request, and try another endpoint or artefact soon."""
        status: int | None = getattr(why, "status", None)
        absent = _ABSENT.get(status or 0)
        log.info("artefact %s %s: %s", *task.key, why)
        await self._run(lambda: library.fail(task, absent or str(why), self._monotonic_s(), shown=absent is not None))
        if absent is not None:
            return WAIT_S_MIN
        self._way += 1
        hub.use_way(self._way)
        self._not_before = self._monotonic_s() + RETRY_S[0]
        return RETRY_S[0]

    async def _verify(self, library: ArtefactLibrary, task: ArtefactTask) -> None:
        """Verify a complete image on the other thread: a large one takes a minute."""
        from bridge.artefacts.faults import ArtefactFault, ArtefactRefused  # noqa: PLC0415 - as all of the library
        from edge.appliance.artefacts.storage import verify_file  # noqa: PLC0415

        artefact = task.artefact
        if artefact is None:
            return
        path = await self._run(lambda: library.complete_file(artefact))
        try:
            hashes = await asyncio.get_running_loop().run_in_executor(
                self._network, lambda: verify_file(path, artefact.manifest, lambda: self._stopped)
            )
        except ArtefactRefused as refused:
            why = refused
            await self._run(lambda: library.drop_wrong(task, why, self._monotonic_s()))
        except FileNotFoundError:
            return  # it was evicted
        except OSError as error:
            if self._stopped:
                raise
            unread = ArtefactRefused(ArtefactFault.TRUNCATED, f"its file cannot be read: {error.strerror}")
            await self._run(lambda: library.drop_wrong(task, unread, self._monotonic_s()))
        else:
            await self._run(lambda: library.keep_verified(task, hashes))
        await self._next_task(library)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _next_task(self, library: ArtefactLibrary) -> ArtefactTask | None:
        """Return what is to be done next, and bring `held` and `known` up to date.

        The store and the clock are asked on the loop, as they belong to it.
        """
        now, usable, utc_s = self._monotonic_s(), self._usable(), self._utc()
        return await self._run(lambda: library.next_task(now, usable, utc_s))

    def _usable(self) -> int | None:
        """Return the bytes of the card that images may use; None: no limit."""
        room = self._room()
        return None if room.free is None else max(0, room.free - room.floor - FETCH_MARGIN_BYTES)

    def _utc(self) -> float | None:
        return self._utc_s() if self._clock_good() else None

    def _count(self, received: int, pacers: Sequence[Pacer]) -> None:
        now = self._monotonic_s()
        for pacer in pacers:
            pacer.sent(received + HEADER_BYTES, now)
            pacer.count_bytes(received + HEADER_BYTES)

    def _abort(self, hub: ArtefactHub) -> None:
        """End a request that takes too long; the next one uses a new client."""
        hub.abort()
        if self._hub is hub:
            self._way += 1
            self._close_hub()

    def _make_pacer(self, spec: ArtefactsSpec) -> Pacer:
        pacer = Pacer(PaceSettings(rate=spec.rate, quiet_hours=spec.quiet_hours), "", utc_s=self._utc_s)
        pacer.begin(self._monotonic_s())
        return pacer

    def _connector(self) -> Connector | None:
        """Return the connector to the hub that has the artefacts: the one with a certificate, if there is one."""
        hubs = [each for each in self._connectors() if each.type is ConnectorType.WAYPOST]
        enrolled = [each for each in hubs if each.tls is not None and each.tls.certificate is not None]
        return next(iter(enrolled or hubs), None)

    def _close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            self._stale = True
            with contextlib.suppress(OSError):
                library.close()

    def _close_hub(self) -> Future[None] | None:
        """End the request in progress; return what is done when the connection is closed."""
        hub, self._hub = self._hub, None
        if hub is None:
            return None
        hub.abort()
        return self._network.submit(hub.close)

    async def _remembered(self, find: Callable[[ArtefactLibrary], ReportedArtefact | None]) -> ReportedArtefact | None:
        library = self._library
        if library is None or self._stopped:
            return None
        try:
            return await self._run(lambda: find(library))
        except OSError as error:  # also when it was closed meanwhile
            log.info("artefacts: a former one cannot be looked up: %s", error)
            return None

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread of the files."""
        return await asyncio.get_running_loop().run_in_executor(self._files, work)


def _delete_largest(folder: Path) -> bool:
    """Delete the largest image or download of a folder with an unreadable index; return whether there was one."""
    found = [path for pattern in ("*.image", "*.part") for path in folder.glob(pattern)]
    if not found:
        return False
    max(found, key=lambda path: path.stat().st_size).unlink()
    return True


def _content(hub: ArtefactHub, task: ArtefactTask, size: int) -> bytes:
    """Return a manifest, or up to `size` bytes of an image. It blocks."""
    if task.artefact is None:
        return hub.manifest(*task.key)
    return hub.image(*task.key, task.start, min(task.start + size, task.artefact.size), task.artefact.size)


_ABSENT: Final = {
    404: "the hub does not have it",
    409: "its image is not complete at the hub",
}
"""Reasons by status: about one artefact, and not about the hub."""


def _request_bytes(pacers: Sequence[Pacer]) -> int:
    """Return the bytes of one request: those of a second at the lowest rate."""
    rates = [each.pace.rate for each in pacers if each.pace.rate]
    return min([RANGE_BYTES, *(max(HEADER_BYTES, rate) for rate in rates)])
