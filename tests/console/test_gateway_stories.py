"""Stories of people at the console of one gateway: uplink, packets, users, addresses, messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser, Route

from tests.console.visit import Clicks, Visit, visiting
from tests.support.command import output_of
from tests.support.processes import Waypost, edge, free_port


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a gateway without a login; its hub cannot be reached."""
    options = ("--hub", f"amqp://127.0.0.1:{free_port()}", "--gateway", "gw1", "--forward", "plant/#")
    with edge(tmp_path_factory.mktemp("stories"), "gw", *options) as running:
        yield running


@pytest.fixture
def visit(browser: Browser, gateway: Waypost) -> Iterator[Visit]:
    with visiting(browser, f"http://127.0.0.1:{gateway.port('http')}/") as found:
        yield found


def publish(gateway: Waypost, topic: str, body: bytes, client_id: str = "meter7") -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    client.publish(topic, body, qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


def test_technician_sees_at_which_step_the_uplink_fails(visit: Visit) -> None:
    visit.open()
    visit.page.get_by_role("button", name="Check each step").click()  # one click to the cause
    steps = visit.page.get_by_role("list", name="Steps to the hub")
    steps.get_by_text("no firewall blocks it").wait_for()
    assert steps.get_by_role("listitem").count() == 3
    visit.see("It fails at TCP")
    assert visit.violations() == []


def test_packets_of_a_client_are_followed_and_saved(visit: Visit, gateway: Waypost, tmp_path: Path) -> None:
    page = visit.page
    visit.open("#/devices?follow=meter7")
    page.get_by_label("Show payloads").check()
    page.get_by_role("button", name="Follow").click()
    visit.see("waiting for it")
    publish(gateway, "plant/7", b"21.5 <b>degrees</b>")
    visit.see("PUBLISH #1 plant/7")
    visit.see("21.5 <b>degrees</b>")
    assert visit.violations() == []
    page.get_by_role("button", name="Stop").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    saved.value.save_as(tmp_path / "trace.txt")
    assert "PUBLISH #1 plant/7" in (tmp_path / "trace.txt").read_text()


def test_users_are_imported_with_their_passwords_once(visit: Visit, gateway: Waypost, tmp_path: Path) -> None:
    page = visit.page
    visit.open("#/users")
    page.get_by_role("button", name="Import…").click()
    table = page.locator("textarea[name=csv]")
    table.fill("name,profile\npump1,wizard\n")
    page.get_by_role("button", name="Check").click()
    visit.see("Line 2: profile is one of")
    table.fill("name,profile\npump1,sensor\npump2,sensor\n")
    page.get_by_role("button", name="Check").click()
    visit.see("2 users")
    assert visit.violations() == []
    page.get_by_role("button", name="Add 2, change 0").click()
    visit.see("2 users added")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save passwords as CSV").click()
    saved.value.save_as(tmp_path / "passwords.csv")
    rows = (tmp_path / "passwords.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["name", '"pump1"', '"pump2"']
    listed = output_of("user", "list", "--data", str(gateway.data))
    assert "pump1" in listed
    assert "pump2" in listed


def test_passwords_of_a_lost_answer_are_named(visit: Visit) -> None:
    page = visit.page
    lost: list[Route] = []

    def lose_first(route: Route) -> None:
        """Let the gateway add the users, and lose the first answer to that."""
        if "dry_run" in (route.request.post_data or "") or lost:
            route.continue_()
            return
        route.fetch()
        lost.append(route)
        route.abort()

    page.route("**/api/v1/user-import", lose_first)
    visit.open("#/users")
    page.get_by_role("button", name="Import…").click()
    page.locator("textarea[name=csv]").fill("name,profile\nlost1,sensor\nlost2,sensor\n")
    page.get_by_role("button", name="Check").click()
    page.get_by_role("button", name="Add 2, change 0").click()
    page.get_by_role("button", name="Go on").click()
    visit.see("2 users added, but the password was not received: give new ones. lost1 lost2")
    visit.wrong.remove("console: error: Failed to load resource: net::ERR_FAILED")


def test_tree_of_addresses_is_opened_by_levels(visit: Visit, gateway: Waypost) -> None:
    for name in ("queue/north/a", "queue/north/b", "queue/south"):
        publish(gateway, name, b"1")
    visit.open("#/addresses?show=tree")
    visit.page.get_by_role("button", name="Levels below queue", exact=True).click()
    visit.page.get_by_role("button", name="Levels below queue/north").click()
    visit.page.get_by_role("link", name="south").wait_for()
    visit.page.get_by_role("link", name="b", exact=True).wait_for()
    assert visit.violations() == []


def test_message_is_repeated_and_found_by_a_property(visit: Visit) -> None:
    page = visit.page
    visit.open("#/messages?show=try")
    page.locator("input[name=address]").fill("queue/repeated")
    page.locator("textarea[name=body]").fill("again")
    page.locator("textarea[name=properties]").fill("unit: K")
    page.locator("input[name=times]").fill("2")
    page.locator("textarea[name=body]").dispatch_event("input")  # the page is drawn again while someone types a number
    assert page.locator("input[name=times]").input_value() == "2"
    page.locator("input[name=every]").fill("1")
    page.get_by_role("button", name="Publish").click()
    visit.see("2 accepted")
    visit.open("#/messages?show=browse&address=queue/repeated")
    page.get_by_text("Properties and JSON").click()
    page.get_by_label("Condition on properties and fields").fill("unit = 'C'")
    page.get_by_role("button", name="Apply").click()
    visit.see("No message is kept here")
    page.get_by_label("Condition on properties and fields").fill("unit = 'K'")
    page.get_by_role("button", name="Apply").click()
    visit.see("again")
    assert visit.violations() == []


def test_problem_is_muted_with_a_reason_and_shown_again(visit: Visit, gateway: Waypost) -> None:
    """Two clicks to mute it, one to show it again."""
    publish(gateway, "nobody/listens", b"x")
    page, clicks = visit.page, Clicks(visit)
    visit.open()
    visit.see("messages reach no subscriber")
    clicks.button("Mute no subscriber…")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("<b>works</b> in the hall")
    assert visit.violations() == []
    clicks.on(dialog.get_by_role("button", name="Mute", exact=True))
    visit.see("1 problem muted")
    visit.see("<b>works</b> in the hall")
    assert visit.violations() == []
    clicks.button("Show again")
    page.get_by_text("1 problem muted").wait_for(state="detached")
    assert clicks.count == 3
