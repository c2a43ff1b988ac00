"""Sessions over restarts of a node: restored ones, ended ones, and a medium that cannot be written."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cloud.hub.idempotent_http import KEY, IdempotentRequests
from edge.broker.configuration import AuthenticationMode
from edge.broker.http import rates, session_file, session_keeper
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application, needing
from edge.broker.http.guard import Guard
from edge.broker.http.limits import (
    OIDC_SIGN_IN_S,
    SESSION_CHECK_S,
    SESSION_IDLE_S,
    SESSION_LIFE_S,
    SESSION_STAY_S,
    SESSION_TOUCHES,
    SESSION_UNKNOWN_S,
    SESSIONS_OF_ONE_MAX,
)
from edge.broker.http.oidc_api import BEGIN, CALLBACK
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.http.session_api import session_routes
from edge.broker.http.session_archive import (
    ArchiveFailed,
    IssuerMemory,
    KeptSession,
    SessionArchive,
    seal,
    sealing_key,
    unseal,
)
from edge.broker.http.session_cookie import SessionCookie
from edge.broker.http.session_file import FILE, SessionFile
from edge.broker.http.session_keeper import SessionKeeper
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, CredentialUser, new_user, with_rules, with_secret
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.sign_in import SignedInPerson, SignInFailed, SignInFault
from edge.broker.security.site import Site

UTC_S = 1_800_000_000.0
VIEW = AccessRule(("#",), frozenset({Operation.VIEW}))
MANAGE = AccessRule(("#",), frozenset({Operation.MANAGE}))
ANN = with_secret(new_user("ann", [MANAGE]), "pass-ann", at_s=UTC_S)
BOB = with_secret(new_user("bob", [VIEW]), "pass-bob", at_s=UTC_S)
OPERATOR_TOKEN = "t" * 43
PATH = "/api/v1/session"
PAGE = {"sec-fetch-mode": "cors", "sec-fetch-site": "same-origin"}
"""Fields that a browser adds to a request of a page of this node."""
EVERYBODY = {user.name: user for user in (ANN, BOB)}


class Issuer:
    """Issuer with tokens of five minutes. It renews the person for the newest refresh token only."""

    issuer = "https://id.example"
    code_flow: Issuer | None = None

    def __init__(self, utc_s: Callable[[], float]) -> None:
        self.utc_s = utc_s
        self.renewals = 0
        self.fault: SignInFault | None = None
        self.code_flow = self
        self.configuration = self
        self.begun: tuple[str, ...] = ()
        """Redirect URI, nonce and verifier of the last sign-in, which the issuer compares."""

    async def address(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        self.begun = (redirect_uri, nonce, verifier)
        return f"{self.issuer}/auth?state={state}"

    async def exchange(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> SignedInPerson:
        if (redirect_uri, nonce, verifier) != self.begun:
            raise SignInFailed(SignInFault.CODE, "the code is of another sign-in")
        self.begun = ()
        return self.person()

    def check(self, token: bytes, decided: Any, source: str = "") -> None:
        decided(LoginVerdict.REFUSED, None)

    def person(self) -> SignedInPerson:
        proven = VerifiedIdentity("tim", (VIEW,), self.utc_s() + 300)
        return SignedInPerson(proven, f"refresh {self.renewals}", "id")

    async def renew(self, refresh_token: str) -> SignedInPerson:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise SignInFailed(self.fault, "no")
        if refresh_token != f"refresh {self.renewals}":
            raise SignInFailed(SignInFault.TOKEN, "a refresh token is used once")
        self.renewals += 1
        return self.person()


class World:
    """Time, users and a data directory, for nodes that start and stop."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.now_s = 0.0
        self.users: dict[str, CredentialUser] = dict(EVERYBODY)
        self.mode = AuthenticationMode.STANDARD
        self.token: str | None = OPERATOR_TOKEN
        self.archive: Callable[[], SessionArchive] = partial(SessionFile, data, self.utc_s)
        self.issuer = Issuer(self.utc_s)
        self.jar = httpx.Cookies()
        self.shared = False
        """Several nodes use the archive."""

    def utc_s(self) -> float:
        return UTC_S + self.now_s


