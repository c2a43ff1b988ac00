"""HTTP routes of a gateway's configuration.

=============================================  ======  ==============================================================
``GET /api/v1/configuration``                  view    `documents.ConfigurationDocument`
``PUT /api/v1/configuration``                  manage  change it: `documents.ConfigurationRequest`
``POST /api/v1/configuration/check``           manage  `documents.ConfigurationCheck` of a text; nothing is changed
``POST /api/v1/configuration/keep``            manage  keep the change on trial
``POST /api/v1/configuration/revert``          manage  take the change on trial back
``GET /api/v1/configuration/history``          view    `documents.ConfigurationHistoryDocument`
``GET /api/v1/configuration/{version}``        view    `documents.EarlierConfiguration`
``POST /api/v1/addresses``                     manage  create an address: `documents.AddressRequest`
``PUT``, ``DELETE /api/v1/addresses/{address}``  manage  change its fields (a JSON object), or delete it
=============================================  ======  ==============================================================

Errors are problem details, those of a configuration with ``errors``: each with line, path and message. A change of
another version than the one in force gets 409.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.resources.document import SOURCE_BYTES_MAX
from bridge.resources.errors import ConfigurationRejected
from edge.appliance.addresses.routes import name_of
from edge.appliance.configuring.documents import (
    AddressRequest,
    AddressResult,
    ConfigurationDocument,
    ConfigurationFault,
    ConfigurationRequest,
    ConfigurationText,
)
from edge.appliance.configuring.service import ConfigurationService, TrialRunning
from edge.broker.http.access import USER, HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer, read_document
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, Answer, HttpRoute
from edge.configuration.file import RepositoryError
from edge.configuration.options import OptionsRefused
from edge.configuration.repository import ConfigurationChanged

BODY_BYTES_MAX: Final = 2 * SOURCE_BYTES_MAX
"""JSON of the largest text: twice as long with its escapes."""
FIXED: Final = "this gateway runs with --config, so only that file configures it"
_NO_TRIAL: Final = "no change is on trial: it was kept, taken back, or changed again"


def configuration_routes(service: ConfigurationService | None, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes. None: the configuration is a file that cannot be changed here."""
    api = _ConfigurationApi(service)
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute("/api/v1/configuration", view(_answered(api.show)), methods=PURE),
        HttpRoute("/api/v1/configuration", manage(_answered(api.change)), methods=("PUT",)),
        HttpRoute("/api/v1/configuration/check", manage(_answered(api.check)), methods=("POST",)),
        HttpRoute("/api/v1/configuration/keep", manage(_answered(api.keep)), methods=("POST",)),
        HttpRoute("/api/v1/configuration/revert", manage(_answered(api.revert)), methods=("POST",)),
        HttpRoute("/api/v1/configuration/history", view(_answered(api.history)), methods=PURE),
        HttpRoute("/api/v1/configuration/{version:int}", view(_answered(api.earlier)), methods=PURE),
        HttpRoute("/api/v1/addresses", manage(_answered(api.create_address)), methods=("POST",)),
        HttpRoute("/api/v1/addresses/{address:path}", manage(_answered(api.change_address)), methods=("PUT",)),
        HttpRoute("/api/v1/addresses/{address:path}", manage(_answered(api.delete_address)), methods=("DELETE",)),
    ]


def _answered(answer: Answer) -> Answer:
    @functools.wraps(answer)
    async def behind(request: Request) -> Response:
        try:
            return await answer(request)
        except ConfigurationRejected as rejected:
            errors = [
                ConfigurationFault(line=each.line, path=each.path, message=each.message) for each in rejected.errors
            ]
            refused = RequestRefused(400, "; ".join(map(str, rejected.errors)), code="configuration-rejected")
            return refused.response(errors=errors)
        except (ConfigurationChanged, TrialRunning) as error:
            raise RequestRefused(409, str(error)) from None
        except OptionsRefused as error:
            raise RequestRefused(500, f"stored, but not applied: {error}") from None
        except RepositoryError as error:
            raise RequestRefused(503, str(error)) from None

    return behind


class _ConfigurationApi:
    """Endpoints. Every method raises what `_answered` translates."""

    def __init__(self, service: ConfigurationService | None) -> None:
        self._known = service

    @property
    def _service(self) -> ConfigurationService:
        if self._known is None:
            raise RequestRefused(409, FIXED)
        return self._known

    async def show(self, request: Request) -> Response:
        if self._known is None:
            nothing = ConfigurationDocument(version=0, text="", fixed=FIXED, managed=[], hub_version=0, trial=None)
            return json_answer(nothing)
        document = await self._service.document()
        answer = json_answer(document)
        answer.headers["ETag"] = _version_tag(document.version)
        return answer

    async def check(self, request: Request) -> Response:
        wanted = await read_document(request, ConfigurationText, BODY_BYTES_MAX)
        return json_answer(await self._service.check(wanted.text))

    async def change(self, request: Request) -> Response:
        wanted, condition = await read_document(request, ConfigurationRequest, BODY_BYTES_MAX), precondition_of(request)
        condition.check(_version_tag((await self._service.document()).version))
        if (wanted.text is None) is (wanted.restore is None):
            raise RequestRefused(400, "give one of text and restore")
        if wanted.try_s is not None and wanted.try_s <= 0:
            raise RequestRefused(400, "try_s is a number of seconds above 0")
        applied = await self._service.change(wanted, _user(request))
        if applied is None:
            raise RequestRefused(404, f"version {wanted.restore} is not kept")
        return json_answer(applied)

    async def keep(self, request: Request) -> Response:
        if not await self._service.keep():
            raise RequestRefused(409, _NO_TRIAL)
        return json_answer(await self._service.document())

    async def revert(self, request: Request) -> Response:
        if not await self._service.revert(f"{_user(request)} took it back"):
            raise RequestRefused(409, _NO_TRIAL)
        return json_answer(await self._service.document())

    async def history(self, request: Request) -> Response:
        return json_answer(await self._service.history())

    async def earlier(self, request: Request) -> Response:
        version = request.path_params["version"]
        found = await self._service.earlier(version)
        if found is None:
            raise RequestRefused(404, f"version {version} is not kept")
        return json_answer(found)

    # --- addresses ----------------------------------------------------------------------------------------------

    async def create_address(self, request: Request) -> Response:
        wanted = await read_document(request, AddressRequest)
        return await self._change_address(request, "CREATE", wanted.address, wanted.spec)

    async def change_address(self, request: Request) -> Response:
        spec = await read_document(request, dict[str, Any])
        return await self._change_address(request, "UPDATE", name_of(request), spec)

    async def delete_address(self, request: Request) -> Response:
        return await self._change_address(request, "DELETE", name_of(request), {})

    async def _change_address(self, request: Request, operation: str, address: str, spec: dict[str, Any]) -> Response:
        condition = precondition_of(request)

        def check(present: Mapping[str, Any] | None) -> None:
            condition.check(None if present is None else tag_of(present))

        answer = await self._service.addresses.change_by(_user(request), operation, address, spec, check)
        if answer.status >= 300:
            raise RequestRefused(answer.status, answer.description)
        result = AddressResult(address=address, spec=answer.body or {})
        return json_answer(result, answer.status if answer.body else 200)


def _user(request: Request) -> str:
    return str(request.scope.get(USER) or "the console")


def _version_tag(version: int) -> str:
    """Return the entity tag of a version of the own configuration."""
    return f'"{version}"'
