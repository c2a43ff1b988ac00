"""Limits of the reports of devices about artefacts at a hub."""

from __future__ import annotations

from typing import Final

BATCHES_AT_ONCE: Final = 64
"""Batches with reports that are read and stored together: most have one report."""

REPORT_BYTES_MAX: Final = 8 << 10
"""Bytes of a report: gateways write reasons of 512 characters, which JSON escapes with up to twelve bytes each."""

REASON_CHARACTERS_MAX: Final = 512
"""Characters of a reason that are kept: as many as a gateway takes."""

QUERIES_MAX: Final = 64
"""Requests that wait for the registry; more are answered with 503."""
