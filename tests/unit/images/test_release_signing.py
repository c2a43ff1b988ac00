"""A release is signed by a key that was never on the building machine, and only if that machine made it."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import struct
from pathlib import Path

import pytest
import yaml
import zstandard

from bridge.block_index import BlockIndex
from edge.appliance.main import run
from images.disk import bundle, filesystem, signing
from images.disk.block_index import write_index
from images.errors import ImageError
from images.output import copy_file
from images.programs import find, run_for_output

NEEDED = ("openssl", "mke2fs", "debugfs")
pytestmark = pytest.mark.skipif(any(find(each) is None for each in NEEDED), reason="openssl or e2fsprogs missing")
needs_rauc = pytest.mark.skipif(
    any(find(each) is None for each in (*bundle.PROGRAMS, "unsquashfs")), reason="rauc or squashfs-tools missing"
)
MIB = 4


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> signing.SigningKeys:
    """Return the key of releases, which is on this machine only."""
    return signing.load_keys(tmp_path_factory.mktemp("release"), None, None)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory, release: signing.SigningKeys) -> signing.SigningKeys:
    """Return the keys of a building machine that has the certificate of releases."""
    return signing.load_keys(tmp_path_factory.mktemp("builder"), None, release.certificate)


@pytest.fixture
def files(tmp_path: Path, builder: signing.SigningKeys) -> Path:
    """Return the checksums of an image as a building machine leaves them, next to the files."""
    return publish(tmp_path / "cards", builder, builder.keyring)


def make_root(folder: Path, keyring: bytes | None) -> Path:
    """Make the root file system of a system that trusts these certificates; None: it has no keyring."""
    tree = folder / "tree"
    (tree / "etc/rauc").mkdir(parents=True)
    (tree / "content").write_bytes(bytes(range(256)) * 2_000)
    if keyring is not None:
        (tree / "etc/rauc/keyring.pem").write_bytes(keyring)
    root = folder / "root.ext4"
    log = folder / "log"
    filesystem.make(root, tree, mebibytes=MIB, label="waypost-root", date=0, journal=False, log=log)
    return root


def publish(folder: Path, builder: signing.SigningKeys, keyring: bytes | None, *, stem: str = "X") -> Path:
    """Make an image of a system that trusts these certificates, with signed checksums, and return those."""
    work = folder / f"work-{stem}"
    work.mkdir(parents=True)
    root = make_root(work, keyring)
    boot = struct.pack("<BxxxBxxxII", 0x80, 0x0C, 1, 7)
    entry = struct.pack("<BxxxBxxxII", 0, 0x83, 8, root.stat().st_size >> 9)
    image = (bytes(446) + boot + entry + bytes(32) + b"\x55\xaa").ljust(4096, b"\0") + root.read_bytes()
    (folder / f"{stem}.img.zst").write_bytes(zstandard.compress(image))
    (folder / f"{stem}.img.xz").write_bytes(lzma.compress(image, preset=0))
    (folder / f"{stem}.img.bmap").write_text("map")
    shutil.rmtree(work)
    return seal(folder / f"{stem}.sha256", builder)


def seal(sums: Path, builder: signing.SigningKeys) -> Path:
    """Write the checksums of an image's files and the builder's signature."""
    named = sorted(sums.parent.glob(f"{sums.stem}.img.*"))
    sums.write_text("".join(f"{filesystem.compute_sha256(path)}  {path.name}\n" for path in named))
    signing.sign(sums, builder, sums.parent.with_name("log"))
    return sums


def sign(builder: Path, release: signing.SigningKeys, out: Path, *words: Path | str) -> int:
    given = ("--builder-certificate", builder, "--key", release.key, "--certificate", release.certificate, "--out", out)
    return run(["image", "sign", *map(str, (*words, *given))])


class TestBuildingMachine:
    def test_gateways_recognise_the_release_only(
        self, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        assert builder.keyring == release.certificate.read_bytes()
        assert builder.certificate.read_bytes() not in builder.keyring
        coming = signing.load_keys(tmp_path / "coming", None, None).certificate
        both = signing.load_keys(builder.certificate.parent.parent, None, release.certificate, [coming])
        assert both.keyring == release.certificate.read_bytes() + coming.read_bytes()

    def test_certificate_with_its_key_is_refused(self, release: signing.SigningKeys, tmp_path: Path) -> None:
        (tmp_path / "both.pem").write_bytes(release.certificate.read_bytes() + release.key.read_bytes())
        with pytest.raises(ImageError, match="has a private key"):
            signing.load_keys(tmp_path, None, tmp_path / "both.pem")

    def test_resource_of_an_unsigned_bundle_is_refused(
        self, release: signing.SigningKeys, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["image", "bundle", "--certificate", str(release.certificate), "--url", "hub:"]) == 2
        assert "waypost image sign" in capsys.readouterr().err


class TestImages:
    def test_signature_is_that_of_the_release(
        self, files: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        """Into the folder of the image it replaces the building machine's."""
        log = tmp_path / "log"
        for out in (tmp_path / "signed", files.parent):
            assert sign(builder.certificate, release, out, files) == 0
            assert (out / "X.sha256.p7s").is_file()
        assert [path.name for path in (tmp_path / "signed").iterdir()] == ["X.sha256.p7s"]
        signing.verify(files, release.certificate, log)
        with pytest.raises(ImageError):
            signing.verify(files, builder.certificate, log)

    @pytest.mark.parametrize(
        ("spoil", "code", "said"),
        [
            (lambda sums: sums.with_name("X.img.zst").write_text("changed"), 4, "does not match its checksum"),
            (lambda sums: sums.with_name("X.img.bmap").unlink(), 2, "X.img.bmap does not exist"),
            (lambda sums: sums.write_text(sums.read_text() + "\n"), 4, "was not signed by the key of"),
            (lambda sums: sums.with_name("X.sha256.p7s").unlink(), 2, "X.sha256.p7s does not exist"),
            (lambda sums: sums.with_name("X.sha256.p7s").write_text("x"), 4, "openssl ended with"),
        ],
    )
    def test_changed_or_missing_file_is_not_signed(
        self,
        files: Path,
        builder: signing.SigningKeys,
        release: signing.SigningKeys,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        spoil: object,
        code: int,
        said: str,
    ) -> None:
        assert callable(spoil)
        spoil(files)
        assert sign(builder.certificate, release, tmp_path / "signed", files) == code
        assert said in capsys.readouterr().err
        assert not (tmp_path / "signed").exists()

    def test_image_of_another_machine_is_not_signed(
        self, files: Path, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        other = signing.load_keys(tmp_path / "other", None, None)
        assert sign(other.certificate, release, tmp_path / "signed", files) == 4
        assert not (tmp_path / "signed").exists()

    def test_other_files_are_refused_before_the_first_is_signed(
        self, files: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        assert sign(builder.certificate, release, tmp_path / "signed", files, files.with_name("X.img.zst")) == 2
        (tmp_path / "more").mkdir()
        shutil.copy(files, tmp_path / "more")
        assert sign(builder.certificate, release, tmp_path / "signed", files, tmp_path / "more" / files.name) == 2
        assert sign(release.key, release, tmp_path / "signed", files) == 2, "a key is not the builder's certificate"
        assert sign(builder.certificate, release, tmp_path / "signed", files, "--url", "hub:") == 2, "no bundle"
        assert not (tmp_path / "signed").exists()

    def test_interrupted_command_is_repeated(
        self, files: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        """The first of two images in the folder of the results was signed already."""
        later = publish(files.parent, builder, builder.keyring, stem="Y")
        assert sign(builder.certificate, release, files.parent, files) == 0
        assert sign(builder.certificate, release, files.parent, files, later) == 0
        for each in (files, later):
            signing.verify(each, release.certificate, tmp_path / "log")
        files.with_name("X.img.zst").write_text("changed")
        assert sign(builder.certificate, release, files.parent, files, later) == 4

    def test_results_are_on_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[str] = []
        folder, made = tmp_path / "stick", tmp_path / "X.sha256.p7s"
        made.write_text("signature")
        monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.readlink(f"/proc/self/fd/{opened}")))
        assert copy_file(made, folder).read_text() == "signature"
        assert synced == [str(folder / "X.sha256.p7s.part"), str(folder)]


class TestTrust:
    """A system gets the signature of the release only if its gateways trust exactly the named keys."""

    @pytest.mark.parametrize("named", ["test", "release test", "other", "release other", ""])
    def test_image_that_trusts_other_keys_is_not_signed(
        self,
        builder: signing.SigningKeys,
        release: signing.SigningKeys,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        named: str,
    ) -> None:
        other = signing.load_keys(tmp_path / "other", None, None)
        pem = {"test": builder.certificate, "release": release.certificate, "other": other.certificate}
        files = publish(tmp_path / "cards", builder, b"".join(pem[each].read_bytes() for each in named.split()))
        assert sign(builder.certificate, release, tmp_path / "signed", files) == 4
        said = capsys.readouterr().err
        assert ("test key" in said) == ("test" in named)
        assert "nothing was signed" in said
        assert not (tmp_path / "signed").exists()

    @pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a note\n"])
    def test_image_without_a_legible_keyring_is_not_signed(
        self, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path, content: bytes | None
    ) -> None:
        keyring = content and release.certificate.read_bytes() + content
        files = publish(tmp_path / "cards", builder, keyring)
        assert sign(builder.certificate, release, tmp_path / "signed", files) == 4
        assert not (tmp_path / "signed").exists()

    @pytest.mark.parametrize("suffix", ["zst", "xz"])
    def test_both_forms_of_an_image_are_read(
        self, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path, suffix: str
    ) -> None:
        files = publish(tmp_path / "cards", builder, builder.keyring)
        wrong = publish(tmp_path / "wrong", builder, builder.certificate.read_bytes())
        shutil.copy(wrong.with_name(f"X.img.{suffix}"), files.parent)
        seal(files, builder)
        assert sign(builder.certificate, release, tmp_path / "signed", files) == 4
        assert not (tmp_path / "signed").exists()

    @pytest.mark.parametrize("damage", ["no image", "garbage", "no partition", "cut"])
    def test_image_that_cannot_be_read_is_not_signed(
        self, files: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path, damage: str
    ) -> None:
        whole = lzma.decompress(files.with_name("X.img.xz").read_bytes())
        damaged = {"no partition": bytes(len(whole)), "cut": whole[:-4096]}.get(damage)
        for name, compress in (("X.img.xz", lzma.compress), ("X.img.zst", zstandard.compress)):
            file = files.with_name(name)
            file.write_bytes(b"garbage" if damaged is None else compress(damaged))
            if damage == "no image":
                file.unlink()
        seal(files, builder)
        assert sign(builder.certificate, release, tmp_path / "signed", files) == 4
        assert not (tmp_path / "signed").exists()

    def test_change_of_the_key_is_named(
        self, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        """The old key signs a system that trusts both keys, or after a theft the new one only."""
        coming = signing.load_keys(tmp_path / "coming", None, None).certificate
        old, new = release.certificate, coming
        both = publish(tmp_path / "both", builder, old.read_bytes() + new.read_bytes())
        only = publish(tmp_path / "only", builder, new.read_bytes())
        out = tmp_path / "signed"
        for files, named in ((both, [old]), (both, [new]), (only, [old]), (only, [old, new])):
            words = [word for each in named for word in ("--trusts", each)]
            assert sign(builder.certificate, release, out, files, *words) == 4
        assert not out.exists()
        assert sign(builder.certificate, release, out, both, "--trusts", new, "--trusts", old) == 0
        assert sign(builder.certificate, release, out, only, "--trusts", new) == 0

    def test_test_key_is_not_the_key_of_releases(
        self, files: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        cache, test_key = builder.certificate.parent.parent, builder.certificate
        for certificate, trusted in ((test_key, []), (release.certificate, [test_key])):
            with pytest.raises(ImageError, match="must not trust") as refused:
                signing.load_keys(cache, None, certificate, trusted)
            assert refused.value.exit_code == 2
        assert sign(builder.certificate, release, tmp_path / "signed", files, "--trusts", test_key) == 2
        assert sign(release.certificate, release, tmp_path / "signed", files) == 2
        assert not (tmp_path / "signed").exists()


@needs_rauc
class TestBundles:
    @pytest.fixture
    def made(self, tmp_path: Path, builder: signing.SigningKeys) -> Path:
        """Return a bundle as a building machine leaves it, with its index."""
        return pack(tmp_path / "bundles", builder, builder.keyring)

    def test_bundle_that_trusts_other_keys_is_not_signed(
        self, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        """A builder that was not given the certificate of releases makes a system that trusts its test key only."""
        test_key, own, out = builder.certificate.read_bytes(), release.certificate.read_bytes(), tmp_path / "signed"
        for number, keyring in enumerate((test_key, own + test_key, None)):
            made = pack(tmp_path / f"bundles-{number}", builder, keyring)
            assert sign(builder.certificate, release, out, made) == 4
            assert not out.exists()

    def test_bundle_with_this_signature_already_is_signed_again(
        self, made: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        out, again = tmp_path / "signed", tmp_path / "again"
        assert sign(builder.certificate, release, out, made) == 0
        assert sign(builder.certificate, release, again, out / made.name) == 0
        run_for_output("rauc", "info", "--keyring", release.certificate, again / made.name)

    def test_signature_index_and_resource_are_those_of_the_release(
        self, made: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        out = tmp_path / "signed"
        assert sign(builder.certificate, release, out, made, "--url", "hub:") == 0
        signed = out / made.name
        info = ("rauc", "info", "--output-format=json")
        told = json.loads(run_for_output(*info, "--keyring", release.certificate, signed))
        assert (told["version"], told["build"]) == ("2", "b" * 64)
        with pytest.raises(ImageError):
            run_for_output(*info, "--keyring", builder.certificate, signed)
        before, after = (
            BlockIndex.decode(each.with_name(f"{each.name}.blocks").read_bytes()) for each in (made, signed)
        )
        assert (after.sha256, after.size) == (filesystem.compute_sha256(signed), signed.stat().st_size)
        assert after.blocks == before.blocks
        assert after.blocks
        end = after.blocks[-1].end
        assert signed.read_bytes()[:end] == made.read_bytes()[:end]
        spec = yaml.safe_load((out / "waypost-2-arm64.system.yaml").read_text())["spec"]
        assert (spec["build"], spec["sha256"], spec["size"]) == ("b" * 64, after.sha256, after.size)

    def test_signed_bundle_is_not_replaced(
        self,
        made: Path,
        builder: signing.SigningKeys,
        release: signing.SigningKeys,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        before = made.read_bytes()
        linked = tmp_path / "linked" / made.name
        linked.parent.mkdir()
        linked.symlink_to(made)
        for file in (made, linked):
            assert sign(builder.certificate, release, file.parent, file) == 2
            assert "--out names another folder" in capsys.readouterr().err
        assert made.read_bytes() == before

    def test_changed_bundle_or_index_is_not_signed(
        self, made: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        out, index = tmp_path / "signed", made.with_name(f"{made.name}.blocks")
        known = index.read_bytes()
        other = signing.load_keys(tmp_path / "other", None, None)
        assert sign(other.certificate, release, out, made) == 4, "another machine built it"
        index.unlink()
        assert sign(builder.certificate, release, out, made) == 2
        index.write_bytes(known[:-1])
        assert sign(builder.certificate, release, out, made) == 4
        index.write_bytes(known)
        content = bytearray(made.read_bytes())
        content[200] ^= 1
        made.write_bytes(content)
        assert sign(builder.certificate, release, out, made) == 4, "the index is of another bundle"
        write_index_of(made, BlockIndex.decode(known))
        assert sign(builder.certificate, release, out, made) == 4, "RAUC finds the changed block"
        assert not out.exists()


def pack(folder: Path, builder: signing.SigningKeys, keyring: bytes | None) -> Path:
    """Make a bundle of a system that trusts these certificates, as a building machine leaves it, with its index."""
    folder.mkdir()
    root = make_root(folder, keyring)
    file = folder / "waypost-2-arm64.raucb"
    bundle.make(file, root, "b" * 64, builder, folder / "log", version="2")
    write_index(file, root)
    return file


def write_index_of(file: Path, known: BlockIndex) -> None:
    """Write an index that matches a changed bundle."""
    forged = BlockIndex(filesystem.compute_sha256(file), file.stat().st_size, known.blocks)
    file.with_name(f"{file.name}.blocks").write_bytes(forged.encode())
