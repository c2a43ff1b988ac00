"""Both consoles in Firefox: sign-in, every page, live figures, and the story of a refused device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console import gold_world
from tests.console.apps import GATEWAY, HUB
from tests.console.firefox import FirefoxPage, firefox_page
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.http_client import ask
from tests.support.processes import Waypost, hub

PROGRAM = shutil.which("firefox-esr") or shutil.which("firefox")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROGRAM is None, reason="firefox-esr is not installed (Debian package firefox-esr)"),
]

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SETTLED = "document.querySelector('.frame main .panel')"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[FirefoxPage]:
    assert PROGRAM is not None
    with firefox_page(PROGRAM, tmp_path / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    people = user("boss", "manage, recv, send") + user("pump7", "send, recv")
    with gateway_with(tmp_path_factory.mktemp("gateway"), resources(people)) as running:
        yield running


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp("hub")
    with hub(folder) as running:
        gold_world.fill(folder / "hub" / "lake")
        yield running


def base_of(server: Waypost) -> str:
    return f"http://127.0.0.1:{server.port('http')}/"


def sign_in(page: FirefoxPage, server: Waypost) -> None:
    page.goto(base_of(server))
    page.type("input[name=user]", "boss")
    page.type("input[name=password]", "boss")
    page.click("button", "Sign in")
    page.see("Messages a second")


def open_page(page: FirefoxPage, address: str) -> None:
    """Open a page of the console; assert that it fits its window."""
    page.value(f"location.hash = {json.dumps(f'#/{address}')}")
    page.wait_for(SETTLED)
    assert page.value(OVERFLOW) == 0, address


def test_person_signs_in_sees_every_page_and_live_figures(page: FirefoxPage, gateway: Waypost) -> None:
    sign_in(page, gateway)
    for each in GATEWAY.pages:
        open_page(page, each.name)
    open_page(page, "system")
    shown = "document.querySelector('dl.rows').innerText"
    before = page.value(shown)
    page.wait_for(f"{shown} !== {json.dumps(before)}")


def test_pages_of_the_hub_open(page: FirefoxPage, hub_server: Waypost) -> None:
    page.goto(base_of(hub_server))
    for each in HUB.pages:
        open_page(page, each.name)
    open_page(page, "analytics")
    page.see("temperature")


def test_refused_device_gets_a_new_password(page: FirefoxPage, gateway: Waypost) -> None:
    boss = basic("boss", "boss") | {"Content-Type": "application/json"}
    added = ask(gateway, "POST", "/api/v1/users", b'{"name": "pump8", "allow": ["send:plant/#"]}', boss)
    assert added.status == 200, added
    assert ask(gateway, "POST", "/t/plant/pump8", b"1", basic("pump8", "wrong")).status == 401
    sign_in(page, gateway)
    open_page(page, "devices?show=refused")
    page.see("pump8")
    page.click("button", "New password…")
    page.click("button", "Make a new password")
    page.wait_for("document.querySelector('[data-password]')")
    password = page.value("document.querySelector('[data-password]').innerText")
    assert ask(gateway, "POST", "/t/plant/pump8", b"1", basic("pump8", password)).status == 202
