"""Lines of the audit for requests: which have one, and with what."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloud.hub.audit_trail import AuditTrail, HubAudit
from cloud.hub.changes import CHANGE, NotedChange
from cloud.hub.registry.audit import AuditEntry
from edge.broker.http.access import USER, HttpAccess
from edge.broker.http.oidc_api import BEGIN, CALLBACK
from edge.broker.http.session_api import PATH as SESSION


class Trail:
    """Trail in front of an endpoint. It keeps the lines."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.lines: list[AuditEntry] = []
        self.now_us = 0
        self._access = cast(HttpAccess, SimpleNamespace(open=is_open))

    async def record(self, entry: AuditEntry) -> None:
        self.lines.append(entry)

    def send(
        self, method: str, path: str, *, user: str | None = None, status: int = 200, change: NotedChange | None = None,
        query: str = "", fails: bool = False,
    ) -> None:  # fmt: skip
        """Send one request, which the endpoint answers for this user."""
        sent: list[Any] = []

        async def endpoint(scope: Any, _receive: Any, send: Any) -> None:
            if user is not None:
                scope[USER] = user
            if change is not None:
                scope[CHANGE] = change
            if fails:
                raise RuntimeError
            await send({"type": "http.response.start", "status": status})

        async def send(message: Any) -> None:
            assert self.lines or not recorded, "the line is written before the answer leaves"
            sent.append(message)

        recorded = change is not None and user is not None
        audit = cast(HubAudit, SimpleNamespace(record=self.record, put=self.lines.append, now_us=lambda: self.now_us))
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "client": ("10.0.0.7", 1),
        }  # fmt: skip
        asyncio.run(AuditTrail(endpoint, audit, self._access)(scope, cast(Any, None), send))


@pytest.mark.parametrize("place", [("POST", SESSION), ("GET", CALLBACK)])
def test_sign_in_has_a_line(place: tuple[str, str]) -> None:
    trail = Trail()
    trail.send(*place, user="anna@acme", status=303)
    [line] = trail.lines
    assert (line.action, line.user, line.remote, line.tenant) == ("session.open", "anna@acme", "10.0.0.7", "acme")


def test_failed_sign_in_and_reads_have_none() -> None:
    trail = Trail()
    trail.send("GET", CALLBACK, status=303)
    trail.send("POST", SESSION, status=401)
    trail.send("GET", BEGIN, user="anna@acme", status=303)
    trail.send("GET", "/api/v1/status", user="anna@acme")
    trail.send("POST", "/api/v1/plans", user="anna@acme")
    trail.send("POST", "/api/v1/tokens", change=NotedChange("token.create"), status=401)
    assert trail.lines == []


def test_tenant_is_that_of_the_change_or_the_user() -> None:
    trail = Trail()
    path = "/api/v1/tokens"
    trail.send("POST", path, user="anna@acme", change=NotedChange("a.b", tenant="named"), query="tenant=asked")
    trail.send("POST", path, user="anna@acme", change=NotedChange("a.b"), query="tenant=asked")
    trail.send("POST", path, user="anna@acme", change=NotedChange("a.b"))
    trail.send("POST", path, user="operator", change=NotedChange("a.b"))
    trail.send("POST", path, user="anna@acme", change=NotedChange("a.b"), query="tenant=asked", status=403)
    assert [each.tenant for each in trail.lines] == ["named", "acme", "acme", "default", "acme"]


def test_equal_refusals_have_one_line_in_ten_seconds() -> None:
    trail = Trail()
    access, audit = cast(Any, SimpleNamespace(open=False)), cast(Any, SimpleNamespace(record=trail.record))
    now_us = 0
    audit.now_us = lambda: now_us

    async def endpoint(scope: Any, _receive: Any, send: Any) -> None:
        scope[USER], scope[CHANGE] = "anna@acme", NotedChange("token.create", error="no right")
        await send({"type": "http.response.start", "status": 403})

    async def send(_message: Any) -> None:
        pass

    tested = AuditTrail(endpoint, audit, access)
    for now_us in (0, 1, 9_999_999, 10_000_000):  # noqa: B007 - read by the clock
        scope = {"type": "http", "method": "POST", "path": "/api/v1/tokens", "query_string": b""}
        asyncio.run(tested(scope, cast(Any, None), send))
    assert [each.at for each in trail.lines] == [0, 10_000_000]


def test_equal_sign_ins_have_one_line_a_minute() -> None:
    trail = Trail()
    access, audit = cast(Any, SimpleNamespace(open=False)), cast(Any, SimpleNamespace(record=trail.record))
    now_us, user = 0, ""
    audit.now_us = lambda: now_us

    async def endpoint(scope: Any, _receive: Any, send: Any) -> None:
        scope[USER] = user
        await send({"type": "http.response.start", "status": 200})

    async def send(_message: Any) -> None:
        pass

    tested = AuditTrail(endpoint, audit, access)
    for now_us, method, user, host in (  # noqa: B007 - read by the clock and the endpoint
        (0, "POST", "anna@acme", "10.0.0.7"),
        (1, "DELETE", "anna@acme", "10.0.0.7"),
        (2, "POST", "anna@acme", "10.0.0.7"),
        (3, "DELETE", "anna@acme", "10.0.0.7"),
        (4, "POST", "bob@acme", "10.0.0.7"),
        (5, "POST", "anna@acme", "2001:db8::1"),
        (6, "POST", "anna@acme", "2001:db8::2"),
        (60_000_000, "POST", "anna@acme", "10.0.0.7"),
    ):
        scope = {"type": "http", "method": method, "path": SESSION, "query_string": b"", "client": (host, 1)}
        asyncio.run(tested(scope, cast(Any, None), send))
    assert [each.at for each in trail.lines] == [0, 1, 4, 5, 60_000_000]


def test_a_change_to_what_was_there_has_no_line() -> None:
    trail, path = Trail(), "/api/v1/users/bob/rights"
    same = NotedChange("user.rights", before={"allow": ["view:#"]}, after={"allow": ["view:#"]})
    trail.send("PUT", path, user="anna@acme", change=same, status=403)
    trail.send("PUT", path, user="anna@acme", change=same)
    trail.send("PUT", path, user="anna@acme", change=NotedChange("user.password"))
    assert [each.status for each in trail.lines] == [403, 200]


def test_large_values_are_left_out_and_a_failure_is_told() -> None:
    trail = Trail()
    change = NotedChange("gateway.label", subject="hall", after={"x": "y" * 3_000})
    with pytest.raises(RuntimeError):
        trail.send("PATCH", "/api/v1/labels/hall", user="anna@acme", change=change, fails=True)
    [line] = trail.lines
    assert (line.after, line.status) == ('{"left_out":true}', 500)
    assert "may have been made" in line.error


def test_without_authentication_changes_have_a_line_without_a_user() -> None:
    trail = Trail(is_open=True)
    trail.send("POST", "/api/v1/commands", change=NotedChange("command.send"))
    assert [each.user for each in trail.lines] == [""]
