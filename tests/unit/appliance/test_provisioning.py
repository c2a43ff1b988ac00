"""Devices that a gateway lets in by their certificates: limits, names, refusals and restarts."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloud.hub.registry.location import sqlite_url
from edge.appliance.devices import provisioning
from edge.appliance.devices.cli import device
from edge.appliance.devices.following import follow_hub_devices
from edge.broker.security import certified_devices, provisioned_devices
from edge.broker.security.credentials import CredentialsUnavailable
from edge.broker.security.limits import REFUSED_AGAIN_S
from edge.broker.security.provisioned_devices import HOUR_S
from edge.broker.security.provisioned_file import ProvisionedFile
from tests.support.command import items_in
from tests.support.device_certificates import DeviceAuthority
from tests.support.provisioning_site import (
    BY_COMMON_NAME,
    OWNER,
    ProvisioningGateway,
    ProvisioningRegistry,
    any_revision,
)

AUTHORITY = DeviceAuthority.make()
PUMP = AUTHORITY.issue("pump")
FAN = AUTHORITY.issue("fan")
LAMP = AUTHORITY.issue("lamp")


class ProvisioningPlant:
    """Registry with an authority that registers devices, and a gateway that knows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = ProvisioningRegistry(sqlite_url(folder / "registry.db"))
        self.trust(**BY_COMMON_NAME)
        self.gateway = self.add("gw1")

    def trust(self, *, provisions: bool = True, tenant: str = OWNER, **more: Any) -> None:
        document = AUTHORITY.document(**more, **{"auto-provisioning-enabled": provisions})
        self.registry.trust(document, tenant=tenant)

    def add(self, name: str) -> ProvisioningGateway:
        made = ProvisioningGateway(self.folder / name, name, self.registry)
        made.pages()
        return made


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[ProvisioningPlant]:
    made = ProvisioningPlant(tmp_path)
    with contextlib.closing(made.registry.database):
        yield made
        made.gateway.close()


def listed(gateway: ProvisioningGateway) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(device, ["list", "--data", str(gateway.folder), "-o", "json"])
    assert done.exit_code == 0, done.output
    return {row["name"]: row for row in items_in(done.output)}


