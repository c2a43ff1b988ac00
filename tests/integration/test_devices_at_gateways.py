"""Devices of a hub's registry at its gateways: a real hub, real gateways, and MQTT, AMQP and HTTP clients."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator

import pytest

from cloud.hub.peers import DEFAULT_TENANT
from tests.support.device_fleet import PASSWORD, SOON_S, DeviceFleet, RegisteredDevice, arrive, soon, status_of, stored
from tests.support.operator import HubOperator


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceFleet]:
    with DeviceFleet(tmp_path_factory.mktemp("devices")) as made:
        for name in ("hall", "roof"):
            made.enrol(name, f"site={name}").start()
        yield made


def test_a_device_works_within_seconds_and_without_the_hub(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    assert status_of(hall, "pump") == 401
    fleet.register("pump", "hall")
    arrive(hall, "pump")
    assert "pump" not in stored(fleet.gateways["roof"])
    with RegisteredDevice("pump", PASSWORD).connect(hall.port("mqtt")) as device:
        assert device.code == 0
        fleet.hub.kill()
        try:
            device.publish("plant/pump/t", b"21")
            assert device.subscribe("command/pump/#") == [1]
            assert device.subscribe("command/other/#") != [1]
            assert status_of(hall, "pump") < 300
            hall.kill()
            hall.start()
            assert status_of(hall, f"pump@{DEFAULT_TENANT}", device="pump") < 300
            assert status_of(hall, "pump", "wrong") == 401
        finally:
            fleet.hub.start()


def test_a_password_rotates_without_a_disconnect(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    fleet.register("fan", "hall")
    arrive(hall, "fan")
    (before,) = stored(hall)["fan"].logins[0].secrets
    with RegisteredDevice("fan", PASSWORD).connect(hall.port("mqtt")) as device:
        fleet.set_passwords("fan", [{"id": before.id}, {"pwd-plain": "the-next-one"}])
        soon(lambda: len(stored(hall)["fan"].logins[0].secrets) == 2, "both passwords are there")
        soon(lambda: status_of(hall, "fan", "the-next-one") < 300, "the next password is there")
        assert status_of(hall, "fan") < 300
        fleet.set_passwords("fan", [{"pwd-plain": "the-last-one"}])
        soon(lambda: status_of(hall, "fan", "the-last-one") < 300, "the last password is there")
        assert status_of(hall, "fan") == 401
        device.publish("plant/fan/t", b"still here")
        assert device.ended.empty()


def test_a_removed_or_disabled_device_is_disconnected(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    for name in ("lamp", "door"):
        fleet.register(name, "hall")
    arrive(hall, "lamp", "door")
    port = hall.port("mqtt")
    with (
        RegisteredDevice("lamp", PASSWORD).connect(port) as lamp,
        RegisteredDevice("door", PASSWORD).connect(port) as door,
    ):
        fleet.replace("lamp", "hall", enabled=False)
        lamp.ended.get(timeout=SOON_S)
        fleet.registry("DELETE", f"devices/{DEFAULT_TENANT}/door")
        door.ended.get(timeout=SOON_S)
    assert [status_of(hall, name) for name in ("lamp", "door")] == [401, 401]
    fleet.replace("lamp", "hall", enabled=True)
    soon(lambda: status_of(hall, "lamp") < 300, "the device is let in again")


def test_a_device_moves_with_its_identity_and_commands(fleet: DeviceFleet) -> None:
    """Each command is delivered once and in order, though the former gateway dies before it gets the change, and the
    hub while commands come back."""
    hall, roof = fleet.gateways["hall"], fleet.gateways["roof"]
    fleet.register("cart", selector="site=hall")
    arrive(hall, "cart")
    with RegisteredDevice("cart", PASSWORD).connect(hall.port("mqtt")) as device:
        assert device.subscribe("command/cart/#") == [1]
        sent = [fleet.send_command("cart", "hall", "one")]
        assert device.take().payload == b"one"
        fleet.wait_for_command(sent[0], "delivered")
    sent += [fleet.send_command("cart", "hall", body) for body in ("two", "three")]
    for each in sent[1:]:
        fleet.wait_for_command(each, "queued")
    hall.kill()
    sent.append(fleet.send_command("cart", "hall", "four"))
    fleet.replace("cart", "roof")
    sent.append(fleet.send_command("cart", "roof", "five"))
    arrive(roof, "cart")
    assert fleet.command(sent[-1])["state"] == "waiting", "hall may still deliver earlier ones"
    with RegisteredDevice("cart", PASSWORD).connect(roof.port("mqtt")) as device:
        assert device.subscribe("command/cart/#") == [1]
        hall.start()
        soon(lambda: "cart" not in stored(hall), "hall knows that the device has left")
        fleet.hub.kill()
        fleet.hub.start()
        assert device.bodies(4) == [b"two", b"three", b"four", b"five"]
        for each in sent[1:]:
            fleet.wait_for_command(each, "delivered")
    assert status_of(hall, "cart") == 401, "the device is refused where it was"
    places = [(found["gateway"], found["sent_to"]) for found in map(fleet.command, sent)]
    assert places == [("hall", None), *[("roof", "hall")] * 3, ("roof", None)]
    sent.append(fleet.send_command("cart", "roof", "six"))
    fleet.wait_for_command(sent[-1], "queued")
    fleet.replace("cart", "hall")
    arrive(hall, "cart")
    with RegisteredDevice("cart", PASSWORD).connect(hall.port("mqtt")) as device:
        device.subscribe("command/cart/#")
        assert device.take().payload == b"six", "nothing that was delivered elsewhere comes again"


def test_hashes_and_tenants_of_hono(fleet: DeviceFleet) -> None:
    hall, tenant = fleet.gateways["hall"], "DEFAULT_TENANT"
    fleet.registry("POST", f"tenants/{tenant}")
    digest = base64.b64encode(hashlib.sha512(b"salt" + b"hono-secret").digest()).decode()
    salt = base64.b64encode(b"salt").decode()
    secret = {"hash-function": "sha-512", "pwd-hash": digest, "salt": salt}
    fleet.register("4711", "hall", tenant=tenant, auth_id="sensor1", secrets=[secret])
    login = f"sensor1@{tenant}"
    soon(lambda: status_of(hall, login, "hono-secret", device=f"4711@{tenant}") < 300, "the device is let in")
    assert status_of(hall, f"sensor1@{tenant}", "hono-secret", device="4711") == 403  # of the gateway's own tenant
    assert status_of(hall, "sensor1", "hono-secret") == 401
    fleet.registry("PUT", f"tenants/{tenant}", {"enabled": False})
    soon(lambda: status_of(hall, f"sensor1@{tenant}", "hono-secret", device=f"4711@{tenant}") == 401, "it is refused")


def test_devices_are_listed_with_their_origin(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    fleet.register("valve", "hall", enabled=False)
    soon(lambda: "valve" in stored(hall), "the device is at its gateway")
    assert "valve  (hub, disabled)" in fleet.here("hall", "device", "show", "valve")
    assert "valve" in fleet.here("hall", "device", "list")
    assert "hub device show" in fleet.here("hall", "device", "remove", "valve", code=1)


def told(fleet: DeviceFleet) -> dict[tuple[str, str], bool]:
    """Return name and gateway of the devices that were added at gateways, and whether each is a conflict."""
    found = HubOperator(fleet.hub).get("local-devices")
    assert found["next"] is None
    return {(each["device"], each["gateway"]): each["conflict"] for each in found["devices"]}


def test_a_user_of_the_gateway_wins_over_a_device_with_its_name(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    (added,) = json.loads(fleet.here("hall", "device", "add", "gate", "--json"))["items"]
    password = added["password"]
    soon(lambda: told(fleet) == {("gate", "hall"): False}, "the hub knows the device of the gateway")
    fleet.register("gate", "hall")
    soon(lambda: "gate" in stored(hall), "the device is at its gateway")
    assert told(fleet) == {("gate", "hall"): True}
    (row,) = json.loads(fleet.fleet("hub", "device", "list", "--local", "--gateway", "hall", "-o", "json"))["items"]
    assert row == {"device": "gate", "gateway": "hall", "conflict": True}
    soon(lambda: status_of(hall, "gate", password) < 300, "the user of the gateway is let in")
    assert status_of(hall, "gate") == 401
    shown = fleet.here("hall", "device", "list")
    assert "conflict" in shown
    fleet.here("hall", "device", "remove", "gate")
    soon(lambda: status_of(hall, "gate") < 300, "the hub's device is let in")
    soon(lambda: told(fleet) == {}, "the hub knows that it was removed")
    assert status_of(hall, "gate", password) == 401
