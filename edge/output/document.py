"""JSON output of documents, without control characters for terminals in texts of peers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

_UNSAFE_IN_JSON: Final = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that JSON allows unescaped, and terminals or editors interpret."""


SCHEMA: Final = 1
"""Version of the envelope: keys may be added to it and to items, none is removed or changes its meaning."""


def envelope(kind: str, items: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return the document of all commands: `items` of a `kind`.

    `more`: further keys, such as `next` (position of the page that follows), `total` and `notes`.
    """
    return {"schema": SCHEMA, "kind": kind, "items": items, **more}


def json(document: Any, *, indent: int = 0) -> str:
    """Return a document as JSON, with control characters as `\\uXXXX`. `indent`: spaces a level; 0: on one line."""
    encoded = msgspec.json.encode(document)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
