"""Common parts of requests to Hono's management API: tenant and rights, entity tags, filters, order and pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.devices.documents import InvalidDocument, require_tenant_id
from cloud.hub.devices.limits import (
    DOCUMENT_DEPTH_MAX,
    PAGE_OFFSET_MAX,
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    SEARCH_TERMS_MAX,
    SEARCH_TEXT_CHARACTERS_MAX,
)
from cloud.hub.devices.service import DeviceRegistry
from cloud.hub.devices.tenants import EMPTY
from cloud.hub.json_http import json_response
from cloud.hub.peers import tenant_fault
from cloud.hub.registry.device_search import FieldFilter, FieldOrder, FieldValue, SearchPage, SearchQuery
from cloud.hub.registry.device_tenants import Check, DeviceTenantRow
from cloud.hub.scope import Scope, scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.preconditions import Precondition, precondition_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Operation

T = TypeVar("T")
DEVICES: Final = "/v1/devices"
TENANTS: Final = "/v1/tenants"
CREDENTIALS: Final = "/v1/credentials"
_DIGITS_MAX: Final = 10
_JSON: Final = "application/json"
_BOOLEANS: Final[Mapping[str, bool | None]] = {"": None, "true": True, "false": False}


class FilterTerm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Value of `filterJson`."""

    field: str
    """JSON pointer, as ``/ext/site``."""
    value: str | bool | int | float
    """Value to find; in a text ``*`` is any number of characters, and ``?`` one."""
    op: Literal["eq"] = "eq"


