"""Limits of mutes, with unit and reason."""

from __future__ import annotations

from typing import Final

MUTES_MAX: Final = 100
"""Mutes in effect at a time: as many as problems are shown."""

MUTE_S_MAX: Final = 30 * 86_400
"""Longest mute in seconds, as at a hub: what is muted for longer is forgotten."""

REASON_CHARACTERS_MAX: Final = 500
"""Characters of a reason."""

NAME_CHARACTERS_MAX: Final = 300
"""Characters of a problem's name: the names of addresses have up to 255."""

WHAT_CHARACTERS_MAX: Final = 2_000
"""Characters of a problem's text: it may list some names."""

MUTE_BODY_BYTES_MAX: Final = 16 * 1024
"""Bytes of a document about a mute."""
