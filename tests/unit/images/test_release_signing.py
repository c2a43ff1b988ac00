"""A release is signed by a key that was never on the building machine, and only if that machine made it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from bridge.block_index import BlockIndex
from edge.appliance.main import run
from images.disk import bundle, filesystem, signing
from images.disk.block_index import write_index
from images.errors import ImageError
from images.programs import find, run_for_output

NEEDED = ("openssl",)
pytestmark = pytest.mark.skipif(any(find(each) is None for each in NEEDED), reason="openssl is not installed")
needs_rauc = pytest.mark.skipif(
    any(find(each) is None for each in (*bundle.PROGRAMS, "mkfs.ext4")), reason="rauc or squashfs-tools missing"
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
    folder = tmp_path / "cards"
    folder.mkdir()
    for name in ("X.img.zst", "X.img.bmap"):
        (folder / name).write_text(name)
    sums = folder / "X.sha256"
    sums.write_text(
        "".join(f"{filesystem.compute_sha256(path)}  {path.name}\n" for path in sorted(folder.glob("X.img.*")))
    )
    signing.sign(sums, builder, tmp_path / "log")
    return sums


def sign(builder: Path, release: signing.SigningKeys, out: Path, *words: Path | str) -> int:
    given = ("--built-by", builder, "--key", release.key, "--certificate", release.certificate, "--out", out)
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
            (lambda sums: sums.with_name("X.sha256.p7s").unlink(), 4, "was not signed by the key of"),
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


@needs_rauc
class TestBundles:
    @pytest.fixture
    def made(self, tmp_path: Path, builder: signing.SigningKeys) -> Path:
        """Return a bundle as a building machine leaves it, with its index."""
        folder, log = tmp_path / "bundles", tmp_path / "log"
        (folder / "tree").mkdir(parents=True)
        (folder / "tree/content").write_bytes(bytes(range(256)) * 2_000)
        root = folder / "root.ext4"
        filesystem.make(root, folder / "tree", mebibytes=MIB, label="waypost-root", date=0, journal=False, log=log)
        file = folder / "waypost-2-arm64.raucb"
        bundle.make(file, root, "b" * 64, builder, log, version="2")
        write_index(file, root)
        return file

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
        self, made: Path, builder: signing.SigningKeys, release: signing.SigningKeys, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = made.read_bytes()
        assert sign(builder.certificate, release, made.parent, made) == 2
        assert "--out names another folder" in capsys.readouterr().err
        assert made.read_bytes() == before

    def test_changed_bundle_or_index_is_not_signed(
        self, made: Path, builder: signing.SigningKeys, release: signing.SigningKeys, tmp_path: Path
    ) -> None:
        out, index = tmp_path / "signed", made.with_name(f"{made.name}.blocks")
        known = index.read_bytes()
        assert sign(release.certificate, release, out, made) == 4, "another machine built it"
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


def write_index_of(file: Path, known: BlockIndex) -> None:
    """Write an index that matches a changed bundle."""
    forged = BlockIndex(filesystem.compute_sha256(file), file.stat().st_size, known.blocks)
    file.with_name(f"{file.name}.blocks").write_bytes(forged.encode())
