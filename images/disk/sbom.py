"""The bill of materials of an image, as SPDX 2.3: its Debian packages, and what is in the gateway: Python and libraries
of Debian's sources, and Python packages."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

OURS: Final = "waypost"
"""The package that is none of Debian's."""
NAMESPACE: Final = uuid.UUID("a4c3a9f2-6d0e-5f0d-9f0e-0d7b4f9f6c11")


LICENSES: Final = {
    "bzip2": "bzip2-1.0.6",
    "expat": "MIT",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libffi": "MIT",
    "openssl": "Apache-2.0",
    "python3.11": "PSF-2.0",
    "sqlite3": "blessing",
    "util-linux": "BSD-3-Clause",
    "zlib": "Zlib",
}
"""Of what is frozen into a gateway, by Debian's source. Debian's packages bring theirs (/usr/share/doc)."""


class Package(NamedTuple):
    """One that is installed."""

    name: str
    version: str
    architecture: str
    source: str
    built_using: tuple[tuple[str, str], ...] = ()
    """Sources that are in it too, and their versions."""


def packages(status: str) -> list[Package]:
    """Those of dpkg's status file, by name."""
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


def document(
    name: str, installed: Sequence[Package], libraries: Mapping[str, str], root_hash: str, date: int
) -> dict[str, Any]:
    """The document of an image whose root file system has this hash. `libraries`: versions of the Python packages that
    are in the gateway's own, by name."""
    root, gateway = "SPDXRef-image", ""
    entries, contained = [], []
    for number, each in enumerate(installed):
        reference = f"SPDXRef-{number}"
        ours = each.name == OURS
        gateway = reference if ours else gateway
        address = f"pkg:deb/debian/{each.name}@{_quoted(each.version)}?arch={each.architecture}"
        locator = f"pkg:generic/{each.name}@{_quoted(each.version)}" if ours else address
        entries.append(
            {**_entry(reference, each.name, each.version, locator), "sourceInfo": f"source package {each.source}"}
        )
        contained.append(_relation(root, "CONTAINS", reference))
        for source, version in each.built_using:
            inside = f"{reference}-{source}"
            entries.append(_of_source(inside, source, version))
            contained.append(_relation(reference, "CONTAINS", inside))
    for library, version in sorted(libraries.items()):
        reference = f"SPDXRef-python-{library}"
        entries.append(_entry(reference, library, version, f"pkg:pypi/{library}@{_quoted(version)}"))
        contained.append(_relation(gateway or root, "CONTAINS", reference))
    image = {
        "SPDXID": root,
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "OPERATING-SYSTEM",
        "checksums": [{"algorithm": "SHA256", "checksumValue": root_hash}],
        "comment": "the checksum is of the root file system",
    }
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'{name} {root_hash}')}",
        "creationInfo": {"created": when(date), "creators": ["Tool: waypost"]},
        "packages": [image, *entries],
        "relationships": [_relation("SPDXRef-DOCUMENT", "DESCRIBES", root), *contained],
    }


def when(date: int) -> str:
    """As SPDX writes a time."""
    return datetime.datetime.fromtimestamp(date, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(reference: str, name: str, version: str, locator: str) -> dict[str, Any]:
    external = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
    return {
        "SPDXID": reference,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [external],
    }


def _of_source(reference: str, source: str, version: str) -> dict[str, Any]:
    """What was built from one of Debian's sources."""
    made = _entry(reference, source, version, f"pkg:deb/debian/{source}@{_quoted(version)}?arch=source")
    return {**made, "supplier": "Organization: Debian", "licenseDeclared": LICENSES.get(source, "NOASSERTION")}


def _relation(one: str, what: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": what, "relatedSpdxElement": other}


def _quoted(version: str) -> str:
    """In a package URL."""
    return quote(version, safe=":~.-")
