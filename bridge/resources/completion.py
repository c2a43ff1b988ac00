"""JSON schema of a program's kinds, for editors that complete and check YAML.

It is generated from the declarations that `schema` uses, so it accepts the same documents, and in addition an empty
mapping, as while typing. It cannot express rules between resources or within texts: `waypost apply --dry-run` checks
those.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect as source
import itertools
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import inspect

from bridge.resources.declaration import Field, Tree, alternative, marked, reader_of, tree_of
from bridge.resources.fields import Effect, ResourcePart
from bridge.resources.resource import Metadata, ResourceKind, ResourceKinds

Schema = dict[str, Any]

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""Draft that editors support."""

_TYPES: Final[dict[type, str]] = {str: "string", int: "integer", float: "number"}
_AFTER_RESTART: Final = "Takes effect after a restart."


def json_schema(kinds: ResourceKinds) -> Schema:
    """Return the schema of one document of these kinds."""
    parts: dict[str, Schema] = {}
    _describe(Metadata, parts)
    for kind in kinds:
        _describe(kind.spec, parts)
    return {
        "$schema": DRAFT,
        "type": "object",
        "required": ["apiVersion", "kind", "spec"],
        "properties": {
            "apiVersion": {"enum": list(dict.fromkeys(version for kind in kinds for version in kind.versions))},
            "kind": {"enum": kinds.names},
            "metadata": {},
            "spec": {},
        },
        "additionalProperties": False,
        "allOf": [_kind(kind) for kind in kinds],
        "definitions": parts,
    }


def _kind(kind: ResourceKind) -> Schema:
    """Return the schema of a document of this kind."""
    metadata = _reference(Metadata)
    if kind.default_name:
        metadata = {**_object(Metadata, tree_of(Metadata), {}), "required": []}
    then: Schema = {
        "properties": {
            "apiVersion": {"enum": list(kind.versions)},
            "metadata": metadata,
            "spec": _reference(kind.spec),
        },
        "required": [] if kind.default_name else ["metadata"],
    }
    return {"if": {"properties": {"kind": {"const": kind.name}}, "required": ["kind"]}, "then": then}


def _describe(part: type[ResourcePart], parts: dict[str, Schema]) -> Schema:
    """Return a reference to a part, and describe the part once."""
    if part.__name__ not in parts:
        parts[part.__name__] = {}  # set first, for parts that contain themselves
        described = _object(part, tree_of(part), parts)
        parts[part.__name__] = {"description": _plain(part.__doc__ or ""), **described}
    return _reference(part)


def _reference(part: type[ResourcePart]) -> Schema:
    return {"$ref": f"#/definitions/{part.__name__}"}


def _object(part: type[ResourcePart], tree: Tree, parts: dict[str, Schema]) -> Schema:
    """Return the schema of a mapping with these keys, which are fields of the part."""
    words = docstrings_of(part)
    properties: Schema = {}
    for key, field in tree.items():
        if isinstance(field, dict):
            properties[key] = _object(part, field, parts)
        else:
            properties[key] = _field(field, words.get(field.attribute, ""), parts)
    required = [key for key, field in tree.items() if isinstance(field, Field) and field.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _field(field: Field, words: str, parts: dict[str, Schema]) -> Schema:
    described = _type(field.type, parts)
    after = _AFTER_RESTART if field.effect is Effect.RESTART else ""
    schema: Schema = {"description": " ".join(filter(None, [words, after]))}
    if isinstance(field.default, enum.Enum):
        schema["default"] = field.default.value
    elif isinstance(field.default, bool | int | float | str) and reader_of(marked(field.type).extra) is None:
        schema["default"] = field.default
    if "$ref" in described:  # draft 7 ignores other keywords next to a reference
        return {**schema, "allOf": [described]}
    return {**schema, **described}


def _type(type_: inspect.Type, parts: dict[str, Schema]) -> Schema:
    """Return the schema of a type's values in YAML."""
    plain, extra, more = marked(type_)
    reader = reader_of(extra)
    if reader is not None:
        types = [_TYPES[each] for each in reader.types if each is not int or float not in reader.types]
        return {"type": types, **more}
    if isinstance(plain, inspect.UnionType):
        return _or_nothing(_type(alternative(plain), parts))
    return _VISITORS[type(plain)](plain, parts)


def _or_nothing(described: Schema) -> Schema:
    if "enum" in described:
        return {**described, "enum": [*described["enum"], None]}
    if described.get("type") in (None, "object"):
        return described
    types = described["type"] if isinstance(described["type"], list) else [described["type"]]
    return {**described, "type": [*types, "null"]}


def _text(type_: Any, _parts: dict[str, Schema]) -> Schema:
    bounds = {"minLength": type_.min_length, "maxLength": type_.max_length, "pattern": type_.pattern}
    return {"type": "string", **_given(bounds)}


def _number(type_: Any, _parts: dict[str, Schema]) -> Schema:
    bounds = {"minimum": type_.ge, "exclusiveMinimum": type_.gt, "maximum": type_.le}
    return {"type": "integer" if isinstance(type_, inspect.IntType) else "number", **_given(bounds)}


def _sequence(type_: Any, parts: dict[str, Schema]) -> Schema:
    return {"type": "array", "items": _type(type_.item_type, parts), **_given({"minItems": type_.min_length})}


_VISITORS: Final[dict[type, Callable[[Any, dict[str, Schema]], Schema]]] = {
    inspect.StructType: lambda type_, parts: _describe(type_.cls, parts),
    inspect.VarTupleType: _sequence,
    inspect.DictType: lambda type_, parts: {
        "type": "object",
        "additionalProperties": _type(type_.value_type, parts),
    },
    inspect.EnumType: lambda type_, _parts: {"enum": [member.value for member in type_.cls]},
    inspect.StrType: _text,
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.BoolType: lambda _type, _parts: {"type": "boolean"},
    inspect.AnyType: lambda _type, _parts: {},
}


@functools.cache
def docstrings_of(part: type[ResourcePart]) -> dict[str, str]:
    """Return the docstring of each field of a part and its bases, from the source, by the field's name in Python."""
    found: dict[str, str] = {}
    for cls in reversed(part.__mro__):
        if issubclass(cls, ResourcePart) and cls is not ResourcePart:
            [definition] = ast.parse(textwrap.dedent(source.getsource(cls))).body
            found.update(_below(definition))
    return found


def _below(definition: ast.stmt) -> Iterator[tuple[str, str]]:
    if not isinstance(definition, ast.ClassDef):
        raise TypeError(definition)
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, _plain(text)


def _given(bounds: dict[str, Any]) -> Schema:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _plain(docstring: str) -> str:
    return " ".join(docstring.replace("``", "`").split())
