"""Devices with certificates at a real gateway, without a registration: first without the hub, then with it."""

from __future__ import annotations

import json
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from cloud.hub.peers import DEFAULT_TENANT
from edge.broker.security.hub_device_file import FILE, HubDeviceFile
from tests.support.device_certificates import DeviceAuthority, DeviceCertificate
from tests.support.device_fleet import SOON_S, DeviceFleet, soon, stored
from tests.support.operator import HubOperator
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost

PLACE = f"devices/{DEFAULT_TENANT}/pump"


class CertifiedClient(PahoClient):
    """MQTT client with a certificate, and neither user name nor password."""

    def __init__(self, folder: Path, server: Path, shown: DeviceCertificate) -> None:
        super().__init__(paho.Client(paho.CallbackAPIVersion.VERSION2, "pump", protocol=paho.MQTTv5))
        file = str(shown.write(folder, "pump"))
        self.client.tls_set(str(server), file, file)
        self.client.tls_insecure_set(True)


def has_authorities(gateway: Waypost) -> bool:
    if not (gateway.data / FILE).exists():
        return False
    with HubDeviceFile.open(gateway.data) as file:
        return bool(file.anchors())


@pytest.mark.slow
def test_a_device_is_let_in_by_its_certificate_and_registered_later(tmp_path: Path) -> None:
    authority, servers = DeviceAuthority.make(), DeviceAuthority.make("servers")
    pump, server = authority.issue("pump"), servers.write(tmp_path, "servers")
    with DeviceFleet(tmp_path) as fleet:
        hall = fleet.enrol("hall")
        file = str(servers.issue("hall").write(tmp_path, "server"))
        gateway = json.loads((hall.data / "config" / "resources.json").read_text())["resources"][0]
        gateway["spec"]["listeners"] |= {"mqtts": "127.0.0.1:0", "tls": {"certificate": file, "key": file}}
        fleet.here("hall", "apply", "-f", fleet.written("tls.yaml", json.dumps(gateway)))
        hall.start()
        more = {"auto-provisioning-enabled": True, "auto-provisioning-device-id-template": "{{subject-cn}}"}
        fleet.registry("PUT", f"tenants/{DEFAULT_TENANT}", {"trusted-ca": [authority.document(**more)]})
        soon(lambda: has_authorities(hall), "the gateway has the authority")
        fleet.hub.kill()

        def connect() -> CertifiedClient:
            made = CertifiedClient(tmp_path, server, pump)
            made.connect(hall.port("mqtts"))
            return made

        with connect() as client:
            assert client.code == 0
            client.publish("plant/pump/t", b"21")
            assert client.subscribe("command/pump/#") == [1]
            assert client.subscribe("command/other/#") != [1]
            (row,) = json.loads(fleet.here("hall", "device", "list", "-o", "json"))["items"]
            assert (row["name"], row["origin"], row["state"]) == ("pump", "certificate", "new")
        hall.kill()
        hall.start()
        with connect() as client:
            assert client.code == 0
            fleet.hub.start()
            soon(lambda: "pump" in stored(hall), "the registration is at the gateway")
            found = HubOperator(fleet.hub).ask("GET", f"/v1/{PLACE}").document
            assert found["ext"]["waypost"] == {"gateways": ["hall"], "provisioned": True}
            assert found["status"]["auto-provisioned"] is True
            client.publish("plant/pump/t", b"22")
            assert client.ended.empty(), "it stays connected"
            fleet.registry("PUT", PLACE, {**found, "enabled": False})
            client.ended.get(timeout=SOON_S)
        with connect() as client:
            assert client.code != 0
