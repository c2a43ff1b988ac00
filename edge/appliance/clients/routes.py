"""HTTP routes of clients, for the console and `waypost client`.

=================================  ======  ========================================================================
``GET /api/v1/clients``            view    `documents.ClientPage`: ``?state=&q=&sort=&after=&limit=``
``GET /api/v1/clients/{id}``       view    `documents.ClientDetail`; the name of a client instead of its id is found too
``DELETE /api/v1/clients/{id}``    manage  close its connection: ``?session=keep`` or ``end``
``GET /api/v1/refusals``           view    `documents.RefusalPage`, the latest first: ``?q=&after=&limit=``
=================================  ======  ========================================================================

Errors are problem details. A name that several clients have gets 409.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.clients.directory import STATES, ClientDirectory
from edge.appliance.clients.documents import REFUSALS_SHOWN_MAX, ClientDetail, ClientDisconnection
from edge.appliance.clients.refusals import page_of_refusals
from edge.appliance.clients.sources import HTTP, MQTT
from edge.appliance.paging import InvalidPosition
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer
from edge.broker.http.queries import choice_of, limit_of, number_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.rights import format_rights
from edge.broker.store.errors import StoreError
from edge.output.text import line


def client_routes(directory: ClientDirectory, gate: Authenticator, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of a gateway's clients. `gate` knows their rights and refusals."""
    clients = _Clients(directory, gate)
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute("/api/v1/clients", view(clients.page), methods=PURE),
        HttpRoute("/api/v1/clients/{id:path}", view(clients.show), methods=PURE),
        HttpRoute("/api/v1/clients/{id:path}", manage(clients.disconnect), methods=("DELETE",)),
        HttpRoute("/api/v1/refusals", view(clients.refusals), methods=PURE),
    ]


class _Clients:
    def __init__(self, directory: ClientDirectory, gate: Authenticator) -> None:
        self._directory = directory
        self._sources = directory.sources
        self._gate = gate

    async def page(self, request: Request) -> Response:
        query, directory = request.query_params, self._directory
        try:
            page = await directory.page(
                sort=choice_of(query, "sort", tuple(directory.sorts)),
                state=choice_of(query, "state", STATES),
                text=query.get("q", ""),
                after=query.get("after") or None,
                limit=limit_of(query),
            )
        except InvalidPosition:
            raise RequestRefused(400, "after is the `next` of an earlier page with the same sort") from None
        return json_answer(page)

    async def show(self, request: Request) -> Response:
        identity = self._identity_of(request)
        document = self._sources.document(identity)
        if document is None:
            raise _unknown(identity)
        refusals = page_of_refusals(self._gate.refusals, limit=REFUSALS_SHOWN_MAX, client=document.name)
        if document.user and document.user != document.name and not refusals.total:
            refusals = page_of_refusals(self._gate.refusals, limit=REFUSALS_SHOWN_MAX, client=document.user)
        detail = ClientDetail(
            **msgspec.structs.asdict(document),
            session_ends_at=self._sources.session_ends_at(identity) if document.connected_at is None else None,
            usual_interval_s=self._sources.usual_interval_s(identity),
            filters=self._sources.filters(identity),
            rights=format_rights(self._gate.rules_of(document.user, document.name)) if document.user else [],
            refusals=refusals.refusals,
        )
        return json_answer(detail)

    async def disconnect(self, request: Request) -> Response:
        identity = self._identity_of(request)
        end_session = choice_of(request.query_params, "session", ("keep", "end")) == "end"
        if identity.startswith(HTTP):
            raise RequestRefused(409, "an HTTP device has no connection to close: its request ends by itself")
        if end_session and not identity.startswith(MQTT):
            raise RequestRefused(400, "session=end is for MQTT clients only: others have no session")
        try:
            disconnected, ended = self._sources.disconnect(identity, end_session=end_session)
        except StoreError as error:
            raise RequestRefused(503, f"the session cannot be ended: {error}") from error
        return json_answer(ClientDisconnection(id=identity, disconnected=disconnected, session_ended=ended))

    async def refusals(self, request: Request) -> Response:
        query = request.query_params
        after, limit, text = number_of(query, "after"), limit_of(query), query.get("q", "")
        return json_answer(page_of_refusals(self._gate.refusals, after=after, limit=limit, text=text))

    def _identity_of(self, request: Request) -> str:
        """Return the identity of the client that the path names. Raises RequestRefused."""
        name = str(request.path_params["id"])
        found = self._sources.named(name)
        if not found:
            raise _unknown(name)
        if len(found) > 1:
            ids = ", ".join(line(each) for each in found[:10])
            raise RequestRefused(409, f"{len(found)} clients are called {name[:100]}: use one of the ids {ids}")
        return found[0]


def _unknown(name: str) -> RequestRefused:
    return RequestRefused(404, f"client {name[:100]} not found: see waypost client list")
