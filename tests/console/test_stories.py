"""Stories of people at the consoles, from sign-in to the cause of a refused device."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser

from tests.console import gold_world
from tests.console.visit import PHONE, Visit, visiting
from tests.fault.hostile.web import gateway_of
from tests.support.command import PROGRAM, output_of
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.http_client import ask, status
from tests.support.processes import Waypost, edge, hub, wait_until

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
    command = [*PROGRAM, "open", "--data", str(guarded.data), "--print"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"https?://\S+#link=\S+", printed)
    assert found is not None, printed
    link = base_of(guarded) + found[0][found[0].index("#") :]
    with visiting(browser, base_of(guarded), viewport=PHONE) as visit:
        visit.page.goto(link)
        visit.see("Messages a second")
        assert "link=" not in visit.page.url
    with visiting(browser, base_of(guarded)) as visit:
        visit.page.goto(link)
        visit.page.get_by_role("button", name="Sign in").wait_for()
        visit.wrong.clear()


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
        visit.open("#/devices?show=refused")  # the overview links to it: one click
        row = visit.page.get_by_role("row").filter(has_text="pump7")
        row.first.wait_for()
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


def test_alert_is_muted_with_a_reason(browser: Browser, tmp_path: Path) -> None:
    """Clicks: the alert, Mute, the reason, Mute."""
    with hub(tmp_path) as server:
        rule = "/api/v1/alert-rules/WaypostUplinkAway"
        assert ask(server, "PATCH", rule, b'{"for_s": 0}').status == HTTPStatus.OK
        options = ("--hub", f"amqp://127.0.0.1:{server.port('amqp')}", "--gateway", "hall", "--forward", "plant/#")
        with edge(tmp_path, "gw", *options):
            wait_until(lambda: status(server)["gateways"]["connected"] == 1, timeout_s=60, what="it is connected")
        with visiting(browser, base_of(server)) as visit:
            page = visit.page
            visit.open("#/alerts")
            page.get_by_role("link", name="it is not connected").first.click(timeout=60_000)
            page.get_by_role("button", name="Mute…").click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("Reason").fill("works on the mast")
            assert visit.violations() == []
            dialog.get_by_role("button", name="Mute", exact=True).click()
            page.get_by_text("muted until").first.wait_for(timeout=60_000)
            visit.open("#/alerts?show=mutes")
            visit.see("works on the mast")
            assert visit.violations() == []


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


def test_incomplete_day_is_seen_with_its_range_and_gateway(browser: Browser, analysed: Waypost) -> None:
    with visiting(browser, base_of(analysed)) as visit:
        visit.open("#/completeness")
        visit.see("99.97 %")
        row = visit.page.get_by_role("row").filter(has_text="106")
        row.wait_for()
        assert "7" in row.inner_text()
        assert visit.violations() == []


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Waypost]:
    """Yield a gateway with people, a device made by hand, and a queue with dead letters."""
    jobs = """
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, deadletter: dead}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead, type: deadletter}}
"""
    users = "".join((user("boss", "manage, recv, send"), user("machine", "send, recv")))
    with gateway_with(tmp_path, resources(jobs, users)) as running:
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
    """Cause seen at once; three clicks to a new password; two to the missing right."""
    output_of("user", "add", "pump8", "--allow", "send:plant/%u/#", "--data", str(workshop.data))
    assert ask(workshop, "POST", "/t/plant/pump8/temp", b"1", basic("pump8", "wrong")).status == 401
    with visiting(browser, base_of(workshop)) as visit:
        page = visit.page
        sign_in(visit, "boss")
        visit.open("#/devices?show=refused")
        page.get_by_role("row").filter(has_text="pump8").get_by_role("button", name="New password").click()
        page.get_by_role("button", name="Make a new password").click()
        password = page.locator("[data-password]").inner_text()
        assert visit.violations() == []
        page.get_by_role("button", name="Done").click()
        assert ask(workshop, "POST", "/t/plant/pump8/temp", b"1", basic("pump8", password)).status == 202
        assert ask(workshop, "POST", "/t/jobs", b"{}", basic("pump8", password)).status == 403
        row = page.get_by_role("row").filter(has_text="no right to send to")
        row.get_by_role("button", name="Allow this").click()
        page.get_by_role("dialog").get_by_text("send:jobs").first.wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Allow").click()
        page.get_by_role("dialog").wait_for(state="detached")
        assert ask(workshop, "POST", "/t/jobs", b"{}", basic("pump8", password)).status == 202
        assert ask(workshop, "GET", "/c/jobs?settle=auto", None, basic("machine", "machine")).body == b"{}"


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
    """Two clicks from the page to the retried messages."""
    machine = basic("machine", "machine")
    for number in range(3):
        assert ask(workshop, "POST", "/t/jobs", b'{"job": %d}' % number, machine).status == 202
        lock = ask(workshop, "GET", "/c/jobs", None, machine).lock
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
        page.get_by_role("button", name="Retry 2 messages").click()
        page.get_by_role("dialog").get_by_role("button", name="Retry 2 messages").click()
        page.get_by_role("dialog").get_by_text("2 messages retried").wait_for()
        page.get_by_role("button", name="Close").click()
        visit.see("No dead letters")
    found = [ask(workshop, "GET", "/c/jobs?settle=auto", None, machine).body for _ in range(2)]
    assert sorted(found) == [b'{"job": 0}', b'{"job": 2}']
