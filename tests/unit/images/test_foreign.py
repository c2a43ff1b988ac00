"""A gateway for arm64: the pinned packages it gets, and the missing tools of this machine."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from images import source
from images.debian import DEBIAN_12, DEBIAN_13, EXPIRED, PREFERENCES, RELEASES, DebianRelease, Mirror
from images.errors import ImageError
from images.frozen import cross, flasher, freezing, libraries
from images.frozen.freezing import FrozenProgram
from images.frozen.lock_file import DISTRIBUTION, find_required, select_entries
from images.rootfs import building as rootfs
from images.steps import BuildSteps


@pytest.mark.parametrize("release", RELEASES.values())
def test_gateway_gets_its_imports_and_nothing_of_a_hub(release: DebianRelease) -> None:
    names = find_required(f"{DISTRIBUTION}[edge,kafka]", cross.make_environment(release))
    assert {"python-qpid-proton", "uvloop", "aiokafka", "cffi"} <= names
    assert not names & {"waypost", "pyspark", "deltalake", "pyarrow", "numpy"}
    lock = select_entries(source.LOCK.read_text(), names)
    assert lock.count("==") == len(names)
    assert lock.count("--hash=sha256:") >= len(names)


@pytest.mark.parametrize("frozen", [freezing.GATEWAY, flasher.make_program("aarch64")])
def test_program_needs_no_package_that_is_left_out(frozen: FrozenProgram) -> None:
    """Import what a program uses of rich without the packages that a frozen one lacks."""
    sources = (path for package in frozen.sources for path in (source.ROOT / package).rglob("*.py"))
    used = {name for path in sources for name in re.findall(r"(?m)^ *(?:from|import) (rich[\w.]*)", path.read_text())}
    assert {"rich.console", "rich.progress"} <= used
    lacking = dict.fromkeys(("markdown_it", "mdurl", "pygments"))
    program = f"import sys; sys.modules.update({lacking})\n" + "".join(f"import {name}\n" for name in sorted(used))
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
    spec = frozen.spec.read_text()
    assert all(f'"{name}"' in spec for name in lacking)
    assert not cross.LEFT_OUT & set(cross.pinned_versions())


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
    with pytest.raises(ImageError, match="no-such-package"):
        find_required("no-such-package", cross.make_environment(DEBIAN_12))


def test_kernel_without_the_emulator_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="arm64") as caught:
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
    for mirror, said in (
        (Mirror("http://mirror.example/debian"), "--security-mirror names"),
        (Mirror(), "--mirror names"),
    ):
        with pytest.raises(ImageError, match="does not have a") as caught:
            mirror.unpack(tmp_path, ["bash"], log=tmp_path / "log")
        assert caught.value.hint.startswith(said)
        assert caught.value.hint.endswith("the whole log: log")


def test_archive_after_its_validity_is_accepted_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Sequence[object]] = []

    def refused(*words: object, **_: object) -> None:
        commands.append(words)
        said = "E: Release file for http://a.example/dists/forky/InRelease is expired (invalid since 23d 12h)."
        if EXPIRED not in words:
            raise ImageError(said, hint="the whole log: log")

    monkeypatch.setattr("images.debian.run", refused)
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: "http://a.example/ bookworm")
    with pytest.raises(ImageError, match="is expired") as caught:
        Mirror().install(tmp_path / "base.tar", ["bash"], (), log=tmp_path / "log")
    assert "--expired" in caught.value.hint
    Mirror(expired=True).install(tmp_path / "base.tar", ["bash"], (), log=tmp_path / "log")
    Mirror(expired=True).unpack(tmp_path, ["bash"], log=tmp_path / "log")
    assert Mirror(expired=True).cache_inputs == Mirror().cache_inputs, "the packages are the same"
    assert len(commands) == 3


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
    newer = Mirror(release=DEBIAN_13)
    for mirror, fresh in ((own, False), (own, False), (other, False), (other, True), (own, False), (newer, False)):
        assert cross.unpack_python(steps, mirror, fresh=fresh).is_dir()
    assert [each.partition(" main")[0] for each in asked] == [
        "deb http://a.example/ bookworm", "deb http://mirror.example/debian bookworm",
        "deb http://mirror.example/debian bookworm", "deb http://a.example/ trixie",
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
    with pytest.raises(ImageError, match="libnew"):
        libraries.find_sources(tmp_path, ["libnew"])
    changed_last(tmp_path, "libssl3t64", "openssl (3.5.4-1~deb13u1) trixie-security; urgency=high")
    assert libraries.find_sources(tmp_path, ["libssl"]) == ["openssl (= 3.5.4-1~deb13u1)"], "of Debian 13"
    shutil.rmtree(tmp_path / "usr/share/doc/libssl3t64")
    for why in ("libz", "libssl"):
        changed_last(tmp_path, "libssl3", "nothing of it")
        with pytest.raises(ImageError, match="the version"):
            libraries.find_sources(tmp_path, [why])


def test_unknown_library_is_reported_before_the_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL of Debian 13 brought a library that the one of Debian 12 does not need."""
    needs = {
        "python3.13": ["libz.so.1", "libc.so.6"], "_ssl.cpython-313.so": ["libcrypto.so.3"],
        "libcrypto.so.3": ["libnew.so.1", "libz.so.1", "ld-linux-aarch64.so.1"], "libz.so.1": ["libcrypto.so.3"],
    }  # fmt: skip
    places = ("usr/bin", "usr/lib/python3.13/lib-dynload", libraries.FOLDER, libraries.FOLDER)
    for place, name in zip(places, needs, strict=True):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).touch()

    def said(*words: str) -> str:
        lines = (f" 0x0000000000000001 (NEEDED)  Shared library: [{name}]" for name in needs[Path(words[-1]).name])
        return "\n".join(lines)

    monkeypatch.setattr("images.frozen.libraries.run_for_output", said)
    found = libraries.list_needed(tmp_path, "3.13")
    assert found == ["libcrypto", "libnew", "libz"]
    with pytest.raises(ImageError, match="libnew"):
        libraries.find_sources(tmp_path, found)


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
    with pytest.raises(ImageError, match="bookworm"):
        Mirror().sources("main")


