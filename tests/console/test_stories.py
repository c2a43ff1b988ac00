"""Stories of people at the consoles, from sign-in to the cause of a refused device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser

from tests.console import gold_world
from tests.console.visit import PHONE, Clicks, Visit, sign_in_link, visiting
from tests.fault.hostile.web import gateway_of
from tests.support.command import output_of
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.hostile import Raw
from tests.support.http_client import ask, status
from tests.support.processes import Waypost, edge, hub, wait_until

CLICKS_TO_A_CAUSE_MAX = 1
USERS = "".join((user("viewer", "view"), user("boss", "manage"), user("pump7", "send, recv")))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a gateway with users."""
    with gateway_with(tmp_path_factory.mktemp("guarded"), gateway_of(extra=USERS)) as running:
        yield running


def base_of(server: Waypost) -> str:
    return f"http://127.0.0.1:{server.port('http')}/"


def test_person_signs_in_looks_and_signs_out(browser: Browser, guarded: Waypost) -> None:
    with visiting(browser, base_of(guarded)) as visit:
        page = visit.page
        page.goto(visit.base)
        page.get_by_label("User").fill("viewer")
        page.get_by_label("Password", exact=True).fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        assert visit.violations() == []
        page.get_by_label("Password", exact=True).fill("viewer")
        page.get_by_role("button", name="Sign in").click()
        visit.see("Messages a second")
        page.reload()
        visit.see("signed in as")
        page.get_by_role("link", name="sign out").click()
        page.get_by_role("button", name="Sign in").wait_for()
        visit.wrong.clear()  # the browser itself reports the refused sign-in


def test_signing_out_in_one_tab_ends_the_other(browser: Browser, guarded: Waypost) -> None:
    with visiting(browser, base_of(guarded)) as visit:
        visit.page.goto(visit.base)
        visit.page.get_by_label("User").fill("viewer")
        visit.page.get_by_label("Password", exact=True).fill("viewer")
        visit.page.get_by_role("button", name="Sign in").click()
        visit.see("Messages a second")
        other = visit.page.context.new_page()
        other.goto(visit.base)
        other.get_by_text("Messages a second").first.wait_for()
        other.get_by_role("link", name="sign out").click()
        visit.page.get_by_role("button", name="Sign in").wait_for()
        visit.wrong.clear()  # requests of the ended session


def test_link_of_the_machine_signs_in_once_on_a_phone(browser: Browser, guarded: Waypost) -> None:
    link = base_of(guarded) + sign_in_link(guarded)
    with visiting(browser, base_of(guarded), viewport=PHONE) as visit:
        visit.page.goto(link)
        visit.see("Messages a second")
        assert "link=" not in visit.page.url
    with visiting(browser, base_of(guarded)) as visit:
        visit.page.goto(link)
        visit.page.get_by_role("button", name="Sign in").wait_for()
        visit.wrong.clear()


def test_technician_on_a_ladder_sees_that_nothing_is_lost_and_that_the_device_is_there(
    browser: Browser, guarded: Waypost
) -> None:
    """A phone and one hand: the state of the hub without a tap, the device with one."""
    phone = visiting(browser, base_of(guarded), viewport=PHONE, has_touch=True)
    with Raw(guarded).connect("pump9-id", username="pump7", password=b"pump7"), phone as visit:
        visit.page.goto(visit.base + sign_in_link(guarded))
        visit.see("The hub has not answered")
        visit.see("Nothing is lost:")
        clicks = Clicks(visit)
        clicks.on(visit.page.get_by_role("navigation", name="Pages of the phone").get_by_text("Devices"))
        row = visit.page.get_by_role("row").filter(has_text="pump9-id")
        row.wait_for()
        assert "connected" in row.inner_text()
        assert clicks.count == 1
        assert (visit.overflow(), visit.violations()) == (0, [])


def test_refused_device_is_seen_with_its_reason_at_once(browser: Browser, guarded: Waypost) -> None:
    for _ in range(3):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump7-id", protocol=paho.MQTTv5)
        client.username_pw_set("pump7", "wrong")
        client.connect("127.0.0.1", guarded.port("mqtt"))
        client.loop_start()
        time.sleep(0.2)
        client.loop_stop()
    with visiting(browser, base_of(guarded)) as visit:
        visit.page.goto(visit.base)
        visit.page.get_by_label("User").fill("viewer")
        visit.page.get_by_label("Password", exact=True).fill("viewer")
        visit.page.get_by_role("button", name="Sign in").click()
        visit.see("Messages a second")
        clicks = Clicks(visit)
        clicks.on(visit.page.locator("dt", has_text="refused since the start").locator("+ dd a"))
        row = visit.page.get_by_role("row").filter(has_text="pump7")
        row.first.wait_for()
        assert clicks.count <= CLICKS_TO_A_CAUSE_MAX
        assert "password" in row.first.inner_text().lower()
        assert "Next:" in row.first.inner_text()
        assert visit.violations() == []


