"""Artefacts over HTTP.

``GET    /api/v1/artefacts``                                  a page: ``?name=&after=&limit=&tenant=``
``POST   /api/v1/artefacts``                                  add one: the body is its signed manifest (COSE_Sign1)
``GET    /api/v1/artefacts/<name>/<version>``                 one, with the missing parts of its image
``PUT    /api/v1/artefacts/<name>/<version>/parts/<number>``  a part of its image
``POST   /api/v1/artefacts/<name>/<version>/complete``        verify the image, and store it
``GET    /api/v1/artefacts/<name>/<version>/image``           the image, or a range of it
``GET    /api/v1/artefacts/<name>/<version>/manifest``        the signed manifest
``DELETE /api/v1/artefacts/<name>/<version>``                 remove it
``GET, POST /api/v1/artefact-keys``                           trusted keys: ``?tenant=``
``DELETE /api/v1/artefact-keys/<id>``                         trust a key no longer
``GET    /uplink/artefacts/<name>/<version>/(image|manifest)`` the same for a gateway, by its certificate

Reading needs the right to view, changes the right to manage: for one's own tenant, or with ``$fleet`` and ``?tenant=``
for every tenant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.artefacts.envelope import CONTENT_TYPE
from bridge.artefacts.faults import ArtefactRefused
from bridge.artefacts.keys import InvalidKey, MakerPublicKey
from bridge.artefacts.limits import ENVELOPE_BYTES_MAX, KEY_FILE_BYTES_MAX
from cloud.hub.acceptor import Acceptor
from cloud.hub.artefacts.documents import (
    ArtefactKeyList,
    ArtefactPage,
    NewArtefactKey,
    RemovedArtefactKey,
    StoredPart,
    artefact_document,
    key_document,
    upload_document,
)
from cloud.hub.artefacts.limits import KEY_LABEL_CHARACTERS_MAX, PART_BYTES
from cloud.hub.artefacts.service import ArtefactIncomplete, ArtefactsBusy, HubArtefacts, StoreFailed
from cloud.hub.changes import note_change
from cloud.hub.gateway_certificate import gateway_of
from cloud.hub.json_http import answering, json_response
from cloud.hub.page_position import decode_position, encode_position
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.registry.artefacts import (
    FIRST_PLACE,
    ArtefactExists,
    ArtefactInUse,
    ArtefactPlace,
    ArtefactRow,
    ArtefactsFull,
    UnknownArtefact,
)
from cloud.hub.scope import Scope, scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.queries import limit_of
from edge.broker.http.ranges import file_response
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

ARTEFACTS: Final = "/api/v1/artefacts"
ARTEFACT: Final = "/api/v1/artefacts/{name}/{version}"
KEYS: Final = "/api/v1/artefact-keys"
FOR_GATEWAYS: Final = "/uplink/artefacts/{name}/{version}"
IMAGE_TYPE: Final = "application/octet-stream"
_CursorText = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z", max_length=255)]
_CursorNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Download = Callable[[str, Request], Awaitable[Response]]
"""Returns the answer for a tenant."""


def refused_response(why: ArtefactRefused) -> Response:
    """Return the answer to a refused artefact; the field `reason` says why, for programs."""
    return RequestRefused(
        422, str(why), code="artefact-refused", next_step="take the files from their maker again"
    ).response(reason=why.fault.value)


answered: Final = answering(
    {
        ArtefactRefused: refused_response,
        InvalidKey: 400,
        ArtefactExists: lambda why: RequestRefused(
            409, str(why), next_step="remove it first, or sign another version"
        ).response(),
        ArtefactIncomplete: lambda why: RequestRefused(
            409, str(why), next_step="look what is missing, and upload it"
        ).response(),
        ArtefactInUse: lambda why: RequestRefused(
            409, str(why), next_step="stop the campaign first: waypost campaign stop"
        ).response(),
        ArtefactsFull: lambda why: RequestRefused(403, str(why), next_step="remove artefacts or keys").response(),
        UnknownArtefact: lambda why: RequestRefused(404, f"no artefact {why}").response(),
        ArtefactsBusy: 503,
        StoreFailed: 503,
    }
)


def artefact_routes(artefacts: HubArtefacts, access: HttpAccess, acceptor: Acceptor) -> list[HttpRoute]:
    """Return the routes of this module. `acceptor` knows which certificates are accepted."""
    api, files = _ArtefactApi(artefacts, access), _ArtefactFiles(artefacts)

    def by_user(download: Download) -> Callable[[Request], Awaitable[Response]]:
        async def behind(request: Request) -> Response:
            return await download(await api.tenant(request, Operation.VIEW), request)

        return answered(behind)

    def by_gateway(download: Download) -> Callable[[Request], Awaitable[Response]]:
        async def behind(request: Request) -> Response:
            tenant, _ = gateway_of(request, acceptor)
            return await download(tenant, request)

        return answered(behind)

    return [
        HttpRoute(ARTEFACTS, answered(api.page), methods=PURE),
        HttpRoute(ARTEFACTS, answered(api.add, "artefact.create"), methods=("POST",)),
        HttpRoute(ARTEFACT, answered(api.show), methods=PURE),
        HttpRoute(ARTEFACT, answered(api.remove, "artefact.remove"), methods=("DELETE",)),
        HttpRoute(ARTEFACT + "/parts/{number:int}", answered(api.put), methods=("PUT",)),
        HttpRoute(ARTEFACT + "/complete", answered(api.complete, "artefact.complete"), methods=("POST",)),
        HttpRoute(ARTEFACT + "/image", by_user(files.image), methods=PURE),
        HttpRoute(ARTEFACT + "/manifest", by_user(files.manifest), methods=PURE),
        HttpRoute(KEYS, answered(api.keys), methods=PURE),
        HttpRoute(KEYS, answered(api.add_key, "artefact-key.create"), methods=("POST",)),
        HttpRoute(KEYS + "/{id}", answered(api.remove_key, "artefact-key.remove"), methods=("DELETE",)),
        HttpRoute(FOR_GATEWAYS + "/image", by_gateway(files.image), methods=PURE),
        HttpRoute(FOR_GATEWAYS + "/manifest", by_gateway(files.manifest), methods=PURE),
    ]


class _ArtefactFiles:
    """Files of stored artefacts, the same for users and gateways."""

    def __init__(self, artefacts: HubArtefacts) -> None:
        self._artefacts = artefacts

    async def image(self, tenant: str, request: Request) -> Response:
        """Return an image, or a range of it."""
        row = await self._artefacts.stored(tenant, *_names(request))
        return file_response(
            request,
            row.size,
            f'"{row.sha256}"',
            IMAGE_TYPE,
            lambda wanted: self._artefacts.download(row, wanted),
            NEVER_CACHED,
        )

    async def manifest(self, tenant: str, request: Request) -> Response:
        """Return a signed manifest."""
        row = await self._artefacts.stored(tenant, *_names(request))
        return Response(row.envelope, media_type=CONTENT_TYPE, headers=NEVER_CACHED)


class _ArtefactApi:
    """Endpoints for users. Every method raises what `answered` translates."""

    def __init__(self, artefacts: HubArtefacts, access: HttpAccess) -> None:
        self._artefacts = artefacts
        self._access = access

    async def tenant(self, request: Request, operation: Operation) -> str:
        """Return the tenant of a request, which its user may view or manage. Raises `RequestRefused`."""
        scope = await scope_of(self._access, request, operation)
        tenant = request.query_params.get("tenant") or scope.tenant or DEFAULT_TENANT
        _require_covered(scope, tenant)
        note_change(request, tenant=tenant)
        return tenant

    async def page(self, request: Request) -> Response:
        """List artefacts."""
        scope, query = await scope_of(self._access, request), request.query_params
        tenant = query.get("tenant") or scope.tenant
        if tenant is not None:
            _require_covered(scope, tenant)
        limit, after = limit_of(query), _after(query.get("after", ""))
        rows = await self._artefacts.page(tenant, query.get("name", ""), after, limit + 1)
        shown = rows[:limit]
        following = encode_position(ArtefactPlace.of(shown[-1])) if len(rows) > limit else None
        return json_response(ArtefactPage(artefacts=[artefact_document(row) for row in shown], next=following))

    async def add(self, request: Request) -> Response:
        """Add an artefact by its signed manifest."""
        tenant = await self.tenant(request, Operation.MANAGE)
        envelope = await read_body(request, ENVELOPE_BYTES_MAX, "the signed manifest")
        upload = await self._artefacts.add(tenant, envelope, await self._user(request))
        note_change(request, subject=f"{upload.row.name} {upload.row.version}", after=_shown(upload.row))
        return json_response(upload_document(upload), 201)

    async def show(self, request: Request) -> Response:
        """Show an artefact with the missing parts of its image."""
        tenant = await self.tenant(request, Operation.VIEW)
        return json_response(upload_document(await self._artefacts.get(tenant, *_names(request))))

    async def put(self, request: Request) -> Response:
        """Store a part of an image."""
        tenant = await self.tenant(request, Operation.MANAGE)
        content = await read_body(request, PART_BYTES, "a part of an image")
        number: int = request.path_params["number"]
        await self._artefacts.put(tenant, *_names(request), number, content)
        return json_response(StoredPart(number=number, bytes=len(content)))

    async def complete(self, request: Request) -> Response:
        """Verify an image, and store the artefact."""
        tenant = await self.tenant(request, Operation.MANAGE)
        row = await self._artefacts.complete(tenant, *_names(request))
        note_change(request, after=_shown(row))
        return json_response(artefact_document(row))

    async def remove(self, request: Request) -> Response:
        """Remove an artefact."""
        tenant = await self.tenant(request, Operation.MANAGE)
        row = await self._artefacts.remove(tenant, *_names(request))
        note_change(request, before=_shown(row))
        return json_response(artefact_document(row))

    async def keys(self, request: Request) -> Response:
        """List the trusted keys."""
        rows = await self._artefacts.keys(await self.tenant(request, Operation.VIEW))
        return json_response(ArtefactKeyList(keys=[key_document(row) for row in rows]))

    async def add_key(self, request: Request) -> Response:
        """Trust a key."""
        tenant = await self.tenant(request, Operation.MANAGE)
        body = await read_body(request, 2 * KEY_FILE_BYTES_MAX, "the key")
        try:
            new = msgspec.json.decode(body, type=NewArtefactKey)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestRefused(400, f"the key cannot be read: {error}") from None
        if len(new.label) > KEY_LABEL_CHARACTERS_MAX or not new.label.isprintable():
            raise RequestRefused(400, f"the label has at most {KEY_LABEL_CHARACTERS_MAX} printable characters")
        row = await self._artefacts.add_key(tenant, MakerPublicKey.parse(new.pem), new.label, await self._user(request))
        note_change(request, subject=row.id, after={"id": row.id, "label": row.label})
        return json_response(key_document(row), 201)

    async def remove_key(self, request: Request) -> Response:
        """Trust a key no longer."""
        tenant, key = await self.tenant(request, Operation.MANAGE), request.path_params["id"]
        await self._artefacts.remove_key(tenant, key)
        note_change(request, subject=key)
        return json_response(RemovedArtefactKey(tenant=tenant, id=key))

    async def _user(self, request: Request) -> str:
        async with self._access.admitted(request) as client:
            return client.user


def _require_covered(scope: Scope, tenant: str) -> None:
    if tenant_fault(tenant) is not None or not scope.covers(tenant):
        raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params["version"]


def _shown(row: ArtefactRow) -> dict[str, object]:
    """Return what the audit keeps of an artefact."""
    return {"sequence": row.sequence, "size": row.size, "sha256": row.sha256, "key": row.key_id}


def _after(cursor: str) -> ArtefactPlace:
    """Return the place of a cursor. Raises `RequestRefused`."""
    if not cursor:
        return FIRST_PLACE
    return ArtefactPlace(*decode_position(cursor, tuple[_CursorText, _CursorText, _CursorNumber, _CursorText]))
