"""Reports of devices about their updates: published as messages for the hub, and recorded for the next offers.

A report is on disk as a message before it is answered. It is taken although the artefact has left the configuration,
since the device cannot know that. One thread writes the database; the event loop never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from bridge.artefacts.report import UpdateMessage, UpdateState
from bridge.durable_file import FOLDER_MODE
from edge.appliance.artefacts.database import is_full
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.keeper import FOLDER, ArtefactKeeper
from edge.appliance.artefacts.limits import REPORTS_CACHED_DEVICES, REPORTS_CACHED_MAX, REPORTS_WAITING_MAX
from edge.appliance.artefacts.reports import (
    DeviceReports,
    KnownReport,
    ReportedArtefact,
    ReportedDevice,
    UpdateReport,
    attempt_after,
    is_before,
)
from edge.broker.http.refusal import RequestRefused
from edge.configuration.resources import ArtefactsSpec

if TYPE_CHECKING:
    from bridge.device_pages import OfferedUpdate

log = logging.getLogger(__name__)

T = TypeVar("T")
LATER: Final = {"Retry-After": "30"}
"""Header fields of an answer to a request that the device repeats later."""


class ReportSink(Protocol):
    """Takes reports of devices as messages."""

    async def publish(self, device: str, report_address: str, body: bytes, /) -> bool:
        """Publish a report in JSON; it is on disk on return. Return False if no subscriber or forwarder takes it.
        Raises RequestRefused."""
        ...


class UpdateReporting:
    """Reports of the devices of one gateway. Methods raise RequestRefused."""

    def __init__(self, data: Path, keeper: ArtefactKeeper) -> None:
        self._folder = data / FOLDER
        self._keeper = keeper
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artefact-reports")
        self._waiting = 0
        """Requests that wait for the database."""
        self._reports: DeviceReports | None = None
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by device, while its report is being published."""
        self._cached: dict[str, ReportedDevice] = {}
        """Devices of the last questions: a download over MQTT has one for each chunk."""
        self._writes = 0
        """Number that changes at the begin and the end of each write."""

    async def close(self) -> None:
        """Close the database. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    @property
    def address(self) -> str:
        """Address of reports, with ``%u`` for the device."""
        return (self._keeper.spec or ArtefactsSpec()).report_address

    async def known(self, device: str) -> ReportedDevice:
        """Return what a device has reported."""
        if not self._in_use:
            return ReportedDevice()
        found = self._cached.pop(device, None)
        if found is None:
            writes = self._writes
            found = await self._run(lambda reports: reports.get(device))
            if writes != self._writes or len(found.reports) > REPORTS_CACHED_MAX:
                return found
        self._cached[device] = found  # the last one
        if len(self._cached) > REPORTS_CACHED_DEVICES:
            del self._cached[next(iter(self._cached))]
        return found

    async def put_device(self, device: str, board: str, version: str) -> None:
        """Record board and version of a device."""
        if self._in_use:
            await self._write(device, lambda reports: reports.put_device(device, board, version))

    async def former(self, device: str, name: str, version: str, digest: str) -> ReportedArtefact:
        """Return an artefact that is not for a device now, as far as it is known. `digest`: SHA-256 of its image;
        empty: not stated."""
        try:
            report = (await self.known(device)).of_version(name, version)
        except RequestRefused:  # its message matters more than its row
            report = None
        found = report.artefact if report is not None else None
        if found is None or digest not in ("", found.digest):
            found = await self._keeper.remembered_version(name, version)
        if found is None or digest not in ("", found.digest):
            return ReportedArtefact(name, version, digest)
        return found

    async def former_of_number(self, device: str, number: int) -> ReportedArtefact | None:
        """Return the artefact of a number that is not for a device now; None if it is unknown."""
        report = (await self.known(device)).of_number(number)
        return report.artefact if report is not None else await self._keeper.remembered_number(number)

    async def report(self, sink: ReportSink, device: str, artefact: ReportedArtefact, report: UpdateReport) -> bool:
        """Publish a report and record it; it is on disk on return. A repeated one is published once, and once more for
        each campaign. Return False if the message has no subscriber."""
        lock = self._locks.setdefault(device, asyncio.Lock())
        async with lock:
            before, last = await self._before(device, artefact)
            same = before is not None and before is last and before.state is report.state and before.published
            if same and not is_before(before, self._offer(device, artefact)):
                return True
            taken = await self._publish(sink, device, artefact, report)
            await self._record_report(device, artefact, report, before, taken=taken)
        return taken

    async def note(self, device: str, artefact: ReportedArtefact, report: UpdateReport) -> None:
        """Record a report that the device publishes itself as a message."""
        lock = self._locks.setdefault(device, asyncio.Lock())
        async with lock:
            before, _ = await self._before(device, artefact)
            await self._record_report(device, artefact, report, before, taken=False)

    async def cancelled(self, sink: ReportSink, device: str, report: KnownReport, reason: str) -> None:
        """Publish that a device has cancelled an update, and forget the update: it may be offered again."""
        lock = self._locks.setdefault(device, asyncio.Lock())
        async with lock:
            artefact = report.artefact
            await self._publish(sink, device, artefact, UpdateReport(state=UpdateState.ROLLED_BACK, reason=reason))
            await self._record(device, artefact, lambda reports: reports.forget(device, report))

    async def goes_on(self, device: str, report: KnownReport) -> None:
        """Record that a device has refused to cancel an update: it is not asked again."""
        await self._write(device, lambda reports: reports.mark_going_on(device, report))

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _in_use(self) -> bool:
        """True when this gateway has, or had, artefacts."""
        return self._keeper.spec is not None or self._folder.exists()

    async def _publish(self, sink: ReportSink, device: str, artefact: ReportedArtefact, report: UpdateReport) -> bool:
        message = UpdateMessage(
            device=device,
            artefact=artefact.name,
            version=artefact.version,
            state=report.state,
            reason=report.reason,
        )
        return await sink.publish(device, self.address, msgspec.json.encode(message))

    def _offer(self, device: str, artefact: ReportedArtefact) -> OfferedUpdate | None:
        """Return what a campaign of the hub offers to a device; None without an offer."""
        return self._keeper.offer((artefact.name, artefact.version), device)

    async def _record_report(
        self,
        device: str,
        artefact: ReportedArtefact,
        report: UpdateReport,
        before: KnownReport | None,
        *,
        taken: bool,
    ) -> None:
        """Record a report. `before`: the one before about the same artefact."""
        offer = self._offer(device, artefact)
        row = _row(artefact, report, taken=taken, before=before, offer=offer)
        ended = before is not None and before.state.final and not is_before(before, offer)
        again = ended and not row.state.final
        await self._record(
            device, artefact, lambda reports: (reports.expect_again if again else reports.put)(device, row)
        )
        log.info("device %s: %s is %s", device, artefact.label, row.state.value)

    async def _record(self, device: str, artefact: ReportedArtefact, work: Callable[[DeviceReports], None]) -> None:
        """Record a report that was published: the message is on disk, so the device does not have to repeat it."""
        if not self._in_use:
            return
        try:
            await self._write(device, work)
        except RequestRefused:
            log.warning("device %s: its report about %s is published, and not noted here", device, artefact.label)

    async def _before(self, device: str, artefact: ReportedArtefact) -> tuple[KnownReport | None, KnownReport | None]:
        """Return the last reports of a device about an artefact, and about any of its name; None where unknown, also
        when the database cannot be read: then a report is published again rather than refused."""
        try:
            known = await self.known(device)
        except RequestRefused:
            return None, None
        return known.about(artefact), known.last(artefact.name)

    async def _write(self, device: str, work: Callable[[DeviceReports], None]) -> None:
        """Run `work`, which changes the rows of a device, on the thread of the database."""
        self._writes += 1
        try:
            await self._run(work)
        finally:
            self._writes += 1
            self._cached.pop(device, None)

    async def _run(self, work: Callable[[DeviceReports], T]) -> T:
        """Run `work` on the thread of the database."""
        if self._waiting >= REPORTS_WAITING_MAX:
            raise RequestRefused(503, "too many reports wait; try again later", LATER)

        def run() -> T:
            if self._reports is None:
                self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                self._reports = DeviceReports.open(self._folder)
            try:
                return work(self._reports)
            except IndexUnusable as error:
                if not is_full(error):  # opening it again checks it
                    self._close()
                raise

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except OSError as error:
            log.warning("reports of devices: %s", error)
            raise RequestRefused(503, "reports cannot be stored now; try again later", LATER) from None
        finally:
            self._waiting -= 1

    def _close(self) -> None:
        if self._reports is not None:
            self._reports.close()
            self._reports = None


def _row(
    artefact: ReportedArtefact,
    report: UpdateReport,
    *,
    taken: bool,
    before: KnownReport | None,
    offer: OfferedUpdate | None,
) -> KnownReport:
    """Return the row of a report. `before`: last report about the artefact."""
    line = f"{report.state.value}: {report.reason}" if report.reason else report.state.value
    history = line if before is None else f"{line}\n{before.history}"
    goes_on = before is not None and before.goes_on and not is_before(before, offer)
    campaign = offer.campaign if offer is not None else ""
    campaign = campaign or (before.campaign if before is not None else "")
    attempt = attempt_after(before, offer)
    return KnownReport(*artefact[:4], report.state, taken, artefact.number, goes_on, history, campaign, attempt)
