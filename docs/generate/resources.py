"""Resources of the configuration: every field of every kind, from the declarations they are read by."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from bridge.resources import values
from bridge.resources.completion import docstrings_of
from bridge.resources.declaration import Field, alternative, fields_of, marked, part_in, reader_of
from bridge.resources.endpoint import ListenEndpoint, valid_host, valid_port
from bridge.resources.fields import Effect, ResourcePart
from bridge.resources.resource import Metadata, ResourceKind, ResourceKinds
from docs.generate import markdown

EFFECTS: Final = {Effect.LIVE: "at once", Effect.RESTART: "at the next start", Effect.KEPT: "never: for people"}
READ: Final = {
    values.duration: "duration (`30s`, `5m`, `1h`, or seconds)",
    values.size: "size (`64Mi`, or bytes)",
    ListenEndpoint.parse: "`HOST:PORT`",
    valid_host: "host",
    valid_port: "port",
}
"""Type in words by the function that reads the value."""


class FieldRow(NamedTuple):
    """One field as the reference shows it."""

    path: str
    type: str
    default: str
    effect: str
    about: str


def parts_of(kinds: ResourceKinds) -> list[type[ResourcePart]]:
    """Return every part of these kinds once: the specs first, then what they hold, in the order of its first use."""
    found: dict[type[ResourcePart], None] = {Metadata: None}
    waiting: list[type[ResourcePart]] = [kind.spec for kind in kinds]
    while waiting:
        part = waiting.pop(0)
        if part not in found:
            found[part] = None
            waiting += [inner for field in fields_of(part) if (inner := part_in(field.type)) is not None]
    return list(found)


def rows_of(part: type[ResourcePart], prefix: str) -> Iterator[FieldRow]:
    """Yield the fields of a part in the order of their declaration. `prefix`: begins the links to other parts."""
    words = docstrings_of(part)
    for field in fields_of(part):
        yield FieldRow(
            ".".join(field.path),
            _type(field.type, prefix),
            "required" if field.required else _default(field),
            EFFECTS[field.effect] if field.effect is not None else "",
            words.get(field.attribute, ""),
        )


def _type(type_: inspect.Type, prefix: str) -> str:  # noqa: PLR0911 - one case a type
    plain, extra, _ = marked(type_)
    reader = reader_of(extra)
    if reader is not None:
        return READ.get(reader.read, "text")
    match plain:
        case inspect.UnionType():
            return _type(alternative(plain), prefix)
        case inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{prefix}-{markdown.anchor(cls.__name__)})"
        case inspect.VarTupleType(item_type=item):
            return f"list of {_type(item, prefix)}"
        case inspect.DictType(value_type=value):
            return f"mapping to {_type(value, prefix)}"
        case inspect.EnumType(cls=cls):
            return " or ".join(markdown.code(str(member.value)) for member in cls)
        case inspect.BoolType():
            return "`true` or `false`"
        case inspect.IntType() | inspect.FloatType():
            return _number(plain)
    return "text" if isinstance(plain, inspect.StrType) else "any value"


def _number(type_: inspect.IntType | inspect.FloatType) -> str:
    words = "whole number" if isinstance(type_, inspect.IntType) else "number"
    if type_.ge is not None and type_.le is not None:
        return f"{words}, {type_.ge:g} to {type_.le:g}"
    if type_.ge is not None:
        return f"{words}, {type_.ge:g} or more"
    return f"{words} above {type_.gt:g}" if type_.gt is not None else words


def _default(field: Field) -> str:
    default: Any = field.default
    if isinstance(default, enum.Enum):
        default = default.value
    if (
        default is None
        or default is msgspec.NODEFAULT
        or default in ("", (), {})
        or isinstance(default, msgspec.Struct)
    ):
        return ""
    if isinstance(default, bool):
        return markdown.code(str(default).lower())
    return markdown.code(f"{default:g}" if isinstance(default, float) else str(default))


def page(kinds: ResourceKinds, prefix: str) -> str:
    """Return the reference of these kinds. `prefix`: begins the labels of its sections."""
    specs = {kind.spec: kind for kind in kinds}
    parts = [_kinds(kinds, prefix)]
    for part in parts_of(kinds):
        kind = specs.get(part)
        title = part.__name__ if kind is None else kind.name
        parts.append(
            markdown.heading(
                2 if kind is not None or part is Metadata else 3, title, f"{prefix}-{markdown.anchor(part.__name__)}"
            )
        )
        parts.append(markdown.prose(part.__doc__ or "") + "\n")
        rows = [
            (markdown.code(each.path), each.type, each.default, each.effect, markdown.prose(each.about))
            for each in rows_of(part, prefix)
        ]
        parts.append(markdown.table(("field", "value", "default", "a change counts", "meaning"), rows))
    return "\n".join(parts)


def _kinds(kinds: ResourceKinds, prefix: str) -> str:
    rows = [
        (
            f"[{kind.name}](#{prefix}-{markdown.anchor(kind.spec.__name__)})",
            ", ".join(map(markdown.code, kind.versions)),
            _count(kind),
            ", ".join(map(markdown.code, kind.words)),
        )
        for kind in kinds
    ]
    return markdown.table(("kind", "`apiVersion`", "how many", "words for `get`"), rows)


def _count(kind: ResourceKind) -> str:
    return "one" if kind.single else "any number"


def gateway_page() -> str:
    """Return the reference of a gateway's resources."""
    from edge.configuration.kinds import KINDS  # noqa: PLC0415 - one page needs one program's packages

    return page(KINDS, "gateway")


def hub_page() -> str:
    """Return the reference of a hub's configuration."""
    from cloud.hub.configuration import KINDS  # noqa: PLC0415 - one page needs one program's packages

    return page(KINDS, "hub")


def simulation_page() -> str:
    """Return the reference of the file of a simulation."""
    from simulator.kinds import KINDS  # noqa: PLC0415 - one page needs one program's packages

    return page(KINDS, "simulation")
