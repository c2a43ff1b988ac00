"""Devices of a hub's registry at real gateways."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho

from bridge.device_pages import DeviceEntry
from cloud.hub.peers import DEFAULT_TENANT
from edge.broker.security.hub_device_file import FILE, HubDeviceFile, decode_entry
from tests.support.enrolled import EnrolledFleet
from tests.support.http_client import ask
from tests.support.operator import HubOperator
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until

SOON_S = 60.0
PASSWORD = "a-good-password"


class DeviceFleet(EnrolledFleet):
    """Hub with a gateway, and the registry over HTTP."""

    def registry(self, method: str, path: str, body: Any = None) -> None:
        answer = HubOperator(self.hub).ask(method, f"/v1/{path}", body)
        assert answer.status < 300, answer

    def register(
        self,
        device: str,
        *gateways: str,
        tenant: str = DEFAULT_TENANT,
        secrets: list[dict[str, Any]] | None = None,
        auth_id: str = "",
        **registration: Any,
    ) -> None:
        extension = {"gateways": list(gateways)} if gateways else {"selector": registration.pop("selector", "")}
        self.registry("POST", f"devices/{tenant}/{device}", {"ext": {"waypost": extension}, **registration})
        self.set_passwords(device, secrets or [{"pwd-plain": PASSWORD}], tenant=tenant, auth_id=auth_id)

    def replace(self, device: str, *gateways: str, **registration: Any) -> None:
        body = {"ext": {"waypost": {"gateways": list(gateways)}}, **registration}
        self.registry("PUT", f"devices/{DEFAULT_TENANT}/{device}", body)

    def set_passwords(
        self, device: str, secrets: list[dict[str, Any]], *, tenant: str = DEFAULT_TENANT, auth_id: str = ""
    ) -> None:
        credentials = [{"type": "hashed-password", "auth-id": auth_id or device, "secrets": secrets}]
        self.registry("PUT", f"credentials/{tenant}/{device}", credentials)

    def send_command(self, device: str, gateway: str, payload: str) -> str:
        """Send a command; return its identifier."""
        body = {"device": device, "gateway": gateway, "name": "go", "payload": payload}
        answer = HubOperator(self.hub).send("POST", "commands", body)
        assert answer.status == 202, answer
        return str(answer.document["id"])

    def command(self, identifier: str) -> dict[str, Any]:
        """Return a command."""
        return dict(HubOperator(self.hub).get(f"commands/{identifier}"))

    def wait_for_command(self, identifier: str, state: str) -> None:
        """Wait until a command has this state."""
        soon(lambda: self.command(identifier)["state"] == state, f"the command is {state}")


class RegisteredDevice(PahoClient):
    """MQTT client with the name and password of a device."""

    def __init__(self, username: str, password: str) -> None:
        super().__init__(paho.Client(paho.CallbackAPIVersion.VERSION2, f"client-of-{username}"))
        self.client.username_pw_set(username, password)


def status_of(gateway: Waypost, username: str, password: str = PASSWORD, device: str = "") -> int:
    """Publish over HTTP as a device; return the status."""
    login = base64.b64encode(f"{username}:{password}".encode()).decode()
    address = f"/t/plant/{device or username}/t"
    return ask(gateway, "POST", address, b"1", {"Authorization": f"Basic {login}"}).status


def stored(gateway: Waypost) -> dict[str, DeviceEntry]:
    """Return the devices in the file of a gateway."""
    if not (gateway.data / FILE).exists():
        return {}
    with HubDeviceFile.open(gateway.data) as file:
        return {each.device: decode_entry(each.entry) for each in file.devices()}


def arrive(gateway: Waypost, *devices: str) -> None:
    """Wait until a gateway lets devices in: it uses a page a moment after it is on disk."""
    soon(lambda: set(devices) <= stored(gateway).keys(), f"{devices} are at their gateway")
    soon(lambda: all(status_of(gateway, each) < 300 for each in devices), f"{devices} are let in")


def soon(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, timeout_s=SOON_S, what=what, every_s=0.3)
