"""Libraries of other people in the consoles are the published files, and no other script comes from elsewhere."""

from __future__ import annotations

import base64
import tomllib
from hashlib import sha256
from pathlib import Path

from tests.support.checkout import ROOT

VENDOR = ROOT / "bridge" / "console" / "vendor"
LISTED = tomllib.loads((VENDOR / "vendor.toml").read_text())
PACKAGES = {name: entry for name, entry in LISTED.items() if name != "sha256"}


def test_files_are_those_that_were_checked() -> None:
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in _files()} == LISTED["sha256"]


def test_each_file_belongs_to_a_package_with_version_integrity_and_licence() -> None:
    listed = {name for package in PACKAGES.values() for name in package["files"]}
    assert listed == {path.name for path in _files()}
    for name, package in PACKAGES.items():
        algorithm, _, digest = package["integrity"].partition("-")
        assert algorithm == "sha512", name
        assert len(base64.b64decode(digest)) == 64, name
        assert package["version"]
        assert package["licence"] in {"MIT", "Apache-2.0"}, name
        assert any(source == "LICENSE" for source in package["files"].values()), name


def _files() -> list[Path]:
    return sorted(path for path in VENDOR.iterdir() if path.name != "vendor.toml")
