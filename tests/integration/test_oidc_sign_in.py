"""Signing in at a gateway through a real OpenID provider: the code flow with PKCE, and answers of hostile ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.support.configured_gateway import gateway_with, resources
from tests.support.issuer import AUDIENCE, SigningKey
from tests.support.processes import Waypost, wait_until
from tests.support.provider import CLIENT, TestProvider

BEGIN, CALLBACK, SESSION = "/api/v1/session/oidc", "/api/v1/session/oidc/callback", "/api/v1/session"
BROWSERS: list[httpx.Client] = []
"""Browsers of the running test."""
CHROMIUM = shutil.which("chromium")


def gateway_of(folder: Path, provider: TestProvider, **more: str) -> Waypost:
    """Return a gateway where people sign in at this provider."""
    oidc = {"issuer": provider.url, "audience": AUDIENCE, "clientId": CLIENT, **more}
    fields = ", ".join(f'{name}: "{value}"' for name, value in oidc.items())
    return gateway_with(folder, resources(space=f"authenticationService: {{name: external, oidc: {{{fields}}}}}"))


@pytest.fixture(scope="module")
def provider() -> Iterator[TestProvider]:
    with TestProvider() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, provider: TestProvider) -> Iterator[Waypost]:
    with gateway_of(tmp_path_factory.mktemp("gateway"), provider) as running:
        yield running


@pytest.fixture(autouse=True)
def honest(provider: TestProvider) -> Iterator[None]:
    """Let the provider send what is right, until a test changes it; close the browsers of the test."""
    provider.changes, provider.access, provider.opaque, provider.denies, provider.removed = {}, {}, False, False, False
    provider.user, provider.life_s = "ann", 300.0
    yield
    while BROWSERS:
        BROWSERS.pop().close()


class Person:
    """Browser without scripts, with cookies."""

    def __init__(self, gateway: Waypost) -> None:
        self.browser = httpx.Client(base_url=f"http://127.0.0.1:{gateway.port('http')}", timeout=30)
        BROWSERS.append(self.browser)

    def begin(self, **query: str) -> str:
        """Go to the provider; return the address there."""
        answer = self.browser.get(BEGIN, params=query)
        assert answer.status_code == 303
        return answer.headers["location"]

    def answer(self, **query: str) -> str:
        """Sign in at the provider; return the address that it leads back to."""
        return httpx.get(self.begin(**query)).headers["location"]

    def finish(self, address: str) -> str:
        """Come back from the provider; return the address of the page."""
        answer = self.browser.get(address)
        assert answer.status_code == 303
        return answer.headers["location"]

    @property
    def session(self) -> dict[str, Any]:
        found: dict[str, Any] = self.browser.get(SESSION).json()
        return found


def test_person_signs_in_and_has_the_rights_of_the_token(gateway: Waypost, provider: TestProvider) -> None:
    person = Person(gateway)
    assert person.session["methods"] == ["oidc", "token"]
    assert person.session["provider"] == urlsplit(provider.url).netloc
    assert person.finish(person.answer(page="#/devices?show=refused", stay="1")) == "/#/devices?show=refused"
    assert (person.session["user"], person.session["view"], person.session["manage"]) == ("ann", True, True)
    assert person.browser.get("/api/v1/status").status_code == 200
    [form] = provider.forms[-1:]
    assert form["client_id"] == CLIENT
    assert len(form["code_verifier"]) >= 43
    assert person.browser.delete(SESSION, headers={"Origin": str(person.browser.base_url)}).status_code == 200
    assert person.browser.get("/api/v1/status").status_code == 401


def test_request_at_the_provider_has_a_challenge_and_nothing_secret(gateway: Waypost) -> None:
    query = parse_qs(urlsplit(Person(gateway).begin()).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["response_type"] == ["code"]
    assert "code_verifier" not in query
    assert len({query[name][0] for name in ("state", "nonce", "code_challenge")}) == 3


def test_answer_counts_once_and_only_in_its_browser(gateway: Waypost) -> None:
    person, other = Person(gateway), Person(gateway)
    answer = person.answer()
    assert other.finish(answer) == "/#sign-in=state"  # a link that a stranger sends
    assert person.finish(f"{CALLBACK}?code=a&state=b") == "/#sign-in=state", "one that a stranger has made"
    assert person.finish(answer) == "/", "the sign-in went on"
    assert person.finish(answer) == "/#sign-in=state"
    changed = person.answer().replace("state=", "state=x")
    assert person.finish(changed) == "/#sign-in=state"
    assert person.finish(f"{CALLBACK}?code=a&state=b") == "/#sign-in=state"


def test_used_code_of_another_sign_in_is_refused(gateway: Waypost) -> None:
    first, second = Person(gateway), Person(gateway)
    used = first.answer()
    assert first.finish(used) == "/"
    code = parse_qs(urlsplit(used).query)["code"][0]
    fresh = parse_qs(urlsplit(second.begin()).query)["state"][0]
    assert second.finish(f"{CALLBACK}?code={code}&state={fresh}") == "/#sign-in=code"
    assert second.session["user"] is None


def test_code_of_a_stranger_cannot_be_injected(gateway: Waypost, provider: TestProvider) -> None:
    """PKCE: a code works only with the verifier of the sign-in that it was made for."""
    provider.user = "mallory"
    stolen = parse_qs(urlsplit(Person(gateway).answer()).query)["code"][0]
    victim = Person(gateway)
    state = parse_qs(urlsplit(victim.begin()).query)["state"][0]
    assert victim.finish(f"{CALLBACK}?code={stolen}&state={state}") == "/#sign-in=code"
    assert victim.session["user"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "of another sign-in"},
        {"aud": "another client"},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"iss": "https://elsewhere.example"},
        {"exp": 1_000.0},
        {"sub": "someone else"},
    ],
    ids=["nonce", "audience", "authorized party", "issuer", "expired", "subject"],
)
def test_id_token_of_another_sign_in_is_refused(
    gateway: Waypost, provider: TestProvider, changes: dict[str, Any]
) -> None:
    provider.changes = changes
    person = Person(gateway)
    assert person.finish(person.answer()) == "/#sign-in=token"
    assert person.session["user"] is None


def test_tokens_for_another_audience_or_with_a_foreign_key_are_refused(
    gateway: Waypost, provider: TestProvider
) -> None:
    provider.access = {"aud": "another service"}
    person = Person(gateway)
    assert person.finish(person.answer()) == "/#sign-in=token"
    reason = f"no token of the sign-in is for the audience {AUDIENCE}"
    wait_until(lambda: reason in gateway.log.read_text(), timeout_s=60, what="the reason is in the log")
    provider.access, own = {}, provider.keys
    provider.keys = [SigningKey("k1")]  # another key under the known name
    assert person.finish(person.answer()) == "/#sign-in=token"
    provider.keys = own


def test_refusal_at_the_provider_is_said(gateway: Waypost, provider: TestProvider) -> None:
    provider.denies = True
    person = Person(gateway)
    assert person.finish(person.answer()) == "/#sign-in=denied"


@pytest.mark.parametrize(
    "page",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "#javascript:alert(1)", "#/x\r\nSet-Cookie: a=b"],
)
def test_sign_in_leads_to_no_other_site(gateway: Waypost, page: str) -> None:
    person = Person(gateway)
    assert person.finish(person.answer(page=page)) == "/"


def test_pages_of_other_sites_may_lead_to_the_callback_only(gateway: Waypost) -> None:
    person = Person(gateway)
    answer = person.answer()
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    script = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert person.browser.get(answer, headers=script).status_code == 403
    assert person.browser.get("/api/v1/status", headers=link).status_code == 403
    assert person.browser.get(answer, headers=link).headers["location"] == "/"


def test_session_is_renewed_and_ends_with_the_person(gateway: Waypost, provider: TestProvider) -> None:
    provider.life_s = 3.0
    person = Person(gateway)
    assert person.finish(person.answer()) == "/"
    renewals = sum(form["grant_type"] == "refresh_token" for form in provider.forms)
    wait_until(
        lambda: sum(form["grant_type"] == "refresh_token" for form in provider.forms) >= renewals + 3,
        timeout_s=30,
        what="renewals, longer than the life of the first token",
    )
    assert person.session["user"] == "ann"
    provider.removed = True
    wait_until(lambda: person.session["user"] is None, timeout_s=30, what="the end of the session")


def test_secret_of_a_client_and_an_opaque_access_token(tmp_path: Path) -> None:
    with TestProvider(secret="s3cret") as provider:
        provider.opaque, provider.changes = True, {"aud": [CLIENT, AUDIENCE], "scope": "view:#"}
        with gateway_of(tmp_path, provider, clientSecret="s3cret") as running:
            person = Person(running)
            assert person.finish(person.answer()) == "/"
            assert (person.session["view"], person.session["manage"]) == (True, False)
            assert "client_id" not in provider.forms[-1]
            assert "s3cret" not in running.log.read_text()


def test_logout_by_the_issuer_ends_sessions_and_tokens_also_after_a_power_cut(tmp_path: Path) -> None:
    with TestProvider() as provider:
        provider.access = {"sid": "s1"}
        with gateway_of(tmp_path, provider) as running:
            person, other = Person(running), Person(running)
            assert person.finish(person.answer(stay="1")) == "/"
            provider.access = {"sid": "s2"}
            assert other.finish(other.answer(stay="1")) == "/"
            token = provider.token("ann", "view:#", sid="s1")
            shown = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{person.browser.base_url}/api/v1/status", headers=shown).status_code == 200
            forged = provider.token("ann", "view:#", sid="s1")
            assert logged_out(person, forged) == 400, "an access token"
            assert logged_out(person, provider.logout_token(CLIENT, sid="s1")) == 200
            assert person.session["user"] is None
            assert other.session["user"] == "ann"
            assert httpx.get(f"{person.browser.base_url}/api/v1/status", headers=shown).status_code == 401
        with gateway_of(tmp_path, provider) as again:
            root = f"http://127.0.0.1:{again.port('http')}"
            cookies = dict(person.browser.cookies)
            assert httpx.get(f"{root}{SESSION}", cookies=cookies).json()["user"] is None
            assert httpx.get(f"{root}{SESSION}", cookies=dict(other.browser.cookies)).json()["user"] == "ann"
            assert httpx.get(f"{root}/api/v1/status", headers=shown).status_code == 401


def logged_out(person: Person, token: str) -> int:
    """Send a logout as the issuer does; return the status."""
    answer = httpx.post(f"{person.browser.base_url}/api/v1/session/oidc/logout", data={"logout_token": token})
    assert answer.headers["cache-control"] == "no-store"
    return answer.status_code


def test_body_that_is_no_logout_is_refused(gateway: Waypost) -> None:
    address = f"http://127.0.0.1:{gateway.port('http')}/api/v1/session/oidc/logout"
    assert httpx.post(address, json={"logout_token": "x"}).status_code == 415
    for body in (b"", b"logout_token=a&logout_token=b", b"other=x", b"logout_token=%ff", b"\xff", b"&" * 40):
        answer = httpx.post(address, content=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert answer.status_code == 400
    large = httpx.post(address, data={"logout_token": "x" * 20_000})
    assert large.status_code == 413


@pytest.mark.parametrize("where", ["", "/logout", "//evil.example/logout"])
def test_signing_out_leads_to_the_provider_if_it_has_a_way(tmp_path: Path, where: str) -> None:
    with TestProvider() as provider:
        own = f"{provider.url}{where}"
        provider.signs_out_at = f"http:{where}" if where.startswith("//") else own if where else ""
        with gateway_of(tmp_path, provider) as running:
            person = Person(running)
            assert person.finish(person.answer()) == "/"
            assert person.session["sign_out_at"] is None
            root = str(person.browser.base_url)
            answer = person.browser.delete(SESSION, headers={"Origin": root}).json()
            if where != "/logout":
                assert answer["sign_out_at"] is None
                return
            place, _, query = answer["sign_out_at"].partition("?")
            sent = {name: values[0] for name, values in parse_qs(query).items()}
            assert (place, sent["client_id"]) == (own, CLIENT)
            assert sent["post_logout_redirect_uri"] == f"{root.rstrip('/')}/"
            assert sent["id_token_hint"].count(".") == 2
            assert person.browser.delete(SESSION, headers={"Origin": root}).json()["sign_out_at"] is None


def test_provider_that_is_away_is_said(tmp_path: Path) -> None:
    with TestProvider() as provider, gateway_of(tmp_path, provider) as running:
        provider.answering = False
        provider._server.shutdown()
        provider._server.server_close()
        assert Person(running).browser.get(BEGIN).headers["location"] == "/#sign-in=issuer"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_person_signs_in_with_a_browser(gateway: Waypost, provider: TestProvider) -> None:
    base = f"http://127.0.0.1:{gateway.port('http')}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{base}#/system")
        page.get_by_role("link", name="Sign in with").click()
        page.get_by_text("signed in as").first.wait_for(timeout=20_000)
        assert page.url == f"{base}#/system"
        page.get_by_role("link", name="sign out").click()
        provider.denies = True
        page.get_by_role("link", name="Sign in with").click()
        page.get_by_text("The issuer did not let you in").first.wait_for(timeout=20_000)
        browser.close()
