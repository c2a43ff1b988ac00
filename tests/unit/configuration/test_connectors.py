"""Resources of connectors of each type."""

from __future__ import annotations

import pytest

from bridge.connectors.settings import (
    AmqpSettings,
    Format,
    HttpSettings,
    KafkaSettings,
    Mechanism,
    MqttService,
    MqttSettings,
    PartitionKey,
    SchemaRegistry,
    TokenKind,
    TopicSchema,
)
from bridge.resources import parse
from bridge.resources.endpoint import ListenEndpoint
from bridge.sasl import SaslServer
from edge.broker.configuration import Connector, ConnectorType
from edge.broker.router.connector_types import credentials_of
from edge.configuration.effective import build_configuration
from edge.configuration.kinds import KINDS
from tests.unit.configuration.documents import address, errors_of, space

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3A="


def connector(rest: str) -> str:
    return space(f"{{connectors: [{{name: c, endpointHosts: [{{host: h}}], {rest}}}]}}")


def made(rest: str) -> Connector:
    assert not errors_of(connector(rest))
    return build_configuration(parse.parse(KINDS, connector(rest), "a.yaml")).connector("c")


@pytest.mark.parametrize(
    ("host", "rest", "sent"),
    [
        ("h", "tls: {}, credentials: {username: u, password: p}", True),
        ("h", "credentials: {username: u, password: p, plainWithoutTls: true}", True),
        ("localhost", "credentials: {username: u, password: p}", False),
    ],
)
def test_password_without_tls_requires_consent(host: str, rest: str, sent: bool) -> None:
    text = space(f"{{connectors: [{{name: c, type: amqp, endpointHosts: [{{host: {host}}}], {rest}}}]}}")
    assert not errors_of(text)
    client = credentials_of(build_configuration(parse.parse(KINDS, text, "a.yaml")).connector("c"))
    assert client is not None
    asked: list[bytes] = []
    server = SaslServer(lambda _mechanism, _user, secret: asked.append(secret))
    server.receive(client.take())
    client.receive(server.take())
    server.receive(client.take())
    assert asked == ([b"p"] if sent else [])
    assert (client.failure is None) is sent


def test_azure_connector_is_configured() -> None:
    rest = "token: sharedAccess, tokenLifetime: 20m, partitionKey: device"
    found = made(f"type: amqp, tls: {{}}, credentials: {{username: Send, password: k}}, amqp: {{{rest}}}")
    assert found.endpoints == (ListenEndpoint("h", 5671),)
    assert found.amqp == AmqpSettings(
        token=TokenKind.SHARED_ACCESS, token_lifetime_s=1200.0, partition_key=PartitionKey.DEVICE
    )


def test_mqtt_connector_is_configured() -> None:
    found = made("type: mqtt, mqtt: {keepAlive: 10s, maxInFlight: 100}")
    assert (found.type, found.endpoints) == (ConnectorType.MQTT, (ListenEndpoint("h", 1883),))
    assert found.mqtt == MqttSettings(keep_alive_s=10.0, in_flight_max=100)
    assert made("type: mqtt, tls: {}").endpoints == (ListenEndpoint("h", 8883),)


BEARER = "type: kafka, tls: {}, credentials: {username: c, password: s}"
TOKEN_URL = "tokenUrl: 'https://issuer.example/token'"
THING = "tls: {clientCert: c, clientKey: k}"
IOT_HUB = "service: azureIotHub, device: gw1, sharedAccessKey: a2V5"


def test_iot_hub_connector_is_configured() -> None:
    found = made(f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}, module: m1, tokenLifetime: 10m, hubHost: hub.example}}")
    assert found.endpoints == (ListenEndpoint("h", 8883),)
    assert found.mqtt == MqttSettings(
        service=MqttService.AZURE_IOT_HUB,
        device="gw1",
        module="m1",
        shared_access_key="a2V5",
        token_lifetime_s=600.0,
        hub_host="hub.example",
    )
    assert "a2V5" not in repr(found)
    assert made("type: mqtt, tls: {clientCert: c, clientKey: k}, mqtt: {service: azureIotHub, device: gw1}").mqtt


