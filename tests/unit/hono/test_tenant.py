"""Identity of a device, and the devices it may act for."""

from __future__ import annotations

import msgspec
import pytest

from edge.broker.configuration import DeviceApiConfiguration, DeviceIdentity
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.limits import DEVICE_CHARACTERS_MAX
from edge.broker.hono.tenant import DevicePrincipal, DeviceTenant

API = DeviceApiConfiguration(
    tenant="T",
    identities=(
        DeviceIdentity("sensor1@T", "4711"),
        DeviceIdentity("gw@T", "gw-1", ("4712",)),
        DeviceIdentity("hub@T", "hub", ("*",)),
    ),
    disabled=frozenset(("broken",)),
)


@pytest.fixture
def tenant() -> DeviceTenant:
    return DeviceTenant(API)


def status_of(tenant: DeviceTenant, user: str | None, named_tenant: str, device: str) -> int:
    with pytest.raises(DeviceError) as caught:
        tenant.device(tenant.principal(user), named_tenant, device)
    return caught.value.status


def test_user_is_a_device(tenant: DeviceTenant) -> None:
    assert tenant.principal("sensor1@T") == DevicePrincipal("4711")
    assert tenant.principal("new@T") == DevicePrincipal("new"), "the auth-id, where nothing else is said"
    assert tenant.principal("app") is None
    assert tenant.principal("sensor1@OTHER") is None
    assert tenant.principal(None) is None


def test_gateway_may_act_for_its_devices(tenant: DeviceTenant) -> None:
    for user, named, device, meant in (
        ("sensor1@T", "", "", "4711"),
        ("sensor1@T", "T", "4711", "4711"),
        ("gw@T", "", "4712", "4712"),
        ("gw@T", "", "", "gw-1"),
        ("hub@T", "T", "whatever", "whatever"),
        (None, "T", "77", "77"),
    ):
        assert tenant.device(tenant.principal(user), named, device) == meant


def test_gateway_may_not_act_for_others(tenant: DeviceTenant) -> None:
    assert status_of(tenant, "sensor1@T", "", "4712") == 403
    assert status_of(tenant, "gw@T", "", "4711") == 403
    assert status_of(tenant, "hub@T", "OTHER", "4711") == 403
    assert status_of(tenant, "hub@T", "", "broken") == 404
    assert status_of(tenant, "hub@T", "", "a b") == 400
    assert status_of(tenant, "hub@T", "", "x" * (DEVICE_CHARACTERS_MAX + 1)) == 400
    assert tenant.device(tenant.principal("hub@T"), "", "x" * DEVICE_CHARACTERS_MAX)
    assert status_of(tenant, None, "", "") == 401
    assert status_of(tenant, None, "T", "") == 401


def test_gateway_does_not_learn_which_devices_exist() -> None:
    """The answer is the same for an unknown device and for a device of another gateway."""
    described = DeviceTenant(
        msgspec.structs.replace(API, devices=frozenset(("4712", "4713")), disabled=frozenset(("broken", "4714")))
    )
    said = set()
    for device in ("9999", "4713", "4714"):
        with pytest.raises(DeviceError) as caught:
            described.device(described.principal("gw@T"), "", device)
        said.add((caught.value.status, str(caught.value).replace(device, "")))
    assert said == {(403, "gw-1 does not act for ")}
    assert status_of(described, "gw@T", "", "4711") == 403, "a user's device"
    assert described.device(described.principal("hub@T"), "T", "9999") == "9999", "it acts for whatever there is"


def test_disabled_device_and_impossible_name_are_refused(tenant: DeviceTenant) -> None:
    for user, status in (("broken@T", 404), ("+@T", 400), ("@T", 400)):
        with pytest.raises(DeviceError) as caught:
            tenant.principal(user)
        assert caught.value.status == status


def test_new_configuration_applies_to_later_connections(tenant: DeviceTenant) -> None:
    before = tenant.principal("gw@T")
    tenant.update(DeviceApiConfiguration(tenant="T", disabled=frozenset(("4711",))))
    assert tenant.principal("gw@T") == DevicePrincipal("gw")
    assert before == DevicePrincipal("gw-1", frozenset(("4712",)))
    assert status_of(tenant, "sensor1@T", "", "4711") in (403, 404)
