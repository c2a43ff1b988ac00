"""Parsers that are fed bytes directly: each with the exceptions that it may raise, and valid seeds.

`test_parsers.py` feeds them damaged seeds with Hypothesis; `harness.py` follows coverage with atheris.
"""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Final

import jwt
import msgspec

from bridge import batch, plain
from bridge.amqp_values import DecodeError, DescribedValue, Symbol, Timestamp, Uint, Ulong, decode, encode
from bridge.message import AMQP, Run, Stored
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from bridge.sasl.bearer import BearerError
from bridge.sasl.bearer import read as read_bearer
from bridge.sasl.scram import ScramClient, ScramError, ScramKeys, ScramServer, ScramVerifier, derive
from cloud.hub.configuration import parse as parse_hub
from cloud.hub.documents import DocumentError, ledger_ranges, parse_lineage, status_row
from cloud.hub.groups import GatewaySession
from cloud.lake.faults import ContentError
from cloud.lake.landing import LandedSets, plan
from cloud.lake.parts import parts_of
from cloud.lake.properties import describe_mqtt
from cloud.lake.rows import ReceivedBatch, telemetry_rows
from cloud.lake.sequences import SequenceSet
from edge.broker.configuration import TokenIssuer
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.requests import CommandRequests
from edge.broker.hono.topics import read_bag, read_filter, read_upload, split_bag
from edge.broker.http.messages import BadRequest, parse_single, runs_of
from edge.broker.http.messages import parse_batch as http_batch
from edge.broker.limits import TOPIC_LEVELS_MAX
from edge.broker.message.mqtt_errors import LocalError, RemoteError
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.message.readings import parse_reading
from edge.broker.message.selectable import selectable_values
from edge.broker.message.selector import MessageSelector, SelectorError
from edge.broker.message.translation import flags_of, payload_of, properties_of
from edge.broker.model.topics import FilterTree, covers, is_filter, matches, overlaps
from edge.broker.mqtt import packets
from edge.broker.mqtt.names import check_topic_filter
from edge.broker.security.tokens import BearerTokenError, read_keys, verify
from edge.configuration.kinds import KINDS
from tests.property.fuzz.documents import DOCUMENTS
from tests.property.fuzz.machines import MACHINES
from tests.property.fuzz.parser import Parser
from tests.unit.mqtt.cases import CASES

GOLDEN: Final = Path(__file__).parents[2] / "contract" / "golden"
FROM_SERVERS: Final = (packets.ConnAck, packets.SubAck, packets.UnsubAck, packets.PingResp)
SESSION: Final = GatewaySession("default", "gw", "-")
ISSUER: Final = TokenIssuer(issuer="https://issuer", audience="waypost")
SECRET_KEYS: Final[ScramKeys] = derive("s3cret", bytes(16), 1)


def take_message(data: bytes) -> None:
    """Parse a bare message with each of its readers."""
    for look in (payload_of, properties_of, plain.parse, plain.ends_of, plain.body_of, selectable_values, decode):
        try:
            look(data)  # type: ignore[operator]
        except (DecodeError, plain.MessageError):
            continue
    with contextlib.suppress(DecodeError):
        flags_of(data, settled=False)
    run = Run("a", "d", AMQP, b"", [data])
    made = MqttTranslator().part(run, 0, 1)
    assert sum(len(part.bodies) for part in made.runs) == 1, "none is left out"
    parse_reading(run, data)
    plain.messages(plain.Hop("gw", "e"), 1, run)


def take_batch(data: bytes) -> None:
    """Parse a batch with a valid checksum, to reach the code after the check."""
    sealed = data[:4] + zlib.crc32(data[8:]).to_bytes(4, "little") + data[8:]
    found = batch.decode(sealed)
    assert batch.cost(sealed) == found.size
    assert sum(len(item.run) for item in found.stored()) == len(found)
    if found.space.isprintable() and len({r.address for r in found.ranges}) == len(found.ranges):
        again = batch.decode(batch.encode(found.stored(), space=found.space, epoch=found.epoch, lane=found.lane))
        assert len(again) == len(found)


def take_http(data: bytes) -> None:
    kind, _, body = data.partition(b"\n")
    for content_type in ("application/json", "application/x-ndjson"):
        try:
            messages = http_batch(body, content_type)
        except BadRequest:
            continue
        assert sum(len(places) for _, places in runs_of(messages, "d")) == len(messages)
    query = {"qos": kind[:3].decode("latin-1"), "ttl": kind[3:9].decode("latin-1")}
    with contextlib.suppress(BadRequest):
        parse_single(body.decode("utf-8", "surrogateescape"), body, query, {"content-type": kind.decode("latin-1")})


def take_documents(data: bytes) -> None:
    describe_mqtt(data)
    document = msgspec.json.decode(data, type=dict[str, object])
    with contextlib.suppress(DocumentError):
        status_row(SESSION, document, 1)
    with contextlib.suppress(DocumentError):
        parse_lineage(document) if "lineage" in document else ledger_ranges(SESSION, document, 1)


