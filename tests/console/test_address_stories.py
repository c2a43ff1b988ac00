"""Stories of people who set up addresses: the wizard, a configuration with a mistake, a trial that is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.visit import PHONE, Clicks, Visit, visiting
from tests.support.http_client import ask
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, wait_until

JOBS = """apiVersion: waypost/v1
kind: Address
metadata: {name: jobs}
spec: {address: "jobs/#", type: queue}
"""
CLICKS_MAX = 4
SELECTED = "(area => area.value.slice(area.selectionStart, area.selectionEnd))(document.activeElement)"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with edge(tmp_path_factory.mktemp("gateway"), "gw") as server:
        yield server


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[Waypost]:
    """Yield a gateway with the configuration that it was delivered with."""
    with edge(tmp_path, "gw") as server:
        yield server


def base_of(server: Waypost) -> str:
    return f"http://127.0.0.1:{server.port('http')}/"


def type_of(server: Waypost, address: str) -> str:
    return str(ask(server, "GET", f"/api/v1/addresses/{address}").document["type"])


def edit(visit: Visit, text: str) -> None:
    visit.page.get_by_label("Configuration as YAML").fill(text)


def test_address_is_made_with_four_clicks(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open("#/addresses")
        clicks = Clicks(visit)
        clicks.link("New address")
        clicks.button("A queue of jobs")
        visit.page.get_by_label("Name or pattern").fill("jobs/press")
        visit.see("follows the rule")
        assert visit.violations() == []
        clicks.button("Review")
        visit.see("It can be created")
        assert visit.violations() == []
        clicks.button("Create")
        visit.see("Does a message arrive?")
        assert type_of(gateway, "jobs/press") == "queue"
        assert clicks.count <= CLICKS_MAX


def test_address_has_limits_and_is_made_on_a_phone(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway), viewport=PHONE) as visit:
        visit.open("#/addresses?new=1")
        page = visit.page
        page.get_by_role("button", name="Commands to devices").click()
        page.get_by_label("Name or pattern").fill("commands/+")
        page.get_by_role("button", name="Limits and users").click()
        page.get_by_label("Keep at most").fill("5")
        page.get_by_label("When that is full").select_option("dropOldest")
        assert (visit.overflow(), visit.violations()) == (0, [])
        page.get_by_role("button", name="Users").click()
        page.get_by_role("button", name="Review").click()
        visit.see("It can be created")
        assert visit.overflow() == 0
        page.get_by_role("button", name="Create").click()
        visit.see("Keeps up to 5.0 MB; then the oldest messages are dropped.")


def test_mistake_is_named_with_its_line_and_nothing_is_applied(browser: Browser, unchanged: Waypost) -> None:
    with visiting(browser, base_of(unchanged)) as visit:
        visit.open("#/configuration")
        edit(visit, JOBS.replace("queue", "pile"))
        visit.see("1 mistake: nothing can be applied.")
        assert visit.violations() == []
        expect(visit.page.get_by_role("button", name="Try for 2 minutes")).to_be_disabled()
        clicks = Clicks(visit)
        clicks.button("line 4")
        assert clicks.count == 1
        selected = visit.page.evaluate(SELECTED)
        assert "pile" in selected
        assert type_of(unchanged, "jobs/1") == "topic"
        edit(visit, JOBS)
        visit.see("It can be applied.")
        visit.page.get_by_label("take it back unless I keep it").uncheck()
        visit.page.get_by_role("button", name="Apply").click()
        wait_until(lambda: type_of(unchanged, "jobs/1") == "queue", timeout_s=60, what="it is in force")
        visit.see("in force")
        assert visit.violations() == []


def test_trial_that_is_not_kept_goes_back(browser: Browser, unchanged: Waypost) -> None:
    with visiting(browser, base_of(unchanged)) as visit:
        visit.open("#/configuration")
        edit(visit, JOBS)
        visit.see("It can be applied.")
        visit.page.get_by_role("button", name="Try for 2 minutes").click()
        visit.see("Version 1 is on trial")
        assert type_of(unchanged, "jobs/1") == "queue"
        assert visit.violations() == []
        unchanged.stop()  # the time is over, or the gateway failed because of it
        visit.wrong.clear()  # requests while it is away
    unchanged.start()
    with visiting(browser, base_of(unchanged)) as visit:
        visit.open("#/configuration")
        visit.page.get_by_role("button", name="Try for 2 minutes").wait_for()
        assert visit.page.get_by_text("is on trial").count() == 0
        assert type_of(unchanged, "jobs/1") == "topic"


def test_trial_is_kept(browser: Browser, unchanged: Waypost) -> None:
    with visiting(browser, base_of(unchanged)) as visit:
        visit.open("#/configuration")
        edit(visit, JOBS)
        visit.see("It can be applied.")
        visit.page.get_by_role("button", name="Try for 2 minutes").click()
        visit.page.get_by_role("button", name="Keep it").click()
        visit.page.get_by_text("Version 1 is on trial").wait_for(state="detached")
        assert type_of(unchanged, "jobs/1") == "queue"


def test_busy_address_is_found_and_explained(browser: Browser, unchanged: Waypost) -> None:
    with mqtt_client(unchanged, "pump7") as pub, visiting(browser, base_of(unchanged)) as visit:
        for _ in range(5):
            pub.publish("queue/busy", b"x")
        visit.open("#/addresses")
        visit.page.get_by_role("link", name="queue/busy").first.click()
        visit.see("No consumer is connected.")
        visit.see("connect one: messages wait until then")
        assert visit.violations() == []


def test_log_shows_new_lines_and_events(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.open("#/log")
        ask(gateway, "POST", "/api/v1/uplink/pause", b"{}", JSON)
        visit.see("serves")
        ask(
            gateway,
            "POST",
            "/api/v1/addresses",
            b'{"address": "jobs", "spec": {"type": "queue"}}',
            {"Content-Type": "application/json"},
        )
        visit.see("POST /api/v1/addresses -> 201")
        visit.page.get_by_role("button", name="Errors").click()
        visit.see("No line matches")
        assert visit.violations() == []
        visit.page.get_by_role("button", name="Events").click()
        visit.see("POST /api/v1/addresses -> 201")
        assert visit.violations() == []
