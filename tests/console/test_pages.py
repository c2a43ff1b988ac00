"""Every page of both consoles: accessible, within its window, reached by keyboard, silent, and small on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser

from tests.console.apps import APPS, GATEWAY, HOSTILE, ConsoleApp
from tests.console.keyboard import dialog_buttons, faults_of_dialog, unreached
from tests.console.visit import DESKTOP, NARROW, PHONE, visiting
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, free_port, hub, wait_until

FIRST_LOAD_BYTES_MAX: Final = 70_000
SECOND_LOAD_BYTES_MAX: Final = 5_000
"""The page itself, and the API's answers that the overview asks for."""
JSON: Final = {"Content-Type": "application/json"}
ZOOMED: Final = {"viewport": {"width": 640, "height": 450}, "device_scale_factor": 2}
"""Window of a desktop at a zoom of 200 %."""


class Look(NamedTuple):
    """Window and settings of a person."""

    name: str
    options: dict[str, Any]


LIGHT: Final = Look("light", {"viewport": DESKTOP})
DARK_NARROW: Final = Look("dark 320", {"viewport": NARROW, "color_scheme": "dark"})
FORCED: Final = Look("forced colours", {"viewport": DESKTOP, "forced_colors": "active"})
LOOKS: Final = (
    LIGHT,
    Look("dark", {"viewport": DESKTOP, "color_scheme": "dark"}),
    Look("light 390", {"viewport": PHONE}),
    Look("dark 390", {"viewport": PHONE, "color_scheme": "dark"}),
    Look("light 320", {"viewport": NARROW}),
    DARK_NARROW,
    Look("zoom", ZOOMED),
    Look("dark zoom", {**ZOOMED, "color_scheme": "dark"}),
    FORCED,
    Look("dark forced colours", {**FORCED.options, "color_scheme": "dark"}),
    Look("forced colours zoom", {**FORCED.options, **ZOOMED}),
    Look("still", {"viewport": DESKTOP, "reduced_motion": "reduce"}),
)
QUICK: Final = (DARK_NARROW,)
"""Look of every run, with the least contrast and width. Stories of people have the light one; all take minutes."""


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, hub_server: Waypost) -> Iterator[Waypost]:
    """Yield a gateway with an uplink, a queue and names that are meant to break a page."""
    folder = tmp_path_factory.mktemp("gateway")
    options = ("--hub", f"amqp://127.0.0.1:{hub_server.port('amqp')}", "--gateway", "gw1", "--forward", "plant/#")
    with edge(folder, "gw", *options) as server:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=HOSTILE, protocol=paho.MQTTv5)
        client.connect("127.0.0.1", server.port("mqtt"))
        client.loop_start()
        for number in range(20):
            client.publish(f"plant/{HOSTILE}/{number}", b"21.5", qos=1).wait_for_publish(10)
            client.publish(f"queue/{HOSTILE}{number}", b"21.5", qos=1).wait_for_publish(10)
        added = ask(server, "POST", "/api/v1/users", b'{"name": "pump7", "allow": ["send:#"]}', JSON)
        assert added.status == HTTPStatus.OK, added
        yield server
        client.loop_stop()


@pytest.fixture(params=APPS, ids=lambda app: app.name)
def app(request: pytest.FixtureRequest) -> ConsoleApp:
    found: ConsoleApp = request.param
    return found


@pytest.fixture
def base(app: ConsoleApp, gateway: Waypost, hub_server: Waypost) -> str:
    """Return the address of a console."""
    return base_of(gateway if app is GATEWAY else hub_server)


def look_at(browser: Browser, base: str, app: ConsoleApp, look: Look) -> None:
    """Open every page; assert that it fits its window and has no violation."""
    found = {}
    with visiting(browser, base, **look.options) as visit:
        for page in app.addresses:
            visit.open(f"#/{page}")
            wrong = visit.violations()
            if visit.overflow():
                wrong.append(f"wider than its window by {visit.overflow()} pixels")
            if wrong:
                found[page] = wrong
    assert not found, "\n".join(f"{page}: {wrong}" for page, wrong in found.items())


@pytest.mark.parametrize("look", QUICK, ids=lambda look: look.name)
def test_pages_are_accessible_and_fit(browser: Browser, base: str, app: ConsoleApp, look: Look) -> None:
    look_at(browser, base, app, look)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("look", [look for look in LOOKS if look not in QUICK], ids=lambda look: look.name)
def test_pages_are_accessible_in_every_look(browser: Browser, base: str, app: ConsoleApp, look: Look) -> None:
    look_at(browser, base, app, look)


def test_keys_of_pages_are_unique(app: ConsoleApp) -> None:
    keys = [page.key for page in app.pages]
    assert sorted(set(keys)) == sorted(keys)


@pytest.mark.slow
@pytest.mark.parametrize("look", [LIGHT, DARK_NARROW], ids=lambda look: look.name)
def test_keyboard_reaches_everything_and_the_focus_is_seen(
    browser: Browser, base: str, app: ConsoleApp, look: Look
) -> None:
    with visiting(browser, base, **look.options) as visit:
        found = {}
        for page in app.addresses:
            visit.open(f"#/{page}")
            if wrong := unreached(visit.page):
                found[page] = wrong
        assert not found, "\n".join(f"{page}: {wrong}" for page, wrong in found.items())


def test_dialogs_keep_and_return_the_focus(browser: Browser, base: str, app: ConsoleApp) -> None:
    found = {}
    known: set[tuple[str, str]] = set()
    with visiting(browser, base) as visit:
        for page in app.addresses:
            visit.open(f"#/{page}")
            for name in dialog_buttons(visit):
                if (page.partition("?")[0], name) in known:
                    continue
                known.add((page.partition("?")[0], name))
                if wrong := list(faults_of_dialog(visit, name)):
                    found[page, name] = wrong
    assert not found, "\n".join(f"{page}: {wrong}" for page, wrong in found.items())
    assert known


def test_first_and_second_visit_are_small(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open()
        visit.see("Messages a second")
        assert visit.wire_bytes <= FIRST_LOAD_BYTES_MAX
        visit.page.goto("about:blank")
        visit.wire_bytes = 0
        visit.open()
        visit.see("Messages a second")
        assert visit.wire_bytes <= SECOND_LOAD_BYTES_MAX


def test_figures_move_without_a_reload(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open("#/system")
        shown = visit.page.locator("dl.rows").first
        before = shown.inner_text()
        wait_until(lambda: shown.inner_text() != before, timeout_s=60, what="the running time counts")


def test_gateway_that_ends_is_said_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with edge(tmp_path, "gw", "--http", f"127.0.0.1:{free_port()}") as server:
        base = base_of(server)
        with visiting(browser, base) as visit:
            visit.open()
            visit.see("serving")
            server.stop()
            visit.see("does not answer")
            server.start()
            visit.page.locator(".bar .pill.good").wait_for()
            visit.wrong.clear()  # the browser itself reports the requests that failed


def base_of(server: Waypost) -> str:
    return f"http://127.0.0.1:{server.port('http')}/"