def take_token(data: bytes) -> None:
    keys, _, token = data.partition(b"\n")
    try:
        found = read_keys(msgspec.json.decode(keys))
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = ()
    verify(token, found, ISSUER, 1_000.0)


def take_scram(data: bytes) -> None:
    first, _, final = data.partition(b"\0")
    server = ScramServer("server")
    server.first(first)
    server.challenge(ScramVerifier(bytes(16), 1, [SECRET_KEYS]))
    server.finish(final)


def take_scram_challenge(data: bytes) -> None:
    challenge, _, final = data.partition(b"\0")
    client = ScramClient("user", "s3cret", "client")
    client.first()
    client.answer(challenge)
    client.check(final)


def take_packet(data: bytes) -> None:
    """Parse one MQTT packet, and encode it again; the first byte chooses the version."""
    if len(data) < 2:
        return
    version = 3 + data[0] % 3
    packet = packets.decode(data[1], data[2:], version)
    if isinstance(packet, FROM_SERVERS):
        return  # only servers send these
    with contextlib.suppress(LocalError):
        written = packet.encode(version)
        start, _, _ = read_fixed_header(written, 0) or (0, 0, False)
        assert packets.decode(written[0], written[start:], version) == packet


def take_value(data: bytes) -> None:
    """Parse a sequence of AMQP values, and encode and parse each again.

    Values are compared after one encoding: it replaces non-ASCII characters of a symbol, which the standard forbids.
    """
    offset = 0
    while offset < len(data):
        value, offset = decode(data, offset)
        written = encode(value)
        again, end = decode(written)
        assert end == len(written)
        assert encode(again) == written


def take_selector(data: bytes) -> None:
    selector = MessageSelector(data.decode("utf-8", "replace"))
    for values in ({}, {"a": 1, "b": 2.5, "c": "text", "d": True, "e": None, "f": Symbol("x")}):
        assert selector.matches(values) in (True, False)


def take_topics(data: bytes) -> None:
    """Compare the tree of filters with single matching, for a topic name and filters."""
    name, *lines = data.decode("utf-8", "replace").split("\n")
    filters = [line for line in lines if _is_filter(line)]
    tree = FilterTree[str]()
    for one in filters:
        tree.add(one, one)
    if not is_filter(name):
        assert set(tree.match(name)) == {one for one in filters if matches(one, name)}
    for one in filters:
        assert covers(one, one)
        assert overlaps(one, name) is overlaps(name, one)
        tree.remove(one, one)
    assert not len(tree)


def _is_filter(text: str) -> bool:
    try:
        check_topic_filter(text, TOPIC_LEVELS_MAX)
    except RemoteError:
        return False
    return True