def test_connected_device_is_shown_and_disconnected(browser: Browser, guarded: Waypost, tmp_path: Path) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump7-id", protocol=paho.MQTTv5)
    client.username_pw_set("pump7", "pump7")
    gone: list[object] = []
    client.on_disconnect = lambda *found: gone.append(found)
    client.connect("127.0.0.1", guarded.port("mqtt"))
    client.loop_start()
    try:
        with visiting(browser, base_of(guarded)) as visit:
            page = visit.page
            page.goto(visit.base)
            page.get_by_label("User").fill("boss")
            page.get_by_label("Password", exact=True).fill("boss")
            page.get_by_role("button", name="Sign in").click()
            visit.see("Messages a second")
            visit.open("#/devices")
            page.get_by_role("link", name="pump7-id").first.click()
            page.get_by_role("button", name="Disconnect").click()
            page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
            deadline = time.monotonic() + 20
            while not gone and time.monotonic() < deadline:
                page.wait_for_timeout(100)
            assert gone
            visit.wrong.clear()  # the page asks for the client, which had no session and is not known any more
    finally:
        client.loop_stop()


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a hub with tables of analytics."""
    with hub(tmp_path_factory.mktemp("analysed")) as running:
        gold_world.fill(running.data / "lake")
        yield running


def test_analyst_finds_an_unusual_value_and_shares_the_chart(browser: Browser, analysed: Waypost) -> None:
    with visiting(browser, base_of(analysed)) as visit:
        visit.open("#/analytics")
        visit.see(gold_world.HOSTILE[:28])  # a name of a device is text
        visit.page.get_by_role("link", name="temperature").click()
        visit.see("2 unusual values")
        row = visit.page.get_by_role("row").filter(has_text="spike").first
        assert "34.5" in row.inner_text()
        assert "21.3" in row.inner_text()
        visit.page.get_by_role("button", name="24 h").click()
        visit.see("0 unusual values")
        address = visit.page.url
        with visit.page.expect_download() as download:
            visit.page.get_by_role("link", name="CSV").click()
        assert download.value.suggested_filename == "rollup_1m.csv"
        assert visit.violations() == []
    with visiting(browser, base_of(analysed)) as visit:
        visit.page.goto(address)  # another person opens the link
        visit.see("0 unusual values")


def test_alert_is_muted_with_a_reason(browser: Browser, analysed: Waypost, tmp_path: Path) -> None:
    """Three clicks: the alert, Mute, and Mute below the reason."""
    options = ("--hub", f"amqp://127.0.0.1:{analysed.port('amqp')}", "--gateway", "hall", "--forward", "plant/#")
    with edge(tmp_path, "gw", *options):
        wait_until(lambda: status(analysed)["gateways"]["connected"] == 1, timeout_s=60, what="it is connected")
    wait_until(lambda: status(analysed)["gateways"]["connected"] == 0, timeout_s=60, what="it is gone")
    rule = "/api/v1/alert-rules/WaypostUplinkAway"
    assert ask(analysed, "PATCH", rule, b'{"for_s": 0}').status == HTTPStatus.OK
    with visiting(browser, base_of(analysed)) as visit:
        page, clicks = visit.page, Clicks(visit)
        visit.open("#/alerts")
        alert = page.get_by_role("link", name="it is not connected").first
        alert.wait_for(timeout=60_000)
        clicks.on(alert)
        clicks.button("Mute…")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("works on the mast")
        assert visit.violations() == []
        clicks.on(dialog.get_by_role("button", name="Mute", exact=True))
        page.get_by_text("muted until").first.wait_for(timeout=60_000)
        assert clicks.count == 3
        visit.open("#/alerts?show=mutes")
        visit.see("works on the mast")
        assert visit.violations() == []


def test_incomplete_day_is_seen_with_its_range_and_gateway(browser: Browser, analysed: Waypost) -> None:
    with visiting(browser, base_of(analysed)) as visit:
        visit.open("#/completeness")
        visit.see("99.97 %")
        row = visit.page.get_by_role("row").filter(has_text="106")
        row.wait_for()
        assert "7" in row.inner_text()
        assert visit.violations() == []


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a gateway with people, a device made by hand, and a queue with dead letters."""
    jobs = """
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, deadletter: dead}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead, type: deadletter}}
"""
    users = "".join((user("boss", "manage, recv, send"), user("machine", "send, recv")))
    with gateway_with(tmp_path_factory.mktemp("workshop"), resources(jobs, users)) as running:
        yield running


def sign_in(visit: Visit, name: str) -> None:
    visit.page.goto(visit.base)
    visit.page.get_by_label("User").fill(name)
    visit.page.get_by_label("Password", exact=True).fill(name)
    visit.page.get_by_role("button", name="Sign in").click()
    visit.see("Messages a second")


