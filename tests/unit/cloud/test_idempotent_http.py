"""Requests with an idempotency key: what a repeat is told after a failure of the hub, and during a long request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud.hub.committer import Committer
from cloud.hub.idempotent_http import IdempotentRequests
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.request_keys import RequestKey, RequestKeys
from edge.broker.http.access import HttpAccess
from edge.broker.model.authorization import AccessRule, Grant, Operation

Answer = tuple[int, dict[str, Any]]


class _Access:
    """Admits everybody as one user."""

    def __init__(self) -> None:
        self.rules = (AccessRule(("#",), frozenset({Operation.MANAGE, Operation.VIEW})),)

    async def recover_session(self, _: object) -> None:
        """Find no session."""

    @contextlib.asynccontextmanager
    async def admitted(self, _: object) -> AsyncIterator[tuple[object, None]]:
        yield Grant("ann@acme", "", self.rules), None


class _Keys(RequestKeys):
    """Keys that report each renewal."""

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.renewed = asyncio.Event()

    def renew(self, mine: RequestKey, now_us: int) -> None:
        super().renew(mine, now_us)
        self.renewed.set()


class _Registry:
    """Registry with the interface of a committer."""

    def __init__(self, keys: _Keys) -> None:
        self.request_keys = keys

    async def read(self, look: Callable[[_Registry], Any]) -> Any:
        return look(self)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[_Keys]:
    database = open_registry(sqlite_url(tmp_path / "registry.sqlite")).database
    yield _Keys(database)
    database.close()


class _Hub:
    """The middleware before an application; `now_us` is its clock."""

    def __init__(self, keys: _Keys, app: ASGIApp) -> None:
        self.now_us = 5
        self.access = _Access()
        registry, access = cast(Committer, _Registry(keys)), cast(HttpAccess, self.access)
        self._requests = IdempotentRequests(app, registry, access, lambda: self.now_us)

    async def post(self) -> Answer:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: Message) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k1")]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/users", "query_string": b"", "headers": headers}
        await self._requests(scope, receive, send)
        return sent[0]["status"], msgspec.json.decode(b"".join(each.get("body", b"") for each in sent[1:]))


def _answers(*statuses: int) -> ASGIApp:
    """Return an application that gives these answers one after the other."""
    left = iter(statuses)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"done": True}, next(left))(scope, receive, send)

    return app


def test_repeat_after_a_failure_is_told_at_once_that_the_outcome_is_unknown(keys: _Keys) -> None:
    hub = _Hub(keys, _answers(503, 201))

    async def twice() -> tuple[Answer, Answer]:
        return await hub.post(), await hub.post()

    (first, _), (status, problem) = asyncio.run(twice())
    assert (first, status, problem["code"]) == (503, 409, "outcome-unknown")


def test_repeat_after_an_internal_error_is_told_that_the_outcome_is_unknown(keys: _Keys) -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ZeroDivisionError

    hub = _Hub(keys, app)

    async def twice() -> Answer:
        with pytest.raises(ZeroDivisionError):
            await hub.post()
        return await hub.post()

    status, problem = asyncio.run(twice())
    assert (status, problem["code"]) == (409, "outcome-unknown")


def test_repeat_after_a_refusal_is_done(keys: _Keys) -> None:
    hub = _Hub(keys, _answers(400, 201))

    async def thrice() -> list[Answer]:
        return [await hub.post() for _ in range(3)]

    assert [status for status, _ in asyncio.run(thrice())] == [400, 201, 201]


def test_answer_is_not_repeated_to_a_user_with_other_rights(keys: _Keys) -> None:
    hub = _Hub(keys, _answers(201))

    async def thrice() -> list[Answer]:
        found, before = [await hub.post()], hub.access.rules
        hub.access.rules = (AccessRule(("#",), frozenset({Operation.VIEW})),)
        found.append(await hub.post())
        hub.access.rules = before
        return [*found, await hub.post()]

    first, second, third = asyncio.run(thrice())
    assert (first, third) == ((201, {"done": True}), first)
    assert (second[0], second[1]["code"]) == (403, "rights-changed")


def test_answer_of_an_older_version_is_repeated(keys: _Keys) -> None:
    hub = _Hub(keys, _answers(201))
    begin = keys.begin

    def as_before(mine: RequestKey, digest: str, now_us: int) -> Any:
        return begin(mine, digest[:48] + "0" * 16, now_us)

    async def twice() -> list[Answer]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keys, "begin", as_before)
            first = await hub.post()
        return [first, await hub.post()]

    assert asyncio.run(twice()) == [(201, {"done": True})] * 2


def test_long_request_is_still_being_done(keys: _Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.idempotent_http.REQUEST_IN_PROGRESS_S", 0.03)
    repeated: list[Answer] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        hub.now_us += 3_600_000_000  # it takes an hour
        await keys.renewed.wait()
        repeated.append(await hub.post())
        await JSONResponse({}, 201)(scope, receive, send)

    hub = _Hub(keys, app)
    first = asyncio.run(hub.post())
    assert first[0] == 201
    assert [(status, problem["code"]) for status, problem in repeated] == [(409, "conflict")]