def test_http_connector_is_configured() -> None:
    rest = f"path: '/in?a=1', format: cloudevents, signingSecret: {SECRET}, maxMessages: 10, maxBytes: 1Ki, maxAge: 1s"
    found = made(f"type: http, tls: {{}}, http: {{{rest}}}")
    assert found.endpoints == (ListenEndpoint("h", 443),)
    assert found.http == HttpSettings(
        path="/in?a=1", format=Format.CLOUDEVENTS, signing_secret=SECRET,
        batch_messages=10, batch_bytes=1024, batch_age_s=1.0,
    )  # fmt: skip
    assert SECRET not in repr(found)


def test_kafka_connector_with_tokens_and_schemas_is_configured() -> None:
    rest = f"mechanism: OAUTHBEARER, {TOKEN_URL}, scope: kafka, tokenCaCert: /ca.pem"
    found = made(f"{BEARER}, kafka: {{{rest}, schemas: [{{topic: t, registry: apicurio, id: '7'}}]}}")
    assert found.kafka == KafkaSettings(
        mechanism=Mechanism.OAUTHBEARER,
        token_url="https://issuer.example/token",
        scope="kafka",
        token_authority="/ca.pem",
        schemas=(TopicSchema(topic="t", registry=SchemaRegistry.APICURIO, id="7"),),
    )


