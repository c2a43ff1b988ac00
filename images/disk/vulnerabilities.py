"""Known vulnerabilities of an image: its bill of materials compared with data that the user names.

Nothing is fetched. The list depends on the day of the data, so it is next to the image, and not among its signed files.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from images.debian import RELEASES
from images.disk import filesystem
from images.disk.osv_data import OsvData
from images.disk.tracker_data import KnownVulnerability, TrackerData
from images.errors import USAGE, ImageError

SUFFIX: Final = ".cve.json"
TABLE_SUFFIX: Final = ".cve.txt"
SBOM_SUFFIX: Final = ".spdx.json"
NO_DATA: Final = "known vulnerabilities are not listed, as no data was given (--cve-data)"
SOURCES: Final = (
    "curl -o tracker.json https://security-tracker.debian.org/tracker/data/json\n"
    "curl -o pypi.zip https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
)
_LOCATOR: Final = re.compile(r"pkg:(deb/debian|pypi)/([^@]+)@([^?]+)(?:\?arch=(.*))?")
_SOURCE: Final = re.compile(r"source package (\S+)(?: \((\S+)\))?")
_SIGNED_KERNEL: Final = re.compile(r"linux-signed-\w+")
_HEAD: Final = ("package", "version", "vulnerability", "urgency", "fixed in")


class ListedPackage(NamedTuple):
    """Package of a bill of materials, under the name that vulnerabilities are listed by."""

    kind: str
    """``debian``: a source package. ``pypi``: a Python package."""
    name: str
    version: str


class VulnerabilityData(NamedTuple):
    """Data that the user named."""

    debian: TrackerData | None
    pypi: OsvData | None
    files: tuple[tuple[str, str], ...]
    """Name and SHA-256 of each file."""


class VulnerabilityList(NamedTuple):
    """Known vulnerabilities of an image."""

    image: str
    suite: str
    data: VulnerabilityData
    packages: int
    found: Sequence[tuple[ListedPackage, KnownVulnerability]]

    def to_json(self) -> str:
        """Return it as JSON."""
        findings = [
            {"kind": package.kind, "package": package.name, "version": package.version, **known._asdict()}
            for package, known in self.found
        ]
        document = {
            "image": self.image,
            "release": self.suite,
            "checked": {"debian": self.data.debian is not None, "pypi": self.data.pypi is not None},
            "data": [{"file": name, "sha256": digest} for name, digest in self.data.files],
            "packages": self.packages,
            "vulnerabilities": findings,
        }
        return json.dumps(document, indent=1) + "\n"

    def to_table(self) -> str:
        """Return it as a table for people."""
        rows = [
            (package.name, package.version, known.name, known.urgency or "-", known.fixed_in or "-")
            for package, known in self.found
        ]
        rows.insert(0, _HEAD)
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "".join(f"{line.rstrip()}\n" for line in (*self._describe(), "", *lines))

    def _describe(self) -> Iterator[str]:
        yield f"{self.image}: {len(self.found)} known vulnerabilities in {self.packages} packages"
        for what, data in (("Debian's packages", self.data.debian), ("Python packages", self.data.pypi)):
            if data is None:
                yield f"{what} were not checked: no data was given"
        for name, digest in self.data.files:
            yield f"data: {name}, SHA-256 {digest}"


def read_data(files: Sequence[Path]) -> VulnerabilityData:
    """Read the tracker's data (JSON) and OSV's (an archive), in any order. Raises ImageError."""
    debian, pypi = None, None
    for file in files:
        try:
            if zipfile.is_zipfile(file):
                pypi = OsvData.read(file)
                known = not pypi.is_empty
            else:
                debian = TrackerData.decode(file.read_bytes())
                known = bool(debian.sources)
        except (msgspec.DecodeError, zipfile.BadZipFile, UnicodeError) as error:
            raise _make_refusal(file, str(error)) from None
        except OSError as error:
            raise ImageError(f"{file}: {error.strerror}", code=USAGE) from None
        if not known:
            raise _make_refusal(file, "it lists nothing")
    names = tuple((file.name, filesystem.compute_sha256(file)) for file in files)
    return VulnerabilityData(debian, pypi, names)


def _make_refusal(file: Path, why: str) -> ImageError:
    what = f"{file} has neither data of Debian's security tracker (JSON) nor of OSV for PyPI (zip): {why}"
    return ImageError(what, hint=SOURCES, code=USAGE)


def list_vulnerabilities(sbom: Path, data: VulnerabilityData) -> VulnerabilityList:
    """Return the known vulnerabilities of what is in a bill of materials. Raises ImageError."""
    try:
        document = json.loads(sbom.read_text())
        packages = sorted(set(_list_packages(document)))
        suite = _find_suite(document)
        name = str(document["name"])
    except OSError as error:
        raise ImageError(f"{sbom}: {error.strerror}", code=USAGE) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "name the X.spdx.json of an image"
        raise ImageError(f"{sbom} is not the bill of materials of an image", hint=hint, code=USAGE) from None
    found = []
    for package in packages:
        if package.kind == "debian" and data.debian is not None:
            found += [(package, each) for each in data.debian.find(package.name, package.version, suite)]
        elif package.kind == "pypi" and data.pypi is not None:
            found += [(package, each) for each in data.pypi.find(package.name, package.version)]
    return VulnerabilityList(name, suite, data, len(packages), found)


def _list_packages(document: Mapping[str, Any]) -> Iterator[ListedPackage]:
    """Yield the source packages and Python packages of a bill of materials."""
    for each in document["packages"]:
        for reference in each.get("externalRefs", ()):
            match = _LOCATOR.fullmatch(reference["referenceLocator"])
            if match is None:
                continue
            kind, name, version = match[1], unquote(match[2]), unquote(match[3])
            if kind == "pypi":
                yield ListedPackage("pypi", name, version)
                continue
            told = _SOURCE.fullmatch(each.get("sourceInfo", ""))
            if told is None:  # a source itself, of something that is built in
                yield ListedPackage("debian", name, version)
            elif _SIGNED_KERNEL.fullmatch(told[1]):  # its own source has another version
                yield ListedPackage("debian", "linux", version)
            else:
                yield ListedPackage("debian", told[1], told[2] or version)


def _find_suite(document: Mapping[str, Any]) -> str:
    """Return the release of Debian, by the version of the package that names it. Raises KeyError."""
    [version] = [each["versionInfo"] for each in document["packages"] if each["name"] == "base-files"]
    return RELEASES[re.split(r"\D", version)[0]].suite
