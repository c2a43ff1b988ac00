"""The reference is complete: the declarations in the code match the generated pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bridge.resources.completion import json_schema
from cloud.hub.configuration import KINDS as HUB_KINDS
from docs.generate import (
    commands,
    drawings,
    http_api,
    limits,
    metrics,
    pages,
    problems,
    reasons,
    resources,
    source,
    tables,
)
from edge.appliance.commands import COMMANDS
from edge.appliance.loading import load
from edge.configuration.kinds import KINDS
from launcher.__main__ import IN_CHECKOUT
from simulator.kinds import KINDS as SIMULATION_KINDS

DOCS = source.ROOT / "docs"


def every_command(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from every_command((*words, name), inner)


class TestCommands:
    page = commands.page()

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_and_option_is_described(self, name: str) -> None:
        for words, command in every_command((name,), load(name, COMMANDS[name])):
            if command.hidden:
                continue
            _, found, section = self.page.partition(f"`waypost {' '.join(words)}`\n")
            assert found, words
            section = section.partition("\n(command-")[0]
            for parameter in command.params:
                if isinstance(parameter, click.Option) and not parameter.hidden:
                    assert all(f"`{option}`" in section for option in parameter.opts), (words, parameter.opts)
                    assert parameter.help, f"waypost {' '.join(words)}: {parameter.opts} has no help"

    def test_launcher_has_its_own_page(self) -> None:
        for name in IN_CHECKOUT:
            assert f"`./waypost {name}" in self.page, name


class TestResources:
    @pytest.mark.parametrize(
        ("kinds", "prefix"), [(KINDS, "gateway"), (HUB_KINDS, "hub"), (SIMULATION_KINDS, "simulation")]
    )
    def test_every_field_has_a_meaning(self, kinds: resources.ResourceKinds, prefix: str) -> None:
        shown = {part.__name__: list(resources.rows_of(part, prefix)) for part in resources.parts_of(kinds)}
        schema = json_schema(kinds)["definitions"]
        assert set(shown) == set(schema)
        for name, rows in shown.items():
            assert {row.path for row in rows} == set(leaves(schema[name]))
            assert [row.path for row in rows if not row.about] == [], name


def leaves(schema: resources.Any, *before: str) -> Iterator[str]:
    for key, value in schema["properties"].items():
        if "properties" in value and "description" not in value:
            yield from leaves(value, *before, key)
        else:
            yield ".".join((*before, key))


class TestLimits:
    @pytest.mark.parametrize("path", limits.modules())
    def test_every_limit_has_its_reason(self, path: str) -> None:
        without = [each.name for each in limits.limits(path) if not each.about and each.name not in ("KIB", "MIB")]
        assert not without


class TestProblems:
    def test_every_problem_is_described(self) -> None:
        made = sum(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == problems.PROBLEM
            for path in source.sources("bridge", "edge", "cloud", "images")
            for node in ast.walk(source.tree(path))
        )
        shown = [each for folders in problems.FOLDERS.values() for each in problems.problems(*folders)]
        assert len(shown) == made > 60

    def test_each_problem_has_a_next_step(self) -> None:
        every = [*problems.findings(), *problems.problems("edge", "cloud")]
        assert not [each.place for each in every if not all(each.next_steps)]


class TestMetrics:
    @pytest.mark.parametrize("path", metrics.COLLECTORS.values())
    def test_every_metric_is_described(self, path: str) -> None:
        named = set(re.findall(r'"(waypost_\w+)"', (source.ROOT / path).read_text()))
        known = metrics.metrics(path)
        suffixes = ("", *metrics.SUFFIXES.values())
        assert not [
            name for name in named if not any(each.matches(name + suffix) for each in known for suffix in suffixes)
        ]
        assert all(each.about for each in known)


class TestReasons:
    def test_every_refusal_has_a_code_in_each_protocol(self) -> None:
        assert not [each for each in reasons.refusals() if not all(each[name] for name in reasons.ANSWERS)]

    def test_every_reason_code_is_described(self) -> None:
        page = reasons.page()
        for vocabulary in reasons.VOCABULARIES:
            assert source.enumeration(vocabulary.path, vocabulary.word).members
            assert f"## {vocabulary.title}\n" in page


class TestTables:
    def test_every_column_has_a_meaning(self) -> None:
        shown = [*tables.landed(), *tables.derived()]
        columns = [(table.name, each.name) for table in shown for each in table.columns if not each.about]
        assert not columns, f"describe these columns in {tables.MEANINGS}"
        undescribed = [table.name for table in shown if not table.about]
        assert not undescribed, f"describe these tables in {tables.MEANINGS}: about = ..."

    def test_links_in_meanings_are_links(self) -> None:
        assert "[reason codes](reason-codes.md)" in tables.page()

    def test_every_meaning_belongs_to_a_column(self) -> None:
        columns = {table.name: {each.name for each in table.columns} for table in [*tables.landed(), *tables.derived()]}
        every = set().union(*columns.values())
        for table, meanings in tables.meanings().items():
            assert set(meanings) - {"about"} <= (every if table == "every" else columns[table]), table


class TestHttp:
    @pytest.mark.parametrize("path", http_api.CODE)
    def test_exactly_the_existing_routes_are_described(self, path: str) -> None:
        assert http_api.described(path) == http_api.routes(*http_api.CODE[path])

    @pytest.mark.parametrize("path", http_api.CODE)
    def test_descriptions_are_complete(self, path: str) -> None:
        api = http_api.document(path)
        tags = {tag["name"] for tag in api["tags"]}
        for place, item in api["paths"].items():
            for method, operation in item.items():
                if method not in http_api.METHODS:
                    continue
                assert set(operation["tags"]) <= tags, place
                assert operation["summary"], place
                assert operation["responses"], place
                named = {each["name"] for each in (*item.get("parameters", ()), *operation.get("parameters", ()))}
                assert set(re.findall(r"\{(\w+)\}", place)) <= named, place


def test_every_generated_text_has_its_page() -> None:
    used = [name for path in DOCS.rglob("*.md") for name in pages.PLACE.findall(path.read_text())]
    assert sorted(used) == sorted(pages.PAGES)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_pages_have_one_title(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


class TestDrawings:
    @pytest.mark.parametrize(("name", "text"), drawings.texts().items(), ids=drawings.texts())
    def test_drawings_match_their_text(self, name: str, text: str) -> None:
        assert drawings.is_current(name, text), "draw it: python -m docs.generate.drawings"

    def test_every_drawing_is_used_and_has_a_text(self) -> None:
        used = {name for path in DOCS.rglob("*.md") for name in drawings.PLACE.findall(path.read_text())}
        assert {path.stem for path in drawings.FOLDER.glob("*.svg")} == set(drawings.texts()) >= used
