"""The JSON schema accepts and refuses the same values as the parser, and describes each field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft7Validator

from bridge.resources.completion import json_schema
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from bridge.resources.resource import ResourceKinds
from cloud.hub.cli import hub
from cloud.hub.configuration import KINDS as HUB_KINDS
from edge.appliance.resource_commands import schema
from edge.configuration.kinds import KINDS
from tests.unit.configuration.every_field import EVERY, base_of, documents_of, edit_of, edited, external, whole

README = Path(__file__).parents[3] / "README.md"
HUB = """
apiVersion: waypost/v1
kind: Hub
spec:
  amqp: 127.0.0.1:5673
  tls: {certificate: hub.pem, key: hub.key, clientCa: gateways.pem}
  gatherMilliseconds: 500
  registry: postgresql+psycopg://waypost@db/waypost
"""
ADDRESS = "apiVersion: waypost/v1\nkind: Address\nmetadata: {name: a}\nspec: {address: a, type: queue, %s}\n"
GATEWAY = "apiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: a}\nspec: {%s}\n"


@pytest.fixture(scope="module")
def gateway() -> Draft7Validator:
    return validator(KINDS)


def validator(kinds: ResourceKinds) -> Draft7Validator:
    made = json_schema(kinds)
    Draft7Validator.check_schema(made)
    return Draft7Validator(made)


def faults(checked: Draft7Validator, document: Any) -> list[str]:
    return [error.message for error in checked.iter_errors(document)]


def test_schema_accepts_the_readme_example(gateway: Draft7Validator) -> None:
    texts = re.findall(r"```yaml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    assert documents
    assert [faults(gateway, document) for document in documents] == [[] for _ in documents]


def test_schema_accepts_every_value_of_every_field(gateway: Draft7Validator) -> None:
    for base in (whole(Path("pki")), external(Path("pki"))):
        for document in documents_of(base):
            assert faults(gateway, document) == []
    for place in EVERY:
        base = base_of(place)(Path("pki"))
        for document in documents_of(edited(base, edit_of(place, base))):
            assert faults(gateway, document) == [], place.text


def test_schema_accepts_a_hub() -> None:
    checked = validator(HUB_KINDS)
    assert faults(checked, yaml.safe_load(HUB)) == []
    assert faults(checked, yaml.safe_load(HUB.replace("amqp:", "ampq:")))
    assert faults(checked, yaml.safe_load(HUB.replace("500", "9000")))


@pytest.mark.parametrize(
    "text",
    [
        ADDRESS % "typ: queue",
        ADDRESS % "type: quue",
        ADDRESS % "maxConsumers: 0",
        ADDRESS % "maxConsumers: yes",
        ADDRESS % "priority: 10",
        ADDRESS % "quota: {byte: 5}",
        ADDRESS % "quota: {bytes: 5 apples}",
        ADDRESS % "messageTtl: {maximum: soon}",
        ADDRESS % "durability: batch",
        ADDRESS % "forwarders: [{name: f}]",
        ADDRESS % "forwarders: [{name: 'a b', remoteAddress: hub}]",
        ADDRESS % "forwarders: {}",
        ADDRESS.replace("metadata: {name: a}", "metadata: {}") % "",
        ADDRESS.replace("Address", "Adress") % "",
        ADDRESS.replace("waypost/v1", "enmasse.io/v1") % "",
        "{apiVersion: waypost/v1, kind: Device}",
        GATEWAY % "listeners: {mqtt: 1883}",
        GATEWAY % "listeners: {mqtt: nowhere}",
        GATEWAY % "limits: {connectionsMax: 0}",
        GATEWAY % "limits: {inflightMax: 70000}",
        GATEWAY % "mqtt: {legacyDollarTopics: 'no'}",
    ],
)
def test_schema_and_parser_refuse_the_same_values(gateway: Draft7Validator, text: str) -> None:
    with pytest.raises(ConfigurationRejected):
        parse(KINDS, text, "a.yaml")
    assert faults(gateway, yaml.safe_load(text))


@pytest.mark.parametrize("kinds", [KINDS, HUB_KINDS])
def test_each_field_has_a_description(kinds: ResourceKinds) -> None:
    silent = [place for place, said in _described(json_schema(kinds)["definitions"]) if not said]
    assert silent == []


def _described(definitions: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, part in definitions.items():
        yield name, part["description"]
        yield from _fields(name, part)


def _fields(place: str, part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, field in part["properties"].items():
        if "properties" in field:
            yield from _fields(f"{place}.{key}", field)
        else:
            yield f"{place}.{key}", field["description"].removesuffix("Takes effect after a restart.")


@pytest.mark.parametrize(("command", "kinds"), [(schema, KINDS), (hub.commands["schema"], HUB_KINDS)])
def test_commands_print_the_schema(command: Any, kinds: ResourceKinds) -> None:
    assert json.loads(CliRunner().invoke(command, []).output) == json_schema(kinds)
