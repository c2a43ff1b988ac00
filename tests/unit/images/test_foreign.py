"""A gateway for arm64: which of the pinned packages it takes, and what this machine lacks to make it."""

from __future__ import annotations

from pathlib import Path

import pytest

from images import source
from images.debian import Mirror
from images.errors import ImageError
from images.frozen import foreign
from images.frozen.locked import DISTRIBUTION, entries, needed


def test_it_takes_what_a_gateway_imports_and_nothing_of_a_hub() -> None:
    names = needed(f"{DISTRIBUTION}[edge,kafka]", foreign.ENVIRONMENT)
    assert {"python-qpid-proton", "uvloop", "aiokafka", "cffi"} <= names
    assert not names & {"waypost", "pyspark", "deltalake", "pyarrow", "numpy"}
    lock = entries(source.LOCK.read_text(), names)
    assert lock.count("==") == len(names)
    assert lock.count("--hash=sha256:") >= len(names)


def test_what_the_lock_lacks_is_named() -> None:
    with pytest.raises(ImageError, match="has no b") as caught:
        entries("a==1 \\\n    --hash=sha256:0\n", ["a", "b"])
    assert caught.value.hint == "./waypost lock"


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(ImageError, match="no-such-package is not installed"):
        needed("no-such-package", foreign.ENVIRONMENT)


def test_a_kernel_without_the_emulator_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not start programs of arm64") as caught:
        foreign.require_emulation(tmp_path)
    assert "systemd-binfmt" in caught.value.hint
    (tmp_path / "qemu-aarch64").touch()
    foreign.require_emulation(tmp_path)


def test_packages_come_from_where_it_is_said_or_where_apt_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Mirror("http://mirror.example/debian").sources("main")
    assert said.startswith("deb http://mirror.example/debian bookworm main\n")
    places = ("a.example/ bookworm", "a.example/ bookworm", "b.example/ bookworm-security", "c.example/ trixie")
    said = "".join(f"http://{place}\n" for place in places)
    monkeypatch.setattr("images.debian.output", lambda *_: said)
    lines = ["deb http://a.example/ bookworm main", "deb http://b.example/ bookworm-security main"]
    assert Mirror().sources("main").splitlines() == lines
    monkeypatch.setattr("images.debian.output", lambda *_: "")
    with pytest.raises(ImageError, match="no archive of Debian bookworm"):
        Mirror().sources("main")
