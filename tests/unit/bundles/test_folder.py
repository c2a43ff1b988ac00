"""The folder of a hub's bundles: bundles are added as a whole and never replaced, within limits."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from bridge.block_index import INDEX_BYTES_MAX, SUFFIX, BlockIndex
from bridge.hub_bundles import NAME_CHARACTERS_MAX, is_bundle_name, is_served_name
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from cloud.hub.bundles import folder as module
from cloud.hub.bundles.checking import require_bundles
from cloud.hub.bundles.folder import BundleFolder, BundleRefused, StoredBundle
from cloud.hub.bundles.limits import BUNDLE_BYTES_MAX, BUNDLES_MAX, FREE_BYTES_MIN
from edge.configuration.kinds import KINDS
from tests.support.processes import wait_until

CONTENT = b"hsqs" + bytes(range(256)) * 10
NAME = "waypost-0.2.0-arm64.raucb"
SYSTEM = """
apiVersion: waypost/v1
kind: System
metadata: {{name: gateway}}
spec: {{version: "2", build: {build}, url: "{url}", sha256: {sha256}, size: {size}}}
"""


@pytest.fixture
def bundles(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path / "hub" / "bundles")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Bundle in the folder of its maker."""
    (tmp_path / "built").mkdir()
    file = tmp_path / "built" / NAME
    file.write_bytes(CONTENT)
    return file


def index_of(content: bytes) -> bytes:
    return BlockIndex(hashlib.sha256(content).hexdigest(), len(content), ()).encode()


def put_index(bundle: Path, content: bytes) -> Path:
    file = bundle.with_name(bundle.name + SUFFIX)
    file.write_bytes(content)
    return file


def read(bundles: BundleFolder, name: str) -> bytes | None:
    opened = bundles.open(name)
    if opened is None:
        return None
    with open(opened.descriptor, "rb") as source:
        return source.read()


def left(bundles: BundleFolder) -> list[str]:
    return sorted(path.name for path in bundles.folder.iterdir() if path.name != module.LOCK)


@pytest.mark.parametrize(
    ("name", "bundle", "served"),
    [
        (NAME, True, True),
        (NAME + SUFFIX, False, True),
        ("a" * (NAME_CHARACTERS_MAX - 6) + ".raucb", True, True),
        ("a" * (NAME_CHARACTERS_MAX - 5) + ".raucb", False, False),
        (".hidden.raucb", False, False),
        ("../registry.raucb", False, False),
        ("a/b.raucb", False, False),
        ("..", False, False),
        (".lock", False, False),
        ("x.raucb\n", False, False),
        ("x.raucb.blocks.blocks", False, False),
        ("ü.raucb", False, False),
        ("", False, False),
    ],
)
def test_names_are_file_names_of_bundles_only(name: str, bundle: bool, served: bool) -> None:
    assert (is_bundle_name(name), is_served_name(name)) == (bundle, served)


def test_added_bundle_is_served_with_its_index(bundles: BundleFolder, built: Path) -> None:
    assert bundles.bundles() == []
    index = put_index(built, index_of(CONTENT))
    made = bundles.add(built)
    assert made == StoredBundle(NAME, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), True)
    assert bundles.bundles() == [made]
    assert (read(bundles, NAME), read(bundles, index.name)) == (CONTENT, index.read_bytes())
    assert left(bundles) == [NAME, index.name]
    assert (bundles.folder / NAME).stat().st_mode & 0o077 == 0
    assert bundles.add(built) == made, "again"


def test_bundle_without_index_leaves_none_of_another(bundles: BundleFolder, built: Path) -> None:
    bundles.folder.mkdir(parents=True)
    put_index(bundles.folder / NAME, b"left by a removal that was cut off")
    assert not bundles.add(built).has_index
    assert left(bundles) == [NAME]


def test_other_content_does_not_replace_a_bundle(bundles: BundleFolder, built: Path) -> None:
    bundles.add(built)
    built.write_bytes(CONTENT + b"more")
    with pytest.raises(BundleRefused, match="another bundle called"):
        bundles.add(built)
    assert read(bundles, NAME) == CONTENT
    assert bundles.remove(NAME)
    assert bundles.add(built).size == len(CONTENT) + 4
    found = bundles.find(NAME)
    assert found is not None
    assert found.sha256 == hashlib.sha256(CONTENT + b"more").hexdigest(), "not the one that was known before"


def test_bundle_is_opened_by_its_digest(bundles: BundleFolder, built: Path) -> None:
    put_index(built, index_of(CONTENT))
    digest = bundles.add(built).sha256
    for name in (NAME, NAME + SUFFIX):
        opened = bundles.open(name, digest)
        assert opened is not None
        os.close(opened.descriptor)
    (bundles.folder / NAME).unlink()
    assert bundles.open(NAME + SUFFIX, digest) is None, "an index without its bundle"
    (bundles.folder / NAME).write_bytes(CONTENT + b"another")
    before = len(os.listdir("/proc/self/fd"))
    assert bundles.open(NAME, digest) is None
    assert bundles.open(NAME + SUFFIX, digest) is None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_removal_takes_the_index_too(bundles: BundleFolder, built: Path) -> None:
    put_index(built, index_of(CONTENT))
    bundles.add(built)
    opened = bundles.open(NAME)
    assert opened is not None
    assert bundles.remove(NAME)
    assert left(bundles) == []
    with open(opened.descriptor, "rb") as source:
        assert source.read() == CONTENT, "a download that runs ends well"
    assert not bundles.remove(NAME)
    assert not bundles.remove("../hub.yaml")
    assert bundles.find(NAME) is None