def test_kafka_connector_is_configured() -> None:
    found = made(
        "type: kafka, tls: {}, kafka: {key: address, mechanism: SCRAM-SHA-512, maxMessageBytes: 64Ki, group: g}"
    )
    assert found.endpoints == (ListenEndpoint("h", 9093),)
    assert found.kafka == KafkaSettings(
        key=PartitionKey.ADDRESS, mechanism=Mechanism.SCRAM_SHA_512, message_bytes_max=65_536, group="g"
    )


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("type: mqtt, amqp: {}", "amqp: is of connectors of type amqp; this one is of type mqtt"),
        ("type: amqp, amqp: {token: sharedAccess}", "needs credentials: the name of a shared access policy"),
        ("type: amqp, amqp: {tokenLifetime: 30s}", "must be 60 seconds at least"),
        ("type: amqp, amqp: {partitionKey: message}", "partitionKey"),
        ("type: mqtt, http: {}", "http: is of connectors of type http; this one is of type mqtt"),
        ("type: amqp, kafka: {}", "kafka: is of connectors of type kafka; this one is of type amqp"),
        ("type: mqtt, mqtt: {keepAlive: 0s}", "must be 1 to 65535 seconds"),
        ("type: mqtt, mqtt: {maxInFlight: 0}", "maxInFlight"),
        ("type: mqtt, mqtt: {tokenLifetime: 59s}", "must be 60 seconds at least"),
        ("type: mqtt, mqtt: {device: gw1}", "device: is of another service: set service: azureIotHub"),
        (
            f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}, region: x}}",
            "region: is of another service: set service: awsIotCore",
        ),
        (f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}, module: 'a%b'}}", '"a%b" is not an identifier'),
        ("type: mqtt, mqtt: {service: awsIotCore}", "tls: {} is enough"),
        ("type: mqtt, tls: {}, mqtt: {service: awsIotCore}", "needs clientCert and clientKey"),
        (f"type: mqtt, {THING}, container: {'x' * 129}, mqtt: {{service: awsIotCore}}", "128 bytes at most"),
        (f"type: mqtt, {THING}, mqtt: {{service: awsIotCore, keepAlive: 1201s}}", "1200 seconds at most"),
        ("type: http, http: {path: /}, proxy: {host: h, port: 1}", "go through no proxy"),
        ("type: mqtt, proxy: {host: h, port: 1}", "go through no proxy"),
        ("type: mqtt, tls: {}, mqtt: {service: azureIotHub, sharedAccessKey: a2V5}", "needs device"),
        ("type: mqtt, tls: {}, mqtt: {service: azureIotHub, device: gw1}", "needs sharedAccessKey"),
        (f"type: mqtt, mqtt: {{{IOT_HUB}}}", "tls: {} is enough"),
        (f"type: mqtt, tls: {{}}, container: x, mqtt: {{{IOT_HUB}}}", "container: is not for an IoT hub"),
        (
            f"type: mqtt, tls: {{}}, credentials: {{username: u, password: p}}, mqtt: {{{IOT_HUB}}}",
            "credentials: are not",
        ),
        (f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}, module: a/b}}", '"a/b" is not an identifier'),
        (f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}, keepAlive: 1178s}}", "must be 1177 seconds at most"),
        ("type: mqtt, tls: {}, mqtt: {service: azureIotHub, device: d, sharedAccessKey: x}", "copy the primary key"),
        ("type: http, http: {path: in}", '"in" is no path'),
        ('type: http, http: {path: "/a b"}', "has no spaces"),
        ('type: http, http: {path: "/a\\r\\nX: y"}', "is no path"),
        ("type: http, http: {signingSecret: short}", "openssl rand"),
        ("type: http, http: {maxBytes: 0}", "must be 1 at least"),
        ("type: http, http: {url: x}", "url"),
        ("type: http, interface: eth0", "cannot be bound to one"),
        ("type: kafka, kafka: {maxMessageBytes: 10}", "must be 1024 at least"),
        ("type: kafka, kafka: {mechanism: GSSAPI}", "mechanism"),
        (f"{BEARER}, kafka: {{mechanism: OAUTHBEARER}}", "needs tokenUrl"),
        (f"type: kafka, kafka: {{mechanism: OAUTHBEARER, {TOKEN_URL}}}", "needs credentials: the id of a client"),
        (f"{BEARER}, kafka: {{{TOKEN_URL}}}", "is for mechanism: OAUTHBEARER"),
        (f"{BEARER}, kafka: {{scope: a}}", "is for mechanism: OAUTHBEARER"),
        (f"{BEARER}, kafka: {{mechanism: OAUTHBEARER, tokenUrl: 'http://i.example/t'}}", "use https://"),
        (f"{BEARER}, kafka: {{mechanism: OAUTHBEARER, tokenUrl: i.example}}", "is not a URL of a token endpoint"),
        ("type: kafka, kafka: {schemas: [{topic: t, registry: confluent, id: '7'}]}", "is not a GUID"),
        ("type: kafka, kafka: {schemas: [{topic: t, registry: apicurio, id: x}]}", "is not a content id"),
        (
            "type: kafka, kafka: {schemas: [" + 2 * "{topic: t, registry: apicurio, id: '7'}, " + "]}",
            "has a schema already",
        ),
    ],
)
def test_invalid_connectors_are_reported(rest: str, said: str) -> None:
    (error,) = errors_of(connector(rest))
    assert said in str(error)


def test_device_of_an_iot_hub_has_one_connector_and_one_hub() -> None:
    def faults(*connectors: str) -> list[str]:
        return [str(error) for error in errors_of(space(f"{{connectors: [{', '.join(connectors)}]}}"))]

    part = f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}"
    one, two = (f"{{name: {name}, endpointHosts: [{{host: h}}], {part}}}}}" for name in "ab")
    (error,) = faults(one, two)
    assert 'is the device of the connector "a" already' in error
    assert faults(one, f"{{name: m, endpointHosts: [{{host: h}}], {part}, module: m1}}}}") == []
    hosts = "endpointHosts: [{host: h}, {host: i}]"
    (error,) = faults(f"{{name: a, {hosts}, {part}}}}}")
    assert "needs hubHost" in error
    assert faults(f"{{name: a, {hosts}, {part}, hubHost: h}}}}") == []