class SortTerm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Value of `sortJson`."""

    field: str
    """JSON pointer, as ``/ext/site``."""
    direction: Literal["asc", "desc"] = "asc"


class ManagedTenant(NamedTuple):
    """Tenant of a request that its user may view, or change."""

    id: str
    owner: str
    """Tenant of the hub that it belongs to."""
    row: DeviceTenantRow | None
    """None: it is a tenant of the hub that has no document and no devices yet."""
    by: str
    """User of the request."""

    @property
    def document(self) -> str:
        """Stored document."""
        return self.row.document if self.row is not None else EMPTY


class TenantAccess:
    """Finds the tenant of a request, and checks the rights of its user."""

    def __init__(self, registry: DeviceRegistry, access: HttpAccess, names: Callable[[], Collection[str]]) -> None:
        """`names` returns the known tenants of the hub."""
        self._registry = registry
        self._access = access
        self._names = names

    async def scope(self, request: Request, operation: Operation = Operation.VIEW) -> Scope:
        """Return the scope of a request. Raises `RequestRefused`."""
        return await scope_of(self._access, request, operation)

    async def user(self, request: Request) -> str:
        """Return the user of a request. Raises `RequestRefused`."""
        async with self._access.admitted(request) as client:
            return client.user

    async def managed(self, request: Request, operation: Operation) -> ManagedTenant:
        """Return the tenant in the path. One that the user may not view is not found, as in Hono. Raises
        `RequestRefused`, `InvalidDocument`, `DevicesBusy`, `RegistryError`."""
        scope, tenant = await self.scope(request), require_tenant_id(request.path_params["tenant"])
        row = await self._registry.tenant(tenant)
        owner = row.owner if row is not None else tenant
        there = row is not None or self.is_known(tenant, scope)
        if not there or not scope.covers(owner):
            raise RequestRefused(404, f"no tenant {tenant}", next_step=f"create it: POST {TENANTS}/{tenant}")
        if operation is Operation.MANAGE and not (await self.scope(request, operation)).covers(owner):
            raise RequestRefused(403, f"tenant {tenant} is outside your scope")
        return ManagedTenant(tenant, owner, row, await self.user(request))

    def is_known(self, tenant: str, scope: Scope) -> bool:
        """Return True for a tenant of the hub: it needs no document to have devices."""
        return tenant_fault(tenant) is None and (tenant == scope.tenant or tenant in self._names())


def tag(revision: int) -> str:
    """Return the entity tag of a revision."""
    return f'"{revision}"'


def condition_of(request: Request) -> Precondition:
    """Return the condition of a change. To clients of Hono a version is any text: one without quotes is compared as it
    is, and one that is no entity tag matches nothing."""
    given = request.headers.get("if-match", "").strip()
    try:
        return precondition_of(request)
    except RequestRefused:
        return Precondition(frozenset((f'"{given}"',)), new=False)


async def read_json(request: Request, bytes_max: int, what: str) -> bytes:
    """Read the body of a request, which may be empty. Raises `RequestRefused`, for another content type as Hono
    does."""
    body = await read_body(request, bytes_max, what)
    if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise RequestRefused(400, f"{what} has to be {_JSON}", next_step=f"send the header Content-Type: {_JSON}")
    return body


def checking(request: Request) -> Check:
    """Return the check of a change against `If-Match`, within its transaction."""
    condition = condition_of(request)
    return lambda revision: condition.check(tag(revision) if revision is not None else None)


def created_response(place: str, name: str, revision: int) -> Response:
    """Return the answer to a creation."""
    answer = json_response({"id": name}, 201)
    answer.headers["Location"], answer.headers["ETag"] = f"{place}/{name}", tag(revision)
    return answer


def changed_response(revision: int | None = None) -> Response:
    """Return the answer to a change, or without a revision to a removal."""
    headers = {} if revision is None else {"ETag": tag(revision)}
    return Response(status_code=204, headers={**NEVER_CACHED, **headers})


def query_of(request: Request) -> SearchQuery:
    """Return the search of a request. Raises `InvalidDocument`."""
    given = request.query_params
    wanted = given.get("isGateway", "")
    if wanted not in _BOOLEANS:
        raise InvalidDocument("isGateway is true or false")
    page = SearchPage(
        _number(request, "pageSize", PAGE_SIZE, PAGE_SIZE_MAX),
        _number(request, "pageOffset", 0, PAGE_OFFSET_MAX),
        given.get("after", ""),
    )
    filters = [FieldFilter(_path(each.field), _value(each)) for each in _terms(request, "filterJson", FilterTerm)]
    orders = [FieldOrder(_path(each.field), each.direction == "desc") for each in _terms(request, "sortJson", SortTerm)]
    if page.after and orders:
        raise InvalidDocument("after is for pages by id: leave out sortJson, or use pageOffset")
    return SearchQuery(page, filters, orders, _BOOLEANS[wanted])


def page_response(request: Request, query: SearchQuery, rows: Sequence[dict[str, Any]], total: int) -> Response:
    """Return a page with the address of the next one. Raises `RequestRefused` if nothing matches, as Hono does."""
    if not total:
        raise RequestRefused(404, "nothing matches", next_step="search with fewer filters")
    answer = json_response({"total": total, "result": rows})
    if rows and len(rows) == query.page.limit:
        kept = [
            (name, value) for name, value in request.query_params.multi_items() if name not in ("after", "pageOffset")
        ]
        if query.orders:
            kept.append(("pageOffset", str(query.page.offset + query.page.limit)))
        else:
            kept.append(("after", rows[-1]["id"]))
        answer.headers["Link"] = f'<{request.url.path}?{urlencode(kept)}>; rel="next"'
    return answer


def _terms(request: Request, name: str, kind: type[T]) -> list[T]:
    given = request.query_params.getlist(name)
    if len(given) > SEARCH_TERMS_MAX:
        raise InvalidDocument(f"{name} may be there {SEARCH_TERMS_MAX} times at most")
    if any(len(each) > SEARCH_TEXT_CHARACTERS_MAX for each in given):
        raise InvalidDocument(f"{name} is longer than {SEARCH_TEXT_CHARACTERS_MAX} characters")
    try:
        return [msgspec.json.decode(each, type=kind) for each in given]
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise InvalidDocument(f"{name}: {error}") from None


def _value(term: FilterTerm) -> FieldValue:
    """Return the value of a filter. Raises `InvalidDocument` for one that a database does not take."""
    value = term.value
    if isinstance(value, str) and "\0" in value:
        raise InvalidDocument("a text to find has no NUL")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidDocument("a number to find has 64 bits at most")
    return value


def _path(pointer: str) -> tuple[str, ...]:
    """Return the parts of a JSON pointer (RFC 6901). Raises `InvalidDocument`."""
    if not pointer.startswith("/") or pointer.count("/") > DOCUMENT_DEPTH_MAX or "\0" in pointer:
        raise InvalidDocument(f'the field "{pointer[:80]}" is not a JSON pointer; expected for example /ext/site')
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= most):
        raise InvalidDocument(f"{name} is a whole number from 0 to {most}")
    return int(text)
