"""Devices that gateways have let in by certificate, told to a registry on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from cloud.hub.registry.certificate_registrations import GATEWAYS_MAX, ProvisionRefused
from cloud.hub.registry.devices import DevicesFull, UnknownDevice
from tests.contract.registry.conftest import Place
from tests.support.device_certificates import DeviceAuthority
from tests.support.provisioning_site import BY_COMMON_NAME, OWNER, ProvisioningRegistry, any_revision

AUTHORITY = DeviceAuthority.make()
PUMP = AUTHORITY.issue("pump")
SUBJECT = "CN=pump,O=ACME"
ON = {**BY_COMMON_NAME, "auto-provisioning-enabled": True}


@pytest.fixture
def registry(make_place: Callable[[], Place]) -> Iterator[ProvisioningRegistry]:
    made = ProvisioningRegistry(make_place().url, devices_max=3)
    with contextlib.closing(made.database):
        made.trust(AUTHORITY.document(**ON))
        yield made


def refused(registry: ProvisioningRegistry, gateway: str = "gw1") -> bool:
    try:
        registry.decide(gateway, PUMP.der)
    except ProvisionRefused:
        return True
    return False


def test_a_device_is_registered_once_and_given_to_each_gateway(registry: ProvisioningRegistry) -> None:
    assert [registry.decide(name, PUMP.der) for name in ("gw1", "gw1", "gw2", "gw1")] == ["pump"] * 4
    assert registry.gateways("pump") == ["gw1", "gw2"]
    found = registry.devices.credentials(OWNER, "pump")
    assert [(row.type, row.auth_id) for row in found.rows] == [("x509-cert", SUBJECT)]
    assert registry.devices.get(OWNER, "pump").updated_by == "gateway gw2"
    revision = registry.devices.get(OWNER, "pump").revision
    registry.decide("gw2", PUMP.der)
    assert registry.devices.get(OWNER, "pump").revision == revision, "a repeated report changes nothing"


def test_a_renewed_certificate_is_the_same_device(registry: ProvisioningRegistry) -> None:
    registry.decide("gw1", PUMP.der)
    assert registry.decide("gw1", AUTHORITY.issue("pump").der) == "pump"


def test_the_latest_gateways_are_kept(registry: ProvisioningRegistry) -> None:
    for number in range(GATEWAYS_MAX + 2):
        registry.decide(f"gw{number}", PUMP.der)
    assert registry.gateways("pump") == [f"gw{number}" for number in range(2, GATEWAYS_MAX + 2)]


def test_what_an_operator_has_registered_wins(registry: ProvisioningRegistry) -> None:
    registry.register("seven", SUBJECT, "gw1")
    assert registry.decide("gw1", PUMP.der) == "seven", "under another name"
    assert refused(registry, "gw2"), "the operator has chosen its gateways"
    assert registry.gateways("seven") == ["gw1"]
    registry.set_credentials("seven", SUBJECT, enabled=False)
    assert refused(registry)
    registry.set_credentials("seven", "CN=other,O=ACME")
    registry.register("pump", "CN=third,O=ACME", "gw1")
    assert refused(registry), "its id is that of a device with other credentials"


def test_a_disabled_device_is_given_to_its_gateway_as_disabled(registry: ProvisioningRegistry) -> None:
    registry.decide("gw1", PUMP.der)
    registry.replace("pump", enabled=False)
    assert registry.decide("gw2", PUMP.der) == "pump"
    assert registry.document("pump")["enabled"] is False
    assert registry.gateways("pump") == ["gw1", "gw2"]


def test_a_device_that_was_moved_stays_where_it_was_put(registry: ProvisioningRegistry) -> None:
    registry.decide("gw1", PUMP.der)
    registry.replace("pump", ext={"waypost": {"gateways": ["gw2"]}})
    assert refused(registry)
    assert registry.gateways("pump") == ["gw2"]


def test_the_present_state_of_the_tenant_decides(registry: ProvisioningRegistry) -> None:
    registry.trust(AUTHORITY.document(**ON, **{"auth-id-template": "{{subject-o}}"}))
    assert registry.decide("gw1", PUMP.der) == "pump"
    assert [row.auth_id for row in registry.devices.credentials(OWNER, "pump").rows] == ["ACME"]
    registry.devices.remove(OWNER, "pump", any_revision)
    for document in (AUTHORITY.document(**BY_COMMON_NAME), DeviceAuthority.make().document(**ON)):
        registry.trust(document)
        assert refused(registry)
    registry.trust(AUTHORITY.document(**ON), enabled=False)
    assert refused(registry)
    registry.trust()
    assert refused(registry)
    registry.trust(AUTHORITY.document(**ON))
    with pytest.raises(ProvisionRefused):
        registry.decide("gw1", PUMP.der, "unknown")
    with pytest.raises(ProvisionRefused):
        registry.decide("gw1", b"no certificate")
    with pytest.raises(UnknownDevice):
        registry.devices.get(OWNER, "pump")


def test_a_gateway_of_another_owner_registers_nothing(registry: ProvisioningRegistry) -> None:
    with pytest.raises(ProvisionRefused):
        registry.registrations.settle(("other", "gw1"), OWNER, lambda _: pytest.fail("decided"), lambda _: True)


def test_the_quota_of_devices_counts(registry: ProvisioningRegistry) -> None:
    for name in "abc":
        registry.decide("gw1", AUTHORITY.issue(name).der)
    with pytest.raises(DevicesFull):
        registry.decide("gw1", PUMP.der)
    assert registry.decide("gw2", AUTHORITY.issue("a").der) == "a"


def test_an_acting_device_gets_the_authority_of_hono(registry: ProvisioningRegistry) -> None:
    registry.trust(AUTHORITY.document(**ON, **{"auto-provision-as-gateway": True}))
    registry.decide("gw1", PUMP.der)
    assert registry.document("pump")["authorities"] == ["auto-provisioning-enabled"]
