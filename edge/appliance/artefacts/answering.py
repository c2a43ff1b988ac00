"""Answers to requests of devices for artefacts, the same over MQTT and AMQP: what is offered, chunks, and reports.

It knows no connections: a request has a device, and its answer is bytes.
"""

from __future__ import annotations

import base64
import logging
from typing import Final, NamedTuple

import msgspec

from bridge.artefacts.report import UpdateMessage
from bridge.hidden import hides
from edge.appliance.artefacts.chunks import AnswerBudget, RequestedChunk, RequestedOffer
from edge.appliance.artefacts.limits import CHUNK_BYTES_MAX, MANIFEST_BYTES_IN_OFFER
from edge.appliance.artefacts.noting import ReportNotes
from edge.appliance.artefacts.reporting import ReportSink
from edge.appliance.artefacts.reports import UpdateReport
from edge.appliance.artefacts.routes import AvailableArtefact, available
from edge.appliance.artefacts.serving import ArtefactServing, envelope_digest
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import address_of_reports
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal
from edge.configuration.resources import ArtefactName, ArtefactVersion

log = logging.getLogger(__name__)

JSON_TYPE: Final = "application/json"
"""Content type of reports, and of all answers but chunks."""


class OfferQuestion(msgspec.Struct, frozen=True):
    """Payload of a request for what is offered; it may be empty."""

    board: str = ""
    """Board of the device; empty: as it said before."""
    version: str = ""
    """Version that it runs; empty: as it said before."""


class ChunkedOffer(AvailableArtefact, frozen=True, kw_only=True):
    """Artefact that is offered to a device which fetches it in chunks."""

    manifest_size: int
    """Bytes of its signed manifest."""
    manifest_sha256: str
    """SHA-256 of its signed manifest, to fetch that in chunks."""
    manifest: str
    """Its signed manifest in Base64; empty for one of more than `MANIFEST_BYTES_IN_OFFER` bytes."""
    chunk_bytes_max: int = CHUNK_BYTES_MAX
    """Most bytes of an answer with a chunk."""


class ChunkedOffers(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request for what is offered."""

    artefact: ChunkedOffer | None
    """None: there is nothing for the device."""


class AnsweredRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request that is refused."""

    status: int
    """Status of HTTP: 404 for what is not here, 503 for later."""
    detail: str


class SentReport(UpdateReport, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report that a device sends as a message."""

    artefact: ArtefactName
    version: ArtefactVersion


class ReportRefused(Exception):
    """A report is not published."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal: Final = refusal


@hides("content")
class ArtefactAnswer(NamedTuple):
    """Answer to a request."""

    path: str
    """``offer``, ``chunk/<sha256>/<offset>``, or ``refused/`` and one of these."""
    content_type: str | None
    content: bytes


class ArtefactAnswering:
    """Answers of one gateway, and the limit of those that devices have not acknowledged."""

    def __init__(self, serving: ArtefactServing, sink: ReportSink) -> None:
        """`sink` takes reports that the gateway makes itself."""
        self._serving = serving
        self._sink = sink
        self._notes = ReportNotes(serving)
        self.budget: Final = AnswerBudget()

    async def close(self) -> None:
        """Note the reports that wait. Idempotent."""
        await self._notes.close()

    def report_address(self, device: str, grant: Grant | None) -> str | None:
        """Return the address of a device's reports, if a client may send to it: then it is that device. `grant`: None
        without authentication."""
        try:
            address = address_of_reports(self._serving.reporting.address, device)
        except RequestRefused:
            return None
        return address if grant is None or grant.may_send(address) else None

    def report(self, device: str, body: bytes) -> bytes:
        """Return the message for a report, which is noted soon. Raises ReportRefused."""
        try:
            said = msgspec.json.decode(body, type=SentReport)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            log.info("device %s: its report is not valid: %s", device, error)
            raise ReportRefused(Refusal.FORMAT_INVALID) from None
        if not self._notes.add(device, said.artefact, said.version, said):
            raise ReportRefused(Refusal.FULL)
        message = UpdateMessage(
            device=device, artefact=said.artefact, version=said.version, state=said.state, reason=said.reason
        )
        return msgspec.json.encode(message)

    async def answer(self, request: RequestedOffer | RequestedChunk, body: bytes) -> ArtefactAnswer:
        """Return the answer to a request, in the turn of its device."""
        try:
            if isinstance(request, RequestedOffer):
                return ArtefactAnswer(request.path, JSON_TYPE, await self._offer(request, body))
            content = await self._serving.chunk(
                request.device, request.digest, request.offset, request.size, self._sink
            )
        except RequestRefused as refused:
            why = AnsweredRefusal(status=refused.status, detail=str(refused))
            return ArtefactAnswer(f"refused/{request.path}", JSON_TYPE, msgspec.json.encode(why))
        return ArtefactAnswer(request.path, None, content)

    async def _offer(self, request: RequestedOffer, body: bytes) -> bytes:
        """Return the document of what is offered. Raises RequestRefused."""
        try:
            said = msgspec.json.decode(body, type=OfferQuestion) if body else OfferQuestion()
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RequestRefused(400, f"the request is not valid: {error}") from None
        if said.board or said.version:
            known = await self._serving.reporting.known(request.device)
            now = said.board or known.board, said.version or known.version
            if now != (known.board, known.version):
                await self._serving.reporting.put_device(request.device, *now)
        artefact = (await self._serving.offered(request.device, self._sink)).artefact
        if artefact is None:
            return msgspec.json.encode(ChunkedOffers(artefact=None))
        envelope = artefact.envelope
        short = len(envelope) <= MANIFEST_BYTES_IN_OFFER
        offer = ChunkedOffer(
            **msgspec.structs.asdict(available(artefact)),
            manifest_size=len(envelope),
            manifest_sha256=envelope_digest(envelope),
            manifest=base64.b64encode(envelope).decode() if short else "",
        )
        return msgspec.json.encode(ChunkedOffers(artefact=offer))
