"""Limits of an import, with unit and reason."""

from __future__ import annotations

from typing import Final

FILE_BYTES_MAX: Final = 512 << 20
"""Bytes of one file, which is read into memory: some 800 000 devices with their credentials."""

RETRY_WAITS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further attempt at one device: a minute in all, in which a hub restarts."""

PROGRESS_INTERVAL_S: Final = 10.0
"""Seconds between two lines about the progress."""
