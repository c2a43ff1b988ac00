"""Artefacts for the devices of a gateway, the same for all protocols: who may have which, downloads and reports.

Images are read on threads of their own, a part at a time and only as fast as the device receives them; the event loop
gets its turn after each part, so that messages do not wait. A report is on disk as a message before it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.artefacts.faults import ArtefactRefused
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.keeper import FOLDER, ArtefactKeeper
from edge.appliance.artefacts.limits import (
    DEVICE_DOWNLOADS_MAX,
    DOWNLOADS_MAX,
    IMAGE_READ_BYTES,
    READ_THREADS,
    REPORTS_WAITING_MAX,
)
from edge.appliance.artefacts.reports import DeviceReports, KnownReport, ReportedDevice, UpdateMessage, UpdateReport
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.ranges import ByteRange, file_response
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.broker.security.private_file import FOLDER_MODE
from edge.configuration.resources import ArtefactsSpec

if TYPE_CHECKING:
    from edge.appliance.artefacts.library import HeldArtefact

log = logging.getLogger(__name__)

T = TypeVar("T")
IMAGE_TYPE: Final = "application/octet-stream"
_LATER: Final = {"Retry-After": "30"}


class ReportSink(Protocol):
    """Takes reports of devices as messages."""

    async def publish(self, device: str, report_address: str, body: bytes, /) -> bool:
        """Publish a report in JSON; it is on disk on return. Return False if no subscriber or forwarder takes it.
        Raises RequestRefused."""
        ...


class OfferedArtefact(NamedTuple):
    """Next artefact for a device, and what the device has reported."""

    artefact: HeldArtefact | None
    known: ReportedDevice


class ArtefactServing:
    """Artefacts of one gateway for its devices. Methods raise RequestRefused."""

    def __init__(self, data: Path, keeper: ArtefactKeeper, sink: ReportSink) -> None:
        self._folder = data / FOLDER
        self._keeper = keeper
        self._sink = sink
        self._reading = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="artefact-images")
        self._reporting = ThreadPoolExecutor(1, thread_name_prefix="artefact-reports")
        self._waiting = 0
        """Requests that wait for the reports."""
        self._reports: DeviceReports | None = None
        self._downloads: Counter[str] = Counter()
        """Downloads in progress by device."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by device, while its report is being published."""

    async def close(self) -> None:
        """Close the reports. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(self._reporting, self._close)
        for threads in (self._reading, self._reporting):
            threads.shutdown(wait=False)

    @property
    def report_address(self) -> str:
        """Address of reports, with ``%u`` for the device."""
        return (self._keeper.spec or ArtefactsSpec()).report_address

    def of_device(self, device: str) -> Iterator[HeldArtefact]:
        """Yield the artefacts that a device may have, in the order of the configuration, also those without an
        image now."""
        if not self._keeper.loaded:
            raise RequestRefused(503, "the artefacts are being read; try again later", _LATER)
        spec, known = self._keeper.spec, self._keeper.known
        for wanted in spec.artefacts if spec is not None else ():
            found = known.get(wanted.key)
            if found is not None and _names(found.wanted.devices, device):
                yield found

    def find(self, device: str, name: str, version: str) -> HeldArtefact:
        """Return an artefact that a device may have."""
        for each in self.of_device(device):
            if each.wanted.key == (name, version):
                return each
        raise RequestRefused(404, f"no artefact {name[:64]} {version[:64]} is here for {device[:64]}")

    async def known(self, device: str) -> ReportedDevice:
        """Return what a device has reported."""
        if self._keeper.spec is None:
            return ReportedDevice()
        return await self._with_reports(lambda reports: reports.get(device))

    async def offered(self, device: str) -> OfferedArtefact:
        """Return the next artefact for a device that takes any: here, not reported as done, not older than what it
        runs, and made for it."""
        known = await self.known(device)
        for each in self.of_device(device):
            manifest, report = each.manifest, known.about(each.manifest)
            done = report is not None and report.state.final
            if each.stored and not done and manifest.sequence >= known.sequence(manifest.name) and fits(each, known):
                return OfferedArtefact(each, known)
        return OfferedArtefact(None, known)

    async def put_device(self, device: str, board: str, version: str) -> None:
        """Record board and version of a device."""
        if self._keeper.spec is not None:
            await self._with_reports(lambda reports: reports.put_device(device, board, version))

    async def report(self, device: str, artefact: HeldArtefact, report: UpdateReport) -> bool:
        """Publish a report and record it; it is on disk on return. A repeated one is published once. Return False if
        the message has no subscriber."""
        lock = self._locks.setdefault(device, asyncio.Lock())
        async with lock:
            manifest = artefact.manifest
            before, last = await self._before(device, artefact)
            if before is not None and before is last and before.state is report.state and before.published:
                return True
            message = UpdateMessage(
                device=device,
                artefact=manifest.name,
                version=manifest.version,
                state=report.state,
                reason=report.reason,
            )
            taken = await self._sink.publish(device, self.report_address, msgspec.json.encode(message))
            row = KnownReport(manifest.name, manifest.version, manifest.digest, manifest.sequence, report.state, taken)
            again = before is not None and before.state.final and not report.state.final
            try:  # the message is on disk, so the device does not have to repeat it
                await self._with_reports(
                    lambda reports: reports.expect_again(device, row) if again else reports.put(device, row)
                )
            except RequestRefused:
                log.warning("device %s: its report about %s is published, and not noted here", device, manifest.label)
        log.info("device %s: %s is %s", device, manifest.label, report.state.value)
        return taken

    async def _before(self, device: str, artefact: HeldArtefact) -> tuple[KnownReport | None, KnownReport | None]:
        """Return the last reports of a device about an artefact, and about any of its name; None where unknown, also
        when the database cannot be read: then a report is published again rather than refused."""
        try:
            known = await self.known(device)
        except RequestRefused:
            return None, None
        return known.about(artefact.manifest), known.last(artefact.manifest.name)

    async def image(
        self, request: Request, device: AdmittedDevice, artefact: HeldArtefact, opened: contextlib.AsyncExitStack
    ) -> Response:
        """Return an image, or a range of it (RFC 9110 section 14). Close `opened` after the answer."""
        opened.enter_context(self._place(device.name))
        opened.enter_context(self._keeper.reading(artefact.number))
        if not artefact.stored:
            raise _fetched_again(artefact)
        try:
            file = await self._read_by(lambda: artefact.image.open("rb"))
        except OSError:
            raise _fetched_again(artefact) from None
        opened.callback(self._reading.submit, file.close)  # it waits for a read in progress
        return file_response(
            request,
            artefact.manifest.size,
            f'"{artefact.manifest.digest}"',
            IMAGE_TYPE,
            lambda wanted: self._parts(device, artefact, file, wanted),
            NEVER_CACHED,
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _place(self, device: str) -> Iterator[None]:
        """Count a download, while there is a place for it."""
        if self._downloads.total() >= DOWNLOADS_MAX or self._downloads[device] >= DEVICE_DOWNLOADS_MAX:
            raise RequestRefused(503, "too many downloads are in progress; try again later", _LATER)
        self._downloads[device] += 1
        try:
            yield
        finally:
            self._downloads[device] -= 1
            if not self._downloads[device]:
                del self._downloads[device]

    async def _parts(
        self, device: AdmittedDevice, artefact: HeldArtefact, file: BinaryIO, wanted: ByteRange
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a range. The connection ends early if the image is evicted, or the device refused."""
        await self._read_by(lambda: file.seek(wanted.start))
        left = wanted.stop - wanted.start
        while left > 0:
            now = self._keeper.known.get(artefact.wanted.key)
            if device.ended.done() or now is None or not now.stored or now.number != artefact.number:
                raise ConnectionAbortedError(f"the download of {artefact.manifest.label} was ended")
            size = min(IMAGE_READ_BYTES, left)
            content = await self._read_by(lambda size=size: file.read(size))  # type: ignore[misc]
            if not content:
                raise OSError(f"{artefact.image} is shorter than it was")
            left -= len(content)
            yield content

    async def _with_reports(self, work: Callable[[DeviceReports], T]) -> T:
        """Run `work` on the thread of the reports."""
        if self._waiting >= REPORTS_WAITING_MAX:
            raise RequestRefused(503, "too many reports wait; try again later", _LATER)

        def run() -> T:
            if self._reports is None:
                self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                self._reports = DeviceReports.open(self._folder)
            try:
                return work(self._reports)
            except IndexUnusable:  # opening it again checks it
                self._close()
                raise

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reporting, run)
        except OSError as error:
            log.warning("reports of devices: %s", error)
            raise RequestRefused(503, "reports cannot be stored now; try again later", _LATER) from None
        finally:
            self._waiting -= 1

    async def _read_by(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)

    def _close(self) -> None:
        if self._reports is not None:
            self._reports.close()
            self._reports = None