class Node:
    """A node of a world from its start to its stop, or its power cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gate = Authenticator(
            world.mode,
            CredentialSnapshot(world.users),
            worker=lambda work, done: done(work()),
            clock=lambda: world.now_s,
            utc_s=world.utc_s,
            bearer=world.issuer if world.mode is AuthenticationMode.EXTERNAL else None,  # type: ignore[arg-type]
        )
        self.access = HttpAccess(
            self.gate, world.token, SessionCookie("gw1"), clock=lambda: world.now_s, utc_s=world.utc_s
        )
        self.keeper: SessionKeeper = self.access.keep_sessions(world.archive, shared=world.shared)
        routes = [
            *session_routes(self.access, utc_s=world.utc_s),
            HttpRoute("/view", needing(self.access.require_view)(self._answer), methods=PURE),
            HttpRoute("/change", needing(self.access.require_manage)(self._answer), methods=("POST",)),
            HttpRoute("/api/v1/change", needing(self.access.require_manage)(self._answer), methods=("POST",)),
        ]
        self.app = Guard(application(routes, self.access), Site(["gw"], exposed=True), lambda: True)

    async def _answer(self, _request: Request) -> Response:
        return JSONResponse({})

    async def __aenter__(self) -> Node:
        self.keeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.close()

    def browser(self, jar: httpx.Cookies | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, client=("10.0.0.7", 4711))
        known = self.world.jar if jar is None else jar
        return httpx.AsyncClient(transport=transport, base_url="http://gw:8080", cookies=known)

    async def sign_in(self, user: str = "ann", jar: httpx.Cookies | None = None, **more: object) -> httpx.Response:
        async with self.browser(jar) as browser:
            body = {"user": user, "password": f"pass-{user}", **more}
            answer = await browser.post(PATH, json=body, headers=PAGE)
            (self.world.jar if jar is None else jar).update(browser.cookies)
            return answer

    async def look(self, jar: httpx.Cookies | None = None, method: str = "GET", path: str = "/view") -> int:
        async with self.browser(jar) as browser:
            return (await browser.request(method, path, headers=PAGE)).status_code

    def show(self, token: str, jar: httpx.Cookies | None = None) -> None:
        """Let a browser show a token: the one of the world unless given."""
        scope = {
            "type": "http",
            "headers": [],
            "scheme": "http",
            "path": "/",
            "query_string": b"",
            "server": ("gw", 80),
        }
        (self.world.jar if jar is None else jar).set(self.access.cookie.name(Request(scope)), token)

    async def settle(self) -> None:
        """Let the keeper write what it has to."""
        await self.keeper._write()


def run(data: Path, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(World(data)))


def test_restart_signs_nobody_out(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            assert (await node.sign_in()).status_code == 200
        for _ in range(3):
            world.now_s += 120
            async with Node(world) as node:
                assert await node.look() == 200
                assert await node.look(method="POST", path="/change") == 200
                assert "ann" not in node.gate.last_logins, "it did not log in again"

    run(tmp_path, test)


def test_file_has_no_token_and_is_private(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in()
        text = (tmp_path / FILE).read_text()
        assert "ann" in text
        assert not [cookie.value for cookie in world.jar.jar if cookie.value in text]
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600

    run(tmp_path, test)


def test_sign_out_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        node = Node(world)  # it is never closed: the power is cut
        node.keeper.start()
        await node.sign_in()
        thief = httpx.Cookies(world.jar)
        assert await node.look(method="DELETE", path=PATH) == 200
        assert json.loads((tmp_path / FILE).read_text()) == []
        async with Node(world) as after:
            assert await after.look(thief) == 401

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda world: world.users.pop("ann"), 401),
        (lambda world: world.users.update(ann=with_secret(new_user("ann", ANN.rules), "new", at_s=UTC_S)), 401),
        (lambda world: world.users.update(ann=with_rules(ANN, [VIEW])), 200),
        (lambda world: setattr(world, "mode", AuthenticationMode.EXTERNAL), 401),
        (lambda world: setattr(world, "now_s", SESSION_IDLE_S), 401),
        (lambda world: setattr(world, "now_s", SESSION_IDLE_S - 1), 200),
        (lambda world: setattr(world, "now_s", -86_400.0), 200),
    ],
    ids=["removed", "other password", "other rights", "other mode", "idle", "nearly idle", "clock set back"],
)
def test_what_changed_while_the_node_was_off(tmp_path: Path, change: Callable[[World], object], status: int) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in()
        change(world)
        async with Node(world) as node:
            assert await node.look() == status
            if world.users.get("ann", ANN).rules != ANN.rules:
                assert await node.look(method="POST", path="/change") == 403, "it has the rights of now"

    run(tmp_path, test)


def test_session_of_a_link_comes_back_while_there_is_an_operator(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            opened = await node.access.open_operator_session()
            assert opened is not None
            node.show(opened.token)
        async with Node(world) as node:
            assert await node.look(method="POST", path="/change") == 200
        world.token = None
        async with Node(world) as node:
            assert await node.look() == 401

    run(tmp_path, test)


def test_no_session_lasts_for_ever(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in(stay=True)
            while world.now_s < SESSION_LIFE_S:
                assert await node.look() == 200
                world.now_s += SESSION_STAY_S / 2
            await node.settle()
            assert await node.look() == 401
        async with Node(world) as node:
            assert await node.look() == 401

    run(tmp_path, test)


def test_use_is_written_some_times_in_an_idle_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []
    whole = session_file.replace_file
    monkeypatch.setattr(session_file, "replace_file", lambda *given: (written.append(0), whole(*given)))

    async def test(world: World) -> None:
        node = Node(world)  # its power is cut
        node.keeper.start()
        await node.sign_in()
        for _ in range(int(2 * SESSION_IDLE_S / 60)):
            world.now_s += 60
            assert await node.look() == 200
            await node.settle()
        assert len(written) <= 1 + 2 * SESSION_TOUCHES
        world.now_s += SESSION_IDLE_S * (1 - 1 / SESSION_TOUCHES) - 61
        async with Node(world) as after:
            assert await after.look() == 200

    run(tmp_path, test)


def test_those_that_made_room_stay_away(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        jars = [httpx.Cookies() for _ in range(SESSIONS_OF_ONE_MAX + 1)]
        async with Node(world) as node:
            for jar in jars:
                world.now_s += 1
                assert (await node.sign_in(jar=jar)).status_code == 200
            assert [await node.look(jar) for jar in jars] == [401, *[200] * SESSIONS_OF_ONE_MAX]
        async with Node(world) as node:
            assert [await node.look(jar) for jar in jars] == [401, *[200] * SESSIONS_OF_ONE_MAX]

    run(tmp_path, test)


def test_revocation_is_written_a_moment_later(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in()
            node.gate.update(CredentialSnapshot({"bob": BOB}))
            assert await node.look() == 401
            await node.settle()
            assert json.loads((tmp_path / FILE).read_text()) == []

    run(tmp_path, test)


def test_full_medium_lets_people_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = session_file.replace_file

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in("bob")
            kept = httpx.Cookies(world.jar)
            monkeypatch.setattr(session_file, "replace_file", full)
            assert (await node.sign_in(jar=httpx.Cookies())).status_code == 200, "it works without being kept"
            assert node.keeper.trouble is not None
            assert "the disk is full: free space there" in node.keeper.trouble
            async with node.browser() as browser:
                answer = await browser.delete(PATH, headers=PAGE)
            assert answer.status_code == 503
            assert "signed out here; but the session is still on disk" in answer.json()["error"]
            assert await node.look(kept) == 401, "it has ended all the same"
            monkeypatch.setattr(session_file, "replace_file", whole)
            await node.settle()
            assert [each["user"] for each in json.loads((tmp_path / FILE).read_text())] == ["ann"], "kept now"
            assert node.keeper.trouble is None

    run(tmp_path, test)


def test_damaged_file_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        (tmp_path / FILE).write_bytes(b'[{"key": 7}]')
        async with Node(world) as node:
            assert (await node.sign_in()).status_code == 200
            assert await node.look() == 200

    run(tmp_path, test)
    assert "is damaged, so people sign in again" in caplog.text


def test_request_on_its_way_brings_no_session_back(tmp_path: Path) -> None:
    """The archive is asked before the sign-out, and answers after it."""

    async def test(world: World) -> None:
        async with Node(world) as node:
            await node.sign_in()
            [session] = node.access.sessions
            [kept] = SessionFile(tmp_path, world.utc_s).all()
            await node.access.end_session(session)
            node.keeper._restore(kept)
            assert await node.look() == 401

    run(tmp_path, test)


class TestSeveralNodes:
    """Nodes with one archive."""

    @staticmethod
    def share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        one = SessionFile(world.data, world.utc_s)
        world.shared = True
        for name in ("SESSION_CHECK_S_MAX", "SESSION_LOOKUP_S_MAX"):
            monkeypatch.setattr(session_keeper, name, 60.0)  # a busy machine is not a silent archive
        world.archive = lambda: one

    def test_accept_each_others_sessions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)
            async with Node(world) as first, Node(world) as second:
                await first.sign_in()
                assert await second.look() == 200
                for _ in range(4):
                    world.now_s += SESSION_IDLE_S / 2
                    assert await first.look() == 200
                    await first.settle()
                assert await second.look() == 200, "it was used at the other one"
                assert await first.look(method="DELETE", path=PATH) == 200
                world.now_s += SESSION_CHECK_S
                assert await second.look() == 401

        run(tmp_path, test)

    def test_finish_sign_ins_that_began_at_another_node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)
            world.mode = AuthenticationMode.EXTERNAL
            async with Node(world) as first, Node(world) as second:
                async with first.browser() as browser:
                    begun = await browser.get(BEGIN, params={"page": "#/fleet", "stay": "1"})
                    [sign_in] = [each for each in begun.headers.get_list("set-cookie") if "-oidc=" in each]
                    assert {"HttpOnly", f"Max-Age={OIDC_SIGN_IN_S:.0f}", "SameSite=lax"} <= set(sign_in.split("; "))
                    cookies = browser.cookies
                answer = f"{CALLBACK}?code=c&{begun.headers['location'].partition('?')[2]}"
                async with second.browser(httpx.Cookies()) as stranger:
                    assert (await stranger.get(answer)).headers["location"] == "/#sign-in=state"
                async with second.browser(cookies) as browser:
                    assert (await browser.get(answer)).headers["location"] == "/#/fleet"
                    assert (await browser.get(answer)).headers["location"] == "/#sign-in=state", "it is forgotten"
                    cookies = browser.cookies
                assert [await node.look(cookies) for node in (first, second)] == [200, 200]

        run(tmp_path, test)

    def test_end_the_sessions_of_a_user_everywhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)
            jars = [httpx.Cookies() for _ in range(2)]
            async with Node(world) as first, Node(world) as second:
                await first.sign_in(jar=jars[0])
                await second.sign_in(jar=jars[1])
                assert await first.access.end_sessions_of("ann") == 2
                world.now_s += SESSION_CHECK_S
                for node in (first, second):
                    assert [await node.look(jar) for jar in jars] == [401, 401]

        run(tmp_path, test)

    def test_unreachable_archive_is_no_sign_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)

            def fail(*_: object) -> None:
                raise ArchiveFailed("the registry cannot be used: connection refused")

            async with Node(world) as first, Node(world) as second:
                stranger = httpx.Cookies()
                second.show("s" * 43, stranger)
                assert await second.look(stranger) == 401, "and it has loaded what is kept"
                await first.sign_in()
                monkeypatch.setattr(SessionFile, "find", fail)
                world.now_s += SESSION_CHECK_S
                assert await first.look() == 200, "known here"
                assert await second.look() == 503
                assert (await second.sign_in(jar=httpx.Cookies(world.jar))).status_code == 200

        run(tmp_path, test)

    def test_session_that_was_not_kept_is_kept_later(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)
            archive, add = world.archive(), SessionFile.add
            monkeypatch.setattr(session_keeper, "SESSION_CHECK_S", 0.001)
            async with Node(world) as first, Node(world) as second:
                monkeypatch.setattr(SessionFile, "add", refuse_connections)
                await first.sign_in()
                assert archive.all() == []
                monkeypatch.setattr(SessionFile, "add", add)
                async with asyncio.timeout(60):
                    while not archive.all():
                        await asyncio.sleep(0.001)
                assert await second.look() == 200

        run(tmp_path, test)

    def test_archive_that_could_not_be_opened_is_no_sign_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(world: World) -> None:
            self.share(world, monkeypatch)
            async with Node(world) as first:
                await first.sign_in()
                world.archive = refuse_connections
                async with Node(world) as second:
                    assert await second.look() == 503

        run(tmp_path, test)


def refuse_connections(*_: object) -> Any:
    raise ArchiveFailed("the registry cannot be used: connection refused")


class SilentArchive(SessionFile):
    """Archive of several nodes that answers its thread only when it is let."""

    def __init__(self, world: World) -> None:
        super().__init__(world.data, world.utc_s)
        world.shared = True
        self.free = threading.Event()
        self.free.set()
        self.fails = False
        self.found = 0
        world.archive = lambda: self

    def find(self, key: bytes) -> KeptSession | None:
        self.found += 1
        assert self.free.wait(10)
        if self.fails:
            raise ArchiveFailed("postgresql://waypost@db.internal cannot be reached")
        return super().find(key)


class TestSilentArchive:
    """A silent archive leaves people who are signed in alone; strangers do not reach it often."""

    def test_pages_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session_keeper, "SESSION_CHECK_S_MAX", 0.01)

        async def test(world: World) -> None:
            archive, jars = SilentArchive(world), [httpx.Cookies() for _ in range(3)]
            async with Node(world) as node:
                for jar in jars:
                    await node.sign_in(jar=jar)
                world.now_s += SESSION_CHECK_S
                archive.free.clear()
                for _ in range(3):
                    assert await asyncio.gather(*(node.look(jar) for jar in jars)) == [200] * 3
                    world.now_s += SESSION_CHECK_S
                while not archive.found:
                    await asyncio.sleep(0.001)
                assert archive.found == 1, "one question at a time"
                archive.fails = True
                archive.free.set()
                while node.keeper.trouble is None:
                    await asyncio.sleep(0.001)
                assert await node.look(jars[1]) == 200
                assert archive.found == 1, "it is left alone after a failure"
                archive.fails = False
                while archive.found == 1:  # a look that meets the end of the failed one asks nothing
                    world.now_s += SESSION_CHECK_S
                    assert await node.look(jars[1]) == 200
                    await asyncio.sleep(0.001)

        run(tmp_path, test)

    def test_reason_of_a_failure_stays(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in()
                archive.free.clear()
                archive.fails = True
                asked = [asyncio.create_task(node.keeper._asked(lambda each: each.find(b""))) for _ in range(2)]
                while not archive.found:
                    await asyncio.sleep(0.001)
                archive.free.set()
                node.keeper._executor.submit(bool).result(60)  # both have failed before the loop knows of one
                await asyncio.wait(asked)
                assert "db.internal" in (node.keeper.trouble or "")
                assert archive.found == 1

        run(tmp_path, test)

    def test_what_waits_behind_a_failure_fails_with_it(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in()
                archive.free.clear()
                archive.fails = True
                jars = [httpx.Cookies() for _ in range(8)]
                for number, jar in enumerate(jars):
                    node.show(f"made up {number}", jar)
                asked = [asyncio.create_task(node.look(jar)) for jar in jars]
                while not archive.found:
                    await asyncio.sleep(0.001)
                archive.free.set()
                assert await asyncio.gather(*asked) == [503] * 8
                assert archive.found == 1
                assert await node.look(jars[0]) == 503
                assert archive.found == 1, "no question for some seconds"

        run(tmp_path, test)

    def test_page_waits_so_long_for_a_lookup(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session_keeper, "SESSION_LOOKUP_S_MAX", 0.01)

        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in()
                archive.free.clear()
                node.show("made up", stranger := httpx.Cookies())
                assert await node.look(stranger) == 503
                archive.free.set()

        run(tmp_path, test)

    def test_asks_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session_keeper, "SESSION_ASKS_MAX", 1)

        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in()
                [session] = node.access.sessions
                archive.free.clear()
                node.show("made up", stranger := httpx.Cookies())
                asked = asyncio.create_task(node.look(stranger))
                while not archive.found:
                    await asyncio.sleep(0.001)
                with pytest.raises(ArchiveFailed, match="too many sessions"):
                    await node.keeper.end(session)
                assert session not in node.access.sessions
                archive.free.set()
                assert await asked == 401

        run(tmp_path, test)

    def test_unknown_session_is_looked_up_once_in_some_seconds(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                node.show("made up")
                for _ in range(3):
                    assert await node.look() == 401
                assert archive.found == 1
                world.now_s += SESSION_UNKNOWN_S
                assert await node.look() == 401
                assert archive.found == 2

        run(tmp_path, test)

    def test_an_address_has_so_many_unknown_sessions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rates, "LOOKUP_LIMIT", rates.RateLimit(1, 2))

        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in(jar=(known := httpx.Cookies()))
                statuses = []
                for number in range(4):
                    node.show(f"made up {number}")
                    statuses.append(await node.look(path="/"))
                assert statuses == [401, 401, 429, 429]
                assert archive.found == 2
                assert await node.look(known) == 200
                assert (await node.sign_in(jar=httpx.Cookies(world.jar))).status_code == 200

        run(tmp_path, test)

    def test_strangers_do_not_read_where_the_registry_is(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            archive = SilentArchive(world)
            async with Node(world) as node:
                await node.sign_in(jar=httpx.Cookies())
                archive.fails = True
                node.show("made up")
                async with node.browser() as browser:
                    answer = await browser.get("/view", headers=PAGE)
                assert answer.status_code == 503
                assert answer.json()["error"] == "your session cannot be looked up now: try again in some seconds"
                assert "db.internal" not in answer.text

        run(tmp_path, test)


class FreshKeys:
    """Keys of requests in a registry: no request was sent before."""

    async def read(self, work: Callable[[Any], object]) -> object:
        return work(SimpleNamespace(request_keys=self))

    def begin(self, *_: object) -> None:
        return None

    def finish(self, *_: object) -> None:
        return None


def test_change_with_a_key_brings_its_session_back(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        SilentArchive(world)
        async with Node(world) as first, Node(world) as second:
            await first.sign_in()
            app = IdempotentRequests(second.app, cast(Any, FreshKeys()), second.access, lambda: 0)
            transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://gw:8080", cookies=world.jar) as browser:
                answer = await browser.post("/api/v1/change", headers={**PAGE, KEY: "one"})
            assert answer.status_code == 200, answer.text

    run(tmp_path, test)


class TestIssuer:
    """Sessions with the rights of a token that has to be renewed."""

    @staticmethod
    async def sign_in(node: Node) -> None:
        person = node.world.issuer.person()
        opened = await node.access.open_session(person.proven, stays=False)
        assert opened is not None
        await node.keeper.keep_renewal(opened.session, person)
        node.show(opened.token)

    @pytest.mark.parametrize(
        ("away_s", "fault", "status", "renewals"),
        [
            (60, None, 200, 0),
            (600, None, 200, 1),
            (600, SignInFault.TOKEN, 401, 0),
            (SESSION_IDLE_S, None, 401, 0),
        ],
        ids=["token still good", "token ended", "person removed", "idle"],
    )
    def test_restart(
        self, tmp_path: Path, away_s: float, fault: SignInFault | None, status: int, renewals: int
    ) -> None:
        async def test(world: World) -> None:
            world.mode = AuthenticationMode.EXTERNAL
            async with Node(world) as node:
                await self.sign_in(node)
                assert await node.look() == 200
            assert "refresh" not in (tmp_path / FILE).read_text()
            world.now_s += away_s
            world.issuer.fault = fault
            async with Node(world) as node:
                assert await asyncio.gather(*(node.look() for _ in range(5))) == [status] * 5
                assert world.issuer.renewals == renewals, "a refresh token is used once"
                for session in node.access.sessions:
                    assert session.id_token == "id"

        run(tmp_path, test)

    def test_other_issuer_restores_nothing(self, tmp_path: Path) -> None:
        async def test(world: World) -> None:
            world.mode = AuthenticationMode.EXTERNAL
            async with Node(world) as node:
                await self.sign_in(node)
            world.issuer.issuer = "https://other.example"
            async with Node(world) as node:
                assert await node.look() == 401

        run(tmp_path, test)


def test_sealed_memory_opens_with_its_token_only() -> None:
    memory = IssuerMemory("refresh", "id")
    sealed = seal(sealing_key("token"), memory)
    assert unseal(sealing_key("token"), sealed) == memory
    assert unseal(sealing_key("other"), sealed) is None
    assert unseal(sealing_key("token"), sealed[:-1]) is None
    assert unseal(sealing_key("token"), b"") is None
    assert b"refresh" not in sealed
