"""HTTP routes of addresses, for the console and `waypost trace`.

===================================  ======  ========================================================================
``GET /api/v1/addresses``            view    `documents.AddressPage`: ``?q=&sort=&after=&limit=``, busy ones first
``GET /api/v1/addresses/{address}``  view    `documents.AddressDetail` of a name or filter
``GET /api/v1/address-tree``         view    `documents.AddressTreePage`: ``?under=&after=&limit=``, one level
``GET /api/v1/why``                  view    `documents.AddressExplanation`: ``?address=``, why messages do not arrive
===================================  ======  ========================================================================

Errors are problem details.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from bridge.topic_filter import filter_fault
from edge.appliance.addresses.details import AddressDetails
from edge.appliance.addresses.explanation import AddressExplainer
from edge.appliance.paging import InvalidPosition
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer
from edge.broker.http.queries import choice_of, limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute


def address_routes(details: AddressDetails, explainer: AddressExplainer, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of a gateway's addresses."""
    addresses = _Addresses(details, explainer)
    view = needing(access.require_view)
    return [
        HttpRoute("/api/v1/addresses", view(addresses.page), methods=PURE),
        HttpRoute("/api/v1/addresses/{address:path}", view(addresses.show), methods=PURE),
        HttpRoute("/api/v1/address-tree", view(addresses.tree), methods=PURE),
        HttpRoute("/api/v1/why", view(addresses.explain), methods=PURE),
    ]


class _Addresses:
    def __init__(self, details: AddressDetails, explainer: AddressExplainer) -> None:
        self._details = details
        self._explainer = explainer
        self._directory = details.directory

    async def page(self, request: Request) -> Response:
        query = request.query_params
        try:
            page = await self._directory.page(
                sort=choice_of(query, "sort", self._directory.sorts),
                text=query.get("q", ""),
                after=query.get("after") or None,
                limit=limit_of(query),
            )
        except InvalidPosition:
            raise RequestRefused(400, "after is the `next` of an earlier page with the same sort") from None
        return json_answer(page)

    async def tree(self, request: Request) -> Response:
        query = request.query_params
        under, after = query.get("under", ""), query.get("after") or None
        return json_answer(await self._directory.tree(under, after=after, limit=limit_of(query)))

    async def show(self, request: Request) -> Response:
        document = await self._details.document(name_of(request))
        answer = json_answer(document)
        if document.etag:
            answer.headers["ETag"] = document.etag
        return answer

    async def explain(self, request: Request) -> Response:
        return json_answer(await self._explainer.explain(_checked(request.query_params.get("address", ""))))


def name_of(request: Request) -> str:
    """Return the address that the path names. Raises RequestRefused."""
    return _checked(str(request.path_params["address"]))


def _checked(name: str) -> str:
    fault = filter_fault(name) if name else "it is empty"
    if fault:
        raise RequestRefused(400, f"{name[:100]!r} is not an address: {fault}")
    return name