def test_refused_device_gets_a_new_password_then_a_right_and_its_message_arrives(
    browser: Browser, workshop: Waypost
) -> None:
    """Three clicks to a new password, with which it connects; two to the missing right."""
    output_of("user", "add", "pump8", "--allow", "send:plant/%u/#", "--data", str(workshop.data))
    with Raw(workshop) as device, pytest.raises(AssertionError):
        device.connect("pump8", username="pump8", password=b"wrong")
    with visiting(browser, base_of(workshop)) as visit:
        page = visit.page
        sign_in(visit, "boss")
        visit.open("#/devices?show=refused")
        clicks = Clicks(visit)
        clicks.on(page.get_by_role("row").filter(has_text="pump8").get_by_role("button", name="New password"))
        clicks.button("Make a new password")
        password = page.locator("[data-password]").inner_text()
        assert visit.violations() == []
        clicks.button("Done")
        assert clicks.count == 3
        Raw(workshop).connect("pump8", username="pump8", password=password.encode()).close()
        assert ask(workshop, "POST", "/t/plant/pump8/temp", b"1", basic("pump8", password)).status == 202
        assert ask(workshop, "POST", "/t/jobs", b"{}", basic("pump8", password)).status == 403
        row = page.get_by_role("row").filter(has_text="no right to send to")
        clicks.on(row.get_by_role("button", name="Allow this"))
        page.get_by_role("dialog").get_by_text("send:jobs").first.wait_for()
        clicks.on(page.get_by_role("dialog").get_by_role("button", name="Allow"))
        assert clicks.count == 5
        page.get_by_role("dialog").wait_for(state="detached")
        assert ask(workshop, "POST", "/t/jobs", b"{}", basic("pump8", password)).status == 202
        assert ask(workshop, "GET", "/c/jobs?settle=auto&wait=10", None, basic("machine", "machine")).body == b"{}"


def test_user_is_added_tried_and_removed(browser: Browser, workshop: Waypost) -> None:
    with visiting(browser, base_of(workshop)) as visit:
        page = visit.page
        sign_in(visit, "boss")
        visit.open("#/users")
        page.get_by_role("button", name="Add a user").click()
        page.get_by_label("Name").fill("press1")
        page.get_by_role("button", name="Add", exact=True).click()
        password = page.locator("[data-password]").inner_text()
        page.get_by_text("QR code", exact=True).click()
        page.get_by_role("img", name="QR code").wait_for()
        page.get_by_text("Code to paste").click()
        assert password in page.locator("pre").inner_text()
        assert visit.violations() == []
        page.get_by_role("button", name="Done").click()
        assert ask(workshop, "POST", "/t/plant/press1/x", b"1", basic("press1", password)).status == 202
        page.get_by_role("link", name="press1").click()
        page.get_by_label("Address").fill("plant/pump7/temp")
        page.get_by_role("button", name="Try").click()
        visit.see("no right covers plant/pump7/temp")
        assert visit.violations() == []
        page.get_by_role("button", name="Remove").click()
        remove = page.get_by_role("dialog").get_by_role("button", name="Remove")
        assert remove.is_disabled()
        page.get_by_label("To confirm, type press1").fill("press1")
        remove.click()
        page.get_by_role("button", name="Add a user").wait_for()
        assert ask(workshop, "POST", "/t/plant/press1/x", b"1", basic("press1", password)).status == 401
        visit.wrong.clear()  # the page of the removed user may ask for it once more


def test_dead_letters_are_retried_after_a_count(browser: Browser, workshop: Waypost) -> None:
    """Two clicks retry all dead letters."""
    machine = basic("machine", "machine")
    for number in range(3):
        assert ask(workshop, "POST", "/t/jobs", b'{"job": %d}' % number, machine).status == 202
        lock = ask(workshop, "GET", "/c/jobs?wait=10", None, machine).lock
        ask(workshop, "PUT", f"/c/jobs?lock={lock}&outcome=rejected", None, machine)
    with visiting(browser, base_of(workshop)) as visit:
        page = visit.page
        sign_in(visit, "boss")
        visit.open("#/messages")
        page.get_by_role("link", name="rejected").click()
        visit.see('{"job": 0}')
        page.get_by_label("Select message 1").check()
        assert visit.violations() == []
        page.get_by_role("button", name="Delete 1 message").click()
        page.get_by_label("To confirm, type dead").fill("dead")
        page.get_by_role("dialog").get_by_role("button", name="Delete 1 message").click()
        page.get_by_role("dialog").get_by_text("1 message deleted").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="All dead letters").click()
        clicks = Clicks(visit)
        clicks.button("Retry 2 messages")
        clicks.on(page.get_by_role("dialog").get_by_role("button", name="Retry 2 messages"))
        assert clicks.count == 2
        page.get_by_role("dialog").get_by_text("2 messages retried").wait_for()
        page.get_by_role("button", name="Close").click()
        visit.see("No dead letters")
    found = [ask(workshop, "GET", "/c/jobs?settle=auto&wait=10", None, machine).body for _ in range(2)]
    assert sorted(found) == [b'{"job": 0}', b'{"job": 2}']
