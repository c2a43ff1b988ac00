"""Representations that show no customer data and no secrets.

The `repr` of a value goes wherever an exception goes: into logs, and from there into support archives. So a class that
holds a body, properties or a secret shows only its length, in `repr`, `str`, formats and within other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
_HIDDEN: Final[dict[type, tuple[str, ...]]] = {}
"""Hidden fields by type, from `hides`."""


def hides(*fields: str) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass, a struct or a named tuple so that these fields show only their type and length."""

    def decorate(cls: type[T]) -> type[T]:
        def __repr__(self: T) -> str:  # noqa: N807 - it becomes the method
            shown = (f"{name}={_sketch(value) if name in fields else repr(value)}" for name, value in _fields(self))
            return f"{type(self).__name__}({', '.join(shown)})"

        cls.__repr__ = __repr__  # type: ignore[assignment]
        _HIDDEN[cls] = fields
        return cls

    return decorate


def hidden_fields(cls: type) -> frozenset[str]:
    """Return the fields that a type and its bases hide."""
    return frozenset(field for each in cls.__mro__ for field in _HIDDEN.get(each, ()))


def _fields(value: object) -> list[tuple[str, object]]:
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif isinstance(value, tuple):
        names = type(value)._fields  # type: ignore[attr-defined]  # a named tuple
    else:
        names = tuple(type(value).__dataclass_fields__)  # type: ignore[attr-defined]
    return [(name, object.__getattribute__(value, name)) for name in names]


def _sketch(value: object) -> str:
    if value is None:
        return "None"
    length = f" {len(value)}" if isinstance(value, Sized) else ""
    return f"<{type(value).__name__}{length}>"
