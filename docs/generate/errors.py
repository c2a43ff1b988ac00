"""Errors of commands: every code with its cause and next step, and the commands' kinds of documents."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from docs.generate import markdown, source

FILE: Final = "docs/generate/errors.toml"
FOLDERS: Final = ("edge", "cloud", "images", "simulator")
"""Packages with modules that raise errors with a code."""
RAISED: Final = frozenset({"CommandError", "show_error"})
"""Names that are called with `error=`."""
_WORDS: Final = re.compile(r"[a-z]+(-[a-z]+)*")


class DescribedError(NamedTuple):
    """Entry of one code."""

    code: str
    cause: str
    next_step: str


def errors() -> list[DescribedError]:
    """Return the entries of all codes."""
    found: Mapping[str, Mapping[str, str]] = tomllib.loads((source.ROOT / FILE).read_text())
    return [DescribedError(code, each["cause"], each["next"]) for code, each in found.items()]


def raised() -> dict[str, list[str]]:
    """Return the places of each code in the product."""
    places: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((source.ROOT / folder).rglob("*.py")):
            for code, line in _codes(ast.parse(path.read_bytes())):
                places.setdefault(code, []).append(f"{path.relative_to(source.ROOT)}:{line}")
    return places


def _codes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield codes with their lines: values of `error=`, attributes `error`, and tables of codes."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in RAISED:
                for keyword in keywords:
                    if keyword.arg == "error" and isinstance(keyword.value, ast.Constant):
                        yield str(keyword.value.value), node.lineno
            case ast.AnnAssign(target=ast.Name(id="_CODES" | "_CLICK"), value=ast.expr() as value):
                yield from ((text, node.lineno) for text in _texts(value))
            case ast.Assign(targets=[ast.Name(id="_CODES")], value=value):
                yield from ((text, node.lineno) for text in _texts(value))
            case ast.ClassDef(body=body):
                for each in body:
                    match each:
                        case ast.Assign(targets=[ast.Name(id="error")], value=ast.Constant(value=str(text))):
                            yield text, each.lineno


def _texts(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORDS.fullmatch(node.value):
            yield node.value


def page() -> str:
    """Return the reference of errors."""
    rows = [(markdown.code(each.code), markdown.prose(each.cause), markdown.prose(each.next_step)) for each in errors()]
    return markdown.table(("code", "cause", "next step"), rows)
