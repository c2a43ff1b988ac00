"""Stories of people at the console of a hub: users, audit, identity of a gateway, codes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.visit import PHONE, Visit, visiting
from tests.support.enrolled import EnrolledFleet
from tests.support.operator import HubOperator

ADDRESS = """
apiVersion: waypost/v1
kind: Address
metadata: {name: one}
spec: {address: "one/#", type: topic}
"""
LABEL = "name: hall\nhostname: hall-gw\nhub: hub.example\nimage: 0.1.0\ndate: 2026-11-29"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOperator]:
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.enrol("hall", "site=lyon")
        fleet.enrol("yard").start()
        yield HubOperator(fleet.hub)


def sign_in(visit: Visit, operator: HubOperator) -> None:
    visit.page.goto(operator.link())
    visit.page.locator(".frame main .panel").first.wait_for()


def test_user_is_added_gets_a_new_password_and_is_removed(browser: Browser, operator: HubOperator) -> None:
    """Clicks: Add, Add, Done; the name, New password, Make; Remove, Remove. Each is a line of the audit."""
    with visiting(browser, operator.base) as visit, visiting(browser, operator.base) as hers:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/people")
        page.get_by_role("button", name="Add a user…").click()
        page.get_by_label("Name, an @").fill("anna@default")
        assert visit.violations() == []
        page.get_by_role("button", name="Add", exact=True).click()
        password = page.locator("[data-password]").inner_text()
        page.get_by_role("button", name="Done").click()
        hers.page.goto(operator.base)
        hers.page.get_by_label("User", exact=True).fill("anna@default")
        hers.page.get_by_label("Password", exact=True).fill(password)
        hers.page.get_by_role("button", name="Sign in").click()
        hers.page.locator(".frame main .panel").first.wait_for()
        page.get_by_role("link", name="anna@default").click()
        page.get_by_role("button", name="New password…").click()
        page.get_by_role("button", name="Make a new password").click()
        assert page.locator("[data-password]").inner_text() != password
        page.get_by_role("button", name="Done").click()
        hers.page.get_by_role("button", name="Sign in").wait_for()
        page.get_by_role("button", name="Remove…").click()
        assert page.get_by_role("button", name="Remove", exact=True).is_disabled()
        page.get_by_label("Type the name").fill("anna@default")
        page.get_by_role("button", name="Remove", exact=True).click()
        visit.see("There is no user yet")
        visit.open("#/audit?action=user")
        page.get_by_role("row").filter(has_text="anna@default").nth(2).wait_for()
        page.get_by_role("row").filter(has_text="create").get_by_role("button").click()
        visit.see('"allow":["view:#"]')
        assert visit.violations() == []
        hers.wrong = [each for each in hers.wrong if "401" not in each]  # all that her page asked for since


def test_gateway_is_revoked_then_forgotten(browser: Browser, operator: HubOperator) -> None:
    """Clicks: Revoke, Revoke, Forget, Forget; each with the name typed."""
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/fleet/default%2Fhall?tab=identity")
        visit.see("has not connected yet.")
        visit.wrong.clear()  # the browser reports the 404 itself
        assert page.get_by_role("button", name="Forget…").is_disabled()
        assert visit.violations() == []
        for action in ("Revoke", "Forget"):
            page.get_by_role("button", name=f"{action}…").click()
            assert page.get_by_role("button", name=action, exact=True).is_disabled()
            page.get_by_label("Type the name").fill("hall")
            page.get_by_role("button", name=action, exact=True).click()
            page.get_by_role("dialog").wait_for(state="detached")
        visit.wrong = [each for each in visit.wrong if "404" not in each]
        lines = operator.get("audit?action=gateway&outcome=done")["lines"]
        assert {"gateway.revoke", "gateway.forget"} <= {each["action"] for each in lines}


def test_code_of_a_label_leads_to_its_gateway(browser: Browser, operator: HubOperator) -> None:
    """Without a reader of codes in the browser the page says so, and takes the text."""
    with visiting(browser, operator.base, viewport=PHONE) as visit:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/enrolment")
        page.get_by_role("button", name="Scan a code…").click()
        visit.see("This browser cannot read codes with the camera.")
        page.get_by_label("Text of the code").fill("what?")
        visit.see("This is neither a token nor the label of a gateway.")
        page.get_by_label("Text of the code").fill(LABEL)
        visit.see("hall-gw")
        assert visit.violations() == []
        assert visit.overflow() == 0
        page.get_by_role("link", name="Make a token for it").click()
        assert page.get_by_label("Or names of gateways").input_value() == "hall"


def test_configuration_of_selected_gateways_is_planned_first(browser: Browser, operator: HubOperator) -> None:
    """Clicks: the gateway, Configure, Show what changes, Start a roll-out."""
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        page = visit.page
        visit.open("#/fleet?show=all")
        page.get_by_role("checkbox", name="Select default/yard").check(timeout=60_000)
        page.get_by_role("button", name="Configure…").click()
        page.get_by_label("Resources").fill(ADDRESS)
        page.get_by_role("button", name="Show what changes").click()
        visit.see("1 gateway would change.")
        assert visit.violations() == []
        page.get_by_role("button", name="Start a roll-out").click()
        page.get_by_role("row").filter(has_text="yard").wait_for()


def test_system_shows_limits_and_certificates(browser: Browser, operator: HubOperator) -> None:
    with visiting(browser, operator.base) as visit:
        sign_in(visit, operator)
        visit.open("#/system")
        visit.see("authority, which signs")
        visit.see("registry.db")
        assert visit.violations() == []
