"""Direct Device Integration API of Eclipse hawkBit (version 1), so that its clients update from a gateway.

``GET  …/<controller>``                                        interval of polls, and what there is to do
``PUT  …/<controller>/configData``                             attributes; `board` and `version` are used
``GET  …/<controller>/deploymentBase/<action>``                the update that is offered
``POST …/<controller>/deploymentBase/<action>/feedback``       progress and result
``GET  …/<controller>/softwaremodules/<action>/artifacts``     files of the update
``GET  …/<controller>/softwaremodules/<action>/artifacts/<file>`` the image, or a range of it

Every path begins with ``/DEFAULT/controller/v1``. The controller is the device; the number of an action is that of the
artefact at this gateway. An update has one chunk with one file, as some clients accept only that; the file has the name
of the artefact. A client that only knows `TargetToken` sends the Base64 of ``user:password`` as its token.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.artefacts.limits import FEEDBACK_BYTES_MAX, POLL_S, REASON_CHARACTERS_MAX
from edge.appliance.artefacts.reports import UpdateReport, UpdateState
from edge.appliance.artefacts.routes import DeviceEndpoint, DeviceGate, DeviceRequests
from edge.appliance.artefacts.serving import ArtefactServing, fits
from edge.broker.http.application import Answer
from edge.broker.http.body import read_body
from edge.broker.http.json_documents import json_answer
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import AdmittedDevice
from edge.broker.http.route import PURE, HttpRoute

if TYPE_CHECKING:
    from edge.appliance.artefacts.library import HeldArtefact

ROOT: Final = "/DEFAULT/controller/v1/{controller}"
CONFIG: Final = "/DEFAULT/controller/v1/{controller}/configData"
DEPLOYMENT: Final = "/DEFAULT/controller/v1/{controller}/deploymentBase/{action}"
FEEDBACK: Final = "/DEFAULT/controller/v1/{controller}/deploymentBase/{action}/feedback"
FILES: Final = "/DEFAULT/controller/v1/{controller}/softwaremodules/{action}/artifacts"
FILE: Final = "/DEFAULT/controller/v1/{controller}/softwaremodules/{action}/artifacts/{file}"
PART: Final = "bApp"
"""Part of the chunk: hawkBit's default for applications, and the only one that Zephyr's client takes."""
_TARGET_TOKEN: Final = b"targettoken "


class DdiResult(msgspec.Struct, frozen=True):
    """Result in a feedback."""

    finished: str = "none"


class DdiStatus(msgspec.Struct, frozen=True):
    """Status in a feedback."""

    execution: str
    result: DdiResult = DdiResult()
    details: list[str] | None = None


class DdiFeedback(msgspec.Struct, frozen=True):
    """Feedback of a client."""

    status: DdiStatus

    @property
    def report(self) -> UpdateReport:
        """The feedback as a report. Raises RequestRefused."""
        status = self.status
        reason = "; ".join(status.details or ())[:REASON_CHARACTERS_MAX]
        match status.execution.lower(), status.result.finished.lower():
            case "closed", "success":
                return UpdateReport(state=UpdateState.INSTALLED)
            case ("closed", _) | ("canceled" | "rejected", _):
                return UpdateReport(state=UpdateState.ROLLED_BACK, reason=reason or status.execution)
            case ("downloaded", _):
                return UpdateReport(state=UpdateState.VERIFIED)
            case ("proceeding" | "scheduled" | "resumed" | "download", _):
                return UpdateReport(state=UpdateState.DOWNLOADING)
        raise RequestRefused(400, f"execution {status.execution[:40]!r} is not one of DDI's")


class DdiAttributes(msgspec.Struct, frozen=True):
    """Attributes of a client."""

    data: dict[str, Any] = {}


class DdiApi:
    """Endpoints for clients of DDI."""

    def __init__(self, serving: ArtefactServing, gate: DeviceGate) -> None:
        self._serving = serving
        self._requests = DeviceRequests(serving, gate)

    @property
    def routes(self) -> list[HttpRoute]:
        """Routes to mount in an application."""
        return [
            HttpRoute(ROOT, self._for_controller(self._poll), methods=PURE),
            HttpRoute(CONFIG, self._for_controller(self._config), methods=("PUT",)),
            HttpRoute(DEPLOYMENT, self._for_controller(self._deployment), methods=PURE),
            HttpRoute(FEEDBACK, self._for_controller(self._feedback), methods=("POST",)),
            HttpRoute(FILES, self._for_controller(self._files), methods=PURE),
            HttpRoute(FILE, self._for_controller(self._file), methods=PURE),
        ]

    def _for_controller(self, answer: DeviceEndpoint) -> Answer:
        return self._requests.endpoint(answer, _controller_of)

    async def _poll(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        minutes, seconds = divmod(POLL_S, 60)
        base, links = _base(request), dict[str, dict[str, str]]()
        artefact, known = await self._serving.offered(device.name)
        if artefact is not None:
            links["deploymentBase"] = {"href": f"{base}/deploymentBase/{artefact.number}"}
        if not known.board:
            links["configData"] = {"href": f"{base}/configData"}
        return json_answer({"config": {"polling": {"sleep": f"00:{minutes:02}:{seconds:02}"}}, "_links": links})

    async def _config(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        data = (await _read(request, DdiAttributes)).data
        board, version = (found if isinstance(found := data.get(name), str) else "" for name in ("board", "version"))
        if board or version:
            before = await self._serving.known(device.name)
            await self._serving.put_device(device.name, board or before.board, version or before.version)
        return Response(status_code=200)

    async def _deployment(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        artefact = await self._fitting(request, device)
        chunk = {
            "part": PART,
            "version": artefact.manifest.version,
            "name": artefact.manifest.name,
            "artifacts": [_artifact(request, artefact)],
        }
        deployment = {"download": "forced", "update": "forced", "chunks": [chunk]}
        return json_answer({"id": str(artefact.number), "deployment": deployment})

    async def _feedback(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        artefact = self._of_action(request, device)
        await self._serving.report(device.name, artefact, (await _read(request, DdiFeedback)).report)
        return Response(status_code=200)

    async def _files(self, request: Request, device: AdmittedDevice, _opened: AsyncExitStack) -> Response:
        return json_answer([_artifact(request, await self._fitting(request, device))])

    async def _file(self, request: Request, device: AdmittedDevice, opened: AsyncExitStack) -> Response:
        artefact = await self._fitting(request, device)
        if request.path_params["file"] != artefact.manifest.name:
            raise RequestRefused(404, f"the file of this update is {artefact.manifest.name}")
        return await self._serving.image(request, device, artefact, opened)

    def _of_action(self, request: Request, device: AdmittedDevice) -> HeldArtefact:
        """Return the artefact of an action. Raises RequestRefused."""
        action = request.path_params["action"]
        for each in self._serving.of_device(device.name):
            if str(each.number) == action:
                return each
        raise RequestRefused(404, f"no action {action[:20]} is here for {device.name[:64]}")

    async def _fitting(self, request: Request, device: AdmittedDevice) -> HeldArtefact:
        """Return the artefact of an action, if it is for the board and the version of the device."""
        artefact = self._of_action(request, device)
        if not fits(artefact, await self._serving.known(device.name)):
            raise RequestRefused(404, f"{artefact.manifest.label} is not for the board or the version of {device.name}")
        return artefact


def _artifact(request: Request, artefact: HeldArtefact) -> dict[str, Any]:
    """Return the file of an update."""
    manifest, (sha1, md5) = artefact.manifest, artefact.hashes
    link = {"href": f"{_base(request)}/softwaremodules/{artefact.number}/artifacts/{manifest.name}"}
    name = "download" if request.url.scheme == "https" else "download-http"
    return {
        "filename": manifest.name,
        "hashes": {"sha1": sha1, "md5": md5, "sha256": manifest.digest},
        "size": manifest.size,
        "_links": {"download-http": link} | {name: link},
    }


def _controller_of(request: Request) -> str:
    """Return the controller, and accept hawkBit's scheme of authentication."""
    _accept_target_token(request)
    return str(request.path_params["controller"])


def _base(request: Request) -> str:
    """Return the URL of the controller, as the client knows it."""
    head, _, _ = str(request.url.replace(query="", fragment="")).partition("/controller/v1/")
    return f"{head}/controller/v1/{request.path_params['controller']}"


async def _read(request: Request, kind: type[Any]) -> Any:
    body = await read_body(request, FEEDBACK_BYTES_MAX, "the body")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestRefused(400, f"the body is not valid: {error}") from None


def _accept_target_token(request: Request) -> None:
    """Replace hawkBit's scheme `TargetToken` by Basic, or by Bearer for a token that is not ``user:password``."""
    fields = request.scope["headers"]
    for place, (name, value) in enumerate(fields):
        if name == b"authorization" and value.lower().startswith(_TARGET_TOKEN):
            token = value[len(_TARGET_TOKEN) :].strip()
            try:
                basic = b":" in base64.b64decode(token, validate=True)
            except (binascii.Error, ValueError):
                basic = False
            fields[place] = (name, (b"Basic " if basic else b"Bearer ") + token)
