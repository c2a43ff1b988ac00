"""Configurations of other products use only topics that the profiles of their users allow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from edge.appliance.accounts.profiles import PROFILES
from edge.broker.model.topics import covers
from tests.unit.firmware.conftest import PICO

EXAMPLES = PICO.parent


class SecretLoader(yaml.SafeLoader):
    """Loader of YAML with ESPHome's tags as texts."""


SecretLoader.add_multi_constructor("!", lambda _loader, _tag, node: node.value)


def allowed(profile: str, user: str, operation: str, topic: str) -> bool:
    """Return whether the profile gives a user an operation on a topic or filter."""
    rights = (each.partition(":") for each in PROFILES[profile])
    return any(
        name == operation and covers(address.replace("%u", user), topic)
        for name, _, address in rights
        if operation != "send" or not address.startswith("#")
    )


def load(name: str) -> Any:
    return yaml.load((EXAMPLES / name).read_text(), SecretLoader)


def values(document: Any, *keys: str) -> Iterator[str]:
    """Yield the texts under keys, at any depth."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in keys and isinstance(value, str):
                yield value
            yield from values(value, *keys)
    elif isinstance(document, list):
        for each in document:
            yield from values(each, *keys)


def test_esphome_sends_and_receives_within_the_rights_of_a_device() -> None:
    document = load("esphome/device.yaml")
    device = document["substitutions"]["device"]
    mqtt = document["mqtt"]
    commands = {each["topic"].replace("${device}", device) for each in mqtt["on_json_message"]}
    topics = {each.replace("${device}", device) for each in values(document, "topic")}
    assert commands
    assert len(topics - commands) == 3
    assert {each for each in commands if not allowed("sensor", device, "recv", each)} == set()
    assert {each for each in topics - commands if not allowed("sensor", device, "send", each)} == set()
    assert mqtt["username"] == mqtt["client_id"] == "${device}"
    assert mqtt["clean_session"] is False
    assert mqtt["topic_prefix"] is None, "with a prefix it publishes to topics of its own"


def test_esphome_example_of_secrets_is_complete() -> None:
    text = (EXAMPLES / "esphome/device.yaml").read_text()
    used = {part.split()[0] for part in text.split("!secret ")[1:]}
    assert used == set(load("esphome/secrets.example.yaml"))


def tasmota_settings() -> dict[str, str]:
    """Return the settings of the Tasmota example by name."""
    lines = (EXAMPLES / "tasmota/commands.txt").read_text().splitlines()
    commands = [part.strip() for line in lines if line.startswith("Backlog0 ") for part in line[9:].split(";")]
    rule = next(line for line in lines if line.startswith("Rule1 ON "))
    return dict(part.split(" ", 1) for part in commands) | {"Rule1": rule}


def test_tasmota_sends_and_receives_within_the_rights_of_a_device() -> None:
    settings = tasmota_settings()
    device = settings["MqttUser"]
    assert device == settings["MqttClient"] == settings["Topic"]
    assert "%topic%" not in settings["FullTopic"], "with it Tasmota subscribes to topics of groups"
    command, answer, telemetry = (
        settings["FullTopic"].replace("%prefix%", settings[f"Prefix{number}"]) for number in (1, 2, 3)
    )
    assert allowed("sensor", device, "recv", f"{command}#")
    assert allowed("sensor", device, "send", f"{answer}RESULT")
    assert all(allowed("sensor", device, "send", telemetry + name) for name in ("LWT", "STATE", "SENSOR", "INFO1"))
    published = re.findall(r"Publish2? (\S+) ", settings["Rule1"])
    assert published == [f"status/{device}", f"plant/{device}"]
    assert all(allowed("sensor", device, "send", topic) for topic in published)
    assert (settings["SetOption19"], settings["SetOption90"]) == ("1", "1"), "they send to topics without a right"


def test_home_assistant_stays_within_the_rights_of_an_application() -> None:
    document = load("home_assistant/configuration.yaml")
    read = set(values(document, "state_topic", "availability_topic", "json_attributes_topic"))
    assert read == {"plant/pump7", "status/pump7"}
    assert {each for each in read if not allowed("application", "home", "recv", each)} == set()
    sent = set(values(document, "command_topic"))
    assert sent == {"command/pump7"}
    assert {each for each in sent if not allowed("application", "home", "send", each)} == set()


def test_node_red_stays_within_the_rights_of_an_application() -> None:
    nodes = json.loads((EXAMPLES / "node_red/flows.json").read_text())
    [reader] = [each for each in nodes if each["type"] == "mqtt in"]
    assert allowed("application", "rules", "recv", reader["topic"])
    [function] = [each for each in nodes if each["type"] == "function"]
    assert "topic: `command/${reading.device}`" in function["func"]
    assert allowed("application", "rules", "send", "command/pump7")
    ids = {each["id"] for each in nodes}
    assert ids.isdisjoint({value for each in nodes for key, value in each.items() if key in {"name", "label", "ca"}}), (
        "Node-RED takes a text that is the id of a node for a reference"
    )
    assert {wire for each in nodes for wires in each.get("wires", ()) for wire in wires} <= ids


@pytest.mark.parametrize("folder", ["esphome", "home_assistant", "node_red", "tasmota"])
def test_each_folder_is_in_the_table(folder: str) -> None:
    assert f"]({folder}/README.md)" in (EXAMPLES / "README.md").read_text()
    assert (EXAMPLES / folder / "README.md").exists()
