"""Data of Debian's security tracker: which vulnerabilities a version of a source package has.

The file is https://security-tracker.debian.org/tracker/data/json, some 70 MB. No package of Debian has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from images.disk.debian_version import make_version_key

NOT_AFFECTED: Final = "0"
"""Value of `fixed_version` for a release that never had the vulnerability."""
BACKPORT: Final = "~bpo"
UNSTABLE: Final = "sid"
"""Release that backports come from; the tracker has none for them."""


class TrackedRelease(msgspec.Struct):
    """State of a vulnerability in one release of Debian."""

    status: str
    """``open``, ``resolved`` or ``undetermined``."""
    fixed_version: str = ""
    urgency: str = ""


class TrackedVulnerability(msgspec.Struct):
    """Vulnerability of one source package."""

    releases: dict[str, TrackedRelease] = {}


class KnownVulnerability(NamedTuple):
    """Vulnerability of an installed package."""

    name: str
    """``CVE-2026-12345``, or another name of the data."""
    urgency: str
    fixed_in: str
    """First version without it; empty until it is fixed."""


class TrackerData(msgspec.Struct):
    """All of the tracker's data, by source package and vulnerability."""

    sources: dict[str, dict[str, TrackedVulnerability]]

    @classmethod
    def decode(cls, content: bytes) -> TrackerData:
        """Return the data in a file. Raises msgspec.DecodeError."""
        return cls(msgspec.json.decode(content, type=dict[str, dict[str, TrackedVulnerability]]))

    def find(self, source: str, version: str, suite: str) -> Iterator[KnownVulnerability]:
        """Yield the vulnerabilities of a version of a source package in a release (``bookworm``)."""
        base, backport, _ = version.partition(BACKPORT)
        suite = UNSTABLE if backport else suite
        installed = make_version_key(base)
        for name, vulnerability in sorted(self.sources.get(source, {}).items()):
            state = vulnerability.releases.get(suite)
            if state is None:
                continue
            fixed = state.fixed_version
            if state.status != "resolved":
                yield KnownVulnerability(name, _describe(state), "")
            elif fixed != NOT_AFFECTED and installed < make_version_key(fixed):
                yield KnownVulnerability(name, _describe(state), fixed)


def _describe(state: TrackedRelease) -> str:
    return "undetermined" if state.status == "undetermined" else state.urgency or "not yet assigned"
