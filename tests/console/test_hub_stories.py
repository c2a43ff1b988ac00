"""Stories of people at the console of a hub with enrolment: tokens, roll-outs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.visit import Clicks, Visit, visiting
from tests.support import campaign_world
from tests.support.enrolled import EnrolledFleet, init_gateway
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

ADDRESS = """
apiVersion: waypost/v1
kind: Address
metadata: {name: one}
spec: {address: "one/#", type: TYPE}
"""
CLASH = ADDRESS.replace("name: one", "name: mine").replace("TYPE", "queue")
"""Address of a gateway itself, with which it cannot take the other one."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def sign_in(visit: Visit, operator: HubOperator) -> None:
    visit.page.goto(operator.link())
    visit.page.locator(".frame main .panel").first.wait_for()


def test_gateway_enrols_by_the_code_on_the_sheet(browser: Browser, fleet: EnrolledFleet) -> None:
    """Two clicks and a label; the code is on the sheet."""
    operator = HubOperator(fleet.hub)
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/enrolment")
        visit.see("No token was made yet")
        clicks = Clicks(visit)
        clicks.button("Make tokens…")
        page.get_by_label("Labels, as in site=lyon").fill("site=lyon")
        assert visit.violations() == []
        clicks.button("Make 1 token")
        assert clicks.count == 2
        card = page.locator(".card")
        token = card.locator(".token").inner_text()
        assert card.locator("svg path").get_attribute("d")
        assert visit.violations() == []
        code, output = init_gateway(fleet.folder, fleet.url, token, name="hall")
        assert code == 0, output
        page.get_by_role("button", name="Done").click()
        row = page.get_by_role("row").filter(has_text="hall")
        row.wait_for()
        assert "used" in row.inner_text()
        assert "site=lyon" in row.inner_text()
        assert visit.violations() == []
        assert visit.overflow() == 0


def test_gateway_that_never_connected_and_the_log_of_the_hub(browser: Browser, fleet: EnrolledFleet) -> None:
    fleet.enrol("yard")
    operator = HubOperator(fleet.hub)
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        visit.open("#/fleet?show=never")
        row = visit.page.get_by_role("row").filter(has_text="yard")
        row.wait_for(timeout=60_000)
        assert "never connected" in row.inner_text()
        assert "waypost doctor" in row.inner_text()
        assert visit.violations() == []
        visit.open("#/log")
        visit.page.get_by_role("button", name="Events").click()
        visit.see("sign-in: user=operator")
        assert visit.violations() == []


def test_halted_rollout_is_found_and_resumed(browser: Browser, tmp_path: Path) -> None:
    """One of two gateways has an address of another type, so it refuses. Clicks: the roll-out, Go on."""
    with EnrolledFleet(tmp_path) as fleet:
        operator = HubOperator(fleet.hub)
        for name in ("hall", "yard"):
            fleet.enrol(name, "site=lyon").start()
        fleet.here("hall", "apply", "-f", fleet.written("clash.yaml", CLASH))
        wait_until(lambda: operator.get("status")["gateways"]["connected"] == 2, timeout_s=60, what="both are there")
        with visiting(browser, operator.base) as visit:
            sign_in(visit, operator)
            page = visit.page
            visit.open("#/configuration?edit=new")
            page.get_by_label("Gateways with labels").fill("site=lyon")
            page.get_by_label("Resources").fill(ADDRESS.replace("TYPE", "topic"))
            page.get_by_label("Note").fill("addresses of spring")
            page.get_by_role("button", name="Check").click()
            visit.see("2 gateways would change.")
            assert visit.violations() == []
            assert visit.overflow() == 0
            page.get_by_label("Waves of a roll-out").fill("1,100%")
            page.get_by_role("button", name="Start a roll-out").click()
            page.get_by_text("halted").first.wait_for(timeout=90_000)
            visit.open("#/rollouts")
            visit.see("addresses of spring")
            clicks = Clicks(visit)
            clicks.link("addresses of spring")
            row = page.get_by_role("row").filter(has_text="hall")
            row.filter(has_text="refused").wait_for()
            assert visit.violations() == []
            clicks.button("Go on")
            assert clicks.count == 2
            yard = page.get_by_role("row").filter(has_text="yard")
            yard.filter(has_text="confirmed").or_(yard.filter(has_text="done")).wait_for(timeout=90_000)


def test_halted_campaign_is_found_and_resumed(browser: Browser, tmp_path: Path) -> None:
    """A device went back, and no failure is allowed. Clicks: the campaign, Failed, Go on."""
    with EnrolledFleet(tmp_path) as fleet:
        operator = HubOperator(fleet.hub)
        campaign_world.start_campaign(operator, failures_max=0)
        with visiting(browser, operator.base) as visit:
            sign_in(visit, operator)
            page = visit.page
            visit.open("#/campaigns")
            visit.see("halted")
            visit.see("8 done · 1 failed")
            assert visit.violations() == []
            assert visit.overflow() == 0
            clicks = Clicks(visit)
            clicks.link("blinker 1.2.0")
            visit.see("device pump-09: no boot after 3 attempts")
            assert visit.violations() == []
            clicks.button("Failed")
            rows = page.get_by_role("table").get_by_role("row")
            rows.filter(has_text="pump-09").filter(has_text="no boot").wait_for()
            page.wait_for_function("document.querySelectorAll('table tbody tr').length === 1")
            clicks.button("Go on")
            assert clicks.count == 3
            visit.see("running")
            page.get_by_text("No device is in this phase.").wait_for(timeout=60_000)
            page.get_by_role("button", name="All", exact=True).click()
            rows.filter(has_text="pump-09").filter(has_text="left-out").wait_for(timeout=60_000)
            assert visit.overflow() == 0


def test_gateways_are_selected_labelled_and_kept_as_a_view(browser: Browser, fleet: EnrolledFleet) -> None:
    operator = HubOperator(fleet.hub)
    fleet.enrol("mast").start()
    wait_until(lambda: operator.get("status")["gateways"]["connected"] >= 1, timeout_s=60, what="it is connected")
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/fleet?show=all")
        page.get_by_role("checkbox", name="Select default/mast").check()
        page.get_by_role("button", name="Label…").click()
        page.get_by_label("Labels, as in").fill("site=bern")
        assert visit.violations() == []
        page.get_by_role("button", name="Label 1 gateway").click()
        page.get_by_role("dialog").wait_for(state="detached")
        visit.open("#/fleet?show=all&selector=site%3Dbern")
        page.get_by_role("button", name="Save this view…").click()
        page.get_by_label("Name").fill("Bern")
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("link", name="Bern", exact=True).wait_for()
        assert visit.violations() == []
        page.get_by_text("mast").first.wait_for(timeout=60_000)
        page.get_by_role("checkbox", name="Select default/mast").check()
        page.get_by_role("button", name="Revoke…").click()
        assert page.get_by_role("button", name="Revoke 1 gateway").is_disabled()
        page.get_by_label("Type the name").fill("mast")
        page.get_by_role("button", name="Revoke 1 gateway").click()
        page.get_by_role("dialog").wait_for(state="detached")
        wait_until(lambda: operator.get("status")["gateways"]["connected"] == 0, timeout_s=60, what="it is closed")
