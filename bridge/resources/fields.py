"""What fields of resources are made of: the base of every part, and the types of values that people write as text.

A field's Python type is its rule, and `schema` reads these types, so that what is declared is all there is. A field
`Annotated` with a reader is text or number in YAML and an SI value in Python. Every field says when a change of it
counts: `Live[…]`, `Restart[…]` or `Kept[…]`.

In YAML a field has its name in camelCase, or the one given to `msgspec.field(name=…)`. Dots in that are mappings:
``quota.bytes`` is the `bytes` in the mapping `quota`, which may hold other fields of the same part.
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
    """Base of everything in a resource: immutable, camelCase outside, nothing unknown."""


class FieldReader(NamedTuple):
    """How a YAML value becomes the field's: the types it takes, and a function that raises `ValueError`."""

    types: tuple[type, ...]
    read: Callable[[Any], object]


class Effect(enum.Enum):
    """When a change of a field counts."""

    LIVE = "live"
    """Within seconds, while the program runs."""
    RESTART = "restart"
    """From the next start on; whoever changes it is told."""
    KEPT = "kept"
    """Never: it is kept for people and for other programs, and shown again."""


T = TypeVar("T")
EFFECT: Final = "effect"
"""Where the effect is among what is `extra` in a field's type."""
Live = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.LIVE})]
Restart = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.RESTART})]
Kept = Annotated[T, msgspec.Meta(extra={EFFECT: Effect.KEPT})]

READER: Final = "reader"
"""Where the reader is among what is `extra` in a field's type."""


def read_by(read: Callable[[Any], object], *types: type, pattern: str | None = None) -> msgspec.Meta:
    """Marks a field's type: its YAML value is of one of these types, and `read` makes the field's of it. `pattern` is
    for editors: what text looks like that `read` may take."""
    shown = {"pattern": pattern} if pattern is not None else None
    return msgspec.Meta(extra={READER: FieldReader(types, read)}, extra_json_schema=shown)


Seconds = Annotated[float, read_by(values.duration, str, int, float, pattern=values.DURATION_PATTERN)]
Bytes = Annotated[int, read_by(values.size, str, int, pattern=values.SIZE_PATTERN)]
Host = Annotated[str, read_by(valid_host, str)]
HostPort = Annotated[ListenEndpoint, read_by(ListenEndpoint.parse, str, pattern=r":\d+$")]
Port = Annotated[int, read_by(valid_port, str, int)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
UrlPath = Annotated[str, msgspec.Meta(pattern=r"^/[!-~]*$")]
"""Path and query of a URL; what is not ASCII is percent-encoded."""
Count = Annotated[int, msgspec.Meta(gt=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]
"""A resource's name: letters, digits, and inside also dot, dash, underscore; at most 253 characters."""
