"""Documents as JSON that steers no terminal, whatever texts of peers are in them."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_UNSAFE_IN_JSON: Final = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What JSON allows raw and a terminal or an editor obeys."""


def json(document: Any, *, indent: int = 0) -> str:
    """A document as JSON; what steers a terminal is spelled `\\uXXXX`, which says the same to every reader of JSON.

    `indent`: spaces a level; 0: on one line."""
    encoded = msgspec.json.encode(document)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)
