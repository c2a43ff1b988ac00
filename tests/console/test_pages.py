"""Every page of both consoles: accessible, within its window, silent, and small on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser

from tests.console.visit import NARROW, PHONE, visiting
from tests.support.processes import Waypost, edge, free_port, hub, wait_until

GATEWAY_PAGES = (
    "overview",
    "devices",
    "devices?show=refused",
    "devices?follow=pump7",
    "messages",
    "messages?show=browse&address=%23",
    "messages?show=try",
    "addresses",
    "addresses/plant%2Ftemp",
    "addresses?show=tree",
    "addresses?new=1",
    "bridge",
    "store",
    "configuration",
    "log",
    "log?show=events",
    "users",
    "system",
)
ALERT_PAGES = tuple(f"alerts?show={each}" for each in ("open", "pending", "resolved", "mutes", "rules", "receivers"))
FLEET_PAGES = ("fleet", "fleet?show=all", "enrolment", "configuration", "rollouts", "commands")
GATEWAY_TABS = ("completeness", "configuration", "commands", "history")
LAKE_PAGES = (
    "lake",
    "completeness",
    *(f"analytics?show={each}" for each in ("values", "delivery", "outages", "devices")),
)
ONE_GATEWAY = tuple(f"fleet/default%2Fgw1{tab}" for tab in ("", *(f"?tab={name}" for name in GATEWAY_TABS)))
PEOPLE_PAGES = ("people", "people?show=tenants", "people?show=tenants&tenant=default", "audit")
HUB_PAGES = (*FLEET_PAGES, *ALERT_PAGES, *LAKE_PAGES, *ONE_GATEWAY, *PEOPLE_PAGES, "system")
FIRST_LOAD_BYTES_MAX = 70_000
SECOND_LOAD_BYTES_MAX = 8_000
"""The page itself, and the API's answers that the overview asks for."""
HOSTILE = "<img src=x onerror=alert(1)>\u202etxt"


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
        yield server
        client.loop_stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", GATEWAY_PAGES)
def test_page_of_the_gateway_is_accessible(browser: Browser, gateway: Waypost, page: str, scheme: str) -> None:
    with visiting(browser, base_of(gateway), color_scheme=scheme) as visit:
        visit.open(f"#/{page}")
        assert visit.violations() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", HUB_PAGES)
def test_page_of_the_hub_is_accessible(
    browser: Browser, hub_server: Waypost, gateway: Waypost, page: str, scheme: str
) -> None:
    assert gateway.pid  # the hub knows one
    with visiting(browser, base_of(hub_server), color_scheme=scheme) as visit:
        visit.open(f"#/{page}")
        assert visit.violations() == []


@pytest.mark.parametrize("size", [PHONE, NARROW])
def test_pages_fit_a_phone(browser: Browser, gateway: Waypost, hub_server: Waypost, size: dict[str, int]) -> None:
    for server, pages in ((gateway, GATEWAY_PAGES), (hub_server, HUB_PAGES)):
        with visiting(browser, base_of(server), viewport=size) as visit:
            for page in pages:
                visit.open(f"#/{page}")
                assert visit.overflow() == 0, page
                assert visit.violations() == [], page


def test_pages_work_with_forced_colours_and_large_text(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway), forced_colors="active", viewport={"width": 640, "height": 450}) as visit:
        for page in GATEWAY_PAGES:
            visit.open(f"#/{page}")
            assert visit.overflow() == 0, page


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


def test_names_of_peers_are_shown_as_text(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open("#/addresses")
        visit.see("<img src=x onerror=alert(1)>")
        assert visit.page.locator("main img").count() == 0
        assert "\u202e" not in visit.page.locator("main").inner_text()


def test_figures_move_without_a_reload(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open("#/system")
        shown = visit.page.locator("dl.rows").first
        before = shown.inner_text()
        wait_until(lambda: shown.inner_text() != before, timeout_s=10, what="the running time counts")


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
