"""Keeps the artefacts of a gateway: follows its configuration, fetches what is missing, and makes room for messages.

Every step moves one range of one image, in the quiet lane: it waits for the rate, the quiet hours and the monthly
budget of the connector to the hub, as a backlog does, and counts in them. Files and network are used on one thread of
its own, so the event loop never waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from bridge.lane import BatchLane
from bridge.pace import Pacer, PaceSettings
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import of_kind
from edge.appliance.artefacts.limits import (
    CHECK_INTERVAL_S,
    EVICTION_MARGIN_BYTES,
    FETCH_MARGIN_BYTES,
    HEADER_BYTES,
    RANGE_BYTES,
    REOPEN_S,
    RETRY_S,
    WAIT_S_MIN,
)
from edge.appliance.identity.hub_request import PeriodicTask
from edge.broker.configuration import Connector, ConnectorType
from edge.configuration.file import RepositoryError
from edge.configuration.repository import Repository
from edge.configuration.resources import ArtefactsSpec
from edge.health.problems import FoundProblem, Severity
from edge.output.text import line

if TYPE_CHECKING:
    from edge.appliance.artefacts.hub_client import ArtefactHub
    from edge.appliance.artefacts.library import ArtefactLibrary, ArtefactTask, HeldArtefact

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
    """Free bytes; None: unknown, so there is no limit."""
    floor: int
    """Free bytes below which messages are refused."""


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
        self._monotonic_s = monotonic_s
        self._utc_s = utc_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artefacts")
        self._task = PeriodicTask(self.check, "artefacts")
        self._mark: object = None
        self._spec: ArtefactsSpec | None = None
        self._stale = True
        """The library does not have the configuration yet."""
        self._library: ArtefactLibrary | None = None
        self._hub: ArtefactHub | None = None
        self._own_pacer: Pacer | None = None
        self._failures = 0
        """Requests in a row that the hub did not answer."""
        self._trouble: str | None = None
        """Why the card or the configuration cannot be used."""
        self.served_at: dict[int, float] = {}
        """Monotonic time of the last download of an image, by the number of its artefact."""

    def start(self) -> None:
        """Start to follow and to fetch."""
        self._task.start()

    async def stop(self) -> None:
        """Stop fetching, after the request in progress, and close all files. Idempotent."""
        await self._task.stop()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    @property
    def spec(self) -> ArtefactsSpec | None:
        """Configuration in force; None: the gateway holds no artefacts."""
        return self._spec

    @property
    def held(self) -> Mapping[tuple[str, str], HeldArtefact]:
        """Artefacts for devices, by name and version."""
        return {} if self._library is None or self._spec is None else self._library.held

    def problems(self) -> Iterator[FoundProblem]:
        """Yield why artefacts are not here."""
        if self._trouble is not None:
            yield FoundProblem("artefacts", self._trouble, "see the log, and `waypost doctor`", Severity.WARNING)
        if self._spec is None:
            return
        if self._spec.artefacts and self._connector() is None:
            what = "the Artefacts of the configuration are at the hub, and this gateway has no connector to a hub"
            yield FoundProblem("artefacts", what, "enrol it: waypost enrol", Severity.WARNING)
        for (name, version), trouble in self._library.troubles.items() if self._library is not None else ():
            if trouble.fault is None:
                step = "at the hub: waypost artefact list; it is tried again automatically"
                yield FoundProblem(f"artefact {name} {version}", line(trouble.words), step, Severity.WARNING)
                continue
            what = f"it is refused ({trouble.fault.value}): {line(trouble.words)}"
            step = "take the files from their maker again, or correct the Artefacts resource"
            yield FoundProblem(f"artefact {name} {version}", what, step, Severity.WARNING)

    async def check(self) -> float:
        """Do one step; return the seconds until the next one."""
        try:
            return await self._step()
        except (OSError, RepositoryError) as error:
            why = str(error)
        except Exception as error:  # the task must not end
            log.exception("artefacts: unexpected error")
            why = f"unexpected error: {type(error).__name__}"
        if self._trouble != why:
            log.warning("artefacts cannot be kept now: %s", why)
        self._trouble = why
        await self._run(self._close)
        return REOPEN_S

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _step(self) -> float:
        await self._run(self._follow)
        room = self._room()
        if self._spec is None or self._library is None:
            self._trouble = None
            return CHECK_INTERVAL_S
        library, now = self._library, self._monotonic_s()
        if room.free is not None and room.free < room.floor + EVICTION_MARGIN_BYTES:
            evicted = await self._run(lambda: library.evict(self.served_at))
            if evicted:
                return 0.0
        usable = None if room.free is None else max(0, room.free - room.floor - FETCH_MARGIN_BYTES)
        task = await self._run(lambda: library.next_task(now, usable))
        self._trouble = None
        connector = self._connector()
        if task is None or connector is None:
            return CHECK_INTERVAL_S
        link = self._link(connector.name)
        if not link.connected:
            return CHECK_INTERVAL_S
        pacers = [each for each in (link.pacer, self._own_pacer) if each is not None]
        size = _request_bytes(pacers)
        times = [each.waits_until(BatchLane.BACKLOG, size, now) for each in pacers]
        if waits := [each for each in times if each is not None]:
            return min(CHECK_INTERVAL_S, max(WAIT_S_MIN, max(waits) - now))
        return await self._fetch(library, task, connector, size, pacers)

    async def _fetch(
        self, library: ArtefactLibrary, task: ArtefactTask, connector: Connector, size: int, pacers: Sequence[Pacer]
    ) -> float:
        """Fetch a manifest, or `size` bytes of an image; return the seconds until the next step."""
        from edge.appliance.artefacts.hub_client import HubAway  # noqa: PLC0415 - as all of the library

        try:
            moved = await self._run(lambda: self._ask_hub(library, task, connector, size))
        except HubAway as why:
            log.info("artefact %s %s: %s", *task.key, why)
            self._failures += 1
            return RETRY_S[min(self._failures, len(RETRY_S)) - 1]
        self._failures = 0
        now = self._monotonic_s()
        for pacer in pacers:
            pacer.sent(moved + HEADER_BYTES, now)
            pacer.count_bytes(moved + HEADER_BYTES)
        return 0.0

    def _ask_hub(self, library: ArtefactLibrary, task: ArtefactTask, connector: Connector, size: int) -> int:
        """Make one request, and give its content to the library; return the number of bytes. Raises `HubAway`."""
        from bridge.artefacts.faults import ArtefactRefused  # noqa: PLC0415 - as all of the library
        from edge.appliance.artefacts.hub_client import ArtefactHub, HubAway, HubRefused  # noqa: PLC0415

        if self._hub is None or self._hub.connector != connector:
            self._close_hub()
            self._hub = ArtefactHub(connector)
        hub, now = self._hub, self._monotonic_s()
        try:
            if task.artefact is None:
                envelope = hub.manifest(*task.key)
                library.take_manifest(task, envelope, now, self._utc_s() if self._clock_good() else None)
                return len(envelope)
            stop = min(task.start + size, task.artefact.size)
            content = b"" if stop <= task.start else hub.image(*task.key, task.start, stop, task.artefact.size)
            library.take_content(task, content, now)
            return len(content)
        except ArtefactRefused as why:
            library.refuse_image(task, why, now)
        except HubAway:
            hub.next_way()
            raise
        except HubRefused as why:
            if why.status in _PASSING:
                hub.next_way()
                raise HubAway(str(why)) from None
            library.fail(task, _ABSENT.get(why.status, str(why)), now)
        return 0

    def _follow(self) -> None:
        """Read the configuration if it has changed. Raises `RepositoryError`, OSError, `IndexUnusable`."""
        mark = self._repository.mark
        if mark != self._mark:
            try:
                found = [spec for _, spec in of_kind(self._repository.decided(), ArtefactsSpec)]
            except ConfigurationRejected as rejected:
                log.warning("the wanted artefacts are not known: %s", rejected)
                found = [] if self._spec is None else [self._spec]
            self._spec, self._mark, self._stale = next(iter(found), None), mark, True
            self._own_pacer = None if self._spec is None else self._make_pacer(self._spec)
        if not self._stale or (self._spec is None and not (self._data / FOLDER).exists()):
            return
        if self._library is None:
            from edge.appliance.artefacts.library import ArtefactLibrary  # noqa: PLC0415 - cryptography takes 10 MiB
            from edge.appliance.artefacts.storage import ArtefactStorage  # noqa: PLC0415

            self._library = ArtefactLibrary(ArtefactStorage.open(self._data))
        self._library.configure(self._spec or ArtefactsSpec())
        if self._spec is None:
            self._close()
        self._stale = False

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
        self._close_hub()
        if self._library is not None:
            self._library.close()
            self._library, self._stale = None, True

    def _close_hub(self) -> None:
        if self._hub is not None:
            self._hub.close()
            self._hub = None

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


_PASSING: Final = (401, 403, 408, 429, 500, 502, 503, 504)
"""Statuses that are about the hub or the gateway, and not about one artefact: the next endpoint is asked, later."""


_ABSENT: Final = {
    404: "the hub does not have it",
    409: "its image is not complete at the hub",
}
"""Reasons by status."""


def _request_bytes(pacers: Sequence[Pacer]) -> int:
    """Return the bytes of one request: those of a second at the lowest rate."""
    rates = [each.pace.rate for each in pacers if each.pace.rate]
    return min([RANGE_BYTES, *(max(HEADER_BYTES, rate) for rate in rates)])
