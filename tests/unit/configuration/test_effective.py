"""Resources as the configuration that starts a broker."""

from __future__ import annotations

import re

import pytest

from bridge.resources import parse
from bridge.resources.endpoint import ListenEndpoint
from edge.broker.configuration import (
    AuthenticationMode,
    BrokerConfiguration,
    ConfiguredUser,
    Connector,
    Direction,
    EndpointHost,
    Forwarder,
    PeerCredentials,
    TlsFiles,
)
from edge.broker.limits import Limits
from edge.broker.model.address_policy import Redelivery
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.authorization import AccessRule, Operation
from edge.configuration.effective import build_configuration, development_preset, notices, with_hub
from edge.configuration.kinds import KINDS

WHOLE = """\
apiVersion: waypost/v1
kind: Gateway
metadata: {name: gw1}
spec:
  listeners: {mqtt: "0.0.0.0:1883", amqp: "[::]:5672"}
  hub: {url: "amqps://hub.example", gateway: north, tls: {caCert: /ca, clientCert: /c, clientKey: /k}}
  mqtt: {legacyDollarTopics: true}
  storage: {enduranceTerabytes: 0.5}
  limits: {connectionsMax: 500, handshakeS: 3}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {name: plant}
spec:
  defaultType: multicast
  authenticationService: {name: standard}
  connectors:
  - name: broker
    endpointHosts: [{host: b1, port: 7}, {host: b2}]
    tls: {}
    credentials: {username: u, password: secret-word}
    idleTimeout: 30s
    maxFrameSize: 64Ki
---
apiVersion: waypost/v1
kind: Address
metadata: {name: jobs}
spec:
  address: jobs/#
  type: queue
  deadletter: dead
  messageTtl: {maximum: 1h}
  messageRedelivery: {maximumDeliveryAttempts: 3, redeliveryDelay: 1s}
  quota: {bytes: 1Mi}
  forwarders:
  - {name: up, remoteAddress: hub, priority: 2}
  - {name: aside, remoteAddress: broker/all, direction: in}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: dead}, spec: {address: dead, type: deadletter}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: s}, spec: {address: s, type: subscription, topic: t}}
"""


def test_every_resource_reaches_the_broker() -> None:
    configuration = build_configuration(parse.parse(KINDS, WHOLE, "a.yaml"))
    assert (configuration.space, configuration.gateway) == ("plant", "north")
    assert configuration.authentication is AuthenticationMode.STANDARD
    assert configuration.default_type is AddressType.MULTICAST
    assert configuration.endpoint("mqtt") == ListenEndpoint("0.0.0.0", 1883)
    assert configuration.endpoint("amqp") == ListenEndpoint("::", 5672)
    assert configuration.endpoint("http") is None
    assert configuration.legacy_dollar_topics
    assert configuration.endurance_bytes == 500e9
    assert configuration.limits == Limits(connections_max=500, handshake_s=3)
    assert configuration.connectors == (
        Connector(
            name="broker",
            hosts=(EndpointHost(host="b1", port=7), EndpointHost(host="b2")),
            tls=TlsFiles(),
            credentials=PeerCredentials(username="u", password="secret-word"),
            idle_timeout_s=30.0,
            frame_bytes_max=65536,
        ),
        Connector(
            name="hub",
            hosts=(EndpointHost(host="hub.example", port=5671),),
            container="north",
            tls=TlsFiles(ca="/ca", certificate="/c", key="/k"),
        ),
    )
    assert configuration.forwarders == (
        Forwarder(name="jobs/up", filter="jobs/#", connector="hub", remote_address="jobs/#", priority=2),
        Forwarder(name="jobs/aside", filter="jobs/#", connector="broker", remote_address="all", direction=Direction.IN),
    )
    jobs, dead, subscription = configuration.addresses
    assert jobs.rule == AddressRule("jobs/#", AddressType.QUEUE)
    assert jobs.policy.ttl_max_s == 3600.0
    assert jobs.policy.redelivery == Redelivery(attempts_max=3, delay_s=1.0)
    assert (jobs.policy.deadletter, jobs.policy.quota_bytes) == ("dead", 1048576)
    assert dead.rule.type is AddressType.DEADLETTER
    assert (subscription.topic, subscription.policy.consumers_max) == ("t", 1)
    assert configuration.connector("hub").container == "north"
    with pytest.raises(KeyError):
        configuration.connector("other")


