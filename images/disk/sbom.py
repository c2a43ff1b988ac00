"""Bill of materials of an image (SPDX 2.3): Debian packages, and the Python, libraries and packages frozen into the
gateway.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

OURS: Final = "waypost"
"""Package that does not come from Debian."""
NAMESPACE: Final = uuid.UUID("a4c3a9f2-6d0e-5f0d-9f0e-0d7b4f9f6c11")


LICENSES: Final = {
    "bzip2": "bzip2-1.0.6",
    "expat": "MIT",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "gcc-14": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libffi": "MIT",
    "libzstd": "BSD-3-Clause OR GPL-2.0-only",
    "openssl": "Apache-2.0",
    "python3.11": "PSF-2.0",
    "python3.13": "PSF-2.0",
    "sqlite3": "blessing",
    "util-linux": "BSD-3-Clause",
    "zlib": "Zlib",
}
"""Licences of what is frozen into a gateway, by Debian source. Debian packages ship theirs (/usr/share/doc)."""


class Package(NamedTuple):
    """Installed Debian package."""

    name: str
    version: str
    architecture: str
    source: str
    built_using: tuple[tuple[str, str], ...] = ()
    """Sources that are built into it, and their versions."""


def parse_packages(status: str) -> list[Package]:
    """Return the packages of dpkg's status file, sorted by name."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            name = fields["Package"]
            inside = re.findall(r"(\S+) \(= ([^)]+)\)", fields.get("Built-Using", ""))
            source = fields.get("Source", name)
            found.append(Package(name, fields["Version"], fields["Architecture"], source, tuple(inside)))
    return sorted(found)


def make_document(
    name: str, installed: Sequence[Package], libraries: Mapping[str, str], root_hash: str, date: int
) -> dict[str, Any]:
    """Return the document of an image with this hash of the root file system.

    `libraries`: versions of the Python packages in the gateway's package, by name.
    """
    root, gateway = "SPDXRef-image", ""
    entries, contained = [], []
    for number, each in enumerate(installed):
        reference = f"SPDXRef-{number}"
        ours = each.name == OURS
        gateway = reference if ours else gateway
        address = f"pkg:deb/debian/{each.name}@{_quote_version(each.version)}?arch={each.architecture}"
        locator = f"pkg:generic/{each.name}@{_quote_version(each.version)}" if ours else address
        entries.append(
            {**_make_entry(reference, each.name, each.version, locator), "sourceInfo": f"source package {each.source}"}
        )
        contained.append(_make_relation(root, "CONTAINS", reference))
        for source, version in each.built_using:
            inside = f"{reference}-{source}"
            entries.append(_make_source_entry(inside, source, version))
            contained.append(_make_relation(reference, "CONTAINS", inside))
    for library, version in sorted(libraries.items()):
        reference = f"SPDXRef-python-{library}"
        entries.append(_make_entry(reference, library, version, f"pkg:pypi/{library}@{_quote_version(version)}"))
        contained.append(_make_relation(gateway or root, "CONTAINS", reference))
    image = {
        "SPDXID": root,
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "OPERATING-SYSTEM",
        "checksums": [{"algorithm": "SHA256", "checksumValue": root_hash}],
        "comment": f"the checksum is of the root file system; {name_kernel(installed)}",
    }
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'{name} {root_hash}')}",
        "creationInfo": {"created": format_time(date), "creators": ["Tool: waypost"]},
        "packages": [image, *entries],
        "relationships": [_make_relation("SPDXRef-DOCUMENT", "DESCRIBES", root), *contained],
    }


def name_kernel(installed: Sequence[Package]) -> str:
    """Return the kernels of an image with their versions; a backport's contains ``bpo``."""
    found = [f"{each.name} {each.version}" for each in installed if re.match(r"linux-image-\d", each.name)]
    return f"kernel: {', '.join(found) or 'none'}"


def format_time(date: int) -> str:
    """Format a time as SPDX requires."""
    return datetime.datetime.fromtimestamp(date, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _make_entry(reference: str, name: str, version: str, locator: str) -> dict[str, Any]:
    external = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
    return {
        "SPDXID": reference,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [external],
    }


def _make_source_entry(reference: str, source: str, version: str) -> dict[str, Any]:
    """Return the entry for something built from a Debian source."""
    made = _make_entry(reference, source, version, f"pkg:deb/debian/{source}@{_quote_version(version)}?arch=source")
    return {**made, "supplier": "Organization: Debian", "licenseDeclared": LICENSES.get(source, "NOASSERTION")}


def _make_relation(one: str, what: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": what, "relatedSpdxElement": other}


def _quote_version(version: str) -> str:
    """Quote a version for a package URL."""
    return quote(version, safe=":~.-")
