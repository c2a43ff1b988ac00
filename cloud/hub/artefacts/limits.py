"""Limits of artefacts at a hub."""

from __future__ import annotations

from typing import Final

PART_BYTES: Final = 1 << 20
"""Bytes of a part of an upload, and of an object in the store: within the time of a request at 280 kbit/s, and all that
an upload holds in memory."""

HUB_IMAGE_BYTES_MAX: Final = 1 << 30
"""Bytes of one image at a hub: the system of a gateway has 170 MiB; a larger one is a disk, and not an update."""

KEY_LABEL_CHARACTERS_MAX: Final = 64
"""Characters of the label of a key: one line of a list."""

WAITING_MAX: Final = 64
"""Requests that wait for the registry, for parts, or for verification, each; more are answered with 503."""

READ_BYTES: Final = 256 << 10
"""Bytes of an image that are read at a time for a download."""

DOWNLOADS_MAX: Final = 256
"""Downloads at once: 64 MiB of buffers. A gateway that is answered with 503 tries again within minutes."""

TENANT_DOWNLOADS_MAX: Final = 128
"""Downloads of one tenant at once: half of all, so that one fleet leaves room for the others."""

STORE_THREADS: Final = 4
"""Threads that read and write images: enough to wait for an object store, without taking the cores from the landing."""
