"""YAML to resources: valid input is read, and each error is named with its file, line and path."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.resources import parse
from bridge.resources.document import Document, documents
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.errors import ConfigurationRejected
from edge.broker.model.address_policy import Durability, DurabilityMode, Redelivery, WhenFull
from edge.broker.model.addresses import AddressType
from edge.configuration.kinds import KINDS
from edge.configuration.resources import (
    AddressSpaceSpec,
    AddressSpec,
    GatewaySpec,
)

ADDRESS = """\
apiVersion: enmasse.io/v1beta1
kind: Address
metadata:
  name: default.load
spec:
  address: load/#
  type: queue
"""


def errors_of(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigurationRejected) as caught:
        parse.parse(KINDS, text, "gateway.yaml")
    return [str(error) for error in caught.value.errors]


def test_every_field_of_an_address_is_read() -> None:
    text = (
        ADDRESS
        + """\
  maxConsumers: 4
  messageTtl: {minimum: 500, maximum: 7d}
  messageRedelivery:
    maximumDeliveryAttempts: 5
    redeliveryDelay: 1s
    redeliveryDelayMultiplier: 2
    maximumDeliveryDelay: 1.5m
  deadletter: dead
  expiry: dead
  quota: {bytes: 64Mi, reserve: 1k}
  whenFull: dropOldest
  durability: batch:50
  forwarders:
  - {name: up, remoteAddress: hub/load/#, priority: 9}
"""
    )
    [resource] = parse.parse(KINDS, text, "a.yaml")
    spec = resource.spec
    assert isinstance(spec, AddressSpec)
    assert resource.key == ("Address", "default.load")
    assert (spec.address, spec.type, spec.consumers_max) == ("load/#", AddressType.QUEUE, 4)
    assert (spec.ttl_min_s, spec.ttl_max_s) == (0.5, 604800.0)
    assert spec.redelivery == Redelivery(attempts_max=5, delay_s=1.0, delay_multiplier=2.0, delay_max_s=90.0)
    assert (spec.deadletter, spec.expiry) == ("dead", "dead")
    assert (spec.quota_bytes, spec.reserve_bytes) == (64 * 1024 * 1024, 1000)
    assert spec.when_full is WhenFull.DROP_OLDEST
    assert spec.durability == Durability(DurabilityMode.BATCH, 0.05)
    assert [(f.name, f.remote_address, f.priority) for f in spec.forwarders] == [("up", "hub/load/#", 9)]


def test_several_documents_of_several_kinds_are_read() -> None:
    text = (
        "---\n"
        + ADDRESS
        + """\
---
---
apiVersion: waypost/v1
kind: Gateway
metadata: {name: gw1, labels: {site: oslo}}
spec:
  listeners: {mqtt: "0.0.0.0:1883", amqp: "[::1]:5672"}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {name: default}
spec:
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {name: default.alice}
spec:
  username: alice
  authentication: {type: password, password: aHVudGVyMg==}
  authorization: [{addresses: ["load/#"], operations: [send, recv]}]
---
{apiVersion: waypost/v1, kind: Device, metadata: {name: d1}, spec: {}}
"""
    )
    resources = parse.parse(KINDS, text, "all.yaml")
    assert [resource.kind for resource in resources] == [
        "Address",
        "Gateway",
        "AddressSpace",
        "MessagingUser",
        "Device",
    ]
    gateway, space = resources[1].spec, resources[2].spec
    assert isinstance(gateway, GatewaySpec)
    assert gateway.listeners.mqtt == ListenEndpoint("0.0.0.0", 1883)
    assert str(gateway.listeners.amqp) == "[::1]:5672"
    assert gateway.listeners.http is None
    assert resources[1].metadata.labels == {"site": "oslo"}
    assert space == AddressSpaceSpec()


def test_unknown_key_is_reported_with_file_line_path_and_suggestion() -> None:
    text = (
        "# a comment\napiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  listners:\n    mqtt: a:1\n"
    )
    assert errors_of(text) == ['gateway.yaml:6: spec.listners: unknown field "listners"; did you mean "listeners"?']


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "type: queue",
            "type: qeue",
            '7: spec.type: "qeue" is not one of queue, topic, subscription, anycast, '
            'multicast, deadletter; did you mean "queue"?',
        ),
        (
            "type: queue",
            "type: 7",
            '7: spec.type: "7" is not one of queue, topic, subscription, anycast, multicast, deadletter',
        ),
        ("  type: queue\n", "", '5: spec: "type" is missing'),
        (
            "address: load/#",
            "address: 12",
            "6: spec.address: expected text, not a number; put it in quotes if text is meant",
        ),
        (
            "address: load/#",
            "address: false",
            "6: spec.address: expected text, not false; put it in quotes if text is meant",
        ),
        ("address: load/#", 'address: ""', "6: spec.address: must not be empty"),
        ("address: load/#", "address: [a]", "6: spec.address: expected text, not a list"),
        ("kind: Address", "kind: address", '2: kind: unknown kind "address"; did you mean "Address"?'),
        (
            "kind: Address\n",
            "",
            '1: "kind" is missing; known: Gateway, AddressSpace, TenantSpace, Address, MessagingUser, Device, '
            "Artefacts, System",
        ),
        ("enmasse.io/v1beta1", "v1", '1: apiVersion: "v1" is not waypost/v1 or enmasse.io/v1beta1'),
        (
            "  name: default.load",
            "  name: a b",
            '4: metadata.name: "a b" is not a name; allowed: letters and digits, and between them . - _',
        ),
        ("  name: default.load", "  {}", '3: metadata: "name" is missing'),
        ("spec:", "status: {}\nspec:", '5: status: unknown field "status"; known: apiVersion, kind, metadata, spec'),
        (
            "type: queue",
            "type: queue\n  maxConsumers: 0",
            "8: spec.maxConsumers: expected a whole number above 0, not 0",
        ),
        ("type: queue", "type: queue\n  maxConsumers: 1.5", "8: spec.maxConsumers: expected a whole number, not 1.5"),
        ("type: queue", "type: queue\n  maxConsumers: true", "8: spec.maxConsumers: expected a whole number, not true"),
        ("type: queue", "type: queue\n  quota: 5", "8: spec.quota: expected a mapping, not 5"),
        (
            "type: queue",
            "type: queue\n  quota: {byte: 5}",
            '8: spec.quota.byte: unknown field "byte"; did you mean "bytes"?',
        ),
        (
            "type: queue",
            "type: queue\n  durability: batch",
            '8: spec.durability: "batch" is not a durability: fsync, memory, or batch:<milliseconds> of 1 to 60000',
        ),
        (
            "type: queue",
            "type: queue\n  quota: {bytes: 5XB}",
            '8: spec.quota.bytes: "5XB" is not a size; expected bytes as a number, or a text such as 512Ki, 64Mi, 2G',
        ),
        (
            "type: queue",
            "type: queue\n  messageTtl:\n    maximum: -1",
            "9: spec.messageTtl.maximum: -1 is out of range: 0 to 100 years",
        ),
        (
            "type: queue",
            "type: queue\n  messageTtl:\n    maximum: true",
            "9: spec.messageTtl.maximum: expected text or a number, not true",
        ),
        (
            "type: queue",
            "type: queue\n  messageTtl:\n    maximum: 1:30",
            '9: spec.messageTtl.maximum: "1:30" is not a duration; expected a number of milliseconds, '
            "or text such as 500ms, 90s, 1.5h, 7d",
        ),
        (
            "type: queue",
            "type: queue\n  quota: {bytes: 010}",
            '8: spec.quota.bytes: 010 may be octal: write 10, or "010" for text',
        ),
        (
            "type: queue",
            "type: queue\n  quota: {bytes: 1_000}",
            '8: spec.quota.bytes: "1_000" is not a size; expected bytes as a number, or a text such as 512Ki, 64Mi, 2G',
        ),
        (
            "type: queue",
            "type: queue\n  maxConsumers: 0b11",
            '8: spec.maxConsumers: expected a whole number, not "0b11"',
        ),
        ("type: queue", "type: queue\n  forwarders:\n  - name: f", '9: spec.forwarders[0]: "remoteAddress" is missing'),
        (
            "type: queue",
            "type: queue\n  forwarders:\n    name: f",
            "8: spec.forwarders: expected a list, not a mapping",
        ),
        ("type: queue", "type: queue\n  type: topic", '8: spec.type: duplicate key "type"; first in line 7'),
        (
            "type: queue",
            "type: !!python/name:os.system",
            "7: spec.type: the tag tag:yaml.org,2002:python/name:os.system is not supported",
        ),
        (
            "type: queue",
            "type: queue\n  topic: &t x\n  deadletter: *t",
            "8: spec.deadletter: YAML aliases (*name) are not supported; write the value out",
        ),
    ],
)
def test_invalid_values_are_reported_with_their_line(old: str, new: str, expected: str) -> None:
    assert old in ADDRESS
    assert errors_of(ADDRESS.replace(old, new)) == [f"gateway.yaml:{expected}"]


def test_all_errors_of_all_documents_are_reported() -> None:
    text = ADDRESS.replace("queue", "queu") + "  quta: 1\n---\nkind: Nonsense\n---\n- a list\n---\n" + ADDRESS
    found = errors_of(text)
    assert [error.split(": ")[0] for error in found] == [
        "gateway.yaml:8",  # an unknown key
        "gateway.yaml:7",
        "gateway.yaml:10",
        "gateway.yaml:12",
    ]
    assert "is a mapping of apiVersion, kind, metadata and spec, not a list" in found[3]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1, 2\nb: 3\n", 2), ("a: b: c\n", 1), ("kind: 'x\n", 2), ("\tkind: x\n", 1), ("a: @x\n", 1)],
)
def test_invalid_yaml_is_reported_with_its_position(text: str, line: int) -> None:
    [error] = errors_of(text)
    assert error.startswith(f"gateway.yaml:{line}: not YAML: ")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x00\x01\x02", b"a: \x80\n", b"\x1b[31m"])
def test_bytes_that_are_not_text_are_refused(data: bytes) -> None:
    [error] = errors_of(data)
    assert error.startswith("gateway.yaml: not YAML: ")
    assert "\n" not in error


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    [error] = errors_of("[" * 5000)
    assert "nested too deeply" in error or "not YAML" in error


def test_too_large_file_is_not_parsed() -> None:
    [error] = errors_of("#" * (parse.SOURCE_BYTES_MAX + 1))
    assert error == f"gateway.yaml: larger than {parse.SOURCE_BYTES_MAX} bytes"


class TestRead:
    """Files, folders and standard input."""

    def test_folder_is_read_as_its_yaml_files_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "b.yaml").write_text(ADDRESS)
        (tmp_path / "a.yml").write_text(ADDRESS.replace("default.load", "first"))
        (tmp_path / "notes.txt").write_text("not: [yaml")
        assert [resource.name for resource in parse.read(KINDS, [str(tmp_path)])] == ["first", "default.load"]

    def test_standard_input_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(ADDRESS.encode())))
        [resource] = parse.read(KINDS, ["-"])
        assert resource.origin.source == "stdin"

    def test_errors_of_all_files_are_reported_together(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("kind: X\n")
        (tmp_path / "b.yaml").write_text("kind: Y\n")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ConfigurationRejected) as caught:
            parse.read(
                KINDS, [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), "/nowhere.yaml", str(tmp_path / "empty")]
            )
        assert [Path(error.source).name for error in caught.value.errors] == [
            "a.yaml",
            "b.yaml",
            "nowhere.yaml",
            "empty",
        ]
        assert caught.value.errors[2].message == "cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:22", "22:22"),
        ("NO", "NO"),
        ("on", "on"),
        ("true", True),
        ("10", 10),
        ("0x1F", 31),
        ("1_000.5", "1_000.5"),
        ("190:20:30.15", "190:20:30.15"),
        ("1.5", 1.5),
        ("2026-11-28", "2026-11-28"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    [document] = documents(f"key: {text}\n", "gateway.yaml")
    assert isinstance(document, Document)
    assert document.value == {"key": value}
    assert type(document.value["key"]) is type(value)
