"""Configuration from the hub, with the real program over sockets: confirmed, refused, rolled back, rolled out."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.desired import DesiredReport, digest_of
from cloud.hub.registry.configurations import Configurations
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.proof.proof import prove
from tests.support import http_client
from tests.support.command import item_in, items_in, run_waypost
from tests.support.configured_gateway import encoded
from tests.support.enrolled import WAIT_S, EnrolledFleet
from tests.support.lake import rows
from tests.support.password_device import PasswordDevice
from tests.support.processes import wait_until

ADDRESS = """
apiVersion: waypost/v1
kind: Address
metadata: {{name: {name}}}
spec: {{address: "{address}/#", type: topic, forwarders: [{{name: up, remoteAddress: {connector}}}]}}
"""
ELSEWHERE = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: any}
spec: {hub: {url: "amqps://localhost:9"}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path) as made:
        yield made


def address(fleet: EnrolledFleet, name: str, connector: str = "hub") -> str:
    """Write a file with an address that is forwarded."""
    return fleet.written(f"{name}.yaml", ADDRESS.format(name=name, address=name, connector=connector))


def applied(fleet: EnrolledFleet, gateway: str) -> list[str]:
    """Return kind/name of the resources in force at a gateway."""
    return [f"{each['kind']}/{each['metadata']['name']}" for each in items_in(fleet.here(gateway, "get", "--json"))]


def test_configuration_that_cuts_the_uplink_is_reverted_without_loss(fleet: EnrolledFleet) -> None:
    gateway = fleet.enrol("hall").start()
    device = PasswordDevice(fleet.folder / "hall", gateway.port("mqtt"))
    device.send(50)
    fleet.fleet("config", "apply", "hall", "-f", address(fleet, "one"), "--confirm", "30s", "--why", "first")
    fleet.wait_for("hall", "confirmed", 1)
    assert "Address/one" in applied(fleet, "hall")
    device.send(50)

    fleet.fleet("config", "apply", "h*", "-f", fleet.written("away.yaml", ELSEWHERE), "--confirm", "3s")
    wait_until(
        lambda: "is still on trial" in gateway.log.read_text() or "is on trial" in gateway.log.read_text(),
        timeout_s=WAIT_S,
        what="it is tried",
    )
    device.send(50)
    row = fleet.wait_for("hall", "rolled-back", 2)
    assert "did not confirm it within 3 s" in row["why"]
    assert row["version"] == 1
    assert "Address/one" in applied(fleet, "hall")
    device.send(50)

    fleet.fleet("config", "rollback", "hall", "--to", "1")
    fleet.wait_for("hall", "confirmed", 3)
    newest, second, first = items_in(fleet.fleet("config", "history", "hall", "--json"))
    assert (newest["note"], newest["version"]) == ("back to version 1", 3)
    assert second["failure"].startswith("rolled-back: ")
    assert (first["note"], first["failure"]) == ("first", None)
    device.close()
    wait_until(lambda: len(rows(fleet.lake, "telemetry")) == device.sent, timeout_s=WAIT_S, what="all is in the lake")
    assert gateway.stop() == 0
    assert fleet.hub.stop() == 0
    assert prove(fleet.lake).complete


def test_killed_trial_is_reverted_at_its_deadline(fleet: EnrolledFleet) -> None:
    gateway = fleet.enrol("hall").start()
    fleet.fleet("config", "apply", "hall", "-f", fleet.written("away.yaml", ELSEWHERE), "--confirm", "10s")
    kept = fleet.folder / "hall" / "config" / "hub.json"
    wait_until(lambda: kept.exists() and '"trial"' in kept.read_text(), timeout_s=WAIT_S, what="it is tried")
    gateway.kill()
    assert "Gateway/hall" in applied(fleet, "hall")
    gateway.start()
    assert '"trial"' in kept.read_text(), "it is tried on, with all its time"
    row = fleet.wait_for("hall", "rolled-back", 1)
    assert row["version"] == 0
    assert '"trial"' not in kept.read_text()


def test_unfit_or_altered_configuration_is_refused(fleet: EnrolledFleet) -> None:
    fleet.enrol("hall").start()
    fleet.fleet("config", "apply", "hall", "-f", address(fleet, "one", connector="nowhere"))
    row = fleet.wait_for("hall", "refused", 1)
    assert "nowhere" in row["why"]
    assert "Address/one" not in applied(fleet, "hall")
    fleet.hub.kill()
    fleet.fleet("config", "apply", "hall", "-f", address(fleet, "two"))
    with contextlib.closing(sqlite3.connect(fleet.folder / "hub" / "registry.db")) as registry, registry:
        registry.execute("UPDATE configurations SET content = replace(content, 'two', 'six') WHERE version = 2")
    fleet.hub.start()
    row = fleet.wait_for("hall", "refused", 2)
    assert "its signature is not from the authority at which this gateway enrolled" in row["why"]
    assert "Address/six" not in applied(fleet, "hall")
    fleet.fleet("config", "apply", "hall", "-f", address(fleet, "two"))
    fleet.wait_for("hall", "confirmed", 3)


def test_restarts_and_local_changes_keep_the_configuration(fleet: EnrolledFleet) -> None:
    gateway = fleet.enrol("hall").start()
    before = gateway.pid
    limits = fleet.written(
        "limits.yaml",
        "apiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: any}\nspec: {limits: {connectionsMax: 77}}\n",
    )
    fleet.fleet("config", "apply", "hall", "-f", limits)
    row = fleet.wait_for("hall", "refused", 1)
    assert "takes effect after a restart, and this gateway must not restart" in row["why"]
    fleet.fleet("config", "apply", "hall", "-f", limits, "-f", address(fleet, "one"), "--restart")
    fleet.wait_for("hall", "confirmed", 2)
    assert "the gateway restarts for the hub's configuration" in gateway.log.read_text()
    assert gateway.pid == before

    mine = fleet.written(
        "mine.yaml", ADDRESS.format(name="one", address="one", connector="hub").replace("topic", "queue")
    )
    said = fleet.here("hall", "apply", "-f", mine, code=2)
    assert "is managed by the hub (version 2)" in said
    fleet.here("hall", "apply", "-f", mine, "--local")
    wait_until(lambda: fleet.states()["hall"]["kept"] == ["Address/one"], timeout_s=WAIT_S, what="the hub hears of it")
    fleet.fleet("config", "apply", "hall", "-f", address(fleet, "one"), "--restart")
    row = fleet.wait_for("hall", "confirmed", 3)
    assert row["kept"] == []
    assert gateway.stop() == 0


@pytest.mark.slow
def test_roll_out_halts_at_a_gateway_that_refuses_it(fleet: EnrolledFleet) -> None:
    """Five gateways in waves of one, two and two; one of the second wave refuses."""
    names = [f"g{number}" for number in range(1, 6)]
    for name in names:
        fleet.enrol(name).start()
    clash = ADDRESS.format(name="mine", address="one", connector="hub").replace("topic", "queue")
    fleet.here("g3", "apply", "-f", fleet.written("clash.yaml", clash))
    file = address(fleet, "one")
    pace = ("--waves", "1,3,100%", "--soak", "1s", "--away", "60s", "--confirm", "20s")
    [begun] = items_in(fleet.fleet("rollout", "start", "g*", "-f", file, *pace, "--json"))

    def status() -> dict[str, Any]:
        [found] = items_in(fleet.fleet("rollout", "status", begun["id"], "--json"))
        return dict(found)

    wait_until(lambda: status()["state"] != "running", timeout_s=WAIT_S, what="it ends", every_s=0.5)
    halted = status()
    assert (halted["state"], halted["wave"], halted["waves"]) == ("halted", 2, 3)
    assert halted["why"].startswith("gateway g3: refused: ")
    phases = {each["gateway"]: each["phase"] for each in halted["members"]}
    assert (phases["g1"], phases["g3"], phases["g4"], phases["g5"]) == ("done", "failed", "waiting", "waiting")
    assert "Address/one" in applied(fleet, "g1")
    assert "Address/one" not in applied(fleet, "g4")

    fleet.fleet("rollout", "resume", begun["id"])
    wait_until(lambda: status()["state"] == "done", timeout_s=WAIT_S, what="it goes on without it", every_s=0.5)
    assert {each["gateway"]: each["phase"] for each in status()["members"]} == {
        **dict.fromkeys(names, "done"),
        "g3": "left-out",
    }


def test_configurations_and_roll_outs_over_http(fleet: EnrolledFleet) -> None:
    """Rights, errors, a version as YAML, labels and selectors over HTTP."""
    nobody = ("config", "apply", "-l", "site=nowhere", "-f", address(fleet, "nobody"), "--json")
    assert items_in(fleet.fleet(*nobody)) == [], "it is for who gets the label later"
    fleet.enrol("hall", "site=berlin", "ring=canary").start()
    users = {"ops": "manage:#", "eve": "view:#"}
    passwords = {}
    for name, right in users.items():
        tenant = "default" if name == "ops" else "umbrella"
        words = ("hub", "user", "add", f"{name}@{tenant}", "--data", str(fleet.folder / "hub"), "--allow", right)
        passwords[name] = item_in(run_waypost(*words, "--json").stdout)["password"]
    ops, eve = f"ops@default:{passwords['ops']}", f"eve@umbrella:{passwords['eve']}"
    path = "/api/v1/configurations/hall"
    good = ADDRESS.format(name="one", address="one", connector="hub")
    wait_until(lambda: ask(fleet, "/api/v1/configurations", ops)[0] == 200, timeout_s=WAIT_S, what="users are followed")
    assert ask(fleet, path, None, good)[0] == 401
    assert ask(fleet, path, eve, good)[0] == 403
    assert ask(fleet, path + "?tenant=default", eve)[0] == 403
    assert ask(fleet, "/api/v1/configurations/other", ops, good)[0] == 404
    status, said = ask(fleet, path, ops, good.replace("forwarders", "forwarder"))
    assert (status, "the request:5: spec.forwarder: unknown field" in said["error"]) == (400, True)
    status, said = ask(
        fleet,
        path,
        ops,
        "apiVersion: waypost/v1\nkind: MessagingUser\nmetadata: {name: x}\n"
        "spec: {username: x, authentication: {type: password}}",
    )
    assert (status, "a hub does not manage users and their secrets" in said["error"]) == (400, True)
    assert ask(fleet, path + "?confirm=1", ops, good)[0] == 400
    several = "/api/v1/configurations?gateways=hall,other"
    assert ask(fleet, several, ops, good)[0] == 404, "so hall gets none: its first version follows"
    assert ask(fleet, several + "&selector=a%3Db", ops, good)[0] == 400
    assert ask(fleet, several, eve, good)[0] == 403
    assert ask(fleet, path + "?why=ticket", ops, good)[1]["version"] == 1
    fleet.wait_for("hall", "confirmed", 1)
    shown = ask(fleet, path, ops)[1]
    assert (shown["state"], shown["versions"][0]["made_by"]) == ("confirmed", "ops@default")
    assert shown["resources"][0]["metadata"]["name"] == "one"
    assert ask(fleet, "/api/v1/rollouts?gateways=x*", ops, good)[0] == 404
    assert ask(fleet, "/api/v1/rollouts?gateways=hall&waves=none", ops, good)[0] == 400
    assert ask(fleet, "/api/v1/rollouts?gateways=hall&soak=0", ops, good)[0] == 201
    assert ask(fleet, "/api/v1/rollouts", eve)[1] == {"rollouts": [], "next": None, "total": 0}
    selectors_over_http(fleet, ops, eve)


def test_roll_backs_in_a_row_stay_at_the_last_good_version(fleet: EnrolledFleet) -> None:
    """By command and over HTTP. The gateway never runs: the registry gets its reports from the test."""
    fleet.enrol("hall")
    password = item_in(
        run_waypost(
            "hub", "user", "add", "ops@default", "--data", str(fleet.folder / "hub"), "--allow", "manage:#", "--json"
        ).stdout
    )["password"]
    ops, path = f"ops@default:{password}", "/api/v1/configurations/hall"
    rollback = f"{path}/rollback"
    wait_until(lambda: ask(fleet, "/api/v1/configurations", ops)[0] == 200, timeout_s=WAIT_S, what="users are followed")
    assert ask(fleet, rollback, ops, "")[0] == 404, "there is no version"
    for number, name in enumerate(("old", "good", "bad"), 1):
        body = ADDRESS.format(name=name, address=name, connector="hub")
        assert ask(fleet, path, ops, body)[1]["version"] == number
        confirm(fleet, number)
    said = fleet.fleet("config", "rollback", "hall")
    assert said == "hall: version 4, back to version 2: it was the last one in force and good before version 3"
    again = "hall: stays at version 4: it already goes back to version 2; --to goes further back"
    assert fleet.fleet("config", "rollback", "hall") == again
    confirm(fleet, 4)
    assert fleet.fleet("config", "rollback", "h*") == again
    status, found = ask(fleet, rollback, ops, "")
    assert (status, found["version"], found["repeats"], found["made"]) == (200, 4, 2, False)
    assert ask(fleet, path, ops, ADDRESS.format(name="worse", address="worse", connector="hub"))[1]["version"] == 5
    confirm(fleet, 5)
    status, found = ask(fleet, rollback + "?why=ticket", ops, "")
    assert (status, found["version"], found["repeats"], found["note"]) == (201, 6, 4, "ticket")
    assert ask(fleet, rollback, ops, "")[1]["version"] == 6
    assert ask(fleet, path, ops)[1]["resources"][0]["metadata"]["name"] == "good"
    [row] = items_in(fleet.fleet("config", "rollback", "hall", "--to", "1", "--json"))
    assert row == {"gateway": "hall", "version": 7, "repeats": 1, "why": "it was chosen", "made": True}
    assert "hall of tenant default has no version 99" in fleet.fleet("config", "rollback", "hall", "--to", "99", code=1)


def confirm(fleet: EnrolledFleet, version: int) -> None:
    """Report a version of `hall` as confirmed, as its gateway would."""
    with contextlib.closing(open_registry(sqlite_url(fleet.folder / "hub" / "registry.db")).database) as database:
        known = Configurations(database)
        report = DesiredReport(
            version=version, newest=version, digest=digest_of(known.versions("default", "hall")[0].content)
        )
        known.reported([(("default", "hall"), report)], time.time_ns() // 1_000)


def selectors_over_http(fleet: EnrolledFleet, ops: str, eve: str) -> None:
    """A roll-out to `hall` is under way; it ends when that gateway has confirmed version 2."""
    labels, configurations = "/api/v1/labels", "/api/v1/configurations"
    [shown] = ask(fleet, labels, ops)[1]["gateways"]
    assert (shown["gateway"], shown["labels"]) == ("hall", {"ring": "canary", "site": "berlin"})
    assert ask(fleet, labels + "?selector=site!%3Dberlin", ops)[1]["gateways"] == []
    assert ask(fleet, labels + "?tenant=default", eve)[0] == 403
    assert ask(fleet, labels + "/hall", eve, "{}", "PATCH")[0] == 403
    assert ask(fleet, labels + "/other", ops, '{"a": "b"}', "PATCH")[0] == 404
    for wrong in ("[]", '{"a": 1}', '{"a b": "c"}'):
        assert ask(fleet, labels + "/hall", ops, wrong, "PATCH")[0] == 400, wrong
    good = ADDRESS.format(name="two", address="two", connector="hub")
    two = configurations + "?selector=site%3Dberlin,ring!%3Dcanary"
    assert ask(fleet, configurations, ops, good)[0] == 400
    assert ask(fleet, two, eve, good)[0] == 403
    fleet.wait_for("hall", "confirmed", 2)
    wait_until(lambda: rollout_states(fleet, ops) == ["done"], timeout_s=WAIT_S, what="it is over", every_s=0.2)
    assert ask(fleet, two, ops, good) == (201, {"selector": "ring!=canary,site=berlin", "gateways": []})
    [row] = items_in(fleet.fleet("label", "hall", "ring-", "--json"))
    assert row == {"gateway": "hall", "labels": {"site": "berlin"}, "version": 3}
    fleet.wait_for("hall", "confirmed", 3)
    [listed] = items_in(fleet.fleet("list", "-l", "site=berlin", "--json"))
    assert listed["labels"] == {"site": "berlin"}
    assert items_in(fleet.fleet("list", "-l", "ring", "--json")) == []
    standing, first = items_in(fleet.fleet("config", "selectors", "--json"))
    assert (standing["selector"], standing["made_by"]) == ("ring!=canary,site=berlin", "ops@default")
    assert first["selector"] == "site=nowhere"
    path = two + "&tenant=default"
    assert ask(fleet, path, eve, method="DELETE")[0] == 403
    assert ask(fleet, path, ops, method="DELETE")[1]["gateways"][0]["version"] == 4
    assert ask(fleet, path, ops, method="DELETE")[0] == 404


def rollout_states(fleet: EnrolledFleet, ops: str) -> list[str]:
    return [each["state"] for each in ask(fleet, "/api/v1/rollouts", ops)[1]["rollouts"]]


def ask(
    fleet: EnrolledFleet, path: str, user: str | None, body: str | None = None, method: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Send a request over the hub's HTTPS; return status and document."""
    context = ssl.create_default_context(cafile=str(fleet.folder / "hub" / "authority" / "ca.pem"))
    headers = {"Authorization": f"Basic {encoded(user)}"} if user is not None else {}
    sent = body.encode() if body is not None else None
    answer = http_client.ask(
        fleet.hub, method or ("GET" if body is None else "POST"), path, sent, headers, timeout_s=WAIT_S, tls=context
    )
    return answer.status, json.loads(answer.body or b"{}")
