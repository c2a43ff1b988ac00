"""Declaration of a part, field by field, for `schema`, `effects` and `completion`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from msgspec import inspect

from bridge.hidden import hidden_fields
from bridge.resources.fields import EFFECT, READER, Effect, FieldReader, ResourcePart


class Field(NamedTuple):
    """A field of a part."""

    attribute: str
    """Name of the field in Python."""
    path: tuple[str, ...]
    """Keys of its value in the part's YAML."""
    type: inspect.Type
    effect: Effect | None
    """Time when a change takes effect; None: the part is not from YAML."""
    required: bool
    default: Any
    secret: bool
    """True when its value is never shown."""


Tree = dict[str, "Field | Tree"]
"""Keys of a mapping: each is a field, or another mapping."""


class Marked(NamedTuple):
    """A type without its annotations, and the annotations."""

    type: inspect.Type
    extra: dict[str, Any]
    schema: dict[str, Any]


@functools.cache
def type_of(part: type[ResourcePart]) -> inspect.StructType:
    """Return the type of a part; cached, as the lookup takes milliseconds."""
    found = inspect.type_info(part)
    if not isinstance(found, inspect.StructType):
        raise TypeError(part)
    return found


@functools.cache
def fields_of(part: type[ResourcePart]) -> tuple[Field, ...]:
    """Return the fields of a part in the order of their declaration."""
    return tuple(
        Field(
            field.name,
            tuple(field.encode_name.split(".")),
            field.type,
            marked(field.type).extra.get(EFFECT),
            field.required,
            field.default,
            field.name in hidden_fields(part),
        )
        for field in type_of(part).fields
    )


@functools.cache
def tree_of(part: type[ResourcePart]) -> Tree:
    """Return the keys of a part's mapping."""
    tree: Tree = {}
    for field in fields_of(part):
        branch = tree
        for key in field.path[:-1]:
            below = branch.setdefault(key, {})
            if not isinstance(below, dict):
                raise TypeError(f"{part.__name__}: {key} is a field and a mapping")
            branch = below
        branch[field.path[-1]] = field
    return tree


def marked(type_: inspect.Type) -> Marked:
    """Separate a type and its annotations; outer annotations override inner ones."""
    extra: dict[str, Any] = {}
    schema: dict[str, Any] = {}
    while isinstance(type_, inspect.Metadata):
        extra = {**(type_.extra or {}), **extra}
        schema = {**(type_.extra_json_schema or {}), **schema}
        type_ = type_.type
    return Marked(type_, extra, schema)


def part_in(type_: inspect.Type) -> type[ResourcePart] | None:
    """Return the part of a value of this type, or of a list of values; None when it is not a part."""
    plain = marked(type_).type
    if isinstance(plain, inspect.UnionType):
        return part_in(alternative(plain))
    if isinstance(plain, inspect.VarTupleType):
        return part_in(plain.item_type)
    return plain.cls if isinstance(plain, inspect.StructType) and issubclass(plain.cls, ResourcePart) else None


def reader_of(extra: dict[str, Any]) -> FieldReader | None:
    """Return the reader of a type, if any."""
    reader = extra.get(READER)
    return reader if isinstance(reader, FieldReader) else None


def alternative(type_: inspect.UnionType) -> inspect.Type:
    """Return the type of an optional value without None: the only kind of union here."""
    [found] = [each for each in type_.types if not isinstance(each, inspect.NoneType)]
    return found
