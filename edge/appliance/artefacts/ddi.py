"""Direct Device Integration API of Eclipse hawkBit (version 1), so that its clients update from a gateway.

``GET  …/<controller>``                                        interval of polls, and what there is to do
``PUT  …/<controller>/configData``                             attributes; `board` and `version` are used
``GET  …/<controller>/deploymentBase/<action>``                the update that is offered: ``?actionHistory=``
``POST …/<controller>/deploymentBase/<action>/feedback``       progress and result
``GET  …/<controller>/installedBase/<action>``                 the update that the device runs: ``?actionHistory=``
``GET  …/<controller>/cancelAction/<action>``                  the update to give up, as it was withdrawn
``POST …/<controller>/cancelAction/<action>/feedback``         whether the device gives it up
``GET  …/<controller>/softwaremodules/<action>/artifacts``     files of the update
``GET  …/<controller>/softwaremodules/<action>/artifacts/<file>`` the image, or a range of it; with ``.MD5SUM`` its MD5

Every path begins with ``/DEFAULT/controller/v1``. The controller is the device; the number of an action is that of the
artefact at this gateway, and another one when a later campaign offers it to the device again. An update has one chunk
with one file, as some clients accept only that; the file has the name of the artefact. A client that only knows
`TargetToken` sends the Base64 of ``user:password`` as its token; so does one with a `GatewayToken`: its user may act
for several devices. Devices are never asked for a confirmation (`confirmationBase`): the configuration of the gateway
decides.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.artefacts.report import UpdateState
from edge.appliance.artefacts.ddi_documents import (
    CANCELED,
    DdiAction,
    DdiAttributes,
    DdiCancellation,
    DdiChunk,
    DdiConfig,
    DdiDeployment,
    DdiFeedback,
    DdiFile,
    DdiHashes,
    DdiLink,
    DdiLinks,
    DdiPolling,
    DdiRoot,
    DdiStop,
    history_of,
)
from edge.appliance.artefacts.limits import ACTION_ARTEFACTS, ACTION_ATTEMPTS, ACTION_DIGITS_MAX, POLL_S
from edge.appliance.artefacts.reports import KnownReport, ReportedDevice
from edge.appliance.artefacts.routes import DeviceEndpoint, DeviceGate, DeviceRequests
from edge.appliance.artefacts.serving import ArtefactServing
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import json_answer, read_document
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.broker.http.route import PURE, Answer, HttpRoute

if TYPE_CHECKING:
    from edge.appliance.artefacts.library import HeldArtefact

ROOT: Final = "/DEFAULT/controller/v1/{controller}"
CONFIG: Final = "/DEFAULT/controller/v1/{controller}/configData"
DEPLOYMENT: Final = "/DEFAULT/controller/v1/{controller}/deploymentBase/{action}"
INSTALLED: Final = "/DEFAULT/controller/v1/{controller}/installedBase/{action}"
CANCELLATION: Final = "/DEFAULT/controller/v1/{controller}/cancelAction/{action}"
FEEDBACK: Final = "/feedback"
FILES: Final = "/DEFAULT/controller/v1/{controller}/softwaremodules/{action}/artifacts"
FILE: Final = "/DEFAULT/controller/v1/{controller}/softwaremodules/{action}/artifacts/{file}"
PART: Final = "bApp"
"""Part of the chunk: hawkBit's default for applications, and the only one that Zephyr's client takes."""
_TOKENS: Final = (b"targettoken ", b"gatewaytoken ")
"""hawkBit's schemes for a device, and for a client that acts for several of them."""


