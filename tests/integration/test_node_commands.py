"""`waypost audit`, `log`, `tenant` and `problem` at a running hub and gateway, and sessions over their restarts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edge.output.errors import Exit
from tests.support.command import items_in, run_waypost
from tests.support.enrolled import EnrolledFleet
from tests.support.password_device import PasswordDevice
from tests.support.processes import Waypost, wait_until

WAIT_S = 60.0
SESSION = "/api/v1/session"


def waypost(*words: str, code: int = 0) -> str:
    done = run_waypost(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnrolledFleet]:
    """Yield a hub with a gateway that runs, with the user `ops` at both."""
    with EnrolledFleet(tmp_path_factory.mktemp("fleet")) as running:
        running.enrol("hall", "site=lyon").start()
        yield running


def add_user(fleet: EnrolledFleet, name: str) -> str:
    """Add an operator to the hub, or to the gateway `hall`; return the password."""
    hub = "@" in name
    where = str(fleet.folder / ("hub" if hub else "hall"))
    words = ("hub", "user", "add") if hub else ("user", "add")
    said = waypost(*words, name, "--data", where, *(("--allow", "manage:$fleet") if hub else ("--profile", "operator")))
    return re.findall(r"^password: (\S+)", said, re.MULTILINE)[0]


def signed_in(fleet: EnrolledFleet, process: Waypost, user: str) -> httpx.Client:
    """Return a browser that has signed in as a new user. It follows the process to another port."""
    password, scheme = add_user(fleet, user), "https" if "@" in user else "http"
    client = httpx.Client(base_url=url_of(process, scheme), verify=False)

    def sign_in() -> bool:
        return client.post(SESSION, json={"user": user, "password": password}).status_code == 200

    wait_until(sign_in, timeout_s=WAIT_S, what="users are followed")
    return client


def url_of(process: Waypost, scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{process.port(scheme)}"


def test_usage_of_a_tenant(fleet: EnrolledFleet) -> None:
    data = str(fleet.folder / "hub")
    with PasswordDevice(fleet.folder / "hall", fleet.gateways["hall"].port("mqtt")) as device:
        assert device.code == 0
        device.send(20)
        wait_until(lambda: landed(fleet) >= 20, timeout_s=WAIT_S, what="they land")
    assert fleet.hub.stop() == 0, "the rest is written at the end"
    fleet.hub.start()
    [row] = [
        each for each in items_in(waypost("tenant", "list", "--data", data, "--json")) if each["tenant"] == "default"
    ]
    assert row["messages_today"] >= 20
    assert row["bytes_today"] >= 20 * 10
    [day] = items_in(waypost("tenant", "usage", "default", "--data", data, "--days", "1", "--json"))
    assert (day["messages"], day["bytes"]) == (row["messages_today"], row["bytes_today"])
    assert "default" in waypost("tenant", "list", "--data", data)


def test_audit_of_a_gateway(fleet: EnrolledFleet) -> None:
    gateway, data = fleet.gateways["hall"], str(fleet.folder / "hall")
    with contextlib.closing(signed_in(fleet, gateway, "anna")) as browser:
        origin = {"Origin": str(browser.base_url).rstrip("/")}
        assert browser.post("/api/v1/bridge/resume?connector=none", headers=origin).status_code == 404
        assert browser.post(SESSION, json={"user": "anna", "password": "guess"}).status_code == 401

    def lines(*words: str) -> list[dict[str, Any]]:
        return list(items_in(waypost("audit", "--data", data, "--json", *words)))

    wait_until(lambda: any(each["status"] == 401 for each in lines()), timeout_s=WAIT_S, what="lines of the log")
    changes = {(each["action"], each["outcome"]) for each in lines("--user", "anna")}
    assert ("POST /api/v1/bridge/resume?connector=none", "refused") in changes
    assert {("sign-in", "done"), ("sign-in", "refused")} <= changes
    refused = lines("--outcome", "refused", "-q", "wrong user name")
    assert {each["error"] for each in refused} == {"wrong user name or password"}
    assert lines("--action", "bridge/resume", "--limit", "1")[0]["remote"] == "127.0.0.1"
    assert lines("--since", "1m", "--user", "nobody") == []
    assert "a gateway has no tenants" in waypost("audit", "--data", data, "--tenant", "x", code=Exit.USAGE)
    assert "not a time ago" in waypost("audit", "--data", data, "--since", "soon", code=Exit.USAGE)


def test_audit_and_log_of_a_hub(fleet: EnrolledFleet) -> None:
    data = str(fleet.folder / "hub")
    with contextlib.closing(signed_in(fleet, fleet.hub, "ops@default")) as browser:
        origin = {"Origin": str(browser.base_url).rstrip("/")}
        for value in ("bern", "lyon"):
            answer = browser.patch("/api/v1/labels/hall", json={"site": value}, headers=origin)
            assert answer.status_code == 200, answer.text
        found = list(items_in(waypost("audit", "--data", data, "--action", "gateway.label", "--json")))
        assert [(each["user"], each["subject"], each["outcome"]) for each in found][:2] == [
            ("ops@default", "hall", "done")
        ] * 2
        assert found[0]["before"] == {"site": "bern"}
        assert len(list(items_in(waypost("audit", "--data", data, "--limit", "1", "--json")))) == 1
        shown = waypost("audit", "--data", data, "--tenant", "default", "--action", "gateway")
        assert re.search(r"ops@default +127\.0\.0\.1 +gateway\.label +hall +done", shown)
        assert browser.get("/api/v1/log?limit=5").json()["lines"]
        assert "audit: user=ops@default" in waypost("log", "--data", data, "--events", "--kind", "change")
        assert waypost("log", "--data", data, "--limit", "3").count("\n") >= 3


def test_tenant_of_a_hub_may_not_read_its_log(fleet: EnrolledFleet) -> None:
    said = waypost("hub", "user", "add", "eve@default", "--data", str(fleet.folder / "hub"), "--allow", "manage:#")
    password = re.findall(r"^password: (\S+)", said, re.MULTILINE)[0]
    with httpx.Client(base_url=url_of(fleet.hub, "https"), verify=False, auth=("eve@default", password)) as eve:
        wait_until(lambda: eve.get("/api/v1/status").status_code == 200, timeout_s=WAIT_S, what="users are followed")
        for path in ("log", "log.txt", "journal"):
            assert eve.get(f"/api/v1/{path}").status_code == 403, path
        assert eve.get("/api/v1/events?topics=log").status_code == 400
        assert eve.get("/api/v1/tenants/other/usage").status_code == 403
        assert eve.get("/api/v1/tenants/default/usage?days=401").status_code == 400


def test_problem_is_muted_until_its_time_is_over(fleet: EnrolledFleet) -> None:
    data = str(fleet.folder / "hall")

    def problems() -> list[dict[str, Any]]:
        return list(items_in(waypost("problem", "list", "--data", data, "--json")))

    said = waypost("user", "add", "worker", "--data", data, "--allow", "send:nobody/#")
    password = re.findall(r"^password: (\S+)", said, re.MULTILINE)[0]

    def publish() -> bool:
        url = f"{url_of(fleet.gateways['hall'], 'http')}/t/nobody/listens"
        return httpx.post(url, content=b"x", auth=("worker", password)).status_code == 202

    wait_until(publish, timeout_s=WAIT_S, what="users are followed")
    wait_until(lambda: "no subscriber" in {each["name"] for each in problems()}, timeout_s=WAIT_S, what="a notice")
    said = waypost("problem", "mute", "no subscriber", "--data", data, "--until", "4h", "--reason", "a test")
    assert said.startswith("no subscriber: muted until 20")

    def muted() -> list[tuple[str, str]]:
        return [(each["mute_reason"], each["muted_by"]) for each in problems() if each["muted_until"]]

    wait_until(muted, timeout_s=WAIT_S, what="the status is made again")
    assert muted() == [("a test", "operator")]
    assert "muted until" in waypost("status", "--data", data)
    unknown = waypost("problem", "mute", "clock", "--data", data, "--until", "31d", "--reason", "x", code=Exit.USAGE)
    assert "a mute lasts up to 30 days" in unknown
    fleet.gateways["hall"].stop()
    fleet.gateways["hall"].start()
    assert '"no subscriber"' in (fleet.folder / "hall" / "mutes.json").read_text()
    assert waypost("problem", "unmute", "no subscriber", "--data", data) == "no subscriber: 1 mute ended\n"
    assert "no problem named no subscriber is muted" in waypost(
        "problem", "unmute", "no subscriber", "--data", data, code=Exit.FAILED
    )


def test_sessions_outlive_a_restart_of_gateway_and_hub(fleet: EnrolledFleet) -> None:
    for process, user in ((fleet.gateways["hall"], "bert"), (fleet.hub, "bert@default")):
        scheme = "https" if "@" in user else "http"
        with contextlib.closing(signed_in(fleet, process, user)) as browser:
            assert process.stop() == 0
            process.start()
            with httpx.Client(base_url=url_of(process, scheme), verify=False, cookies=browser.cookies) as after:
                assert after.get(SESSION).json()["user"] == user
                assert after.get("/api/v1/status").status_code == 200
                assert after.delete(SESSION, headers={"Origin": url_of(process, scheme)}).status_code == 200
                process.kill()
                process.start()
                with httpx.Client(base_url=url_of(process, scheme), verify=False, cookies=browser.cookies) as again:
                    assert again.get("/api/v1/status").status_code == 401, "the sign-out was on disk"


def landed(fleet: EnrolledFleet) -> int:
    token = (fleet.folder / "hub" / "operator.token").read_text().strip()
    with httpx.Client(base_url=url_of(fleet.hub, "https"), verify=False) as client:
        found = client.get("/api/v1/tenants", headers={"Authorization": f"Bearer {token}"}).json()["tenants"]
    return sum(each["messages"] for each in found)
