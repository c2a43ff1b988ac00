"""Address spaces of a gateway: rules between them, and the configuration of each."""

from __future__ import annotations

import pytest

from bridge.resources import parse
from edge.broker.configuration import AuthenticationMode
from edge.broker.limits import TENANT_SPACES_MAX
from edge.broker.model.addresses import AddressType
from edge.configuration.effective import build_configuration
from edge.configuration.kinds import KINDS
from tests.unit.configuration.documents import address, errors_of, gateway, space, tenant

OWN = space("{quota: {bytes: 1Gi}}")
ACME = tenant("acme", "hosts: [acme, acme.example.org], quota: {bytes: 1Mi}")
UMBRELLA = tenant("umbrella", "hosts: [umbrella], quota: {bytes: 1Mi}")


def user(name: str, spec: str) -> str:
    authentication = "authentication: {type: password}"
    document = f"kind: MessagingUser, metadata: {{name: {name}}}, spec: {{{authentication}, {spec}}}"
    return f"{{apiVersion: waypost/v1, {document}}}\n---\n"


def connected(name: str, container: str, certificate: str) -> str:
    tls = f"tls: {{clientCert: {certificate}, clientKey: key}}"
    connector = f"{{name: cloud, {container} endpointHosts: [{{host: h}}], {tls}}}"
    return tenant(name, f"hosts: [{name}], quota: {{bytes: 1Mi}}, connectors: [{connector}]")


def mqtt_connected(name: str, container: str) -> str:
    connector = f"{{name: peer, type: mqtt, {container} endpointHosts: [{{host: h}}]}}"
    return tenant(name, f"hosts: [{name}], quota: {{bytes: 1Mi}}, connectors: [{connector}]")


@pytest.mark.parametrize(
    "text",
    [
        ACME + OWN,
        ACME + UMBRELLA + OWN + address("address: q, type: queue, addressSpace: acme") + user("u", "username: alice@x"),
        # every space has its own names
        OWN
        + ACME
        + address("address: q, type: queue", "q")
        + address("address: q, type: topic, addressSpace: acme", "acme.q")
        + user("u", "username: alice")
        + user("acme.u", "username: alice, addressSpace: acme"),
        OWN + connected("a", "container: a,", "a.pem") + connected("b", "container: b,", "b.pem"),
        OWN + gateway() + mqtt_connected("a", "") + mqtt_connected("b", ""),
    ],
)
def test_accepted(text: str) -> None:
    assert errors_of(text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (ACME, "TenantSpace acme"),  # the gateway's own space has no quota
        (ACME + space("{}"), "AddressSpace default: spec"),
        (ACME + OWN + address("address: q, type: queue, addressSpace: acne"), "Address a: spec.addressSpace"),
        (OWN + user("u", "username: u, addressSpace: acme"), "MessagingUser u: spec.addressSpace"),
        (OWN + ACME + tenant("b", "hosts: [ACME.], quota: {bytes: 1}"), "TenantSpace b: spec.hosts[0]"),
        (OWN + ACME + user("u", "username: bob@Acme"), "MessagingUser u: spec.username"),
        (
            ACME + space("{quota: {bytes: 1Gi}, deviceApi: {type: hono, tenant: ACME}}"),
            "AddressSpace default: spec.deviceApi.tenant",
        ),
        (
            ACME + space("{quota: {bytes: 1Gi}, authenticationService: {name: none}}"),
            "AddressSpace default: spec.authenticationService.name",
        ),
        (
            OWN + ACME + user("u", "username: u, addressSpace: acme, device: {id: d}"),
            "MessagingUser u: spec.device",
        ),
        (OWN + connected("a", "", "a.pem"), "TenantSpace a: spec.connectors[0].container"),
        (
            OWN + connected("a", "container: x,", "a.pem") + connected("b", "container: x,", "b.pem"),
            "TenantSpace b: spec.connectors[0].container",
        ),
        (
            OWN + connected("a", "container: a,", "x.pem") + connected("b", "container: b,", "x.pem"),
            "TenantSpace b: spec.connectors[0].tls.clientCert",
        ),
        (
            OWN + gateway('{hub: {url: "amqps://h"}}', "a") + connected("b", "container: a,", "b.pem"),
            "TenantSpace b: spec.connectors[0].container",
        ),
        (
            OWN
            + tenant(
                "a",
                "hosts: [a], quota: {bytes: 1}, connectors: [{name: n, type: router, endpointHosts: [{host: h}]}]",
            ),
            "TenantSpace a: spec.connectors[0].type",
        ),
        (space("{quota: {bytes: 1Gi}}", "acme") + ACME, "TenantSpace acme: metadata.name"),  # one name for two pools
        # one name at a peer is one client, whatever the protocol
        (OWN + gateway() + mqtt_connected("a", "container: gw1,"), "TenantSpace a: spec.connectors[0].container"),
        (
            OWN + gateway() + mqtt_connected("a", "") + mqtt_connected("b", "container: gw1-a,"),
            "TenantSpace b: spec.connectors[0].container",
        ),
        (
            space(
                "{quota: {bytes: 1Gi}, connectors: "
                "[{name: n, type: amqp, container: other, endpointHosts: [{host: h}]}]}"
            )
            + mqtt_connected("a", "container: other,"),
            "TenantSpace a: spec.connectors[0].container",
        ),
        # rules of one space hold in each
        (
            OWN + ACME + address("address: q, type: queue, addressSpace: acme, deadletter: dead"),
            "Address a: spec.deadletter",
        ),
        (
            OWN
            + gateway('{hub: {url: "amqp://h"}}')
            + ACME
            + address("address: q, type: queue, addressSpace: acme, forwarders: [{name: f, remoteAddress: hub}]"),
            "Address a: spec.forwarders[0].remoteAddress",
        ),
    ],
)
def test_refused(text: str, path: str) -> None:
    assert [error.path for error in errors_of(text)] == [path]


def test_number_of_spaces_is_limited() -> None:
    text = OWN + "".join(tenant(f"t{n}", f"hosts: [t{n}], quota: {{bytes: 1}}") for n in range(TENANT_SPACES_MAX + 1))
    assert [error.path for error in errors_of(text)] == [f"TenantSpace t{TENANT_SPACES_MAX}"]


def test_configuration_of_each_space() -> None:
    members = address("address: q, type: queue, addressSpace: acme", "acme.q") + user(
        "acme.u", "username: alice, addressSpace: acme"
    )
    own = address("address: o, type: queue", "o")
    configuration = build_configuration(parse.parse(KINDS, OWN + ACME + members + own, "a.yaml"))
    assert [rule.pattern for rule in configuration.rules] == ["o"]
    assert configuration.users == ()
    assert configuration.authentication is AuthenticationMode.STANDARD
    (acme,) = configuration.spaces
    assert (acme.space, acme.hosts, acme.quota_bytes) == ("acme", ("acme", "acme.example.org"), 1 << 20)
    assert [(rule.pattern, rule.type) for rule in acme.rules] == [("q", AddressType.QUEUE)]
    assert [each.name for each in acme.users] == ["alice"]
    assert acme.authentication is AuthenticationMode.STANDARD


def test_gateway_with_one_space_is_as_before() -> None:
    configuration = build_configuration(parse.parse(KINDS, OWN, "a.yaml"))
    assert (configuration.spaces, configuration.authentication) == ((), AuthenticationMode.NONE)
