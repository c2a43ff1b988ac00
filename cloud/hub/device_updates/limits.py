"""Limits of the reports of devices about artefacts at a hub."""

from __future__ import annotations

from typing import Final

REPORTS_AT_ONCE: Final = 1_000
"""Reports of one transaction: 100 ms of the registry on SQLite. The reports of other batches wait for the next one."""

REPORT_BYTES_MAX: Final = 8 << 10
"""Bytes of a report: gateways write reasons of 512 characters, which JSON escapes with up to twelve bytes each."""

REASON_CHARACTERS_MAX: Final = 512
"""Characters of a reason that are kept: as many as a gateway takes."""

QUERIES_MAX: Final = 64
"""Requests that wait for the registry; more are answered with 503."""
