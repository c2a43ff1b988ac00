"""Signing in over HTTP: cookies, rights, revocation, throttle, and what other sites cannot do."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.broker.configuration import AuthenticationMode
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application, needing
from edge.broker.http.guard import Guard
from edge.broker.http.limits import (
    API_USER_BURST,
    SESSION_IDLE_S,
    SESSION_LINK_S,
    SESSION_STAY_S,
    SESSIONS_OF_ONE_MAX,
)
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.http.session_api import session_routes
from edge.broker.http.session_cookie import SessionCookie
from edge.broker.model.authorization import AccessRule, Ended, Grant, Operation
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, CredentialUser, end_secrets, new_user, with_secret
from edge.broker.security.limits import FAILURES_PER_USER_MAX
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
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


class TokenIssuer:
    """Accepts the token `good` for an hour."""

    issuer = "https://id.example"
    code_flow = None

    def check(self, token: bytes, decided: Any, source: str = "") -> None:
        if token == b"good":
            decided(LoginVerdict.ACCEPTED, VerifiedIdentity("tim", (VIEW,), UTC_S + 3_600))
        else:
            decided(LoginVerdict.REFUSED, None)


class SessionRig:
    """A node with sessions; the test moves its clock."""

    def __init__(self, mode: AuthenticationMode = AuthenticationMode.STANDARD, *, host: str = "10.0.0.7") -> None:
        self.now = 0.0
        self.host = host
        self.gate = Authenticator(
            mode,
            CredentialSnapshot({user.name: user for user in (ANN, BOB)}),
            worker=lambda work, done: done(work()),
            clock=lambda: self.now,
            utc_s=lambda: UTC_S + self.now,
            bearer=TokenIssuer(),
        )
        self.refused: set[str] = set()
        """Users that are not served."""
        cookie, clock = SessionCookie("gateway", "gw1"), lambda: self.now
        self.access = HttpAccess(self.gate, OPERATOR_TOKEN, cookie, clock=clock, check_grant=self._check)
        self.waiting: asyncio.Future[Ended] | None = None
        manage = needing(self.access.require_manage)
        routes = [
            *session_routes(self.access, utc_s=lambda: UTC_S + self.now),
            HttpRoute("/view", needing(self.access.require_view)(self._answer), methods=PURE),
            HttpRoute("/change", manage(self._answer), methods=("POST", "PUT", "DELETE")),
            HttpRoute("/api/v1/change", manage(self._answer), methods=("GET", "POST", "DELETE")),
            HttpRoute("/wait", self._wait, methods=("GET",)),
        ]
        self.app = Guard(application(routes, self.access), Site(["gw"], exposed=True), lambda: not self.gate.open)

    def _check(self, grant: Grant) -> None:
        if grant.user in self.refused:
            raise RequestRefused(403, "its tenant was removed")

    async def _answer(self, _request: Request) -> Response:
        return JSONResponse({})

    async def _wait(self, request: Request) -> Response:
        async with self.access.admitted(request) as admission:
            self.waiting = admission.ended
            return JSONResponse({"why": (await admission.ended).name})

    def browser(self, base: str = "http://gw:8080", host: str | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, client=(host or self.host, 4711))
        return httpx.AsyncClient(transport=transport, base_url=base)

    def replace(self, *users: CredentialUser) -> None:
        self.gate.update(CredentialSnapshot({user.name: user for user in users}))


async def sign_in(browser: httpx.AsyncClient, user: str = "ann", **more: object) -> httpx.Response:
    return await browser.post(PATH, json={"user": user, "password": f"pass-{user}", **more}, headers=PAGE)


def run(test: Callable[[SessionRig], Coroutine[Any, Any, None]], **rig: Any) -> None:
    async def main() -> None:
        await test(SessionRig(**rig))

    asyncio.run(main())


class TestSigningIn:
    def test_client_that_is_not_served_any_more_is_refused_in_its_session_and_without_one(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser, rig.browser() as other:
                assert (await sign_in(browser)).status_code == 200
                rig.refused.add("ann")
                assert (await browser.get("/view", headers=PAGE)).status_code == 403
                assert (await other.get("/view", auth=("ann", "pass-ann"))).status_code == 403
                rig.refused.clear()
                assert (await browser.get("/view", headers=PAGE)).status_code == 200
                assert rig.gate.connections_of("ann") == 1  # the session: each request has ended

        run(test)

    def test_in_and_out(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                before = (await browser.get(PATH, headers=PAGE)).json()
                assert before == {
                    "user": None, "view": False, "manage": False, "open": False, "secure": False,
                    "methods": ["password"], "provider": None, "expires_at": None, "sign_out_at": None,
                }  # fmt: skip
                assert (await browser.get("/view", headers=PAGE)).status_code == 401
                answer = await sign_in(browser)
                assert answer.status_code == 200
                assert answer.json() == (await browser.get(PATH, headers=PAGE)).json()
                assert answer.json() == {
                    **before, "user": "ann", "view": True, "manage": True, "expires_at": "2027-01-15T08:30:00+00:00",
                }  # fmt: skip
                assert (await browser.get("/view", headers=PAGE)).status_code == 200
                assert (await browser.post("/change", headers=PAGE)).status_code == 200
                assert (await browser.delete(PATH, headers=PAGE)).json() == before
                assert not list(browser.cookies.jar)
                assert (await browser.get("/view", headers=PAGE)).status_code == 401
                assert len(rig.access.sessions) == 0

        with caplog.at_level(logging.INFO):
            run(test)
        said = [record.getMessage() for record in caplog.records if record.name.endswith("session_api")]
        assert said == ["sign-in: user=ann from=10.0.0.7", "sign-out: user=ann from=10.0.0.7"]

    def test_rights_are_those_of_the_user(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                document = (await sign_in(browser, "bob")).json()
                assert (document["view"], document["manage"]) == (True, False)
                assert (await browser.get("/view", headers=PAGE)).status_code == 200
                assert (await browser.post("/change", headers=PAGE)).status_code == 403

        run(test)

    @pytest.mark.parametrize(
        ("content", "status"),
        [
            (b'{"user": "ann", "password": "wrong"}', 401),
            (b'{"user": "eve", "password": "pass-ann"}', 401),
            (b'{"link": "guessed"}', 401),
            (b"{}", 401),
            (b'{"token": "good"}', 401),
            (b'{"user": "ann", "password": "\\ud800"}', 400),
            (b'{"user": "ann", "pass": "pass-ann"}', 400),
            (b'{"user": 7}', 400),
            (b"pass-ann", 400),
            (b'{"user": "ann\\nforged", "password": "x"}', 401),
            (b"x" * 20_000, 413),
        ],
    )
    def test_refused(self, content: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                headers = {**PAGE, "content-type": "application/json"}
                answer = await browser.post(PATH, content=content, headers=headers)
                assert answer.status_code == status, answer.text
                assert "set-cookie" not in answer.headers
                assert "www-authenticate" not in answer.headers, "no prompt of the browser"
                assert "pass-ann" not in answer.text

        with caplog.at_level(logging.INFO):
            run(test)
        lines = [each.getMessage() for each in caplog.records if each.name.endswith("session_api")]
        assert len(lines) == (1 if status == 401 else 0)
        assert all(each.startswith("sign-in refused: user=") and "from=10.0.0.7: " in each for each in lines)
        assert "pass-ann" not in caplog.text
        assert "\nforged" not in caplog.text

    def test_a_form_cannot_sign_in(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                content = b'{"user": "ann", "password": "pass-ann"}'
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
                    answer = await browser.post(PATH, content=content, headers={**PAGE, "content-type": kind})
                    assert answer.status_code == 415
                other = {"content-type": "application/json", "origin": "http://evil.example"}
                assert (await browser.post(PATH, content=content, headers=other)).status_code == 403

        run(test)

    def test_guessing_is_slowed_down(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                for _ in range(FAILURES_PER_USER_MAX):
                    assert (await browser.post(PATH, json={"user": "ann", "password": "x"})).status_code == 401
                answer = await sign_in(browser)
                assert answer.status_code == 429
                assert "retry-after" in answer.headers
                rig.now += 60
                assert (await sign_in(browser)).status_code == 200

        run(test)

    def test_a_second_sign_in_ends_the_first(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                first = dict(browser.cookies)
                await sign_in(browser, "bob")
                assert dict(browser.cookies) != first
                assert [each.user for each in rig.access.sessions] == ["bob"]

        run(test)

    def test_tokens(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                assert (await browser.get(PATH)).json()["methods"] == ["token"]
                assert (await browser.post(PATH, json={"token": "bad"})).status_code == 401
                answer = await browser.post(PATH, json={"token": "good", "stay": True})
                assert answer.json()["user"] == "tim"
                assert answer.json()["expires_at"] == "2027-01-15T09:00:00+00:00", "with the token"
                assert (await browser.get("/view")).status_code == 200
                rig.now += 3_601
                rig.gate.expire()
                assert (await browser.get("/view")).status_code == 401

        run(test, mode=AuthenticationMode.EXTERNAL)

    @pytest.mark.parametrize(("host", "manage"), [("127.0.0.1", True), ("10.0.0.7", False)])
    def test_without_authentication_nobody_signs_in(self, host: str, manage: bool) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                for answer in (await browser.get(PATH), await sign_in(browser), await browser.delete(PATH)):
                    assert answer.json() == {
                        "user": None, "view": True, "manage": manage, "open": True, "secure": manage,
                        "methods": [], "provider": None, "expires_at": None, "sign_out_at": None,
                    }  # fmt: skip
                assert len(rig.access.sessions) == 0

        run(test, mode=AuthenticationMode.NONE, host=host)


class TestCookies:
    @pytest.mark.parametrize(
        ("base", "headers", "encrypted"),
        [
            ("http://gw:8080", {}, False),
            ("https://gw:8443", {}, True),
            ("http://gw:8080", {"x-forwarded-proto": "https", "x-forwarded-for": "10.0.0.9"}, True),
        ],
    )
    def test_attributes(self, base: str, headers: dict[str, str], encrypted: bool) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser(base) as browser:
                content = {"user": "ann", "password": "pass-ann"}
                answer = await browser.post(PATH, json=content, headers=headers)
                assert answer.json()["secure"] is encrypted
                name, *fields = answer.headers["set-cookie"].split("; ")
                prefix, _, token = name.partition("=")
                assert prefix == ("__Host-" if encrypted else "") + "waypost-" + prefix[-8:]
                assert len(token) == 43
                assert sorted(map(str.lower, fields)) == sorted(
                    ["httponly", "path=/", "samesite=strict", *(["secure"] if encrypted else [])]
                )
                stays = await browser.post(PATH, json={**content, "stay": True}, headers=headers)
                assert f"Max-Age={SESSION_STAY_S:.0f}" in stays.headers["set-cookie"]

        run(test)

    def test_nodes_of_one_machine_have_cookies_of_their_own(self) -> None:
        request = Request({"type": "http", "scheme": "https", "headers": [], "server": ("gw", 1), "path": "/"})
        nodes = [("gateway", "gw1"), ("gateway", "gw2"), ("hub", "gw1"), ("gatewayg", "w1")]
        assert len({SessionCookie(*node).name(request) for node in nodes}) == 4

    def test_authorization_wins(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                basic = "Basic " + base64.b64encode(b"bob:pass-bob").decode()
                assert (await browser.get(PATH, headers={"authorization": basic})).json()["user"] == "bob"
                wrong = "Basic " + base64.b64encode(b"bob:x").decode()
                assert (await browser.get("/view", headers={"authorization": wrong})).status_code == 401
                assert (await browser.get(PATH, headers={"authorization": wrong})).json()["user"] is None

        run(test)

    def test_a_cookie_of_the_other_scheme_does_not_count(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser, rig.browser("https://gw:8443") as secure:
                await sign_in(secure)
                ((name, token),) = secure.cookies.items()
                for shown in (name, name.removeprefix("__Host-")):
                    answer = await browser.get("/view", headers={"cookie": f"{shown}={token}"})
                    assert answer.status_code == (401 if shown == name else 200)

        run(test)

    def test_a_cookie_that_stays_is_renewed(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                first = (await sign_in(browser, stay=True)).headers["set-cookie"]
                rig.now += SESSION_STAY_S - 1
                again = await browser.get(PATH, headers=PAGE)
                assert again.headers["set-cookie"] == first
                rig.now += SESSION_STAY_S
                assert (await browser.get(PATH, headers=PAGE)).json()["user"] is None

        run(test)


class TestEnds:
    def test_idle(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                rig.now += SESSION_IDLE_S - 1
                assert (await browser.get("/view")).status_code == 200
                rig.now += SESSION_IDLE_S
                answer = await browser.get("/view", headers=PAGE)
                assert answer.status_code == 401
                assert answer.json()["error"] == Ended.SIGNED_OUT.value
                assert not rig.gate._grants, "the grant is released"

        run(test)

    @pytest.mark.parametrize(
        "users",
        [
            (BOB,),
            (BOB, new_user("ann", [VIEW])),
            (BOB, with_secret(new_user("ann", [MANAGE]), "other", at_s=UTC_S)),
        ],
        ids=["removed", "other rights", "other password"],
    )
    def test_with_the_user(self, users: tuple[CredentialUser, ...]) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser, rig.browser() as other:
                await sign_in(browser)
                await sign_in(other, "bob")
                waiting = asyncio.create_task(browser.get("/wait"))
                while rig.waiting is None:
                    await asyncio.sleep(0)
                rig.replace(*users)
                assert (await waiting).json() == {"why": "CHANGED"}
                assert (await browser.get("/view")).status_code == 401
                assert (await other.get("/view")).status_code == 200, "another user stays"

        run(test)

    def test_a_password_in_overlap_ends_its_sessions_when_it_ends(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as old, rig.browser() as new:
                await sign_in(old, stay=True)
                ann = end_secrets(ANN, UTC_S + 600)
                rig.replace(BOB, with_secret(ann, "pass-new", at_s=UTC_S))
                assert (await old.get(PATH)).json()["expires_at"] == "2027-01-15T08:10:00+00:00"
                await new.post(PATH, json={"user": "ann", "password": "pass-new"})
                rig.now += 601
                rig.gate.expire()
                assert (await old.get("/view")).status_code == 401
                assert (await new.get("/view")).status_code == 200

        run(test)

    def test_a_new_password_while_the_old_is_verified(self) -> None:
        rig = SessionRig()
        proven = VerifiedIdentity("ann", secret="gone")
        assert rig.gate.grant_session(proven, "", lambda _: None) is None

    def test_a_change_of_mode(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                rig.gate.change_mode(AuthenticationMode.EXTERNAL)
                assert len(rig.access.sessions) == 0
                assert (await browser.get("/view")).status_code == 401

        run(test)

    def test_sign_out_ends_requests_in_progress(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                waiting = asyncio.create_task(browser.get("/wait"))
                while rig.waiting is None:
                    await asyncio.sleep(0)
                await browser.delete(PATH, headers=PAGE)
                assert (await waiting).json() == {"why": "SIGNED_OUT"}

        run(test)

    def test_the_longest_unused_of_a_user_makes_room(self) -> None:
        async def test(rig: SessionRig) -> None:
            browsers = [rig.browser() for _ in range(SESSIONS_OF_ONE_MAX + 1)]
            for browser in browsers[:-1]:
                rig.now += 1
                await sign_in(browser)
            rig.now += 1
            await browsers[0].get("/view")
            await sign_in(browsers[-1])
            seen = [(await browser.get("/view")).status_code for browser in browsers]
            assert seen == [200, 401, 200, 200, 200]
            for browser in browsers:
                await browser.aclose()

        run(test)


class TestOtherSites:
    @pytest.mark.parametrize(
        ("headers", "content", "status"),
        [
            ({"sec-fetch-site": "same-origin"}, b"", 200),
            ({"sec-fetch-site": "none"}, b"", 200),
            ({"origin": "http://gw:8080"}, b"", 200),
            ({"origin": "http://gw:8080", "content-type": "application/json; charset=utf-8"}, b"{}", 200),
            ({"origin": "http://gw:8080", "content-type": "application/yaml"}, b"a: 1", 200),
            ({}, b"", 403),
            ({"sec-fetch-site": "same-site"}, b"", 403),
            ({"sec-fetch-site": "cross-site"}, b"", 403),
            ({"origin": "http://gw:9090"}, b"", 403),
            ({"origin": "null"}, b"", 403),
            ({"sec-fetch-site": "same-origin"}, b"x", 415),
            ({"sec-fetch-site": "same-origin", "content-type": "text/plain"}, b"{}", 415),
            ({"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}, b"a=1", 415),
        ],
    )
    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
    def test_changes(self, method: str, headers: dict[str, str], content: bytes, status: int) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                answer = await browser.request(method, "/change", content=content, headers=headers)
                assert answer.status_code == status, answer.text
                basic = {"authorization": "Basic " + base64.b64encode(b"ann:pass-ann").decode()}
                if not headers:
                    answer = await browser.request(method, "/change", content=b"x", headers=basic)
                    assert answer.status_code == 200, "programs send what they like"

        run(test)

    def test_cannot_sign_anybody_out(self) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                await sign_in(browser)
                assert (await browser.delete(PATH, headers={})).status_code == 403
                assert (await browser.get("/view")).status_code == 200

        run(test)


class TestChallenge:
    @pytest.mark.parametrize(
        ("headers", "scheme"),
        [
            ({}, "Basic"),
            ({"sec-fetch-mode": "navigate"}, "Basic"),
            ({"sec-fetch-mode": "cors"}, "Session"),
            ({"sec-fetch-mode": "same-origin"}, "Session"),
            ({"x-requested-with": "waypost"}, "Session"),
            ({"sec-fetch-mode": "cors", "authorization": "Basic eDp5"}, "Session"),
        ],
    )
    def test_pages_show_no_prompt_of_the_browser(self, headers: dict[str, str], scheme: str) -> None:
        async def test(rig: SessionRig) -> None:
            async with rig.browser() as browser:
                for path in ("/view", "/nowhere"):
                    answer = await browser.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"].startswith(f'{scheme} realm="waypost"')

        run(test)


class TestLinks:
    @staticmethod
    async def link(rig: SessionRig, *, host: str = "127.0.0.1", token: str = OPERATOR_TOKEN) -> httpx.Response:
        async with rig.browser(host=host) as program:
            return await program.post(f"{PATH}/link", headers={"authorization": f"Bearer {token}"})

    def test_works_once(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(rig: SessionRig) -> None:
            made = (await self.link(rig)).json()
            assert made["seconds"] == SESSION_LINK_S
            async with rig.browser() as phone, rig.browser() as thief:
                answer = await phone.post(PATH, json={"link": made["code"]}, headers=PAGE)
                assert answer.json()["user"] == "operator"
                assert answer.json()["manage"] is True
                assert (await phone.post("/change", headers=PAGE)).status_code == 200
                assert (await thief.post(PATH, json={"link": made["code"]}, headers=PAGE)).status_code == 401
            assert made["code"] not in caplog.text

        with caplog.at_level(logging.DEBUG, "edge"):
            run(test)

    def test_works_for_a_minute(self) -> None:
        async def test(rig: SessionRig) -> None:
            made = (await self.link(rig)).json()
            rig.now += SESSION_LINK_S
            async with rig.browser() as phone:
                assert (await phone.post(PATH, json={"link": made["code"]}, headers=PAGE)).status_code == 401

        run(test)

    def test_is_for_the_operator_on_the_machine(self) -> None:
        async def test(rig: SessionRig) -> None:
            assert (await self.link(rig, host="10.0.0.7")).status_code == 403
            assert (await self.link(rig, token="x" * 43)).status_code == 403
            async with rig.browser(host="127.0.0.1") as browser:
                await sign_in(browser)
                assert (await browser.post(f"{PATH}/link", headers=PAGE)).status_code == 403, "not for a page"

        run(test)


def test_pages_of_a_user_over_the_limit_wait() -> None:
    async def test(rig: SessionRig) -> None:
        async with rig.browser() as browser:
            await sign_in(browser)
            seen = Counter[int]()
            for _ in range(API_USER_BURST + 1):
                seen[(await browser.get("/api/v1/change", headers=PAGE)).status_code] += 1
            assert seen == {200: API_USER_BURST, 429: 1}
            assert (await browser.get(PATH, headers=PAGE)).json()["user"] == "ann", "it is still signed in"
            rig.now += 1.0
            answer = await browser.get("/api/v1/change", headers=PAGE)
            assert answer.status_code == 200

    run(test)