def take_hono(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    name, bag = split_bag(text)
    for read in (read_upload, read_filter):
        with contextlib.suppress(DeviceError):
            read(name)
    with contextlib.suppress(DeviceError):
        read_bag(bag)
    with contextlib.suppress(DeviceError):
        CommandRequests(b"k" * 32).read("device", text)


def take_landing(data: bytes) -> None:
    """Turn a batch into rows, with any bytes of a device."""
    sealed = data[:4] + zlib.crc32(data[8:]).to_bytes(4, "little") + data[8:]
    found = batch.decode(sealed)
    received = ReceivedBatch("default", "gw", found)
    whole = plan([received], LandedSets(lambda _stream: SequenceSet()))
    new = plan(parts_of(received), LandedSets(lambda _stream: SequenceSet()))
    assert new.landed.rows == whole.landed.rows
    assert telemetry_rows(new.slices, 1_000_000).num_rows == new.landed.rows


def _landing_seeds() -> list[bytes]:
    """Return batches with every kind of message."""
    amqp = [Run("a", "d", AMQP | 1, b"", [MESSAGE, b"\0\x53\x75\xa0\3abc"], 5)]
    mqtt = [Run("b", "d", 1, b"\x26\0\1a\0\1b\x03\0\x04text\x09\0\1x", [b"21.5", b""], 5)]
    return [batch.encode([Stored(-1, 0, run)], space="s", epoch="e") for run in (*amqp, *mqtt)]


def _token() -> bytes:
    key = jwt.algorithms.OKPAlgorithm.from_jwk(
        '{"kty":"OKP","crv":"Ed25519","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",'
        '"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}'
    )
    claims = {"iss": ISSUER.issuer, "aud": ISSUER.audience, "sub": "u", "exp": 2_000, "scope": "send:plant/#"}
    keys = b'{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
    return keys + b"\n" + jwt.encode(claims, key, algorithm="EdDSA").encode()


MESSAGE: Final = b"".join(
    b"\0\x53" + bytes((code,)) + encode(value)
    for code, value in (
        (0x72, {Symbol("x-opt-mqtt-qos"): 2, Symbol("x-opt-waypost-hops"): ["a", "b"]}),
        (0x73, [Ulong(7), b"u", "to", "subject", "reply", "id", Symbol("text/plain"), None, Timestamp(9)]),
        (0x74, {"a": 1, "b": 2.5, "c": "text"}),
        (0x77, [{"x": [1, None, True, DescribedValue(Symbol("d"), 5)]}, Uint(300), "ü", b"\xff"]),
    )
)
CONFIGURATION: Final = b"""apiVersion: waypost/v1
kind: Gateway
metadata: {name: north-hall}
spec:
  listeners: {mqtt: "0.0.0.0:1883", http: "127.0.0.1:8080"}
  hub: {url: "amqp://hub.example:5672"}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {name: default.plant}
spec: {address: plant/#, type: topic, messageTtl: {maximum: 5000}, forwarders: [{name: to-hub, remoteAddress: hub}]}
"""

PARSERS: Final = {
    "message": Parser(
        take_message,
        (),
        [
            MESSAGE,
            b"\0\x53\x75\xa0\3abc",
            b"\0\x53\x77" + encode("text"),
            b"\0\x53\x77\xf0\0\0\0\x0d\0\0\0\1\x82" + bytes(8),
        ],
    ),
    "batch": Parser(take_batch, (batch.BatchError,), [path.read_bytes() for path in sorted(GOLDEN.glob("*.wpb"))]),
    "http": Parser(
        take_http,
        (),
        [
            b'1\n[{"address": "a/b", "body": {"x": [1, 2]}, "qos": 1, "ttl": 5, "contentType": "text/plain"}]',
            b'0\n{"address": "a", "base64": "eHg="}\n{"address": "b", "body": "text"}',
            b"2\nplant/7",
        ],
    ),
    "documents": Parser(
        take_documents,
        (msgspec.DecodeError, UnicodeDecodeError),
        [
            b'{"ranges": [{"address": "a", "epoch": "e", "first_sequence": 1, "last_sequence": 5}]}',
            b'{"lineage": {"epoch": "e", "openings": ["a", "b"], "ends": [{"1": 5}]}}',
            b'{"uptime_s": 5, "clock_good": true, "backlog_messages": 7, "reported_at": "2026-01-01T00:00:00Z"}',
            b"\x26\0\1a\0\1b\x03\0\x04text\x09\0\1x",
        ],
    ),
    "configuration": Parser(lambda data: parse(KINDS, data, "fuzz"), (ConfigurationRejected,), [CONFIGURATION]),
    "token": Parser(take_token, (BearerTokenError,), [_token()]),
    "scram": Parser(
        take_scram,
        (ScramError,),
        [b"n,,n=user,r=client\0c=biws,r=clientserver,p=" + b"A" * 43 + b"=", b"y,a=user,n=user,r=x"],
    ),
    "scram-client": Parser(
        take_scram_challenge, (ScramError,), [b"r=clientserver,s=AAAAAAAAAAAAAAAAAAAAAA==,i=4096\0v=AA=="]
    ),
    "packet": Parser(
        take_packet,
        (RemoteError,),
        [bytes((version,)) + case.data[:1] + case.data[2:] for case in CASES for version in case.versions],
    ),
    "value": Parser(take_value, (DecodeError,), [MESSAGE, encode([{"x": [1, None, 2.5]}, Uint(300), "ü", b"\xff"])]),
    "selector": Parser(
        take_selector,
        (SelectorError,),
        [
            b"a > 0 AND (b BETWEEN 1.5 AND 3 OR NOT c LIKE 't_x%' ESCAPE '!') AND e IS NULL",
            b"f IN ('x', 'it''s') AND a * -2 + 1e3 / b <> .5 OR d = TRUE",
        ],
    ),
    "topics": Parser(take_topics, (), [b"a/b/c\na/#\n+/b/+\n#\na/b/c\n$share/g/a", "ü//$SYS\n+/+/$SYS\n/".encode()]),
    "hono": Parser(
        take_hono,
        (),
        [b"t/tenant/dev/?content-type=a%2Fb&hono-ttl=5&on-error=ignore", b"c/tenant/dev/res/id/200", b"c///q/#"],
    ),
    "landing": Parser(take_landing, (batch.BatchError, ContentError), _landing_seeds()),
    "bearer": Parser(read_bearer, (BearerError,), [b"n,a=user,\1host=h\1auth=Bearer x.y-z==\1\1"]),
    "hub-configuration": Parser(
        lambda data: parse_hub(data, "fuzz"),
        (ConfigurationRejected,),
        [
            b"apiVersion: waypost/v1\nkind: Hub\nspec: {amqp: 127.0.0.1:0, gatherMilliseconds: 500, registry: sqlite:////tmp/x}\n"
        ],
    ),
    **DOCUMENTS,
    **MACHINES,
}
