"""People sign in to gateway and hub with a real Keycloak, in Chromium: rights by group, renewal, sign-out, removal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.demo.cluster.realm import PASSWORD, issuer_settings
from tests.support.configured_gateway import gateway_with, resources
from tests.support.enrolled import enrolling_hub
from tests.support.keycloak import TIMEOUT_S, Keycloak
from tests.support.processes import free_port, wait_until

CHROMIUM: Final = shutil.which("chromium")
SHOWN_MS: Final = 60_000
RENEWED_S: Final = 60.0
"""Longest wait for a renewal: the first comes 5 s after the sign-in."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


class Consoles:
    """Keycloak, and the addresses of a gateway's and a hub's console where people sign in with it."""

    def __init__(self, keycloak: Keycloak, roots: dict[str, str]) -> None:
        self.keycloak = keycloak
        self.roots = roots


@pytest.fixture(scope="module")
def consoles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consoles]:
    folder = tmp_path_factory.mktemp("keycloak")
    ports = {"gateway": free_port(), "hub": free_port()}
    roots = {"gateway": f"http://127.0.0.1:{ports['gateway']}/", "hub": f"https://127.0.0.1:{ports['hub']}/"}
    with Keycloak(folder, list(roots.values())) as keycloak:
        oidc = json.dumps(issuer_settings(keycloak.url))
        text = resources(space=f"authenticationService: {{name: external, oidc: {oidc}}}")
        text = text.replace('http: "127.0.0.1:0"', f'http: "127.0.0.1:{ports["gateway"]}"')
        file = folder / "hub.yaml"
        file.write_text(f"{{apiVersion: waypost/v1, kind: Hub, spec: {{oidc: {oidc}}}}}\n")
        hub = enrolling_hub(folder, "--config", str(file), f"--http=127.0.0.1:{ports['hub']}")
        with gateway_with(folder, text), hub:
            yield Consoles(keycloak, roots)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class KeycloakPerson:
    """Person with a browser of its own."""

    def __init__(self, browser: Browser, root: str) -> None:
        self.root = root
        self.page: Page = browser.new_context(ignore_https_errors=True).new_page()

    def sign_in(self, user: str, page: str = "") -> None:
        self.page.goto(f"{self.root}{page}")
        self.to_issuer()
        self.page.fill("#username", user)
        self.page.fill("#password", PASSWORD)
        self.page.click("#kc-login")

    def to_issuer(self) -> None:
        self.page.get_by_role("link", name="Sign in with 127.0.0.1").click(timeout=SHOWN_MS)
        self.page.locator("#username").wait_for(timeout=SHOWN_MS)

    def wait_for(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=SHOWN_MS)

    @property
    def session(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.request.get(f"{self.root}api/v1/session").json()
        return found


@pytest.mark.parametrize("node", ["gateway", "hub"])
def test_rights_come_from_groups_and_signing_out_ends_at_keycloak(
    consoles: Consoles, browser: Browser, node: str
) -> None:
    person = KeycloakPerson(browser, consoles.roots[node])
    person.sign_in("ann@default", "#/system")
    person.wait_for("signed in as")
    assert person.page.url == f"{consoles.roots[node]}#/system"
    session = person.session
    assert (session["user"], session["view"], session["manage"]) == ("ann@default", True, True)
    person.page.get_by_role("link", name="sign out").click()
    person.page.wait_for_url(consoles.roots[node], timeout=SHOWN_MS)
    person.to_issuer()  # Keycloak asks again: its own session has ended too
    viewer = KeycloakPerson(browser, consoles.roots[node])
    viewer.sign_in("bob@default")
    viewer.wait_for("signed in as")
    assert (viewer.session["view"], viewer.session["manage"]) == (True, False)


@pytest.mark.parametrize("node", ["gateway", "hub"])
def test_person_without_a_group_sees_nothing(consoles: Consoles, browser: Browser, node: str) -> None:
    person = KeycloakPerson(browser, consoles.roots[node])
    person.sign_in("eve@default")
    person.page.wait_for_url(f"{consoles.roots[node]}**", timeout=SHOWN_MS)
    assert not person.session["view"]


def test_session_ends_at_once_when_an_administrator_ends_it(consoles: Consoles, browser: Browser) -> None:
    """Keycloak reaches the gateway over plain HTTP; a hub needs its authority in the truststore of Keycloak."""
    person = KeycloakPerson(browser, consoles.roots["gateway"])
    person.sign_in("ann@default")
    person.wait_for("signed in as")
    consoles.keycloak.sign_out("ann@default")
    assert person.session["user"] is None, "Keycloak answers after its clients"


@pytest.mark.parametrize(("node", "user"), [("gateway", "bob@default"), ("hub", "ann@default")])
def test_session_is_renewed_until_the_person_is_removed(
    consoles: Consoles, browser: Browser, node: str, user: str
) -> None:
    person = KeycloakPerson(browser, consoles.roots[node])
    person.sign_in(user)
    person.wait_for("signed in as")
    first = person.session["expires_at"]
    wait_until(lambda: person.session["expires_at"] > first, timeout_s=RENEWED_S, what="a renewal")
    consoles.keycloak.disable(user)
    wait_until(lambda: person.session["user"] is None, timeout_s=RENEWED_S, what="the end at the next renewal")
