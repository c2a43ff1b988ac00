"""The file of a simulation: examples that work, and every error with its line."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

import simulator.cli
from bridge.resources.completion import json_schema
from bridge.resources.errors import ConfigurationRejected
from simulator.kinds import KINDS, parse_place, read_simulation
from simulator.planning import all_names, with_urls
from tests.support.pages import BLOCK, PAGES

EXAMPLES = Path(simulator.cli.__file__).parent / "examples"
HEAD = "apiVersion: waypost/v1\nkind: Simulation\nmetadata: {name: x}\nspec:\n"


def errors_of(folder: Path, spec: str) -> list[tuple[int, str]]:
    """Return lines and paths of the errors of a file."""
    path = folder / "file.yaml"
    path.write_text(HEAD + spec)
    with pytest.raises(ConfigurationRejected) as rejected:
        read_simulation(str(path))
    return [(each.line, each.path.rpartition("spec.")[2]) for each in rejected.value.errors]


@pytest.mark.parametrize("name", simulator.cli.EXAMPLES)
def test_examples_follow_the_schema(name: str) -> None:
    path = EXAMPLES / f"{name}.yaml"
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema(KINDS))
    spec = read_simulation(str(path))
    assert len(all_names(spec)) == sum(group.count for group in spec.devices)


def test_examples_on_pages_are_read(tmp_path: Path) -> None:
    blocks = [text for page in PAGES for _, text in BLOCK.findall(page.read_text()) if "kind: Simulation" in text]
    assert blocks
    for text in blocks:
        path = tmp_path / "file.yaml"
        path.write_text(text)
        assert read_simulation(str(path)).devices


def test_every_example_is_offered() -> None:
    assert sorted(simulator.cli.EXAMPLES) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize(("line", "path"), [
    ("intervall: 3s", "devices[0].intervall"),
    ("count: 0", "devices[0].count"),
    ("interval: 0s", "devices[0].interval"),
    ("address: plant/{devise}", "devices[0].address"),
    ("address: plant/+/x", "devices[0].address"),
    ("times: hourly", "devices[0].times"),
    ("link: {share: 2}", "devices[0].link.share"),
    ("updates: {artefact: a, board: b, keyFile: k}", "devices[0].updates"),
])  # fmt: skip
def test_errors_have_line_and_path(tmp_path: Path, line: str, path: str) -> None:
    count = "" if line.startswith("count") else "      count: 2\n"
    found = errors_of(tmp_path, f"  devices:\n    - name: a\n      {line}\n{count}")
    assert found == [(7, path)]


def test_group_names_differ_and_devices_are_bounded(tmp_path: Path) -> None:
    found = errors_of(tmp_path, "  devices:\n    - {name: a, count: 20000}\n    - {name: a, count: 1}\n")
    assert found == [(5, "devices"), (7, "devices[1].name")]


@pytest.mark.parametrize("text", ["127.0.0.1:1883", "amqp://h:1", "mqtt://h", "mqtt://h:99999", "mqtt://u@h:1"])
def test_addresses_of_gateways_are_urls_with_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="mqtt://"):
        parse_place(text, "mqtt")


def test_urls_replace_the_gateways_and_keep_their_names() -> None:
    spec = with_urls(read_simulation(str(EXAMPLES / "city.yaml")), ["mqtt://127.0.0.1:1"])
    assert [(each.mqtt, each.name) for each in spec.gateways] == [("mqtt://127.0.0.1:1", "north")]
