"""What a part declares, field by field, as `schema` reads it, `effects` compares it and `completion` describes it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from msgspec import inspect

from bridge.hidden import hidden_fields
from bridge.resources.fields import EFFECT, READER, Effect, FieldReader, ResourcePart


class Field(NamedTuple):
    """A field of a part."""

    attribute: str
    """Its name in Python."""
    path: tuple[str, ...]
    """The way to its value in the part's YAML."""
    type: inspect.Type
    effect: Effect | None
    """When a change counts; None: the part does not come from YAML."""
    required: bool
    default: Any
    secret: bool
    """Its value is shown to nobody."""


Tree = dict[str, "Field | Tree"]
"""The keys of a mapping: a field each, or a mapping again."""


class Marked(NamedTuple):
    """A type without what it is annotated with, and that."""

    type: inspect.Type
    extra: dict[str, Any]
    schema: dict[str, Any]


@functools.cache
def type_of(part: type[ResourcePart]) -> inspect.StructType:
    """A part's own type; looked up once, as that takes milliseconds."""
    found = inspect.type_info(part)
    if not isinstance(found, inspect.StructType):
        raise TypeError(part)
    return found


@functools.cache
def fields_of(part: type[ResourcePart]) -> tuple[Field, ...]:
    """In the order of their declaration."""
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
    """The keys of a part's mapping."""
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
    """A type and its annotations, the outer ones first in force."""
    extra: dict[str, Any] = {}
    schema: dict[str, Any] = {}
    while isinstance(type_, inspect.Metadata):
        extra = {**(type_.extra or {}), **extra}
        schema = {**(type_.extra_json_schema or {}), **schema}
        type_ = type_.type
    return Marked(type_, extra, schema)


def part_in(type_: inspect.Type) -> type[ResourcePart] | None:
    """The part a value of this type is, or a list of it, where it is one."""
    plain = marked(type_).type
    if isinstance(plain, inspect.UnionType):
        return part_in(alternative(plain))
    if isinstance(plain, inspect.VarTupleType):
        return part_in(plain.item_type)
    return plain.cls if isinstance(plain, inspect.StructType) and issubclass(plain.cls, ResourcePart) else None


def reader_of(extra: dict[str, Any]) -> FieldReader | None:
    """What reads a value of this type."""
    reader = extra.get(READER)
    return reader if isinstance(reader, FieldReader) else None


def alternative(type_: inspect.UnionType) -> inspect.Type:
    """What a value may be beside nothing: there are no other unions."""
    [found] = [each for each in type_.types if not isinstance(each, inspect.NoneType)]
    return found