def test_empty_configuration_serves_nothing() -> None:
    assert build_configuration([]) == BrokerConfiguration()


def test_development_preset_matches_its_documentation() -> None:
    configuration = development_preset()
    table = AddressTable(configuration.rules, configuration.default_rule)
    for name in ("queue", "topic", "anycast", "multicast"):
        assert table.rule(f"{name}/a/b").type is AddressType(name)
    assert table.rule("anything/else").type is AddressType.TOPIC
    endpoints = (configuration.endpoint("mqtt"), configuration.endpoint("amqp"), configuration.endpoint("http"))
    assert all(endpoint is not None and endpoint.host == "127.0.0.1" for endpoint in endpoints)
    assert configuration.authentication is AuthenticationMode.NONE


def test_short_form_of_a_hub_is_expanded() -> None:
    configuration = with_hub(development_preset(), "amqp://127.0.0.1:7", "gw1", ["load/#", "alarm", "load/#"])
    assert configuration.gateway == "gw1"
    assert configuration.connectors == (
        Connector(name="hub", hosts=(EndpointHost(host="127.0.0.1", port=7),), container="gw1"),
    )
    assert [(f.name, f.filter, f.remote_address) for f in configuration.forwarders] == [
        ("forward:load/#", "load/#", "load/#"),
        ("forward:alarm", "alarm", "alarm"),
    ]
    with pytest.raises(ValueError, match="# must be alone"):
        with_hub(development_preset(), "amqp://h", "gw1", ["a/#/b"])
    assert with_hub(development_preset(), "amqps://h", "gw1", ["a"]).connector("hub").tls == TlsFiles()
    with pytest.raises(ValueError, match="hub URL"):
        with_hub(development_preset(), "http://h", "gw1", [])


def test_passwords_are_not_shown() -> None:
    assert "secret-word" not in repr(build_configuration(parse.parse(KINDS, WHOLE, "a.yaml")))


def test_fields_without_effect_are_reported() -> None:
    said = notices(parse.parse(KINDS, WHOLE, "a.yaml"))
    assert [note for note in said if note.startswith("Address ")] == [
        'Address jobs: forwarder "aside" has no effect: a connector of type waypost receives no messages; '
        "to receive from a hub's addresses, add a connector of type: amqp to the same hub, with the credentials of an "
        "application"
    ]


def test_users_have_their_rules() -> None:
    text = """
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {name: default.alice}
spec:
  username: alice
  authentication: {type: password, password: c2VjcmV0}
  authorization:
  - {addresses: [plant/%u/#, jobs], operations: [send, recv]}
  - {operations: [manage]}
"""
    assert build_configuration(parse.parse(KINDS, text, "a.yaml")).users == (
        ConfiguredUser(
            "alice",
            "secret",
            (
                AccessRule(("plant/%u/#", "jobs"), frozenset({Operation.SEND, Operation.RECV})),
                AccessRule(("#",), frozenset({Operation.MANAGE})),
            ),
        ),
    )


def test_every_short_form_is_a_listener() -> None:
    keys = ["mqtt", "amqp", "http", "mqttWs", "amqpWs", "https", "mqtts", "amqps", "mqttWss", "amqpWss"]
    listeners = {"tls": {"certificate": "c", "key": "k"}, **{key: f"127.0.0.1:{i}" for i, key in enumerate(keys, 1)}}
    document = {
        "apiVersion": "waypost/v1",
        "kind": "Gateway",
        "metadata": {"name": "g"},
        "spec": {"listeners": listeners},
    }
    [resource] = parse.parse(KINDS, parse.to_yaml(document), "a.yaml")
    found = build_configuration([resource]).listeners
    assert [listener.name for listener in found] == [re.sub("W", "-w", key) for key in keys]
    assert [listener.endpoint.port for listener in found] == list(range(1, 11))
    assert [listener.name for listener in found if listener.tls] == ["https", "mqtts", "amqps", "mqtt-wss", "amqp-wss"]
    assert {listener.name for listener in found if listener.web} == {
        "http", "https", "mqtt-ws", "amqp-ws", "mqtt-wss", "amqp-wss",
    }  # fmt: skip