class TestWithoutTheHub:
    """The gateway alone."""

    def test_a_device_is_let_in_and_stays_so_after_a_restart(self, plant: ProvisioningPlant) -> None:
        assert plant.gateway.known(PUMP) is None
        assert plant.gateway.connect(PUMP) == "pump"
        assert plant.gateway.known(PUMP) == "pump"
        user = plant.gateway.devices.user("pump")
        assert user is not None
        assert not user.secrets
        plant.gateway.restart()
        assert plant.gateway.known(PUMP) == "pump"
        row = listed(plant.gateway)["pump"]
        assert (row["origin"], row["state"], row["subject"]) == ("certificate", "new", "CN=pump,O=ACME")

    def test_without_the_flag_none_is_let_in(self, plant: ProvisioningPlant) -> None:
        plant.trust(provisions=False)
        plant.gateway.pages()
        assert plant.gateway.connect(PUMP) is None

    def test_a_user_of_the_gateway_keeps_its_name(self, plant: ProvisioningPlant) -> None:
        plant.gateway.users = {"pump"}
        assert plant.gateway.connect(PUMP) is None
        assert plant.gateway.connect(FAN) == "fan"
        plant.gateway.users = {"fan"}
        assert plant.gateway.known(FAN) is None

    def test_a_certificate_that_the_hub_does_not_read_lets_none_in(
        self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certified_devices, "CERTIFICATE_BYTES_MAX", len(PUMP.der) - 1)
        assert plant.gateway.connect(PUMP) is None
        monkeypatch.setattr(certified_devices, "CERTIFICATE_BYTES_MAX", len(PUMP.der))
        assert plant.gateway.connect(PUMP) == "pump"

    def test_two_certificates_do_not_share_an_id(self, plant: ProvisioningPlant) -> None:
        plant.trust(**{"auto-provisioning-device-id-template": "{{subject-o}}"})
        plant.gateway.pages()
        assert plant.gateway.connect(PUMP) == "ACME"
        assert plant.gateway.connect(FAN) is None

    def test_a_whole_subject_becomes_an_id(self, plant: ProvisioningPlant) -> None:
        plant.trust(**{"auto-provisioning-device-id-template": "{{subject-dn}}"})
        plant.gateway.pages()
        assert plant.gateway.connect(PUMP) == "CN=pump-O=ACME"

    def test_an_id_without_template_is_the_same_everywhere(self, plant: ProvisioningPlant) -> None:
        plant.trust()
        plant.gateway.pages()
        other = plant.add("gw2")
        first = plant.gateway.connect(PUMP)
        assert first is not None
        assert other.connect(PUMP) == first
        assert other.connect(FAN) != first
        other.close()

    def test_two_tenants_with_the_authority_have_none_let_in(self, plant: ProvisioningPlant) -> None:
        group = {"trust-anchor-group": "g"}
        for tenant in (OWNER, "plant"):
            document = {"trusted-ca": [AUTHORITY.document(**{"auto-provisioning-enabled": True})], **group}
            plant.registry.put(document, tenant=tenant)
        plant.gateway.pages()
        assert plant.gateway.connect(PUMP) is None

    def test_devices_of_an_hour_are_limited(self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(provisioned_devices, "PROVISIONED_HOURLY_MAX", 2)
        gateway = plant.gateway
        assert [gateway.connect(each) for each in (PUMP, FAN, LAMP)] == ["pump", "fan", None]
        gateway.restart()
        assert gateway.connect(LAMP) is None, "also after a restart"
        gateway.now_s += HOUR_S
        assert gateway.connect(LAMP) == "lamp"
        gateway.now_s -= 10 * HOUR_S
        assert gateway.connect(AUTHORITY.issue("door")) == "door", "a clock that went back locks nobody out"

    def test_devices_that_wait_for_the_hub_are_limited(
        self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provisioned_devices, "PROVISIONED_MAX", 1)
        assert [plant.gateway.connect(each) for each in (PUMP, FAN)] == ["pump", None]
        plant.gateway.settle()
        assert plant.gateway.connect(FAN) == "fan"

    def test_connections_that_wait_for_the_disk_are_limited(
        self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(provisioning, "PROVISIONINGS_WAITING_MAX", 2)
        gateway, decided = plant.gateway, list[tuple[str, bool]]()

        def arrive() -> None:
            for name, shown in (("pump", PUMP), ("pump", PUMP), ("pump", PUMP), ("fan", FAN), ("lamp", LAMP)):
                candidate = gateway.certified.recognize(shown.der).candidate
                assert candidate is not None
                gateway.certified.provision(candidate, lambda let_in, name=name: decided.append((name, let_in)))  # type: ignore[misc]

        gateway.run(arrive)
        assert sorted(decided) == [("fan", True), ("lamp", False), ("pump", False), ("pump", True), ("pump", True)]

    def test_without_a_disk_none_is_let_in(self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise CredentialsUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(ProvisionedFile, "put", fail)
            assert plant.gateway.connect(PUMP) is None
            assert plant.gateway.provisioner.trouble == "the disk is full"
        assert plant.gateway.connect(PUMP) == "pump"
        assert plant.gateway.provisioner.trouble is None


class TestWithTheHub:
    """Decisions of the hub."""

    def test_the_registration_takes_over(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        gateway.connect(PUMP)
        assert gateway.decide() is None
        assert gateway.known(PUMP) == "pump", "until the page comes"
        assert gateway.page()
        assert (gateway.known(PUMP), len(gateway.provisioned)) == ("pump", 0)
        assert plant.registry.gateways("pump") == ["gw1"]
        gateway.restart()
        assert gateway.known(PUMP) == "pump"
        plant.registry.replace("pump", enabled=False)
        gateway.pages()
        assert gateway.connect(PUMP) is None, "a disabled device is not registered again"
        plant.registry.replace("pump", enabled=True)
        plant.registry.set_credentials("pump", "CN=pump,O=ACME", enabled=False)
        gateway.pages()
        assert gateway.connect(PUMP) is None, "nor one with disabled credentials"

    def test_a_refused_device_is_disconnected_and_asked_about_again(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        gateway.connect(PUMP)
        plant.registry.register("pump", "CN=other,O=ACME", "gw2")
        assert gateway.decide() is not None
        assert gateway.disconnected == ["pump"]
        assert gateway.connect(PUMP) is None
        gateway.restart()
        assert gateway.known(PUMP) is None
        assert "already" in listed(gateway)["pump"]["reason"]
        shown = CliRunner().invoke(device, ["show", "pump", "--data", str(gateway.folder)])
        assert "certificate, refused" in shown.output
        gateway.connect(PUMP)
        assert gateway.decide() is not None
        gateway.connect(PUMP)
        assert not gateway.reports.waiting, "not at each attempt"
        plant.registry.devices.remove(OWNER, "pump", any_revision)
        gateway.now_s += REFUSED_AGAIN_S
        gateway.connect(PUMP)
        assert gateway.decide() is None
        gateway.pages()
        assert gateway.known(PUMP) == "pump"

    def test_a_device_of_two_gateways_is_one(self, plant: ProvisioningPlant) -> None:
        other = plant.add("gw2")
        assert plant.gateway.connect(PUMP) == other.connect(PUMP) == "pump"
        for each in (plant.gateway, other, plant.gateway):
            each.settle()
            assert (each.known(PUMP), len(each.provisioned)) == ("pump", 0)
        assert plant.registry.gateways("pump") == ["gw1", "gw2"]
        other.close()

    def test_a_name_of_the_registry_replaces_that_of_the_gateway(self, plant: ProvisioningPlant) -> None:
        plant.gateway.connect(PUMP)
        plant.registry.register("seven", "CN=pump,O=ACME", "gw1")
        plant.gateway.settle()
        assert plant.gateway.known(PUMP) == "seven"
        assert "pump" in plant.gateway.disconnected

    def test_an_authority_that_was_removed_meanwhile_registers_nothing(self, plant: ProvisioningPlant) -> None:
        plant.gateway.connect(PUMP)
        plant.registry.trust()
        assert plant.gateway.decide() is not None
        assert plant.gateway.known(PUMP) is None
        plant.gateway.pages()
        assert plant.gateway.connect(PUMP) is None
        plant.trust(**BY_COMMON_NAME)
        plant.gateway.pages()
        plant.gateway.connect(PUMP)
        plant.gateway.settle()
        assert plant.gateway.known(PUMP) == "pump", "trusted again, it is asked about at once"

    def test_a_gateway_from_a_backup_tells_again(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        gateway.connect(PUMP)
        gateway.stop()
        copies = {file: file.read_bytes() for file in gateway.folder.iterdir()}
        gateway.start()
        gateway.settle()
        gateway.stop()
        for file, content in copies.items():
            file.write_bytes(content)
        gateway.start()
        gateway.settle()
        assert (gateway.known(PUMP), len(gateway.provisioned)) == ("pump", 0)
        assert plant.registry.gateways("pump") == ["gw1"]


class TestAnotherDeviceWithItsId:
    """The hub registers another device with the id of one that was let in: the stranger never is that device."""

    def test_its_page_comes_before_the_decision(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        assert gateway.enter(PUMP) == "pump"
        plant.registry.register("pump", "CN=other,O=ACME", "gw1")
        gateway.pages()
        assert gateway.devices.user("pump") is not None, "the device of the hub works"
        assert not gateway.connections
        assert gateway.enter(PUMP) is None
        assert gateway.decide() is not None
        assert gateway.enter(PUMP) is None

    def test_its_page_comes_while_the_device_is_written(
        self, plant: ProvisioningPlant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway, put = plant.gateway, ProvisionedFile.put
        plant.registry.register("pump", "CN=other,O=ACME", "gw1")
        stored = gateway.store_page()
        assert stored is not None

        def put_and_follow(file: ProvisionedFile, *entry: Any) -> None:
            put(file, *entry)
            followed = threading.Event()

            def follow() -> None:
                gateway.take(stored)
                followed.set()

            gateway.loop.call_soon_threadsafe(follow)
            assert followed.wait(30.0)

        monkeypatch.setattr(ProvisionedFile, "put", put_and_follow)
        assert gateway.enter(PUMP) is None
        monkeypatch.undo()
        assert (len(gateway.provisioned), gateway.reports.waiting) == (0, deque())
        assert gateway.enter(PUMP) is None
        with ProvisionedFile.open(gateway.folder) as file:
            assert file.devices() == []

    def test_a_refused_entry_proves_nothing(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        assert gateway.enter(PUMP) == "pump"
        plant.registry.register("pump", "CN=other,O=ACME", "gw1")
        assert gateway.decide() is not None
        assert not gateway.connections, "the refusal closes it before the page"
        stored = gateway.store_page()
        assert stored is not None
        gateway.devices.take(*stored)  # the entry is still there
        assert gateway.provisioned.find(OWNER, "CN=pump,O=ACME") is not None
        assert gateway.known(PUMP) is None

    def test_two_first_connections_do_not_share_an_id(self, plant: ProvisioningPlant) -> None:
        plant.trust(**{"auto-provisioning-device-id-template": "{{subject-o}}"})
        gateway = plant.gateway
        gateway.pages()
        decided = list[tuple[str, bool]]()

        def arrive() -> None:
            for name, shown in (("pump", PUMP), ("fan", FAN)):
                candidate = gateway.certified.recognize(shown.der).candidate
                assert candidate is not None
                gateway.certified.provision(candidate, lambda let_in, name=name: decided.append((name, let_in)))  # type: ignore[misc]

        gateway.run(arrive)
        assert decided == [("pump", True), ("fan", False)]
        assert (gateway.known(PUMP), gateway.known(FAN)) == ("ACME", None)

    def test_the_parts_of_a_gateway_review_its_connections(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        assert gateway.enter(PUMP) == "pump"
        plant.registry.register("pump", "CN=other,O=ACME", "gw1")
        reviewed = list[tuple[Set[str], str | None]]()

        async def follow() -> None:
            follower = follow_hub_devices(gateway.folder, gateway.gate, None)
            certified = follower.certified
            assert certified.recognize(PUMP.der).identity == "pump"
            certified.call_to_review(lambda names: reviewed.append((names, certified.recognize(PUMP.der).identity)))
            stored = gateway.store_page()
            assert stored is not None
            follower.devices.take(*stored)
            follower.provisioner.follow(stored[0].page)
            await follower.stop()

        gateway.loop.run_until_complete(follow())
        assert reviewed == [({"pump"}, None)]

    def test_its_registration_keeps_the_device_connected(self, plant: ProvisioningPlant) -> None:
        gateway = plant.gateway
        assert gateway.enter(PUMP) == "pump"
        gateway.settle()
        assert (len(gateway.provisioned), list(gateway.connections)) == (0, [PUMP])
