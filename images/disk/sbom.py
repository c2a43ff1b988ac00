"""The bill of materials of an image: every Debian package in it, as SPDX 2.3."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

NAMESPACE: Final = uuid.UUID("a4c3a9f2-6d0e-5f0d-9f0e-0d7b4f9f6c11")


class Package(NamedTuple):
    """One that is installed."""

    name: str
    version: str
    architecture: str
    source: str


def packages(status: str) -> list[Package]:
    """Those of dpkg's status file, by name."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            name = fields["Package"]
            found.append(Package(name, fields["Version"], fields["Architecture"], fields.get("Source", name)))
    return sorted(found)


def document(name: str, installed: Sequence[Package], root_hash: str, date: int) -> dict[str, Any]:
    """The document of an image whose root file system has this hash."""
    root = "SPDXRef-image"
    entries = [
        {
            "SPDXID": f"SPDXRef-{number}",
            "name": each.name,
            "versionInfo": each.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "sourceInfo": f"source package {each.source}",
            "externalRefs": [
                {
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": f"pkg:deb/debian/{each.name}@{each.version}?arch={each.architecture}",
                }
            ],
        }
        for number, each in enumerate(installed)
    ]
    image = {
        "SPDXID": root,
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "OPERATING-SYSTEM",
        "checksums": [{"algorithm": "SHA256", "checksumValue": root_hash}],
        "comment": "the checksum is of the root file system",
    }
    contained = [
        {"spdxElementId": root, "relationshipType": "CONTAINS", "relatedSpdxElement": entry["SPDXID"]}
        for entry in entries
    ]
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'{name} {root_hash}')}",
        "creationInfo": {"created": when(date), "creators": ["Tool: waypost"]},
        "packages": [image, *entries],
        "relationships": [described, *contained],
    }


def when(date: int) -> str:
    """As SPDX writes a time."""
    return datetime.datetime.fromtimestamp(date, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