AWS_HOST = "a1-ats.iot.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("hosts", "rest", "said"),
    [
        (f"{{host: {AWS_HOST}, websocket: /mqtt}}", "credentials: {username: AK, password: s}", ""),
        ("{host: iot.example, websocket: /mqtt}", "credentials: {username: AK, password: s}", "needs region"),
        (f"{{host: {AWS_HOST}, websocket: /mqtt}}", "credentials: {username: ASIA1, password: s}", "are temporary"),
        (
            f"{{host: {AWS_HOST}, websocket: /mqtt}}, {{host: {AWS_HOST.replace('west', 'north')}, websocket: /mqtt}}",
            "credentials: {username: AK, password: s}",
            "needs region",
        ),
        (f"{{host: {AWS_HOST}, websocket: /mqtt}}", "", "the secret access key as password"),
        (f"{{host: {AWS_HOST}, websocket: /}}", "credentials: {username: AK, password: s}", "must be /mqtt"),
        (
            f"{{host: {AWS_HOST}, websocket: /mqtt}}, {{host: {AWS_HOST}}}",
            "credentials: {username: AK, password: s}",
            "all have websocket, or none",
        ),
    ],
)
def test_web_socket_to_aws_is_signed_with_an_access_key(hosts: str, rest: str, said: str) -> None:
    part = f"type: mqtt, tls: {{}}, mqtt: {{service: awsIotCore}}, {rest}"
    errors = [
        str(error) for error in errors_of(space(f"{{connectors: [{{name: c, endpointHosts: [{hosts}], {part}}}]}}"))
    ]
    assert len(errors) == bool(said)
    assert all(said in error for error in errors)


@pytest.mark.parametrize(
    ("forwarders", "said"),
    [
        (["remoteAddress: c/a/b/c/d/e/f/g/h"], ""),
        (["remoteAddress: c/a/b/c/d/e/f/g/h/i"], "8 slashes"),
        (["remoteAddress: 'c/{device}/a/b/c/d/e/f/g/h/i'"], ""),
        (["direction: in, remoteAddress: c/a/b/c/d/e/f/g/h/i"], "8 slashes"),
        ([f"direction: in, remoteAddress: c/x{i}" for i in range(8)], ""),
        ([f"direction: in, remoteAddress: c/x{i}" for i in range(9)], "8 incoming forwarders"),
    ],
)
def test_topics_of_aws_have_limits(forwarders: list[str], said: str) -> None:
    parts = ", ".join(f"{{name: f{i}, {forwarder}}}" for i, forwarder in enumerate(forwarders))
    text = connector(f"type: mqtt, {THING}, mqtt: {{service: awsIotCore}}") + address(
        f"address: plant, type: topic, forwarders: [{parts}]"
    )
    errors = [str(error) for error in errors_of(text)]
    assert len(errors) == bool(said)
    assert all(said in error for error in errors)


COMMANDS, EVENTS = "c/application/a/device/+/command/down", "c/application/+/device/+/event/+"


@pytest.mark.parametrize(
    ("commands", "events", "said"),
    [
        (COMMANDS, EVENTS, ""),
        ("c/application/a/device/+/command/up", EVENTS, "one topic of a device"),
        ("c/application/a/device/pump7/command/down", EVENTS, "one topic of a device"),
        (COMMANDS, "c/application/+/device/+/event/up", "needs an incoming forwarder"),
        (COMMANDS, "", "needs an incoming forwarder"),
    ],
)
def test_commands_to_chirpstack_need_its_topic_and_its_events(commands: str, events: str, said: str) -> None:
    text = connector("type: mqtt, mqtt: {service: chirpstack, downlink: {newestWins: true}}")
    text += address(f"address: command/+, type: queue, forwarders: [{{name: f0, remoteAddress: '{commands}'}}]")
    if events:
        local = events.replace("c/application", "lorawan").replace("device/", "").replace("event/", "")
        spec = f"address: {local}, type: topic, forwarders: [{{name: f1, direction: in, remoteAddress: '{events}'}}]"
        text += address(spec).replace("name: a}", "name: events}").replace("name: a\n", "name: events\n")
    errors = [str(error) for error in errors_of(text)]
    assert len(errors) == bool(said), errors
    assert all(said in error for error in errors)


