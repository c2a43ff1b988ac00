"""The device API in resources: the resulting configuration, and invalid resources."""

from __future__ import annotations

import pytest

from bridge.resources import parse
from bridge.resources.errors import ConfigurationRejected
from edge.broker.configuration import DeviceApiConfiguration, DeviceIdentity
from edge.broker.hono.limits import ACTS_FOR_MAX
from edge.configuration.effective import build_configuration, development_preset, notices
from edge.configuration.kinds import KINDS


def space(spec: str) -> str:
    return f"---\n{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: s}}, spec: {spec}}}\n"


def user(name: str, device: str) -> str:
    plain = name.partition("@")[0]
    return (
        f"---\n{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: {plain}}}, "
        f"spec: {{username: '{name}', authentication: {{type: password, password: eA==}}, device: {device}}}}}\n"
    )


def device(name: str, spec: str) -> str:
    return f"---\n{{apiVersion: waypost/v1, kind: Device, metadata: {{name: {name}}}, spec: {spec}}}\n"


SPACE = space("{deviceApi: {type: hono, tenant: T, commandTtl: 2m}}")


def test_effective_configuration_has_the_device_api() -> None:
    text = (
        SPACE
        + user("gw@T", "{id: gw-1, actsFor: [a, '*']}")
        + user("plain@T", "{}")
        + device("gw-1", "{}")
        + device("hand", "{}")
        + device("lamp", "{via: [gw-1, hand]}")
        + device("dark", "{enabled: false}")
    )
    resources = parse.parse(KINDS, text, "a.yaml")
    assert KINDS.validate(resources) == []
    assert build_configuration(resources).device_api == DeviceApiConfiguration(
        tenant="T",
        command_ttl_s=120.0,
        identities=(
            DeviceIdentity("gw@T", "gw-1", ("a", "*", "lamp")),
            DeviceIdentity("plain@T", "plain"),
            DeviceIdentity("hand@T", "hand", ("lamp",)),
        ),
        devices=frozenset(("gw-1", "hand", "lamp", "dark")),
        disabled=frozenset(("dark",)),
    )
    assert not [text for text in notices(resources) if "Device" in text]


def test_device_api_is_off_by_default() -> None:
    assert development_preset().device_api is None
    resources = parse.parse(KINDS, space("{}") + user("gw@T", "{id: gw-1}") + device("lamp", "{}"), "a.yaml")
    assert build_configuration(resources).device_api is None
    assert [text for text in notices(resources) if "the space has no deviceApi" in text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (space("{deviceApi: {type: hono, tenant: T, commandTtl: 0}}"), "spec.deviceApi.commandTtl: must be above 0"),
        (
            space("{deviceApi: {type: hono, tenant: T, corsAllowedOrigins: ['*', page.example/x]}}"),
            'spec.deviceApi.corsAllowedOrigins[1]: "page.example/x" is not an origin',
        ),
        (SPACE + user("gw@OTHER", "{}"), "the user of a device must be named auth-id@T"),
        (SPACE + user("gw@T", "{id: 'a/b'}"), '"a/b" is not a device'),
        (SPACE + user("gw@T", "{actsFor: ['+']}"), 'spec.device.actsFor[0]: "+" is not a device'),
        (SPACE + user("gw@T", f"{{actsFor: [{', '.join(['d'] * (ACTS_FOR_MAX + 1))}]}}"), '"*" means all'),
    ],
)
def test_conflicts_between_resources_are_errors(text: str, expected: str) -> None:
    [error] = KINDS.validate(parse.parse(KINDS, text, "a.yaml"))
    assert expected in str(error)
    assert error.line > 0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{deviceApi: {type: hono}}", '"tenant" is missing'),
        ("{deviceApi: {tenant: T}}", '"type" is missing'),
        ("{deviceApi: {type: hone, tenant: T}}", 'did you mean "hono"?'),
        ("{deviceApi: {type: hono, tenant: 'a/b'}}", '"a/b" is not a name'),
        ("{deviceAPI: {type: hono, tenant: T}}", 'did you mean "deviceApi"?'),
    ],
)
def test_invalid_values_are_errors(spec: str, expected: str) -> None:
    with pytest.raises(ConfigurationRejected) as caught:
        parse.parse(KINDS, space(spec), "a.yaml")
    assert expected in str(caught.value)
