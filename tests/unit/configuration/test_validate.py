"""Rules between resources."""

from __future__ import annotations

import pytest

from bridge.resources import parse
from edge.configuration.kinds import KINDS
from tests.unit.configuration.documents import address, device, errors_of, gateway, rules, space, user

HUB = gateway('{hub: {url: "amqp://hub"}}')
AMQP = space("{connectors: [{name: b, type: amqp, endpointHosts: [{host: b}]}]}")
BROKER = space("{connectors: [{name: broker, endpointHosts: [{host: b}]}]}")
DEAD = address("address: dead, type: deadletter", "dead")


@pytest.mark.parametrize(
    "text",
    [
        "",
        HUB + BROKER + DEAD,
        HUB + address("address: x/#, type: topic, forwarders: [{name: f, remoteAddress: hub}]"),
        HUB + address("address: x/#, type: topic, forwarders: [{name: f, remoteAddress: hub/x/#}]"),
        BROKER + address("address: x/#, type: queue, forwarders: [{name: f, remoteAddress: broker/all/of/it}]"),
        AMQP + address(
            "address: x/#, type: topic, forwarders: [{name: f, remoteAddress: 'b/t/{device}/{address}', qos: 0,"
            " messageTtl: 1h, messagePriority: 7, only: {address: x/+, properties: 'a > 1', body: '$.t > 30'}},"
            " {name: g, remoteAddress: b/y/#}]"
        ),
        BROKER + address(
            "address: x, type: queue, forwarders: [{name: f, remoteAddress: broker/up},"
            " {name: g, remoteAddress: broker/down, direction: in}]"
        ),
        DEAD + address("address: q, type: queue, deadletter: dead, expiry: dead, maxConsumers: 3"),
        address("address: s, type: subscription, topic: plant/#"),
        gateway("{listeners: {mqtt: 'h:1', amqp: 'h:2'}, limits: {connectionsMax: 5, handshakeS: 2.5}}"),
        gateway("{listeners: {mqtt: 'h:0', amqp: 'h:0'}}"),
        gateway("{storage: {enduranceTerabytes: 60}}"),
        gateway("{listeners: {mqtts: 'h:1', amqpWss: 'h:2', tls: {certificate: c, key: k}}, hub: {url: 'amqps://h'}}"),
        space(
            "{connectors: [{name: c, endpointHosts: [{host: b}], tls: {}, credentials: {username: u, password: p}},"
            " {name: d, endpointHosts: [{host: localhost}], credentials: {username: u, password: p}}]}"
        ),
        space("{authenticationService: {name: none}}"),
        space("{authenticationService: {name: standard}}") + rules("[{addresses: [a/%u/#], operations: [send]}]"),
        user("aHVudGVyMg=="),
        device("{}", "d1") + device("{via: [d1]}", "d2"),
    ],
)  # fmt: skip
def test_valid_configurations_are_accepted(text: str) -> None:
    assert KINDS.validate(parse.parse(KINDS, text, "a.yaml")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (gateway() + gateway(), "a.yaml:3: Gateway gw1: metadata.name: is defined twice; first defined at a.yaml:1"),
        (gateway() + gateway(name="gw2"), "Gateway gw2: there is at most one Gateway, and gw1 already exists"),
        (space() + space(name="b"), "there is at most one AddressSpace, and default already exists"),
        (
            gateway("{listeners: {http: 'h:1', hostNames: [gw1.example, 'http://gw2']}}"),
            'spec.listeners.hostNames[1]: "http://gw2" is not a host name',
        ),
        (gateway("{listeners: {mqtt: 'h:1', http: 'h:1'}}"), "spec.listeners.http: h:1 is already used by mqtt"),
        (gateway("{limits: {conectionsMax: 1}}"), 'unknown field "conectionsMax"; did you mean "connectionsMax"?'),
        (gateway("{limits: {connectionsMax: 0}}"), "expected a whole number above 0, not 0"),
        (gateway("{limits: {connectionsMax: 1.5}}"), "expected a whole number, not 1.5"),
        (gateway("{limits: {receiveMaximum: 65536}}"), "65536 is out of range: 1 to 65535"),
        (gateway("{limits: {inflightMax: 70000}}"), "70000 is out of range: 1 to 65535"),
        (gateway("{limits: {handshakeS: false}}"), "expected a number, not false"),
        (gateway("{hub: {url: 'mqtt://h'}}"), 'spec.hub.url: "mqtt://h" is not a hub URL'),
        (gateway("{hub: {url: 'amqp://h', tls: {}}}"), "amqp://h does not use TLS"),
        (gateway("{listeners: {mqttWs: 'h:1', mqtt: 'h:1'}}"), "spec.listeners.mqttWs: h:1 is already used by mqtt"),
        (
            gateway("{listeners: {tls: {certificate: c, key: k, clientRequired: true}}}"),
            "spec.listeners.tls.clientRequired: requires clientCa",
        ),
        (
            space("{connectors: [{name: c, endpointHosts: [{host: b}], maxFrameSize: 100}]}"),
            "spec.connectors[0].maxFrameSize: must be at least 512 bytes",
        ),
        (
            space("{connectors: [{name: c, endpointHosts: [{host: b}], credentials: {username: u, password: p}}]}"),
            "spec.connectors[0].credentials: the password would be sent unencrypted",
        ),
        (
            space("{connectors: [{name: c, endpointHosts: [{host: b}], credentials: {username: u, password: p,"
            " plainWithoutTls: false}}]}"),
            "spec.connectors[0].credentials: the password would be sent unencrypted",
        ),
        (space("{authenticationService: {name: external}}"), "requires oidc here, or listeners.tls.clientCa"),
        (user("/w=="), "authentication.password: must be Base64 of UTF-8"),
        (user("Bw=="), "authentication.password: this password has characters that SASLprep prohibits"),
        (user("''"), "authentication.password: must be 1 to 1024 bytes"),
        (rules("[{addresses: ['a#'], operations: [send]}]"), "authorization[0].addresses[0]: "),
        (rules("[{addresses: ['a*'], operations: [send]}]"), "authorization[0].addresses[0]: wildcards are + and #"),
        (rules("[" + "{operations: [send]}," * 101 + "]"), "authorization: more than 100 rules"),
        (rules("[{addresses: [" + "a," * 101 + "], operations: [send]}]"), "addresses: more than 100 addresses"),
        (
            space("{connectors: [{name: c, endpointHosts: [{host: b}]}, {name: c, endpointHosts: [{host: b}]}]}"),
            'spec.connectors[1].name: a connector called "c" already exists',
        ),
        (
            HUB + space("{connectors: [{name: hub, endpointHosts: [{host: b}]}]}"),
            'a connector called "hub" already exists',
        ),
        (
            space("{connectors: [{name: c, endpointHosts: [{host: 'a b'}]}]}"),
            'endpointHosts[0].host: "a b" is not a host',
        ),
        (address("address: 'a/#/b', type: topic"), '"a/#/b": # must be alone in the last level'),
        (address("address: 'a#', type: topic"), "# must be alone"),
        (address("address: 'a+/b', type: topic"), "+ must be alone in its level"),
        (address("address: $SYS/x, type: topic"), "names that begin with $ belong to the broker"),
        (
            address("address: x, type: queue") + address("address: x, type: topic", "b"),
            'a.yaml:3: Address b: spec.address: "x" is already the address of a (a.yaml:1)',
        ),
        (address("address: x, type: subscription"), '"topic" is missing'),
        (address("address: 'x/+', type: subscription, topic: t"), "a subscription has a name, not a pattern"),
        (address("address: x, type: queue, topic: t"), "a queue has no topic"),
        (address("address: x, type: topic, maxConsumers: 2"), "a topic has no limit of consumers"),
        (address("address: x, type: anycast, messageTtl: {maximum: 1s}"), "stores nothing, so it has no messageTtl"),
        (address("address: x, type: anycast, receipts: landed"), "stores nothing, so it has no receipts"),
        (address("address: x, type: deadletter, receipts: landed"), "spec.receipts: receipts are for messages on disk"),
        (address("address: x, type: topic, durability: memory, receipts: landed"), "receipts are for messages on disk"),
        (address("address: x, type: multicast, durability: memory"), "so it has no durability"),
        (address("address: x, type: queue, messageTtl: {minimum: 2s, maximum: 1s}"), "minimum is above maximum"),
        (
            address("address: x, type: queue, messageRedelivery: {redeliveryDelay: 2s, maximumDeliveryDelay: 1s}"),
            "redeliveryDelay is above maximumDeliveryDelay",
        ),
        (address("address: x, type: queue, quota: {bytes: 1, reserve: 2}"), "reserve is above bytes"),
        (
            space("{quota: {bytes: 1}}") + address("address: x, type: queue, quota: {reserve: 2}"),
            "its addresses reserve 2 bytes, more than the 1 of the space",
        ),
        (DEAD + address("address: x, type: queue, deadletter: deed"), 'no address "deed"; did you mean "dead"?'),
        (address("address: x, type: queue, expiry: x"), "an address cannot be its own expiry address"),
        (
            address("address: y, type: queue", "y") + address("address: x, type: queue, deadletter: y"),
            '"y" is a queue; it must be of type deadletter',
        ),
        (
            HUB + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: hob/x}]"),
            'spec.forwarders[0].remoteAddress: there is no connector "hob"; did you mean "hub"?',
        ),
        (
            HUB + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: hub},"
                          " {name: f, remoteAddress: hub/y}]"),
            'a forwarder called "f" already exists',
        ),
        (
            HUB + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: hub},"
                          " {name: g, remoteAddress: hub/x, direction: in}]"),
            "forwarding loop",
        ),
        (
            HUB + address("address: x/#, type: topic, forwarders: [{name: f, remoteAddress: hub/y/#}]"),
            "a hub keeps the addresses of this gateway: use only the connector's name",
        ),
        (
            AMQP + address("address: x/#, type: topic, forwarders: [{name: f, remoteAddress: b/y/+}]"),
            'spec.forwarders[0].remoteAddress: "y/+" is a pattern: it needs the wildcards of "x/#"',
        ),
        (
            AMQP + address("address: x/#, type: topic, forwarders: [{name: f, remoteAddress: 'b/{user}'}]"),
            "there is no field {user}; the fields are {address}, {device}, {gateway}",
        ),
        (
            AMQP + address(
                "address: x, type: topic, forwarders: [{name: f, remoteAddress: 'b/{device}', direction: in}]"
            ),
            "only an outgoing one may have fields",
        ),
        (
            AMQP + address(
                "address: x, type: topic, forwarders: [{name: f, remoteAddress: b, only: {properties: 'a >'}}]"
            ),
            "spec.forwarders[0].only.properties: is not a selector: term 3",
        ),
        (
            AMQP + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: b, only: {body: '$.a >'}}]"),
            "spec.forwarders[0].only.body: is not a condition on a JSON body: term 3",
        ),
        (
            AMQP + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: b, only: {address: a#}}]"),
            "spec.forwarders[0].only.address: ",
        ),
        (
            HUB + address("address: x, type: topic, forwarders: [{name: f, remoteAddress: hub, messageTtl: 1m}]"),
            "spec.forwarders[0].messageTtl: a connector of type waypost sends every message unchanged",
        ),
        (
            HUB + address("address: x, type: anycast, forwarders: [{name: f, remoteAddress: hub}]"),
            "anycast stores nothing, so it has no forwarders",
        ),
        (user("hunter2!"), "must be Base64"),
        (user("aGk=") + user("aGk=", "u2"), 'a user called "alice" already exists'),
        (device("{via: [d2]}", "d1"), 'spec.via[0]: there is no other device "d2"'),
        (device("{via: [d1]}", "d1"), "there is no other device"),
    ],
)  # fmt: skip
def test_invalid_configurations_are_refused(text: str, expected: str) -> None:
    [error] = errors_of(text)
    assert expected in str(error)
    assert error.line > 0


def test_several_errors_are_all_reported() -> None:
    text = gateway("{hub: {url: 'amqps://h', tls: {clientCert: c}}, limits: {packetBytesMax: 100000000}}")
    assert [error.message.split(" (")[0] for error in errors_of(text)] == [
        "set both clientCert and clientKey, or neither",
        "memoryBytesMax",
    ]