class DdiApi:
    """Endpoints for clients of DDI."""

    def __init__(self, serving: ArtefactServing, gate: DeviceGate) -> None:
        self._serving = serving
        self._gate = gate
        self._reporting = serving.reporting
        self._requests = DeviceRequests(serving, gate)

    @property
    def routes(self) -> list[HttpRoute]:
        """Routes to mount in an application."""
        return [
            HttpRoute(ROOT, self._for_controller(self._poll), methods=PURE),
            HttpRoute(CONFIG, self._for_controller(self._config), methods=("PUT",)),
            HttpRoute(DEPLOYMENT, self._for_controller(self._deployment), methods=PURE),
            HttpRoute(DEPLOYMENT + FEEDBACK, self._for_controller(self._feedback), methods=("POST",)),
            HttpRoute(INSTALLED, self._for_controller(self._installed), methods=PURE),
            HttpRoute(CANCELLATION, self._for_controller(self._cancellation), methods=PURE),
            HttpRoute(CANCELLATION + FEEDBACK, self._for_controller(self._cancellation_feedback), methods=("POST",)),
            HttpRoute(FILES, self._for_controller(self._files), methods=PURE),
            HttpRoute(FILE, self._for_controller(self._file), methods=PURE),
        ]

    def _for_controller(self, answer: DeviceEndpoint) -> Answer:
        return self._requests.endpoint(answer, _controller_of)

    async def _poll(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        minutes, seconds = divmod(POLL_S, 60)
        base = _base(request)
        artefact, known = await self._serving.offered(device.name, self._gate)
        withdrawn, held = self._serving.withdrawn(device.name, known), self._installed_of(device.name, known)
        installed = known.of_number(held.number) if held is not None else None
        offered = _action(artefact.number, self._serving.attempt(artefact, device.name, known)) if artefact else 0
        links = DdiLinks(
            deployment_base=DdiLink(f"{base}/deploymentBase/{offered}") if offered and not withdrawn else None,
            cancel_action=DdiLink(f"{base}/cancelAction/{_action_of(withdrawn)}") if withdrawn else None,
            installed_base=DdiLink(f"{base}/installedBase/{_action_of(installed)}") if installed else None,
            config_data=None if known.board else DdiLink(f"{base}/configData"),
        )
        return json_answer(DdiRoot(DdiConfig(DdiPolling(f"00:{minutes:02}:{seconds:02}")), links))

    async def _config(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        attributes, known = await read_document(request, DdiAttributes), await self._reporting.known(device.name)
        merged = attributes.merged(known.board, known.version)
        if merged != (known.board, known.version):
            await self._reporting.put_device(device.name, *merged)
        return Response(status_code=200)

    async def _deployment(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        artefact = await self._fitting(request, device)
        return _action_answer(request, artefact, await self._reporting.known(device.name))

    async def _feedback(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        report, number = (await read_document(request, DdiFeedback)).report, _number_of(request)
        held = self._held(number, device)
        artefact = held.reported if held is not None else await self._reporting.former_of_number(device.name, number)
        if artefact is None:
            raise _unknown_action(request, device)
        if await self._is_of_former_attempt(request, device, held):
            return Response(status_code=200)
        await self._reporting.report(self._gate, device.name, artefact, report)
        return Response(status_code=200)

    async def _installed(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        known = await self._reporting.known(device.name)
        artefact = self._installed_of(device.name, known)
        if artefact is None or artefact.number != _number_of(request):
            raise _unknown_action(request, device)
        return _action_answer(request, artefact, known)

    async def _cancellation(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        found = await self._withdrawn(request, device)
        if found is None:
            raise _unknown_action(request, device)
        action = str(_action_of(found))
        return json_answer(DdiCancellation(action, DdiStop(action)))

    async def _cancellation_feedback(
        self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack
    ) -> Response:
        feedback, found = await read_document(request, DdiFeedback), await self._withdrawn(request, device)
        cancels = feedback.cancels
        if found is not None and cancels:  # a repeated feedback finds nothing to cancel
            await self._reporting.cancelled(self._gate, device.name, found, feedback.status.reason or CANCELED)
        elif found is not None and cancels is False:
            await self._reporting.goes_on(device.name, found)
        return Response(status_code=200)

    async def _files(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        return json_answer([_file_of(request, await self._fitting(request, device))])

    async def _file(self, request: Request, device: AdmittedDevice, opened: AsyncExitStack) -> Response:
        artefact = await self._fitting(request, device)
        name, wanted = artefact.manifest.name, request.path_params["file"]
        if wanted == f"{name}.MD5SUM":
            return Response(f"{artefact.hashes[1]}  {name}\n", media_type="text/plain", headers=NEVER_CACHED)
        if wanted != name:
            raise RequestRefused(404, f"the file of this update is {name}")
        return await self._serving.image(request, device, artefact, opened)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _is_of_former_attempt(self, request: Request, device: AdmittedDevice, held: HeldArtefact | None) -> bool:
        """Return whether a client repeats its feedback of an earlier campaign; False if that is not known. `held`: the
        artefact; None if the device may not have it now, as while a campaign is paused."""
        try:
            known = await self._reporting.known(device.name)
        except RequestRefused:  # a report is published rather than refused
            return False
        number = _number_of(request)
        report = known.of_number(number) if held is None else known.about(held.manifest)
        if report is None:
            return False
        if held is None:
            attempt = self._serving.withheld_attempt(device.name, report)
        else:
            attempt = self._serving.attempt(held, device.name, known)
        return attempt is not None and _requested_action(request) != _action(number, attempt)

    def _held(self, number: int, device: AdmittedDevice) -> HeldArtefact | None:
        """Return the artefact of an action, if the device may have it."""
        return next((each for each in self._serving.of_device(device.name) if each.number == number), None)

    async def _fitting(self, request: Request, device: AdmittedDevice) -> HeldArtefact:
        """Return the artefact of an action, if it is for the board and the version of the device."""
        artefact = self._held(_number_of(request), device)
        if artefact is None:
            raise _unknown_action(request, device)
        if not self._serving.fits(artefact, device.name, await self._reporting.known(device.name)):
            raise RequestRefused(404, f"{artefact.manifest.label} is not for the board or the version of {device.name}")
        return artefact

    def _installed_of(self, device: str, known: ReportedDevice) -> HeldArtefact | None:
        """Return the last artefact that a device has installed, if it is still here."""
        installed = (UpdateState.INSTALLED, UpdateState.HEALTHY)
        numbers = {each.number: place for place, each in enumerate(known.reports) if each.state in installed}
        found = [each for each in self._serving.of_device(device) if each.number in numbers]
        return max(found, key=lambda each: numbers[each.number], default=None)

    async def _withdrawn(self, request: Request, device: AdmittedDevice) -> KnownReport | None:
        """Return the update to cancel, if it is that of the action."""
        found = self._serving.withdrawn(device.name, await self._reporting.known(device.name))
        return found if found is not None and found.number == _number_of(request) else None


def _action_answer(request: Request, artefact: HeldArtefact, known: ReportedDevice) -> Response:
    """Return the document of an update: one chunk with one file."""
    manifest = artefact.manifest
    chunk = DdiChunk(PART, manifest.version, manifest.name, [_file_of(request, artefact)])
    history = history_of(known.about(manifest), request.query_params.get("actionHistory"))
    return json_answer(DdiAction(str(_requested_action(request)), DdiDeployment([chunk]), history))


def _file_of(request: Request, artefact: HeldArtefact) -> DdiFile:
    """Return the file of an update."""
    manifest, (sha1, md5) = artefact.manifest, artefact.hashes
    link = DdiLink(f"{_base(request)}/softwaremodules/{artefact.number}/artifacts/{manifest.name}")
    name = "download" if request.url.scheme == "https" else "download-http"
    links = {"download-http": link} | {name: link}
    return DdiFile(manifest.name, DdiHashes(sha1, md5, manifest.digest), manifest.size, links)


def _action(number: int, attempt: int) -> int:
    """Return the number of an action. `number`: of its artefact."""
    return number + attempt % ACTION_ATTEMPTS * ACTION_ARTEFACTS


def _action_of(report: KnownReport) -> int:
    """Return the number of the action that a device has reported about."""
    return _action(report.number, report.attempt)


def _requested_action(request: Request) -> int:
    """Return the number of the action in the path; 0 for none."""
    action: str = request.path_params["action"]
    return int(action) if action.isascii() and action.isdecimal() and len(action) <= ACTION_DIGITS_MAX else 0


def _number_of(request: Request) -> int:
    """Return the number of the artefact of the action in the path; 0 for none."""
    return _requested_action(request) % ACTION_ARTEFACTS


def _unknown_action(request: Request, device: AdmittedDevice) -> RequestRefused:
    action = request.path_params["action"]
    return RequestRefused(404, f"no action {action[:20]} is here for {device.name[:64]}")


def _controller_of(request: Request) -> str:
    """Return the controller, and accept hawkBit's scheme of authentication."""
    _accept_target_token(request)
    return str(request.path_params["controller"])


def _base(request: Request) -> str:
    """Return the URL of the controller, as the client knows it."""
    head, _, _ = str(request.url.replace(query="", fragment="")).partition("/controller/v1/")
    return f"{head}/controller/v1/{request.path_params['controller']}"


def _accept_target_token(request: Request) -> None:
    """Replace hawkBit's schemes `TargetToken` and `GatewayToken` by Basic, or by Bearer for a token that is not
    ``user:password``."""
    fields = request.scope["headers"]
    for place, (name, value) in enumerate(fields):
        if name == b"authorization" and value.lower().startswith(_TOKENS):
            token = value.partition(b" ")[2].strip()
            try:
                basic = b":" in base64.b64decode(token, validate=True)
            except (binascii.Error, ValueError):
                basic = False
            fields[place] = (name, (b"Basic " if basic else b"Bearer ") + token)
