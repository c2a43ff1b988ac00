"""The product's source as syntax trees: what its constants, messages and enumerations say, without running it."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
LEFT, RIGHT = "\u2039", "\u203a"
"""Marks around the name of a value that is put into a text at run time."""
VARIANTS_MAX: Final = 24
"""Variants of one message: more have not been meant as text for people."""

Names = Mapping[str, ast.expr]
"""Expressions by the name they are assigned to."""


class Constant(NamedTuple):
    """A module's constant or a member of an enumeration, with the docstring below it."""

    name: str
    value: ast.expr
    about: str


@functools.cache
def tree(path: str) -> ast.Module:
    """Return the syntax tree of a module, by its path in the checkout."""
    return ast.parse((ROOT / path).read_text())


def constants(path: str) -> list[Constant]:
    """Return the constants of a module in their order."""
    return list(_constants(tree(path).body))


class Enumeration(NamedTuple):
    """A class with its constants."""

    name: str
    members: list[Constant]


def enumeration(path: str, word: str | int) -> Enumeration:
    """Return the class of a module that has a member of this value: words that programs compare outlive the names of
    classes. Raises LookupError when no class has it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            found = list(_constants(node.body))
            if any(isinstance(each.value, ast.Constant) and each.value.value == word for each in found):
                return Enumeration(node.name, found)
    raise LookupError(f"{path} has no class with a member {word!r}")


def class_with(path: str, fields: set[str]) -> str:
    """Return the name of the class of a module that declares exactly these fields. Raises LookupError."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            declared = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            if declared == fields:
                return node.name
    raise LookupError(f"{path} has no class with the fields {', '.join(sorted(fields))}")


def constant(path: str, name: str) -> ast.expr:
    """Return the value of a module's constant. Raises LookupError when it has none of this name."""
    for each in constants(path):
        if each.name == name:
            return each.value
    raise LookupError(f"{path} has no constant {name}")


def _constants(body: list[ast.stmt]) -> Iterator[Constant]:
    """Yield constants; several that stand together share the docstring below the last of them."""
    waiting: list[tuple[str, ast.expr]] = []
    for node in body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                waiting.append((name, value))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                waiting.append((name, value))
            case _:
                about = _text(node)
                yield from (Constant(name, value, about) for name, value in waiting)
                waiting = []
    yield from (Constant(name, value, "") for name, value in waiting)


def _text(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(about))):
            return " ".join(about.split())
    return ""


class Call(NamedTuple):
    """A call with the names that its function has assigned."""

    node: ast.Call
    names: Names
    function: str


def calls(path: str, *functions: str) -> Iterator[Call]:
    """Yield the calls of any of these functions or classes in a module, in the order of its lines."""
    module = {each.name: each.value for each in constants(path)}
    found: dict[ast.Call, Call] = {}
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = {**module, **dict(assigned(node))}
        for call in ast.walk(node):
            match call:
                case ast.Call(func=ast.Name(id=name)) if name in functions:
                    found[call] = Call(call, _before(names, node, call), node.name)
    yield from sorted(found.values(), key=lambda each: each.node.lineno)


def assigned(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a function assigns, with their values."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (
                    (each.id, value) for each, value in zip(targets, values, strict=False) if isinstance(each, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _before(names: Names, function: ast.AST, call: ast.Call) -> Names:
    """Return the names, each with the last value it was given above the call."""
    last: dict[str, ast.expr] = {}
    for name, value in assigned(function):
        known = last.get(name)
        if value.lineno <= call.lineno and (known is None or known.lineno < value.lineno):
            last[name] = value
    return {**names, **last}


def placeholder(name: str) -> str:
    """Return the placeholder of a value that is put in at run time."""
    return f"{LEFT}{name}{RIGHT}"


def texts(node: ast.expr | None, names: Names) -> list[str]:
    """Return the variants of a text that an expression makes; a value of the run time is a `placeholder`."""
    return list(dict.fromkeys(itertools.islice(_texts(node, names, 0), VARIANTS_MAX)))


def _texts(node: ast.expr | None, names: Names, depth: int) -> Iterator[str]:
    match node:
        case None:
            yield ""
        case ast.Constant(value=value):
            yield "" if value is None else str(value)
        case ast.JoinedStr(values=parts):
            yield from _joined([list(_texts(part, names, depth)) for part in parts])
        case ast.FormattedValue(value=value):
            yield from _texts(value, names, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _joined([list(_texts(left, names, depth)), list(_texts(right, names, depth))])
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, names, depth)
            yield from _texts(other, names, depth)
        case ast.Name(id=name) if name in names and depth < 6 and _is_text(names[name]):
            yield from _texts(names[name], names, depth + 1)
        case _:
            yield placeholder(_words(node))


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, str)
        case ast.IfExp(body=body, orelse=other):
            return _is_text(body) or _is_text(other)
        case ast.BinOp(left=left, op=ast.Add()):
            return _is_text(left)
        case ast.Name():
            return True
    return isinstance(node, ast.JoinedStr)


def _joined(parts: list[list[str]]) -> Iterator[str]:
    return ("".join(each) for each in itertools.product(*parts))


def _words(node: ast.AST) -> str:  # noqa: PLR0911 - one case a kind of expression
    """Return a name for an expression: its last word."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.strip("_").replace("_", " ")
        case ast.Call(func=ast.Name(id="len"), args=[ast.expr() as first]):
            return f"number of {_words(first)}"
        case ast.Call(func=ast.Attribute(value=value), args=[]):
            return _words(value)
        case ast.Call(args=[first, *_]):
            return _words(first)
        case ast.Call(func=function):
            return _words(function)
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
            return _words(value)
        case ast.BinOp(left=left):
            return _words(left)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _words(element)
        case ast.JoinedStr(values=values):
            return " ".join(_words(each) for each in values if isinstance(each, ast.FormattedValue)) or "text"
        case ast.FormattedValue(value=value):
            return _words(value)
        case ast.Constant(value=value):
            return str(value)
    return "…"


def sources(*folders: str, name: str = "*.py") -> list[str]:
    """Return the paths of the modules below these folders, or of these modules, in order."""
    modules = (
        path for each in folders for path in ([ROOT / each] if each.endswith(".py") else (ROOT / each).rglob(name))
    )
    return sorted(path.relative_to(ROOT).as_posix() for path in modules if _own(path))


def _own(path: Path) -> bool:
    return not re.search(r"/(__pycache__|build|dist)/", path.as_posix())