def test_commands_to_chirpstack_need_a_queue() -> None:
    text = connector("type: mqtt, mqtt: {service: chirpstack}")
    text += address(f"address: command/+, type: topic, forwarders: [{{name: f0, remoteAddress: '{COMMANDS}'}}]")
    (error,) = map(str, errors_of(text))
    assert "must be queue" in error


def test_downlink_settings_are_of_chirpstack_alone() -> None:
    (error,) = map(str, errors_of(connector("type: mqtt, mqtt: {downlink: {fPort: 2}}")))
    assert "set service: chirpstack" in error


def taking(kind: str, *remotes: str) -> str:
    """Return a connector, and an address with an incoming forwarder from each of these addresses."""
    forwarders = ", ".join(
        f"{{name: f{i}, remoteAddress: '{remote}', direction: in}}" for i, remote in enumerate(remotes)
    )
    return connector(f"type: {kind}") + address(f"address: x, type: queue, forwarders: [{forwarders}]")


@pytest.mark.parametrize(
    ("here", "forwarder", "said"),
    [
        ("plant/#", "remoteAddress: c/devices/gw1/messages/events", ""),
        ("plant/#", "remoteAddress: c/devices/gw1/messages/events/", ""),
        ("commands", 'direction: in, remoteAddress: "c/devices/gw1/messages/devicebound/#"', ""),
        ("plant/#", "remoteAddress: c", 'write "c/devices/gw1/messages/events"'),
        ("plant/#", "remoteAddress: c/devices/gw2/messages/events", 'write "c/devices/gw1/messages/events"'),
        ("commands", "direction: in, remoteAddress: c/x", 'write "c/devices/gw1/messages/devicebound/#"'),
        ("plant/#", 'direction: in, remoteAddress: "c/devices/gw1/messages/devicebound/#"', "without wildcards"),
    ],
)
def test_iot_hub_has_fixed_topics(here: str, forwarder: str, said: str) -> None:
    text = connector(f"type: mqtt, tls: {{}}, mqtt: {{{IOT_HUB}}}") + address(
        f'address: "{here}", type: topic, forwarders: [{{name: f, {forwarder}}}]'
    )
    errors = [str(error) for error in errors_of(text)]
    assert len(errors) == bool(said)
    assert all(said in error for error in errors)


def test_incoming_forwarders_over_http_are_refused() -> None:
    (error,) = errors_of(taking("http", "c"))
    assert "sends them to its own listener, POST /t/<address>" in str(error)


@pytest.mark.parametrize(
    ("remotes", "said"),
    [
        (("c/plant/#",), '"plant/#" is a pattern: from Kafka each forwarder takes one topic'),
        (("c/..",), "cannot be translated to a Kafka topic"),
        (("c/a/b", "c/a.b"), 'takes from the topic "a.b" over "c" already'),
        (("c",), ""),
        (("c/a", "c/b"), ""),
    ],
)
def test_each_incoming_forwarder_of_kafka_has_its_own_topic(remotes: tuple[str, ...], said: str) -> None:
    errors = [str(error) for error in errors_of(taking("kafka", *remotes))]
    assert len(errors) == bool(said)
    assert all(said in error for error in errors)


@pytest.mark.parametrize(
    ("here", "there", "faults"),
    [("plant/#", "go", 1), ("plant/#", "go/#", 0), ("plant/7", "go", 0), ("plant/#", "", 0)],
)
def test_messages_of_one_topic_go_to_one_address(here: str, there: str, faults: int) -> None:
    """An MQTT message has no name but its topic."""
    remote = f"c/{there}" if there else "c"
    text = connector("type: mqtt") + address(
        f'address: "{here}", type: topic, forwarders: [{{name: f, remoteAddress: "{remote}", direction: in}}]'
    )
    errors = errors_of(text)
    assert len(errors) == faults
    assert all("use an address without wildcards here" in str(error) for error in errors)
