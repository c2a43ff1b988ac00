"""Audit over HTTP.

``GET /api/v1/audit``  changes, the latest first:
                       ``?user=&action=&outcome=done|refused&q=&since=MS&until=MS&after=&limit=``

Needs the right to view: the lines of one's own tenant, or with ``$fleet`` all of them, and with ``?tenant=`` those of
one. A user searches once at a time; a second search is answered with 429.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.audit_trail import HubAudit, SearchInProgress
from cloud.hub.json_http import answering, json_response
from cloud.hub.limits import AUDIT_KEPT_S
from cloud.hub.registry.audit import AuditFilter, NumberedEntry
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess, remote_host
from edge.broker.http.queries import choice_of, limit_of, number_of
from edge.broker.http.route import PURE, HttpRoute

AUDIT: Final = "/api/v1/audit"
answered: Final = answering({SearchInProgress: 429})
_OUTCOMES: Final = {"": None, "done": True, "refused": False}
_TEXT_CHARACTERS_MAX: Final = 100


class AuditLine(msgspec.Struct, kw_only=True):
    """Change that a person or program made, or tried to make."""

    number: int
    at: int
    user: str
    """Empty where authentication is off."""
    remote: str
    """Address of the client."""
    tenant: str
    """Tenant of what was changed; empty for the hub itself."""
    action: str
    """Noun and verb, as in ``token.create``."""
    subject: str
    """Name of what was changed."""
    before: Any
    """State before the change, where it is small; null if it is not known."""
    after: Any
    status: int
    """Status of the answer over HTTP."""
    error: str
    """Reason why it was not done; empty when it was."""


class AuditPage(msgspec.Struct, kw_only=True):
    """Page of the audit."""

    lines: list[AuditLine]
    next: int | None
    """Value of `after` for the next page; null on the last one. A page may have fewer lines than its limit and be
    followed by others: it reads 20 000 lines, and while none matches up to 100 000. Only then a page is empty."""
    searched_to: int | None
    """Time of the oldest line that was read; null if there is no further page."""
    total: int
    """Number of lines that match among the latest 20 000 that the user may see."""
    kept_s: int
    """Seconds that lines are kept."""


def audit_routes(audit: HubAudit, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""

    async def page(request: Request) -> Response:
        scope, query = await scope_of(access, request), request.query_params
        limit = limit_of(query)
        wanted = AuditFilter(
            tenant=query.get("tenant") if scope.tenant is None else scope.tenant,
            user=query.get("user", ""),
            action=query.get("action", ""),
            done=_OUTCOMES[choice_of(query, "outcome", tuple(_OUTCOMES))],
            text=query.get("q", "")[:_TEXT_CHARACTERS_MAX],
            since=_bounded(number_of(query, "since")),
            until=_bounded(number_of(query, "until")),
            before=_bounded(number_of(query, "after"), 1),
        )
        async with access.admitted(request) as (grant, _):
            who = remote_host(request) if grant is None else grant.user
            found = await audit.search(who, wanted, limit)
        rows = [_line(each) for each in found.entries]
        searched_to = None if found.searched_to is None else found.searched_to // 1_000
        return json_response(
            AuditPage(lines=rows, next=found.following, searched_to=searched_to, total=found.total, kept_s=AUDIT_KEPT_S)
        )

    return [HttpRoute(AUDIT, answered(page), methods=PURE)]


def _line(numbered: NumberedEntry) -> AuditLine:
    entry = numbered.entry
    return AuditLine(
        number=numbered.number,
        at=entry.at // 1_000,
        user=entry.user,
        remote=entry.remote,
        tenant=entry.tenant,
        action=entry.action,
        subject=entry.subject,
        before=_decoded(entry.before),
        after=_decoded(entry.after),
        status=entry.status,
        error=entry.error,
    )


def _bounded(number: int | None, unit: int = 1_000) -> int | None:
    """Return a number of a query, times `unit`, within the numbers of a database."""
    return None if number is None else min(number * unit, (1 << 63) - 1)


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
