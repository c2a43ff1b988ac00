"""Building blocks of resource fields: the base of every part, and the types of values that are written as text.

A field's Python type is its validation rule: `schema` reads these types. A field `Annotated` with a reader is text or a
number in YAML and an SI value in Python. Every field declares when a change takes effect: `Live[…]`, `Restart[…]` or
`Kept[…]`.

In YAML a field has its name in camelCase, or the name in `msgspec.field(name=…)`. Dots there are mappings:
``quota.bytes`` is `bytes` in the mapping `quota`, which may hold other fields of the same part.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from bridge.resources import values
from bridge.resources.endpoint import ListenEndpoint, valid_host, valid_port


class ResourcePart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """Base of all parts of a resource: immutable, camelCase in YAML, no unknown fields."""


class FieldReader(NamedTuple):
    """Conversion of a YAML value: the accepted types, and a function that raises `ValueError`."""

    types: tuple[type, ...]
    read: Callable[[Any], object]


class Effect(enum.Enum):
    """Time at which a change of a field takes effect."""

    LIVE = "live"
    """Within seconds, while the program runs."""
    RESTART = "restart"
    """After a restart; the command that changes it says so."""
    KEPT = "kept"
    """Never: the value is only stored, for people and other programs."""


T = TypeVar("T")
EFFECT: Final = "effect"
"""Key of the effect in `extra` of a field's type."""
Live = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.LIVE})]
Restart = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.RESTART})]
Kept = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.KEPT})]

READER: Final = "reader"
"""Key of the reader in `extra` of a field's type."""


def read_by(read: Callable[[Any], object], *types: type, pattern: str | None = None) -> msgspec.Meta:
    """Annotate a field's type: its YAML value has one of these types, and `read` converts it. `pattern`: of accepted
    text, for editors."""
    shown = {"pattern": pattern} if pattern is not None else None
    return msgspec.Meta(extra={READER: FieldReader(types, read)}, extra_json_schema=shown)


Seconds = Annotated[float, read_by(values.duration, str, int, float, pattern=values.DURATION_PATTERN)]
Bytes = Annotated[int, read_by(values.size, str, int, pattern=values.SIZE_PATTERN)]
Host = Annotated[str, read_by(valid_host, str)]
HostPort = Annotated[ListenEndpoint, read_by(ListenEndpoint.parse, str, pattern=r":\d+$")]
Port = Annotated[int, read_by(valid_port, str, int)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
UrlPath = Annotated[str, msgspec.Meta(pattern=r"^/[!-~]*$")]
"""Path and query of a URL, with non-ASCII characters percent-encoded."""
Count = Annotated[int, msgspec.Meta(gt=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
"""Name of a resource: letters and digits, and between them dots, dashes, underscores; at most 253 characters."""
