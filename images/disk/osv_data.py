"""Vulnerabilities of Python packages from the archive of OSV (https://osv.dev): one file in OSV's format for each.

The archive is https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip, some 20 MB.
"""

from __future__ import annotations

import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.disk.tracker_data import KnownVulnerability

ECOSYSTEM: Final = "PyPI"
ENTRY_BYTES_MAX: Final = 16 << 20
"""Largest file of the archive that is read; the largest of 2026 has 1 MB."""


class OsvPackage(msgspec.Struct):
    """Package in an entry."""

    name: str = ""
    ecosystem: str = ""


class OsvRange(msgspec.Struct):
    """Range of versions, as events in order."""

    type: str = ""
    events: list[dict[str, str]] = []


class OsvAffected(msgspec.Struct):
    """Versions of one package that an entry is about."""

    package: OsvPackage = msgspec.field(default_factory=OsvPackage)
    ranges: list[OsvRange] = []
    versions: list[str] = []


class OsvEntry(msgspec.Struct):
    """Vulnerability."""

    id: str
    aliases: list[str] = []
    withdrawn: str | None = None
    affected: list[OsvAffected] = []

    @property
    def name(self) -> str:
        """Number of the CVE if it has one."""
        return next((each for each in self.aliases if each.startswith("CVE-")), self.id)


class OsvData:
    """Entries by the normalized name of their package."""

    def __init__(self, entries: Mapping[str, Sequence[tuple[OsvEntry, OsvAffected]]]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, file: Path) -> OsvData:
        """Read an archive. Raises OSError, zipfile.BadZipFile, msgspec.DecodeError."""
        found = defaultdict[str, list[tuple[OsvEntry, OsvAffected]]](list)
        with zipfile.ZipFile(file) as archive:
            for each in archive.infolist():
                if not each.filename.endswith(".json"):
                    continue
                if each.file_size > ENTRY_BYTES_MAX:
                    raise zipfile.BadZipFile(f"{each.filename} has {each.file_size} bytes")
                entry = msgspec.json.decode(archive.read(each), type=OsvEntry)
                if entry.withdrawn is None:
                    for affected in entry.affected:
                        if affected.package.ecosystem == ECOSYSTEM:
                            found[canonicalize_name(affected.package.name)].append((entry, affected))
        return cls(found)

    @property
    def is_empty(self) -> bool:
        """True when the archive has no vulnerability of a Python package."""
        return not self._entries

    def find(self, package: str, version: str) -> Iterator[KnownVulnerability]:
        """Yield the vulnerabilities of a version of a package, each once."""
        seen = set[str]()
        for entry, affected in sorted(self._entries.get(canonicalize_name(package), ()), key=lambda pair: pair[0].id):
            if entry.name not in seen and _is_affected(affected, version):
                seen.add(entry.name)
                yield KnownVulnerability(entry.name, "", _find_fix(affected, version))


def _is_affected(affected: OsvAffected, version: str) -> bool:
    if version in affected.versions:
        return True
    try:
        installed = Version(version)
    except InvalidVersion:
        return False
    return any(_is_in(each, installed) for each in affected.ranges if each.type == "ECOSYSTEM")


def _is_in(versions: OsvRange, installed: Version) -> bool:
    """Return whether a version is in a range: the last event that it has reached decides."""
    inside = False
    for kind, at in _list_events(versions):
        if kind == "introduced" and installed >= at:
            inside = True
        elif (kind == "fixed" and installed >= at) or (kind == "last_affected" and installed > at):
            inside = False
    return inside


def _find_fix(affected: OsvAffected, version: str) -> str:
    """Return the first fixed version after an installed one, or an empty text."""
    try:
        installed = Version(version)
    except InvalidVersion:
        return ""
    fixes = [at for each in affected.ranges for kind, at in _list_events(each) if kind == "fixed" and at > installed]
    return str(min(fixes)) if fixes else ""


def _list_events(versions: OsvRange) -> list[tuple[str, Version]]:
    """Return the events of a range in the order of their versions; of one version, the introduction last."""
    found = []
    if versions.type == "ECOSYSTEM":  # others name commits
        for event in versions.events:
            for kind, text in event.items():
                try:
                    found.append((Version(text), kind == "introduced", kind))
                except InvalidVersion:
                    continue
    return [(kind, at) for at, _, kind in sorted(found)]
