"""Folder of the artefacts of a gateway: images, downloads in progress, and their index.

``ID.part`` is a download: its length is the place to continue. A complete one is verified, made durable, renamed to
``ID.image``, and then marked as stored in the index. A process that was killed between two of these steps finds the
file in the state of the last one, and continues: an image that is not marked is verified again, and a marked one
without a file is fetched again. When a version was signed again with another image, the old one stays until the new one
is stored. It blocks: use it from one thread at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.limits import READ_BYTES
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import ImageVerifier, check_sequence
from bridge.durable_file import FOLDER_MODE, sync_path
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.index import ArtefactIndex, IndexedArtefact
from edge.appliance.artefacts.limits import NAMES_MAX, SYNC_BYTES

FOLDER: Final = "artefacts"
"""Folder in the gateway's data directory."""
_FILE: Final = re.compile(r"(\d+)\.(part|image)", re.ASCII)


class OldHashes(NamedTuple):
    """Checksums of an image that old clients compare, hexadecimal; the signed one is SHA-256."""

    sha1: str
    md5: str


class ArtefactStorage:
    """Artefacts on one card. Methods raise OSError and `IndexUnusable`."""

    def __init__(self, folder: Path, index: ArtefactIndex) -> None:
        self._folder = folder
        self._index = index
        self._part: tuple[int, BinaryIO] | None = None
        """Artefact of the download in progress, and its open file."""
        self._synced = 0
        """Bytes of the open file that are on disk."""

    @classmethod
    def open(cls, data: Path) -> Self:
        """Open the folder in a data directory, and make it agree with its index."""
        folder = data / FOLDER
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        opened = cls(folder, ArtefactIndex.open(folder))
        try:
            opened._reconcile()
        except BaseException:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        """Close all files. Idempotent."""
        self._close_part()
        self._index.close()

    def __iter__(self) -> Iterator[IndexedArtefact]:
        return iter(self._index)

    def get(self, name: str, version: str) -> IndexedArtefact | None:
        """Return an artefact with an accepted manifest; None if it has none."""
        return self._index.get(name, version)

    def of_number(self, number: int) -> IndexedArtefact | None:
        """Return the artefact of a number; None if it is unknown."""
        return self._index.of_number(number)

    def before(self, name: str, version: str) -> IndexedArtefact | None:
        """Return the artefact with an image that the present one of this version is to replace; None without one."""
        found = self._index.before(name, version)
        return None if found is None or self.missing(found) else found

    def image(self, artefact: IndexedArtefact) -> Path:
        """Return the path of the verified image."""
        return self._folder / f"{artefact.id}.image"

    def accept(self, manifest: ArtefactManifest, envelope: bytes) -> None:
        """Accept a verified manifest. Raises `ArtefactRefused` for a downgrade, and for one name too many."""
        before = self._index.get(manifest.name, manifest.version)
        if before is not None and before.envelope == envelope:
            return
        if before is not None and _contents(before.manifest) == _contents(manifest):  # signed with another key
            self._index.replace_envelope(before, envelope)
            return
        check_sequence(manifest, self._index.highest_held(manifest.name))
        if before is None and not self._index.remembers(manifest.name):
            words = f"{NAMES_MAX} names of artefacts are remembered here, and {manifest.name} is not one of them"
            raise ArtefactRefused(ArtefactFault.TOO_MANY_NAMES, words)
        stored = before is not None and before.stored
        replaced = None if stored else self.before(manifest.name, manifest.version)
        if before is not None and not stored:
            self._delete(before)
        if replaced is not None and _image(replaced.manifest) == _image(
            manifest
        ):  # the image of before is signed again
            self._index.restore(replaced, manifest, envelope)
        else:
            self._index.add(manifest, envelope)

    def have(self, artefact: IndexedArtefact) -> int:
        """Return the bytes of the image that are here, verified or not."""
        if self._part is not None and self._part[0] == artefact.id:
            return self._part[1].tell()
        for path in (self.image(artefact), self._part_path(artefact)):
            with contextlib.suppress(FileNotFoundError):
                return path.stat().st_size
        return 0

    def append(self, artefact: IndexedArtefact, content: bytes) -> None:
        """Append the next bytes of an image."""
        if self._part is None or self._part[0] != artefact.id:
            self._close_part()
            opened = self._part_path(artefact).open("ab", buffering=0)
            self._part, self._synced = (artefact.id, opened), opened.tell()
        file = self._part[1]
        written = 0
        while written < len(content):  # an unbuffered write may be short
            written += file.write(content[written:])
        if file.tell() - self._synced >= SYNC_BYTES:
            os.fsync(file.fileno())
            self._synced = file.tell()

    def complete_file(self, artefact: IndexedArtefact) -> Path:
        """Return the file with a complete image, for `verify_file`."""
        self._close_part()
        image = self.image(artefact)
        return image if image.exists() else self._part_path(artefact)

    def keep_verified(self, artefact: IndexedArtefact, hashes: OldHashes) -> None:
        """Mark an image that `verify_file` has accepted as stored, and delete the one that it replaces."""
        image = self.image(artefact)
        if not image.exists():
            self._part_path(artefact).rename(image)
        sync_path(self._folder)
        self._index.mark_stored(artefact, *hashes)
        self._delete_superseded()

    def drop_wrong(self, artefact: IndexedArtefact) -> None:
        """Delete an image with a wrong checksum, and count it."""
        self._delete(artefact)
        self._index.count_wrong(artefact)

    def evict(self, artefact: IndexedArtefact) -> None:
        """Delete the image, or what there is of it; it may be fetched again."""
        with contextlib.suppress(OSError):  # frees the space at once; a download that has it open ends
            os.truncate(self.image(artefact), 0)
        self._delete(artefact)
        with contextlib.suppress(IndexUnusable):  # on a full card: an image without a file counts as missing anyway
            self._index.mark_missing(artefact)

    def keep_only(self, wanted: Collection[tuple[str, str]]) -> None:
        """Delete the images of artefacts other than these, given by name and version."""
        for artefact in self._index:
            if (artefact.name, artefact.version) not in wanted:
                self._delete(artefact)  # first: on a full card the index cannot be written
                self._index.forget(artefact)
        self._index.trim()

    def missing(self, artefact: IndexedArtefact) -> bool:
        """Return whether the file of a stored image is gone or has another size; then it is to be fetched again."""
        try:
            gone = self.image(artefact).stat().st_size != artefact.size
        except FileNotFoundError:
            gone = True
        if gone:
            self.evict(artefact)
        return gone

    # --- inside -----------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Delete files without a row and images that were replaced, and find out which images are gone."""
        known = {artefact.id for artefact in self._index}
        for path in self._folder.iterdir():
            found = _FILE.fullmatch(path.name)
            if found is not None and int(found[1]) not in known:
                path.unlink()
        for artefact in self._index:
            if artefact.stored:
                self.missing(artefact)
        self._delete_superseded()

    def _delete_superseded(self) -> None:
        """Delete images that the stored one of their version has replaced. Their downloads end."""
        stored = [each for each in self._index if each.stored]
        current = {(each.name, each.version) for each in stored if not each.superseded}
        for each in stored:
            if each.superseded and (each.name, each.version) in current:
                self._delete(each)
                with contextlib.suppress(IndexUnusable):  # an image without a file counts as missing anyway
                    self._index.mark_missing(each)

    def _delete(self, artefact: IndexedArtefact) -> None:
        if self._part is not None and self._part[0] == artefact.id:
            self._close_part()
        self._part_path(artefact).unlink(missing_ok=True)
        self.image(artefact).unlink(missing_ok=True)

    def _part_path(self, artefact: IndexedArtefact) -> Path:
        return self._folder / f"{artefact.id}.part"

    def _close_part(self) -> None:
        if self._part is not None:
            (_, file), self._part = self._part, None
            file.close()


def verify_file(path: Path, manifest: ArtefactManifest, cancelled: Callable[[], bool]) -> OldHashes:
    """Verify an image, which is durable on return; for any thread. Return its checksums for old clients. Raises
    `ArtefactRefused`, and OSError also when it was cancelled."""
    verifier = ImageVerifier(manifest)
    sha1, md5 = hashlib.sha1(usedforsecurity=False), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while content := file.read(READ_BYTES):
            if cancelled():
                raise InterruptedError(f"{path}: the verification was cancelled")
            verifier.add(content)
            sha1.update(content)
            md5.update(content)
        verifier.finish()
        os.fsync(file.fileno())
    return OldHashes(sha1.hexdigest(), md5.hexdigest())


def _contents(manifest: ArtefactManifest) -> tuple[int, int, bytes]:
    return manifest.sequence, manifest.size, manifest.sha256


def _image(manifest: ArtefactManifest) -> tuple[int, bytes]:
    return manifest.size, manifest.sha256
