"""Tables of the lake: every column of the landed tables and of those that jobs make of them."""

from __future__ import annotations

import ast
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from docs.generate import markdown, source

CONTRACT: Final = "cloud/lake/contract.json"
SCHEMAS: Final = "spark/schemas.py"
MEANINGS: Final = "docs/generate/columns.toml"


class LakeColumn(NamedTuple):
    """Column of a table."""

    name: str
    type: str
    nullable: bool
    about: str


class TableShown(NamedTuple):
    """A table as the reference shows it."""

    name: str
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[LakeColumn, ...]
    about: str


def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings of columns by table; those in `every` hold for all tables."""
    return tomllib.loads((source.ROOT / MEANINGS).read_text())


def landed() -> list[TableShown]:
    """Return the tables that a hub writes, from the contract."""
    document = json.loads((source.ROOT / CONTRACT).read_text())
    return [
        TableShown(
            name,
            tuple(table["partition_by"]),
            (),
            tuple(
                LakeColumn(each["name"], each["type"], each["nullable"], meaning(name, each["name"]))
                for each in table["columns"]
            ),
            meaning(name, ""),
        )
        for name, table in document["tables"].items()
    ]


def derived() -> list[TableShown]:
    """Return the tables that jobs make, from the declarations of `spark.schemas`."""
    known = {table.name for table in landed()}
    return [table for table in _declared() if table.name not in known]


def meaning(table: str, column: str) -> str:
    """Return the meaning of a column; for an empty column, the table. Empty where it is not written."""
    every = meanings()
    if not column:
        return every.get(table, {}).get("about", "")
    return every.get(table, {}).get(column, every["every"].get(column, ""))


def _declared() -> Iterator[TableShown]:
    module = {each.name: each.value for each in source.constants(SCHEMAS)}
    rollups = _rollup_columns()
    body = source.tree(SCHEMAS).body
    for node, below in itertools.pairwise([*body, ast.Pass()]):
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="_table"), args=arguments, keywords=keywords)):
                name, columns = ast.literal_eval(arguments[0]), source.texts(arguments[2], module)[0]
                partition_by = ast.literal_eval(arguments[1])
                keys = next((ast.literal_eval(each.value) for each in keywords if each.arg == "keys"), ())
            case ast.Assign(value=ast.Call(func=ast.Name(id="_rollup"), args=[first, *others])):
                name, partition_by = ast.literal_eval(first), tuple(ast.literal_eval(each) for each in others)
                finer = "event_hour int" if "event_hour" in partition_by else ""
                columns = rollups.replace(source.placeholder("finer"), finer)
                keys = _rollup_keys()
            case _:
                continue
        about = meaning(name, "") or _docstring(below)
        yield TableShown(name, partition_by, keys, tuple(_columns(name, columns)), about)


def _docstring(node: ast.AST) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(about))):
            return " ".join(about.split())
    return ""


def _columns(table: str, text: str) -> Iterator[LakeColumn]:
    for line in filter(None, map(str.strip, text.splitlines())):
        name, kind = line.split()
        yield LakeColumn(name, kind.rstrip("?"), kind.endswith("?"), meaning(table, name))


def _rollup_call() -> ast.Call:
    for node in ast.walk(source.tree(SCHEMAS)):
        if isinstance(node, ast.FunctionDef) and node.name == "_rollup":
            for call in ast.walk(node):
                match call:
                    case ast.Call(func=ast.Name(id="_table")):
                        return call
    raise LookupError(f"{SCHEMAS} declares no rollups")


def _rollup_columns() -> str:
    return source.texts(_rollup_call().args[2], {})[0]


def _rollup_keys() -> tuple[str, ...]:
    keys: tuple[str, ...] = next(ast.literal_eval(each.value) for each in _rollup_call().keywords if each.arg == "keys")
    return keys


def page() -> str:
    """Return the reference of tables."""
    parts = [markdown.heading(2, "Landed tables", "tables-landed")]
    parts.append("A hub writes them, and only adds to them. `cloud/lake/contract.json` is the contract.\n")
    parts += [_section(table) for table in landed()]
    parts.append(markdown.heading(2, "Tables of the jobs", "tables-derived"))
    parts.append("`waypost lake run` makes them, and can make each again from the landed ones.\n")
    parts += [_section(table) for table in derived()]
    return "\n".join(parts)


def _section(table: TableShown) -> str:
    parts = [markdown.heading(3, f"`{table.name}`", markdown.anchor(f"table {table.name}"))]
    if table.about:
        parts.append(markdown.prose(table.about) + "\n")
    facts = []
    if table.keys:
        facts.append(f"One row for each {', '.join(map(markdown.code, table.keys))}.")
    if table.partition_by:
        facts.append(f"Partitioned by {', '.join(map(markdown.code, table.partition_by))}.")
    parts.append(" ".join(facts) + "\n" if facts else "")
    rows = [
        (markdown.code(each.name), each.type, "may be null" if each.nullable else "", each.about)
        for each in table.columns
    ]
    parts.append(markdown.table(("column", "type", "", "meaning"), rows))
    return "\n".join(parts)
