"""Users of one tenant are bounded: it leaves room for the users of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from cloud.hub import users_http
from edge.broker.http.access import HttpAccess
from edge.broker.http.session_archive import ArchiveFailed
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.credentials import CredentialFile, CredentialSnapshot
from edge.broker.security.user_changes import add_user


def test_a_tenant_has_so_many_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_http, "TENANT_USERS_MAX", 2)
    gate = SimpleNamespace(users={}, tokens=False, last_logins={}, connections_of=lambda _: 0)
    file = CredentialFile.open(tmp_path)

    async def change(work: Callable[[CredentialFile], CredentialSnapshot]) -> None:
        await asyncio.sleep(0)  # requests at the same time come here before any is done
        gate.users = dict(work(file).users)

    users = SimpleNamespace(change=change)
    app = Starlette(routes=users_http.user_routes(cast(Any, users), cast(Any, gate), HttpAccess()))

    async def work() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hub") as client:
            names = ("a@south", "b@south", "c@south", "a@north")
            adding = [client.post(users_http.USERS, json={"name": name, "allow": ["view:#"]}) for name in names]
            return list(await asyncio.gather(*adding))

    answers = asyncio.run(work())
    assert [each.status_code for each in answers] == [201, 201, 409, 201]
    assert answers[2].json()["error"] == "tenant south has 2 users, the most that one may have: remove some"
    file.close()


@pytest.mark.parametrize(("method", "path"), [("POST", "/a@south/password"), ("DELETE", "/a@south")])
def test_change_is_answered_though_sessions_cannot_be_removed(tmp_path: Path, method: str, path: str) -> None:
    gate = SimpleNamespace(users={}, tokens=False, last_logins={}, connections_of=lambda _: 0)
    file, access = CredentialFile.open(tmp_path), HttpAccess()
    add_user(file, "a@south", [AccessRule(("#",), frozenset({Operation.VIEW}))], "old")
    gate.users = dict(file.load().users)

    async def change(work: Callable[[CredentialFile], CredentialSnapshot]) -> None:
        gate.users = dict(work(file).users)

    async def end_user(_: str) -> int:
        raise ArchiveFailed("the registry cannot be used")

    access.keeper = cast(Any, SimpleNamespace(end_user=end_user))
    users = SimpleNamespace(change=change)
    app = Starlette(routes=users_http.user_routes(cast(Any, users), cast(Any, gate), access))

    async def work() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://hub") as client:
            body = {"overlap_s": 0} if method == "POST" else None
            return await client.request(method, users_http.USERS + path, json=body)

    answer = asyncio.run(work())
    file.close()
    assert answer.status_code == 200, answer.text
    if method == "POST":
        assert answer.json()["password"], "it is shown only here"
