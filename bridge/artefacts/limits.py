"""Limits of artefacts, the same at the maker, the hub and a gateway."""

from __future__ import annotations

from typing import Final

ENVELOPE_BYTES_MAX: Final = 16 << 10
"""Bytes of a signed manifest: it travels in a gateway's configuration, and a microcontroller holds it in memory."""

IMAGE_BYTES_MAX: Final = 4 << 30
"""Bytes of an image: the largest file of a FAT32 card, which many boards start from."""

NAME_LENGTH_MAX: Final = 64
"""Characters of a name, a version or a board: all three fit into one line of a list."""

BOARDS_MAX: Final = 32
"""Boards of one artefact: more are more builds, so more artefacts."""

FROM_VERSIONS_MAX: Final = 64
"""Versions from which an artefact may be installed: 64 of them leave half of the envelope free."""

DEPTH_MAX: Final = 4
"""Nested levels of a manifest in CBOR: it has two."""

KEY_FILE_BYTES_MAX: Final = 16 << 10
"""Bytes of a key file; one with a password has 400."""

READ_BYTES: Final = 1 << 20
"""Bytes of an image that are read at a time."""