@pytest.mark.parametrize(
    ("content", "words"), [(index_of(CONTENT + b"x"), "of another bundle"), (b"not an index", "blocks: ")]
)
def test_wrong_index_is_refused_with_its_bundle(bundles: BundleFolder, built: Path, content: bytes, words: str) -> None:
    put_index(built, content)
    with pytest.raises(BundleRefused, match=words):
        bundles.add(built)
    assert left(bundles) == []


def test_what_is_no_bundle_is_refused(bundles: BundleFolder, built: Path) -> None:
    built.write_bytes(b"PK\3\4")
    with pytest.raises(BundleRefused, match="not a bundle"):
        bundles.add(built)
    other = built.with_name("system.img")
    other.write_bytes(CONTENT)
    with pytest.raises(BundleRefused, match="ends with"):
        bundles.add(other)
    with built.open("wb") as file:
        file.truncate(BUNDLE_BYTES_MAX + 1)
    with pytest.raises(BundleRefused, match="the limit"):
        bundles.add(built)
    assert left(bundles) == []


def test_number_of_bundles_is_limited(bundles: BundleFolder, built: Path) -> None:
    for number in range(BUNDLES_MAX):
        bundles.add(built.rename(built.with_name(f"{number}.raucb")))
        built.write_bytes(CONTENT)
    with pytest.raises(BundleRefused, match="the limit"):
        bundles.add(built)
    bundles.remove("0.raucb")
    bundles.add(built)
    assert len(bundles.bundles()) == BUNDLES_MAX


def test_space_for_registry_and_lake_stays_free(tmp_path: Path, built: Path) -> None:
    free = [FREE_BYTES_MIN + INDEX_BYTES_MAX + len(CONTENT) - 1]
    bundles = BundleFolder(tmp_path / "bundles", free=lambda _: free[0])
    with pytest.raises(BundleRefused, match="1 MiB of free"):
        bundles.add(built)
    assert left(bundles) == []
    free[0] += 1
    bundles.add(built)


def test_copy_that_fails_leaves_nothing(bundles: BundleFolder, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        bundles.add(built)
    monkeypatch.undo()
    assert left(bundles) == []
    bundles.add(built)


def test_part_of_an_interrupted_copy_is_removed(bundles: BundleFolder, built: Path) -> None:
    bundles.folder.mkdir(parents=True)
    (bundles.folder / f".{NAME}.part").write_bytes(b"hsqs")
    assert bundles.bundles() == []
    assert read(bundles, f".{NAME}.part") is None
    bundles.add(built)
    assert left(bundles) == [NAME]


def test_commands_change_the_folder_one_by_one(bundles: BundleFolder, built: Path) -> None:
    """Two commands that add the same bundle at once both succeed, and one copy is there."""
    made: list[StoredBundle] = []
    threads = [threading.Thread(target=lambda: made.append(BundleFolder(bundles.folder).add(built))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    wait_until(lambda: len(made) == 4, timeout_s=60, what="all have ended")
    assert len(set(made)) == 1
    assert left(bundles) == [NAME]


def test_folders_and_pipes_are_not_served(bundles: BundleFolder) -> None:
    (bundles.folder / "folder.raucb").mkdir(parents=True)
    os.mkfifo(bundles.folder / "pipe.raucb")
    assert (read(bundles, "folder.raucb"), read(bundles, "pipe.raucb")) == (None, None)
    assert bundles.bundles() == []


class TestSystemThatNamesABundle:
    """A configuration is accepted when the hub has the bundle that its System names."""

    @pytest.fixture
    def served(self, bundles: BundleFolder, built: Path) -> BundleFolder:
        bundles.add(built)
        return bundles

    def check(self, bundles: BundleFolder, url: str, sha256: str = "", size: int = len(CONTENT)) -> None:
        given = sha256 or hashlib.sha256(CONTENT).hexdigest()
        text = SYSTEM.format(build="b" * 64, url=url, sha256=given, size=size)
        require_bundles(parse(KINDS, text, "test"), bundles)

    def test_bundle_of_this_hub_is_accepted(self, served: BundleFolder) -> None:
        self.check(served, f"hub:{NAME}")

    def test_bundle_of_another_server_is_not_looked_for(self, served: BundleFolder) -> None:
        self.check(served, "https://files.example/x.raucb", "c" * 64, 1)

    @pytest.mark.parametrize(
        ("url", "sha256", "size", "words"),
        [
            ("hub:other.raucb", "", len(CONTENT), "has no bundle"),
            (f"hub:{NAME}", "c" * 64, len(CONTENT), "not those of"),
            (f"hub:{NAME}", "", 1, "not those of"),
        ],
    )
    def test_missing_or_other_bundle_is_refused(
        self, served: BundleFolder, url: str, sha256: str, size: int, words: str
    ) -> None:
        with pytest.raises(ConfigurationRejected, match=words):
            self.check(served, url, sha256, size)

    def test_unreadable_folder_is_named(self, served: BundleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(served, "find", fail)
        with pytest.raises(ConfigurationRejected, match="Input/output error"):
            self.check(served, f"hub:{NAME}")
