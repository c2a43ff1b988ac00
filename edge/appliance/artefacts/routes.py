"""HTTP routes of artefacts for devices. A device authenticates as for its messages.

``GET  /artefacts``                           the artefacts that it may have
``GET  /artefacts/<name>/<version>/manifest`` the signed manifest (COSE_Sign1)
``GET  /artefacts/<name>/<version>/image``    the image, or a range of it
``POST /artefacts/<name>/<version>/report``   a report: ``{"state": "installed"}``

``?device=`` names another device that the client acts for. With ``?board=`` and ``?installed=`` an artefact for other
boards or over other versions is refused. Errors are problem details, with the field `reason` of a refused artefact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bridge.artefacts.faults import ArtefactRefused
from edge.appliance.artefacts.reports import UpdateReport
from edge.appliance.artefacts.serving import ArtefactServing, refusal_of
from edge.broker.http.api import NO_SUBSCRIBERS
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import answering, json_answer, read_document
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.broker.http.route import PURE, Answer, HttpRoute

if TYPE_CHECKING:
    from edge.appliance.artefacts.library import HeldArtefact

LIST: Final = "/artefacts"
IMAGE: Final = "/artefacts/{name}/{version}/image"
MANIFEST: Final = "/artefacts/{name}/{version}/manifest"
REPORT: Final = "/artefacts/{name}/{version}/report"
DeviceEndpoint = Callable[[Request, AdmittedDevice, AsyncExitStack], Awaitable[Response]]
"""Answers a request of a device; the stack is closed after the answer."""


class DeviceGate(Protocol):
    """Authenticates devices over HTTP, and publishes their reports."""

    def admitted(
        self, request: Request, device: str, report_address: str, /
    ) -> AbstractAsyncContextManager[AdmittedDevice]:
        """Authenticate the client of a request, which is or acts for a device (empty: its user is it). Yield the
        device. Raises RequestRefused."""
        ...

    async def publish(self, device: str, report_address: str, body: bytes, /) -> bool:
        """Publish a report in JSON; it is on disk on return. Return False if no subscriber or forwarder takes it.
        Raises RequestRefused."""
        ...


class DeviceAnswer(Response):
    """Answer to a device that is admitted until its end."""

    def __init__(self, answer: Response, opened: AsyncExitStack) -> None:
        """`opened`: closed after the answer."""
        self._answer = answer
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            await self._answer(scope, receive, send)


class DeviceRequests:
    """Answers requests of admitted devices."""

    def __init__(self, serving: ArtefactServing, gate: DeviceGate) -> None:
        self._serving = serving
        self._gate = gate

    def endpoint(self, answer: DeviceEndpoint, device_of: Callable[[Request], str]) -> Answer:
        """Return an endpoint that admits the device of a request (see `DeviceGate.admitted`)."""

        async def behind(request: Request) -> Response:
            async with AsyncExitStack() as opened:
                admitted = self._gate.admitted(request, device_of(request), self._serving.reporting.address)
                device = await opened.enter_async_context(admitted)
                return DeviceAnswer(await answer(request, device, opened), opened.pop_all())

        return answering(behind)


class AvailableArtefact(msgspec.Struct, frozen=True, kw_only=True):
    """Artefact that a device may have."""

    name: str
    version: str
    kind: str
    """``firmware``, ``configuration`` or ``model``."""
    sequence: int
    boards: list[str]
    from_versions: list[str]
    """Versions over which it may be installed; empty: over any."""
    size: int
    sha256: str
    """SHA-256 of the image, hexadecimal."""


class AvailableArtefacts(msgspec.Struct, frozen=True, kw_only=True):
    """Artefacts that a device may have, in the order of the configuration."""

    artefacts: list[AvailableArtefact]


class DeviceArtefactApi:
    """Endpoints for devices."""

    def __init__(self, serving: ArtefactServing, gate: DeviceGate) -> None:
        self._serving = serving
        self._gate = gate
        self._requests = DeviceRequests(serving, gate)

    @property
    def routes(self) -> list[HttpRoute]:
        """Routes to mount in an application."""
        return [
            HttpRoute(LIST, self._for_device(self._list), methods=PURE),
            HttpRoute(IMAGE, self._for_device(self._image), methods=PURE),
            HttpRoute(MANIFEST, self._for_device(self._manifest), methods=PURE),
            HttpRoute(REPORT, self._for_device(self._report), methods=("POST",)),
        ]

    def _for_device(self, answer: DeviceEndpoint) -> Answer:
        return self._requests.endpoint(answer, lambda request: request.query_params.get("device", ""))

    async def _list(self, _request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        found = [available(each) for each in self._serving.of_device(device.name)]
        return json_answer(AvailableArtefacts(artefacts=found))

    async def _image(self, request: Request, device: AdmittedDevice, opened: AsyncExitStack) -> Response:
        return await self._serving.image(request, device, await self._fitting(request, device), opened)

    async def _manifest(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        from bridge.artefacts.envelope import CONTENT_TYPE  # noqa: PLC0415 - cryptography takes 10 MiB

        artefact = await self._fitting(request, device)
        return Response(artefact.envelope, media_type=CONTENT_TYPE, headers=NEVER_CACHED)

    async def _report(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        report, place = await read_document(request, UpdateReport), request.path_params
        artefact = await self._serving.reported(device.name, place["name"], place["version"], report.sha256)
        taken = await self._serving.reporting.report(self._gate, device.name, artefact, report)
        return Response(status_code=202, headers=None if taken else NO_SUBSCRIBERS)

    def _find(self, request: Request, device: AdmittedDevice) -> HeldArtefact:
        return self._serving.find(device.name, request.path_params["name"], request.path_params["version"])

    async def _fitting(self, request: Request, device: AdmittedDevice) -> HeldArtefact:
        """Return the artefact of a request. Raises RequestRefused for one that is made for another board or version, as
        far as the device says its own in the request or has reported it."""
        artefact, said = self._find(request, device), request.query_params
        known = await self._serving.reporting.known(device.name)
        installed = known.installed(artefact.manifest.name)
        why = refusal_of(artefact, said.get("board") or known.board, said.get("installed") or installed)
        if why is None:
            return artefact
        reported = refusal_of(artefact, known.board, installed)  # a typed parameter must not halt a campaign
        if reported is not None:
            await self._serving.note_refusal(self._gate, device.name, artefact, reported)
        raise ArtefactNotForDevice(why)


def available(artefact: HeldArtefact) -> AvailableArtefact:
    """Return the document of an artefact."""
    manifest = artefact.manifest
    return AvailableArtefact(
        name=manifest.name,
        version=manifest.version,
        kind=manifest.kind.value,
        sequence=manifest.sequence,
        boards=list(manifest.boards),
        from_versions=list(manifest.from_versions),
        size=manifest.size,
        sha256=manifest.digest,
    )


class ArtefactNotForDevice(RequestRefused):
    """The artefact is refused for the board or the version of a device."""

    def __init__(self, why: ArtefactRefused) -> None:
        super().__init__(422, str(why), code="artefact-refused", next_step="ask for another artefact")
        self._reason: Final = why.fault.value

    def response(self, **fields: object) -> Response:
        """Return the answer, with the reason for programs."""
        return super().response(reason=self._reason, **fields)
