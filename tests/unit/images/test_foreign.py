"""A gateway for arm64: the pinned packages it gets, and the missing tools of this machine."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from images import source
from images.debian import Mirror
from images.errors import ImageError
from images.frozen import cross, freezing, libraries
from images.frozen.lock_file import DISTRIBUTION, find_required, select_entries
from images.steps import BuildSteps


def test_gateway_gets_its_imports_and_nothing_of_a_hub() -> None:
    names = find_required(f"{DISTRIBUTION}[edge,kafka]", cross.ENVIRONMENT)
    assert {"python-qpid-proton", "uvloop", "aiokafka", "cffi"} <= names
    assert not names & {"waypost", "pyspark", "deltalake", "pyarrow", "numpy"}
    lock = select_entries(source.LOCK.read_text(), names)
    assert lock.count("==") == len(names)
    assert lock.count("--hash=sha256:") >= len(names)


def test_newer_openssl_of_this_machine_causes_a_rebuild() -> None:
    place = "7f0a-7f0b r--p 00000000 fe:00 12 "
    files = ("/usr/lib/x/libcrypto.so.3", "/usr/lib/x/libsqlite3.so.0.8.6", "/usr/lib/x/libm.so.6", "/opt/libssl/a.py")
    maps = "".join(f"{place}{file}\n" for file in (*files, files[0], "[heap]"))
    assert freezing.find_system_libraries(maps) == [Path(files[0]), Path(files[1])]
    assert all(path.is_file() for path in freezing.find_system_libraries(Path("/proc/self/maps").read_text()))


def test_missing_lock_entry_is_named() -> None:
    with pytest.raises(ImageError, match="has no b") as caught:
        select_entries("a==1 \\\n    --hash=sha256:0\n", ["a", "b"])
    assert caught.value.hint == "make lock"


def test_missing_package_is_named() -> None:
    with pytest.raises(ImageError, match="no-such-package is not installed"):
        find_required("no-such-package", cross.ENVIRONMENT)


def test_kernel_without_the_emulator_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not run programs for arm64") as caught:
        cross.require_emulation(tmp_path)
    assert "systemd-binfmt" in caught.value.hint
    (tmp_path / "qemu-aarch64").touch()
    cross.require_emulation(tmp_path)


def test_mirror_without_security_updates_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        said = "E: The repository 'http://mirror.example/debian-security bookworm-security Release' does not have a …"
        raise ImageError(said, hint="the whole log: log")

    monkeypatch.setattr("images.debian.run", refused)
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: "http://a.example/ bookworm")
    for mirror, said in ((Mirror("http://mirror.example/debian"), True), (Mirror(), False)):
        with pytest.raises(ImageError, match="does not have a") as caught:
            mirror.unpack(tmp_path, ["bash"], log=tmp_path / "log")
        assert caught.value.hint.endswith("the whole log: log")
        assert ("--security-mirror" in caught.value.hint) == said


def test_newest_debian_packages_or_another_mirror_cause_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def unpack(self: Mirror, root: Path, *_: object, **__: object) -> None:
        asked.append(self.sources("main"))
        root.mkdir()

    monkeypatch.setattr(Mirror, "unpack", unpack)
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: "http://a.example/ bookworm\n")
    steps, own, other = BuildSteps(tmp_path, lambda _: None), Mirror(), Mirror("http://mirror.example/debian")
    for mirror, fresh in ((own, False), (own, False), (other, False), (other, True), (own, False)):
        assert cross.unpack_python(steps, mirror, fresh=fresh).is_dir()
    assert [each.partition(" bookworm")[0] for each in asked] == [
        "deb http://a.example/", "deb http://mirror.example/debian", "deb http://mirror.example/debian",
    ]  # fmt: skip


def changed_last(root: Path, package: str, said: str) -> None:
    folder = root / "usr/share/doc" / package
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(f"{said}\n\n  * Something.\n".encode()))


def test_debian_packages_are_found_by_their_libraries(tmp_path: Path) -> None:
    program = tmp_path / "waypost"
    (program / "_internal" / "uvloop").mkdir(parents=True)
    for name in ("libssl.so.3", "libcrypto.so.3", "libpython3.11.so.1.0", "cproton_ffi.abi3.so", "uvloop/libuv.so"):
        (program / "_internal" / name).touch()
    found = libraries.list_libraries(program)
    assert found == ["libcrypto", "libpython3", "libssl"]
    changed_last(tmp_path, "libssl3", "openssl (3.0.22-1~deb12u2) bookworm-security; urgency=high")
    changed_last(tmp_path, "libpython3.11", "python3.11 (3.11.2-6+deb12u6) bookworm; urgency=medium")
    said = ["openssl (= 3.0.22-1~deb12u2)", "python3.11 (= 3.11.2-6+deb12u6)"]
    assert libraries.find_sources(tmp_path, found) == said
    with pytest.raises(ImageError, match="lacks the package of libnew"):
        libraries.find_sources(tmp_path, ["libnew"])
    for why in ("libz", "libssl"):
        changed_last(tmp_path, "libssl3", "nothing of it")
        with pytest.raises(ImageError, match="does not name the version of"):
            libraries.find_sources(tmp_path, [why])


def test_packages_come_from_the_given_mirror_or_that_of_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Mirror("http://mirror.example/debian").sources("main")
    here, security = "deb http://mirror.example/debian", "deb http://mirror.example/debian-security"
    updates = [f"{here} bookworm-updates main", f"{security} bookworm-security main"]
    assert said.splitlines() == [f"{here} bookworm main", *updates]
    named = Mirror("http://mirror.example/debian/", "http://safe.example/").sources("main non-free-firmware")
    assert named.splitlines()[-1] == "deb http://safe.example/ bookworm-security main non-free-firmware"
    with pytest.raises(ImageError, match="--security-mirror requires --mirror"):
        Mirror(None, "http://safe.example/")
    places = ("a.example/ bookworm", "a.example/ bookworm", "b.example/ bookworm-security", "c.example/ trixie")
    said = "".join(f"http://{place}\n" for place in places)
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: said)
    lines = ["deb http://a.example/ bookworm main", "deb http://b.example/ bookworm-security main"]
    assert Mirror().sources("main").splitlines() == lines
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: "")
    with pytest.raises(ImageError, match="no archive of Debian bookworm"):
        Mirror().sources("main")
