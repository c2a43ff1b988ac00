"""Known vulnerabilities of an image: which packages are affected, and what the list says that it does not know."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.appliance.main import run
from images.disk import sbom
from images.disk.debian_version import make_version_key
from images.disk.vulnerabilities import list_vulnerabilities, read_data
from images.errors import ImageError

INSTALLED = (
    sbom.Package("base-files", "12.4+deb12u5", "arm64", "base-files"),
    sbom.Package("libc6", "2.36-9+deb12u4", "arm64", "glibc"),
    sbom.Package("libc-bin", "2.36-9+deb12u4", "arm64", "glibc"),
    sbom.Package("linux-image-6.1.0-18-arm64", "6.1.76-1", "arm64", "linux-signed-arm64 (6.1.76+1)"),
    sbom.Package("linux-base", "7.3.4-1~bpo12+1", "all", "linux"),
    sbom.Package("nano", "7.2-1+b1", "arm64", "nano (7.2-1)"),
    sbom.Package("waypost", "0.1.0", "arm64", "waypost", (("openssl", "3.0.11-1~deb12u2"),)),
)
PYTHON = {"msgspec": "0.22.0", "Flask.Thing": "2.0"}


def state(status: str, fixed: str = "", urgency: str = "") -> dict[str, str]:
    return {
        "status": status,
        **({"fixed_version": fixed} if fixed else {}),
        **({"urgency": urgency} if urgency else {}),
    }


TRACKER = {
    "glibc": {
        "CVE-1": {
            "releases": {"bookworm": state("resolved", "2.36-9+deb12u5", "high"), "sid": state("resolved", "2.37-1")}
        },
        "CVE-2": {"releases": {"bookworm": state("resolved", "2.36-9", "high")}},
        "CVE-3": {"releases": {"bookworm": state("open", urgency="unimportant"), "trixie": state("open")}},
        "CVE-4": {"releases": {"trixie": state("open")}},
        "CVE-5": {"releases": {"bookworm": state("resolved", "0", "low")}},
    },
    "linux": {
        "CVE-6": {"releases": {"bookworm": state("resolved", "6.1.76-2"), "sid": state("resolved", "6.9-1")}},
        "CVE-7": {"releases": {"bookworm": state("resolved", "6.1.76-1"), "sid": state("resolved", "7.3.5-1")}},
        "CVE-8": {"releases": {"bookworm": state("resolved", "6.1.2-1"), "sid": state("resolved", "7.3.4-1")}},
    },
    "nano": {"CVE-9": {"releases": {"bookworm": state("undetermined")}}},
    "openssl": {"CVE-10": {"releases": {"bookworm": state("open", urgency="not yet assigned")}}},
    "other": {"CVE-11": {"releases": {"bookworm": state("open")}}},
}  # fmt: skip


def entry(name: str, package: str, events: Sequence[dict[str, str]], **more: object) -> dict[str, object]:
    affected = {"package": {"name": package, "ecosystem": "PyPI"}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"id": name, "affected": [affected], **more}


OSV = (
    entry("PYSEC-1", "msgspec", [{"introduced": "0"}, {"fixed": "0.22.1"}], aliases=["GHSA-1", "CVE-20"]),
    entry("GHSA-1", "msgspec", [{"introduced": "0"}, {"fixed": "0.22.1"}], aliases=["CVE-20"]),
    entry("PYSEC-2", "msgspec", [{"introduced": "0"}, {"fixed": "0.22.0"}]),
    entry(
        "PYSEC-3", "flask-thing", [{"fixed": "1.5"}, {"introduced": "1"}, {"introduced": "1.9"}, {"last_affected": "2"}]
    ),
    entry("PYSEC-4", "flask-thing", [{"introduced": "0"}, {"last_affected": "1.9"}]),
    entry("PYSEC-5", "flask-thing", [{"introduced": "0"}], withdrawn="2026-01-01T00:00:00Z"),
    {"id": "PYSEC-6", "affected": [{"package": {"name": "flask_thing", "ecosystem": "PyPI"}, "versions": ["2.0"]}]},
    {"id": "RUST-1", "affected": [{"package": {"name": "msgspec", "ecosystem": "crates.io"}, "versions": ["0.22.0"]}]},
)  # fmt: skip


@pytest.fixture
def bill(tmp_path: Path) -> Path:
    file = tmp_path / "card.spdx.json"
    file.write_text(json.dumps(sbom.make_document("card", INSTALLED, PYTHON, "0" * 64, 0)))
    return file


@pytest.fixture
def tracker(tmp_path: Path) -> Path:
    file = tmp_path / "tracker.json"
    file.write_text(json.dumps(TRACKER))
    return file


@pytest.fixture
def osv(tmp_path: Path) -> Path:
    file = tmp_path / "all.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number, each in enumerate(OSV):
            archive.writestr(f"{number}.json", json.dumps(each))
    return file


def test_packages_are_compared_with_the_tracker(bill: Path, tracker: Path) -> None:
    found = list_vulnerabilities(bill, read_data([tracker]))
    assert [(each.name, *known) for each, known in found.found] == [
        ("glibc", "CVE-1", "high", "2.36-9+deb12u5"),
        ("glibc", "CVE-3", "unimportant", ""),
        ("linux", "CVE-6", "not yet assigned", "6.1.76-2"),
        ("linux", "CVE-7", "not yet assigned", "7.3.5-1"),
        ("nano", "CVE-9", "undetermined", ""),
        ("openssl", "CVE-10", "not yet assigned", ""),
    ]
    assert found.suite == "bookworm"


def test_python_packages_are_compared_with_osv(bill: Path, osv: Path) -> None:
    found = list_vulnerabilities(bill, read_data([osv]))
    assert [(each.name, known.name, known.fixed_in) for each, known in found.found] == [
        ("Flask.Thing", "PYSEC-3", ""),
        ("Flask.Thing", "PYSEC-6", ""),
        ("msgspec", "CVE-20", "0.22.1"),
    ]


def test_list_says_what_was_not_checked(bill: Path, tracker: Path, osv: Path) -> None:
    found = list_vulnerabilities(bill, read_data([tracker]))
    document = json.loads(found.to_json())
    assert document["checked"] == {"debian": True, "pypi": False}
    assert [each["file"] for each in document["data"]] == ["tracker.json"]
    table = found.to_table()
    assert "Python packages were not checked" in table
    assert "were not checked" not in list_vulnerabilities(bill, read_data([osv, tracker])).to_table()
    [line] = [each for each in table.splitlines() if "CVE-1 " in each]
    assert line.split() == ["glibc", "2.36-9+deb12u4", "CVE-1", "high", "2.36-9+deb12u5"]


@pytest.mark.parametrize("content", ["", "[]", "{}", "<html>", '{"glibc": {"CVE-1": {"releases": 1}}}', "\xff"])
def test_other_files_are_refused_with_the_place_of_the_data(tmp_path: Path, bill: Path, content: str) -> None:
    other = tmp_path / "other"
    other.write_text(content, "latin-1")
    with pytest.raises(ImageError) as raised:
        read_data([other])
    assert "tracker.json" in raised.value.hint
    assert run(["image", "cve", str(bill), "--cve-data", str(other), "--out", str(tmp_path)]) == 2
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(ImageError):
        read_data([other])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "x", "packages": []}', '{"name": "x", "packages": [1]}'])
def test_another_document_is_not_a_bill_of_materials(tmp_path: Path, tracker: Path, content: str) -> None:
    other = tmp_path / "other.spdx.json"
    other.write_text(content)
    with pytest.raises(ImageError, match="bill of materials"):
        list_vulnerabilities(other, read_data([tracker]))


def test_command_writes_both_forms(
    tmp_path: Path, bill: Path, tracker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["image", "cve", str(bill), "--cve-data", str(tracker), "--out", str(tmp_path / "out")]) == 0
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"card.cve.json", "card.cve.txt"}
    assert run(["image", "cve", str(bill), "--out", str(tmp_path / "out")]) == 2
    assert "--cve-data" in capsys.readouterr().err


# In the order of deb-version(7).
ORDERED = (
    "1.0~~", "1.0~~a", "1.0~", "1.0", "1.0-0.1", "1.0-1~bpo12+1", "1.0-1", "1.0-1+b1", "1.0a", "1.0+", "1.9", "1.10",
    "1:0",
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(itertools.pairwise(ORDERED)))
def test_versions_sort_as_debian_says(one: str, other: str) -> None:
    assert make_version_key(one) < make_version_key(other)


versions = st.from_regex(r"([0-3]:)?[0-9][a-z0-9.+~]{0,6}(-[a-z0-9+.~]{1,4})?", fullmatch=True)


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="not on Debian")
@given(one=versions, other=versions)
@settings(max_examples=60, deadline=None)
def test_versions_sort_as_dpkg_sorts_them(one: str, other: str) -> None:
    words = ["dpkg", "--compare-versions", one, "lt", other]
    assert (subprocess.run(words, check=False).returncode == 0) == (make_version_key(one) < make_version_key(other))