def test_other_release_comes_from_the_same_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    """apt of a machine with Debian 12 knows mirrors, which have Debian 13 too."""
    places = ("a.example/debian bookworm", "a.example/debian bookworm-updates", "b.example/ bookworm-security")
    said = "".join(f"http://{place}\n" for place in places)
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: said)
    found = [f"deb http://{place.replace('bookworm', 'trixie')} main" for place in places]
    mirror = Mirror(release=DEBIAN_13)
    assert mirror.sources("main").splitlines() == found
    others = [f"deb http://a.example/debian {suite} main" for suite in ("trixie-backports", "forky")]
    assert mirror.sources("main", borrowed=True).splitlines() == [*found, *others]
    assert "trixie" not in Mirror(release=DEBIAN_12).sources("main", borrowed=True)


def test_kernel_and_rauc_of_debian_13_come_from_other_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is run as mmdebstrap runs it, with the new root as its only argument."""
    commands: list[Sequence[object]] = []
    monkeypatch.setattr("images.debian.run_for_output", lambda *_: "http://a.example/ bookworm\n")
    monkeypatch.setattr("images.debian.run", lambda *words, **_: commands.append(words))
    Mirror(release=DEBIAN_13).install(tmp_path / "base.tar", ["bash"], (), log=tmp_path / "log")
    [hook] = [str(word) for word in commands[0] if "setup-hook" in str(word)]
    script = hook.removeprefix("--setup-hook=")
    subprocess.run(["sh", "-c", script, "exec", str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / PREFERENCES).read_text().split("\n\n") == [
        "Package: *\nPin: release n=trixie-backports\nPin-Priority: -1",
        "Package: src:linux src:linux-signed-arm64 src:linux-base\nPin: release n=trixie-backports\nPin-Priority: 500",
        "Package: *\nPin: release n=forky\nPin-Priority: -1",
        "Package: src:rauc src:libnl3\nPin: release n=forky\nPin-Priority: 500\n",
    ]  # fmt: skip


def test_files_are_left_out_unless_a_later_pattern_keeps_them() -> None:
    options = [option.partition("=")[2] for option in rootfs.mmdebstrap_options()]
    kept = "path-include=/usr/lib/modules/*/kernel/drivers/scsi/sd_mod.ko*"
    assert options.index("path-exclude=/usr/lib/modules/*/kernel/drivers/scsi/*") < options.index(kept)
    assert not [option for option in options if option.partition("=")[2].startswith("/lib/")]


def test_firmware_and_device_trees_are_kept_next_to_the_root(tmp_path: Path) -> None:
    root, trees = tmp_path / "root", "usr/lib/modules/7.3.4/dtb/broadcom"
    firmware = ("start4.elf", "overlays/a.dtbo")
    names = (*(f"raspi-firmware/{name}" for name in firmware), "u-boot/rpi_arm64/u-boot.bin")
    own = (f"{trees}/bcm2711-rpi-4-b.dtb", f"{trees}/bcm4908-x.dtb")
    for name in (*(f"usr/lib/{name}" for name in names), *own):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    rootfs._keep_firmware(root)
    found = {path.name for path in (tmp_path / "firmware").iterdir()}
    assert found == {"start4.elf", "bcm2711-rpi-4-b.dtb", "u-boot.bin"}
