"""Artefacts for the devices of a gateway, the same for all protocols: which device may have which, and downloads.

Images are read on threads of their own, a part at a time and only as fast as the device receives them. Parts of all
devices and protocols are sent one after the other, with a pause behind each, so that messages do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.report import UpdateState
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.limits import (
    DEVICE_DOWNLOADS_MAX,
    DOWNLOADS_MAX,
    IMAGE_READ_BYTES,
    READ_THREADS,
    REASON_CHARACTERS_MAX,
)
from edge.appliance.artefacts.reporting import LATER, ReportSink, UpdateReporting
from edge.appliance.artefacts.reports import (
    KnownReport,
    ReportedArtefact,
    ReportedDevice,
    UpdateReport,
    attempt_after,
    is_before,
)
from edge.appliance.artefacts.turns import PartTurns
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.ranges import ByteRange, file_response
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.configuration.resources import ARTEFACTS_MAX, ArtefactName, ArtefactVersion

if TYPE_CHECKING:
    from bridge.device_pages import OfferedUpdate
    from edge.appliance.artefacts.library import HeldArtefact

T = TypeVar("T")
IMAGE_TYPE: Final = "application/octet-stream"


class OfferedArtefact(NamedTuple):
    """Next artefact for a device, and what the device has reported."""

    artefact: HeldArtefact | None
    known: ReportedDevice


class ArtefactServing:
    """Artefacts of one gateway for its devices. Methods raise RequestRefused."""

    def __init__(self, keeper: ArtefactKeeper, reporting: UpdateReporting) -> None:
        self._keeper = keeper
        self.reporting: Final = reporting
        self._reading = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="artefact-images")
        self._turns = PartTurns()
        self._downloads: Counter[str] = Counter()
        """Downloads in progress by device."""

    async def close(self) -> None:
        """End the threads and close the reports. Idempotent."""
        self._reading.shutdown(wait=False)
        await self.reporting.close()

    def of_device(self, device: str) -> Iterator[HeldArtefact]:
        """Yield the artefacts that a device may have, in the order of the configuration, also those without an
        image now."""
        if not self._keeper.loaded:
            raise RequestRefused(503, "the artefacts are being read; try again later", LATER)
        spec, known = self._keeper.spec, self._keeper.known
        for wanted in spec.artefacts if spec is not None else ():
            found = known.get(wanted.key)
            if found is not None and self._keeper.may_fetch(wanted.key, device):
                yield found

    def find(self, device: str, name: str, version: str) -> HeldArtefact:
        """Return an artefact that a device may have."""
        for each in self.of_device(device):
            if each.wanted.key == (name, version):
                return each
        raise RequestRefused(404, f"no artefact {name[:64]} {version[:64]} is here for {device[:64]}")

    async def reported(self, device: str, name: str, version: str, digest: str = "") -> ReportedArtefact:
        """Return the artefact that a device reports about; it may be here no longer. `digest`: SHA-256 of its image;
        empty: that of the present one."""
        for each in self.of_device(device):
            if each.wanted.key == (name, version) and digest in ("", each.manifest.digest):
                return each.reported
        try:
            msgspec.convert((name, version), tuple[ArtefactName, ArtefactVersion])
        except msgspec.ValidationError:
            raise RequestRefused(404, f"{name[:64]} {version[:64]} is no artefact") from None
        return await self.reporting.former(device, name, version, digest)

    async def offered(self, device: str, sink: ReportSink) -> OfferedArtefact:
        """Return the next artefact for a device that takes any: here, not reported as done, not older than what it
        runs, and made for it. `sink` takes the report that an artefact of a campaign is not."""
        known = await self.reporting.known(device)
        for each in self.of_device(device):
            manifest, report = each.manifest, known.about(each.manifest)
            done = is_done(report, self._keeper.offer(each.wanted.key, device)) or known.runs(manifest)
            if done or not each.stored:
                continue
            if manifest.sequence >= known.sequence(manifest.name) and self.fits(each, device, known):
                return OfferedArtefact(each, known)
            if (why := _refusal_of_offer(each, known)) is not None:
                await self.note_refusal(sink, device, each, why)
        return OfferedArtefact(None, known)

    def fits(self, artefact: HeldArtefact, device: str, known: ReportedDevice) -> bool:
        """Return whether an artefact is for a device that does not choose itself: one with an unknown board has to be
        named in the configuration or by an offer, and one with an unknown version gets nothing that needs a certain
        one."""
        installed = known.installed(artefact.manifest.name)
        named = bool(artefact.wanted.devices) or self._keeper.offer(artefact.wanted.key, device) is not None
        if not (known.board or named) or (installed is None and artefact.manifest.from_versions):
            return False
        return refusal_of(artefact, known.board, installed) is None

    async def note_refusal(self, sink: ReportSink, device: str, artefact: HeldArtefact, why: ArtefactRefused) -> None:
        """Report that an artefact is not for a device, if a campaign of the hub offers it: the device does not."""
        offer = self._keeper.offer(artefact.wanted.key, device)
        if offer is None or offer.withheld:
            return
        reason = f"{why.fault.value}: {why}"[:REASON_CHARACTERS_MAX]
        with contextlib.suppress(RequestRefused):  # the next request of the device notes it
            report = UpdateReport(state=UpdateState.ROLLED_BACK, reason=reason)
            await self.reporting.report(sink, device, artefact.reported, report)

    def attempt(self, artefact: HeldArtefact, device: str, known: ReportedDevice) -> int:
        """Return the attempt of a device with an artefact."""
        return attempt_after(known.about(artefact.manifest), self._keeper.offer(artefact.wanted.key, device))

    def withheld_attempt(self, device: str, report: KnownReport) -> int | None:
        """Return the attempt of a device with an artefact that a campaign offers it and withholds now, as while the
        campaign is paused; None without an offer. `report`: its last one about it."""
        offer = self._keeper.offer((report.name, report.version), device)
        return None if offer is None else attempt_after(report, offer)

    def withdrawn(self, device: str, known: ReportedDevice) -> KnownReport | None:
        """Return the update that a device is to give up, by its last report: it is no longer configured for the device,
        or replaced by another image, and the device is not done with it and has not refused to. None without one.

        An artefact that is only away for a time, as while the clock is wrong, is not cancelled."""
        numbers = {each.wanted.key: each.number for each in self.of_device(device)}
        spec = self._keeper.spec
        parts = spec.artefacts if spec is not None else ()
        wanted = {each.key for each in parts if self._keeper.names(each.key, device)}
        for each in known.reports:
            key = each.name, each.version
            gone = numbers[key] != each.number if key in numbers else key not in wanted
            if gone and each.number and not each.state.final and not each.goes_on:
                return each
        return None

    async def image(
        self, request: Request, device: AdmittedDevice, artefact: HeldArtefact, opened: contextlib.AsyncExitStack
    ) -> Response:
        """Return an image, or a range of it (RFC 9110 section 14). Close `opened` after the answer."""
        opened.enter_context(self._place(device.name))
        opened.enter_context(self._keeper.reading(artefact.number))
        if not artefact.stored:
            raise _fetched_again(artefact)
        await self._turns.take()  # for the request, which takes the loop longer than a part
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

    async def chunk(self, device: str, digest: str, offset: int, length: int, sink: ReportSink) -> bytes:
        """Return bytes of an image, or of a signed manifest, that a device may have: fewer at its end. `digest`:
        SHA-256 of the whole, hexadecimal. `sink`: as of `offered`."""
        images = [each for each in self.of_device(device) if each.manifest.digest == digest]
        if images:
            return await self._chunk_of_image(await self._fitting(device, images, sink), offset, length)
        for each in self.of_device(device):
            if envelope_digest(each.envelope) == digest:
                _check_offset(offset, len(each.envelope))
                return each.envelope[offset : offset + length]
        raise RequestRefused(404, f"no image or manifest with this checksum is here for {device[:64]}")

    async def _fitting(self, device: str, artefacts: Sequence[HeldArtefact], sink: ReportSink) -> HeldArtefact:
        """Return the first artefact that is for the board and version that the device has reported."""
        known = await self.reporting.known(device)
        refusals: list[tuple[HeldArtefact, ArtefactRefused]] = []
        for each in artefacts:
            why = refusal_of(each, known.board, known.installed(each.manifest.name))
            if why is None:
                return each
            refusals.append((each, why))
        for each, why in refusals:
            await self.note_refusal(sink, device, each, why)
        raise RequestRefused(422, str(refusals[0][1]))

    async def _chunk_of_image(self, artefact: HeldArtefact, offset: int, length: int) -> bytes:
        _check_offset(offset, artefact.manifest.size)
        if not artefact.stored:
            raise _fetched_again(artefact)
        with self._keeper.reading(artefact.number):
            try:
                content = await self._read_by(lambda: _read_part(artefact.image, offset, length))
            except OSError:
                raise _fetched_again(artefact) from None
        if not content:
            raise _fetched_again(artefact)
        await self._turns.take()
        return content

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _place(self, device: str) -> Iterator[None]:
        """Count a download, while there is a place for it."""
        if self._downloads.total() >= DOWNLOADS_MAX or self._downloads[device] >= DEVICE_DOWNLOADS_MAX:
            raise RequestRefused(503, "too many downloads are in progress; try again later", LATER)
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
        """Yield the bytes of a range. The connection ends early if the image is evicted, the device refused, or the
        artefact withheld or withdrawn: a campaign is halted for a reason."""
        await self._read_by(lambda: file.seek(wanted.start))
        left = wanted.stop - wanted.start
        while left > 0:
            size = min(IMAGE_READ_BYTES, left)
            content = await self._read_by(lambda size=size: file.read(size))  # type: ignore[misc]
            if not content:
                raise OSError(f"{artefact.image} is shorter than it was")
            await self._turns.take()
            key = artefact.wanted.key
            now = self._keeper.known.get(key)
            here = now is not None and now.stored and now.number == artefact.number
            if device.ended.done() or not here or not self._keeper.may_fetch(key, device.name):
                raise ConnectionAbortedError(f"the download of {artefact.manifest.label} was ended")
            left -= len(content)
            yield content

    async def _read_by(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)


@lru_cache(maxsize=ARTEFACTS_MAX)
def envelope_digest(envelope: bytes) -> str:
    """Return the SHA-256 of a signed manifest, hexadecimal."""
    return hashlib.sha256(envelope).hexdigest()


def _read_part(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _check_offset(offset: int, size: int) -> None:
    if offset >= size:
        raise RequestRefused(416, f"it has {size} bytes")


def is_done(report: KnownReport | None, offer: OfferedUpdate | None) -> bool:
    """Return whether a device is done with an artefact. `report`: its last one about it at this gateway; `offer`: of a
    campaign, which knows what the device has reported at others. The end of an update before the campaign is none."""
    if offer is not None and offer.done:
        return True
    if report is None or not report.state.final:
        return False
    return not is_before(report, offer)


def _refusal_of_offer(artefact: HeldArtefact, known: ReportedDevice) -> ArtefactRefused | None:
    """Return why an artefact is not for a device, as far as it is known."""
    manifest = artefact.manifest
    if manifest.sequence < known.sequence(manifest.name):
        runs = known.installed(manifest.name)
        return ArtefactRefused(ArtefactFault.DOWNGRADED, f"the device runs {runs}, which is later")
    return refusal_of(artefact, known.board, known.installed(manifest.name))


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


def _fetched_again(artefact: HeldArtefact) -> RequestRefused:
    return RequestRefused(503, f"the image of {artefact.manifest.label} is being fetched; try again later", LATER)
