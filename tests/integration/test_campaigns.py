"""Campaigns for devices behind gateways: a real hub, real gateways, devices over HTTP, kills of each of them."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.artefacts import IMAGE, KEY, sealed
from tests.support.command import error_of, items_in, items_of, output_of, run_waypost
from tests.support.configured_gateway import basic
from tests.support.device_fleet import PASSWORD, DeviceFleet, RegisteredDevice, arrive, soon
from tests.support.http_client import Answer, ask
from tests.support.operator import HubOperator
from tests.support.processes import Waypost

SPEC = {"trustedKeys": [KEY.public.pem], "artefacts": []}


def blinker(version: str = "1.2.0", part: str = "") -> str:
    return f"/artefacts/blinker/{version}/{part}"


def as_device(gateway: Waypost, device: str, method: str, path: str, body: Any = None) -> Answer:
    fields = {**basic(device, PASSWORD), "Content-Type": "application/json"}
    return ask(gateway, method, path, None if body is None else json.dumps(body).encode(), fields)


def report(gateway: Waypost, device: str, state: str, version: str = "1.2.0", reason: str = "") -> None:
    body, path = {"state": state, "reason": reason}, blinker(version, "report")

    def is_taken() -> bool:
        answer = as_device(gateway, device, "POST", path, body)
        assert answer.status in (202, 503), answer  # 503 while changed offers are read
        return answer.status == 202

    soon(is_taken, f"the report of {device} is taken")


def offered(gateway: Waypost, device: str) -> list[str]:
    """Return the versions that a device may have; none while changed offers are read."""
    answer = as_device(gateway, device, "GET", "/artefacts")
    assert answer.status in (200, 503), answer
    return [each["version"] for each in answer.document["artefacts"]] if answer.status == 200 else ["unknown"]


def upload(hub: HubOperator, image: bytes = IMAGE, **fields: Any) -> None:
    assert hub.send("POST", "artefacts", sealed(image, **fields), "application/cose").status == 201
    path = f"artefacts/{fields.get('name', 'blinker')}/{fields.get('version', '1.2.0')}"
    assert hub.send("PUT", f"{path}/parts/0", image, "application/octet-stream").status == 200
    assert hub.send("POST", f"{path}/complete").status == 200


class Campaigns:
    """Campaigns of a hub."""

    def __init__(self, fleet: DeviceFleet, hub: HubOperator) -> None:
        self.fleet, self.hub = fleet, hub

    def start(self, *devices: str, status: int = 201, **fields: Any) -> Any:
        new = {"artefact": "blinker", "version": "1.2.0", "devices": list(devices), "soak_s": 0, **fields}
        answer = self.hub.send("POST", "campaigns", new)
        assert answer.status == status, answer
        return answer.document["id"] if status == 201 else answer.document

    def state(self, campaign: str) -> str:
        return str(self.hub.get(f"campaigns/{campaign}")["state"])

    def phases(self, campaign: str) -> dict[str, str]:
        return {each["device"]: each["phase"] for each in self.hub.get(f"campaigns/{campaign}/devices")["devices"]}

    def wait(self, campaign: str, state: str) -> None:
        soon(lambda: self.state(campaign) == state, f"campaign {campaign} is {state}")

    def wait_phase(self, campaign: str, device: str, phase: str) -> None:
        soon(lambda: self.phases(campaign)[device] == phase, f"{device} is {phase}")

    def step(self, campaign: str, step: str, **fields: str) -> Answer:
        return self.hub.send("POST", f"campaigns/{campaign}/{step}", b"", **fields)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceFleet]:
    with DeviceFleet(tmp_path_factory.mktemp("campaigns")) as made:
        for name in ("hall", "roof"):
            made.enrol(name).start()
        document = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": SPEC}
        made.fleet("config", "apply", "hall", "roof", "-f", made.written("artefacts.yaml", json.dumps(document)))
        for name in ("hall", "roof"):
            made.wait_for(name, "confirmed", 1)
        yield made


@pytest.fixture(scope="module")
def campaigns(fleet: DeviceFleet) -> Campaigns:
    hub = HubOperator(fleet.hub)
    assert hub.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
    upload(hub)
    return Campaigns(fleet, hub)


@pytest.fixture(autouse=True)
def stop_campaigns(campaigns: Campaigns) -> Iterator[None]:
    """Stop the campaigns of a test, so that the next one can start its own."""
    yield
    for each in campaigns.hub.get("campaigns")["campaigns"]:
        if each["offering"]:
            campaigns.step(each["id"], "stop")


@pytest.mark.timeout(500)
def test_waves_with_kills_a_failure_and_a_device_that_moves(fleet: DeviceFleet, campaigns: Campaigns) -> None:
    hall, roof = fleet.gateways["hall"], fleet.gateways["roof"]
    for name in ("p1", "p2", "p3"):
        fleet.register(name, "hall")
    arrive(hall, "p1", "p2", "p3")
    campaign = campaigns.start("p?", waves="1,2,100%")
    soon(lambda: offered(hall, "p1") == ["1.2.0"], "p1 is offered it")
    soon(lambda: offered(hall, "p2") == [], "p2 is not")
    soon(lambda: as_device(hall, "p1", "GET", blinker(part="image")).body == IMAGE, "the image is here")
    report(hall, "p1", "downloading")
    fleet.hub.kill()
    hall.kill()
    hall.start()
    soon(lambda: offered(hall, "p1") == ["1.2.0"], "the offer lasts without the hub")
    assert as_device(hall, "p1", "GET", blinker(part="image")).body == IMAGE
    report(hall, "p1", "healthy")
    fleet.hub.start()
    campaigns.wait_phase(campaign, "p1", "done")

    soon(lambda: offered(hall, "p2") == ["1.2.0"], "the next wave starts")
    report(hall, "p2", "rolled-back", reason="no boot")
    campaigns.wait(campaign, "halted")
    shown = campaigns.hub.get(f"campaigns/{campaign}")
    assert shown["why"] == "device p2: no boot"
    soon(
        lambda: any(f"campaign {campaign}" in each["name"] for each in campaigns.hub.get("status")["problems"]),
        "it is a problem of the hub",
    )
    soon(lambda: offered(hall, "p2") == [], "it is withheld")
    report(hall, "p2", "verified")

    fleet.replace("p3", "roof")
    fleet.set_passwords("p3", [{"pwd-plain": PASSWORD}])
    arrive(roof, "p3")
    assert campaigns.step(campaign, "resume", If_Match='"other"').status == 412
    assert campaigns.step(campaign, "resume", If_Match=shown["etag"]).status == 200
    soon(lambda: offered(roof, "p3") == ["1.2.0"], "it is offered at its new gateway")
    soon(lambda: as_device(roof, "p3", "GET", blinker(part="image")).body == IMAGE, "the image is there")
    report(roof, "p3", "installed")
    campaigns.wait(campaign, "done")
    assert campaigns.phases(campaign) == {"p1": "done", "p2": "left-out", "p3": "done"}
    assert len(list((hall.data / "artefacts").glob("*.image"))) == 1

    stopped = campaigns.step(campaign, "stop")
    assert (stopped.document["state"], stopped.document["offering"]) == ("done", False)
    soon(lambda: offered(hall, "p1") == [], "nothing is offered any more")
    soon(lambda: not list((hall.data / "artefacts").glob("*.image")), "the image is deleted")


def test_wrong_board_is_a_failure_with_its_reason(fleet: DeviceFleet, campaigns: Campaigns) -> None:
    hall = fleet.gateways["hall"]
    fleet.register("q1", "hall")
    arrive(hall, "q1")
    campaign = campaigns.start("q1")
    soon(lambda: offered(hall, "q1") == ["1.2.0"], "q1 is offered it")
    path = blinker(part="manifest?board=esp32")
    soon(lambda: as_device(hall, "q1", "GET", path).status == 422, "another board is refused")
    assert as_device(hall, "q1", "GET", path).document["reason"] == "wrong-board"
    with RegisteredDevice("q1", PASSWORD).connect(hall.port("mqtt")) as device:
        soon(lambda: device.subscribe("$artefacts/q1/answer/#") == [1], "the topics are served")

        def is_halted() -> bool:
            device.publish("$artefacts/q1/get/offer", b'{"board": "esp32"}')
            return campaigns.state(campaign) == "halted"

        soon(is_halted, "the board that the device names counts")
    assert "wrong-board" in campaigns.hub.get(f"campaigns/{campaign}")["why"]
    assert campaigns.step(campaign, "stop").status == 200


def test_rights(fleet: DeviceFleet, campaigns: Campaigns) -> None:
    passwords = {}
    for name, right in (("ops@default", "manage:#"), ("see@default", "view:#"), ("eve@umbrella", "manage:#")):
        place = ("--data", str(fleet.hub.data), "--allow", right, "--json")
        [user] = items_in(run_waypost("hub", "user", "add", name, *place).stdout)
        passwords[name] = user["password"]

    def send(user: str, method: str, path: str, body: Any = None) -> int:
        login = base64.b64encode(f"{user}:{passwords[user]}".encode()).decode()
        fields = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        context = ssl.create_default_context(cafile=str(fleet.hub.data / "authority" / "ca.pem"))
        return ask(fleet.hub, method, f"/api/v1/{path}", content, fields, tls=context).status

    soon(lambda: send("ops@default", "GET", "campaigns") == 200, "users are followed")
    fleet.register("r1", "hall")
    new = {"artefact": "blinker", "version": "1.2.0", "devices": ["r1"]}
    assert send("see@default", "POST", "campaigns", new) == 403
    assert send("eve@umbrella", "POST", "campaigns?tenant=default", new) == 403
    assert send("eve@umbrella", "POST", "campaigns", new) == 404, "it has no such tenant of devices"
    assert send("eve@umbrella", "POST", "campaigns", {**new, "device_tenant": "default"}) == 404
    assert send("ops@default", "POST", "campaigns", new) == 201
    campaign = campaigns.hub.get("campaigns")["campaigns"][0]["id"]
    for user, path, status in (
        ("see@default", f"campaigns/{campaign}", 200),
        ("see@default", f"campaigns/{campaign}/devices", 200),
        ("eve@umbrella", f"campaigns/{campaign}", 404),
        ("eve@umbrella", f"campaigns/{campaign}/devices", 404),
        ("eve@umbrella", "campaigns?tenant=default", 403),
    ):
        assert send(user, "GET", path) == status, path
    assert send("see@default", "POST", f"campaigns/{campaign}/stop") == 403
    assert send("eve@umbrella", "POST", f"campaigns/{campaign}/stop") == 404
    assert send("ops@default", "POST", f"campaigns/{campaign}/stop") == 200
    lines = [each for each in campaigns.hub.get("audit?limit=100")["lines"] if each["subject"] == campaign]
    assert {each["action"] for each in lines} == {"campaign.start", "campaign.stop"}


def test_wrong_requests(fleet: DeviceFleet, campaigns: Campaigns) -> None:
    for fields, status in (
        ({"devices": []}, 400),
        ({"devices": ["none*"]}, 404),
        ({"version": "9"}, 409),
        ({"waves": "0"}, 400),
        ({"waves": "ring=none"}, 400),
        ({"selector": "=="}, 400),
        ({"soak_s": -1}, 400),
        ({"ends_at": "2020-01-01T00:00:00Z"}, 409),
        ({"ends_at": "tomorrow"}, 400),
        ({"unknown": 1}, 400),
        ({"device_tenant": "none"}, 404),
        ({"note": "\0"}, 400),
    ):
        new = {"artefact": "blinker", "version": "1.2.0", "devices": ["*"], **fields}
        assert campaigns.hub.send("POST", "campaigns", new).status == status, fields
    for path in ("campaigns/none", "campaigns/none/devices"):
        assert campaigns.hub.send("GET", path).status == 404, path
    assert campaigns.hub.send("GET", "campaigns?after=x").status == 400
    assert campaigns.hub.send("GET", "campaigns?limit=0").status == 400
    assert campaigns.step("none", "pause").status == 404
    assert campaigns.hub.send("POST", "campaigns", b"{", "application/json").status == 400


def test_commands(fleet: DeviceFleet, campaigns: Campaigns) -> None:
    place = ("--data", str(fleet.hub.data))
    fleet.register("s1", "hall")
    fleet.register("s2", "hall")
    [row] = items_of("campaign", "start", *place, "blinker", "1.2.0", "s*", "--waves", "1,100%", "--away", "3d")
    campaign = row["id"]
    with contextlib.ExitStack() as stopping:
        stopping.callback(lambda: output_of("campaign", "stop", *place, campaign))
        assert campaign in output_of("campaign", "list", *place)
        [listed] = [each for each in items_of("campaign", "list", *place) if each["id"] == campaign]
        assert (listed["state"], listed["waves"]) == ("running", 2)
        campaigns.wait_phase(campaign, "s1", "sent")
        assert [each["device"] for each in items_of("campaign", "show", *place, campaign)] == ["s1", "s2"]
        [sent] = items_of("campaign", "show", *place, campaign, "--phase", "sent")
        assert sent["device"] == "s1"
        assert "paused" in output_of("campaign", "pause", *place, campaign)
        assert "error[conflict]" in error_of("campaign", "pause", *place, campaign, code=1)
        assert "running" in output_of("campaign", "resume", *place, campaign)
        assert "error[conflict]" in error_of("campaign", "start", *place, "blinker", "1.2.0", "s*", code=1)
        assert "error[invalid-value]" in error_of("campaign", "start", *place, "blinker", "1.2.0", code=2)
        assert "error[not-found]" in error_of("campaign", "show", *place, "none", code=1)