def fits(artefact: HeldArtefact, known: ReportedDevice) -> bool:
    """Return whether an artefact is for a device that does not choose itself: one with an unknown board has to be named
    in the configuration, and one with an unknown version gets nothing that needs a certain one."""
    installed = known.installed(artefact.manifest.name)
    if not known.board and not artefact.wanted.devices:
        return False
    if installed is None and artefact.manifest.from_versions:
        return False
    return refusal_of(artefact, known.board, installed) is None


def refusal_of(artefact: HeldArtefact, board: str | None, installed: str | None) -> ArtefactRefused | None:
    """Return why an artefact is not for a device with this board and version; empty or None: it is not known."""
    from bridge.artefacts.verification import check_board, check_installed  # noqa: PLC0415 - cryptography takes 10 MiB

    try:
        if board:
            check_board(artefact.manifest, board)
        if installed and installed != artefact.manifest.version:
            check_installed(artefact.manifest, installed)
    except ArtefactRefused as why:
        return why
    return None


def _names(patterns: tuple[str, ...], device: str) -> bool:
    """Return whether one of the patterns names a device; no pattern names all."""
    return not patterns or any(
        device.startswith(each[:-1]) if each.endswith("*") else device == each for each in patterns
    )


def _fetched_again(artefact: HeldArtefact) -> RequestRefused:
    return RequestRefused(503, f"the image of {artefact.manifest.label} is being fetched; try again later", _LATER)
