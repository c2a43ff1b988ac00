"""Errors of the HTTP APIs are problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import tomllib

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from docs.generate import errors, source
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application
from edge.broker.http.refusal import PROBLEM, RequestRefused
from edge.broker.http.route import HttpRoute
from edge.output.http_errors import code_of_status, words_of
from edge.remote.client import _problem_in

FIELDS = {"type", "title", "status", "detail", "code", "next_step", "error"}
DESCRIBED = tomllib.loads((source.ROOT / errors.FILE).read_text())


async def fail(_request: Request) -> Response:
    raise KeyError("password of anna")


async def refuse(_request: Request) -> Response:
    why = RequestRefused(409, "anna exists", {"Allow": "GET"}, code="user-exists", next_step="choose another name")
    return why.response(known=["anna"])


def send(method: str, path: str) -> httpx.Response:
    """Send a request to an application with the two endpoints."""
    routes = [HttpRoute("/fail", fail, methods=("GET",)), HttpRoute("/refuse", refuse, methods=("POST",))]
    transport = httpx.ASGITransport(app=application(routes, HttpAccess()), raise_app_exceptions=False)

    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            return await client.request(method, path)

    return asyncio.run(sent())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("GET", "/refuse", 405, "wrong-method"),
        ("GET", "/fail", 500, "server-failed"),
    ],
)
def test_errors_of_the_application_are_problems(method: str, path: str, status: int, code: str) -> None:
    answer = send(method, path)
    found = answer.json()
    assert (answer.status_code, answer.headers["content-type"], set(found)) == (status, PROBLEM, FIELDS)
    assert (found["status"], found["code"], found["type"]) == (status, code, f"urn:waypost:error:{code}")
    assert all(found[name] for name in ("title", "detail", "next_step"))
    assert "anna" not in answer.text


def test_error_has_its_own_code_next_step_and_fields() -> None:
    answer = send("POST", "/refuse")
    found = answer.json()
    assert (answer.status_code, answer.headers["allow"], set(found)) == (409, "GET", {*FIELDS, "known"})
    assert (found["detail"], found["next_step"], found["code"]) == ("anna exists", "choose another name", "user-exists")
    assert found["error"] == "anna exists: choose another name"


@pytest.mark.parametrize("status", [429, 503])
def test_busy_node_says_when_to_try_again(status: int) -> None:
    answer = RequestRefused(status, "busy").response()
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("status", range(400, 512))
def test_every_status_has_a_described_code(status: int) -> None:
    code = code_of_status(status)
    assert code in DESCRIBED, f"describe {code} in {errors.FILE}"
    assert all(words_of(code, status))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"detail": "a", "next_step": "b", "code": "no-right", "error": "a: b"}', ("a", "b", "no-right")),
        (b'{"detail": "a", "code": "\\u001b[31m"}', ("a", "", "")),
        (b'{"error": "of an earlier version"}', ("of an earlier version", "", "")),
        (b"<html>", ("", "", "")),
        (b"[]", ("", "", "")),
    ],
)
def test_commands_read_problems_of_any_version(body: bytes, wanted: tuple[str, str, str]) -> None:
    assert tuple(_problem_in(body)) == wanted
