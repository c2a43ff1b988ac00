"""Artefacts that a gateway shall hold: which are here, which one is fetched next, and why one is refused.

It knows the configuration and the storage, not the network. It blocks: use it from one thread at a time. `held` and
`troubles` are replaced as a whole, so other threads may read them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import check_board, verify_manifest
from edge.appliance.artefacts.index import IndexedArtefact
from edge.appliance.artefacts.limits import REFUSED_RETRY_S, RETRY_S, WRONG_IMAGES_MAX
from edge.appliance.artefacts.storage import ArtefactStorage
from edge.configuration.resources import ArtefactPart, ArtefactsSpec

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Name and version."""


class HeldArtefact(NamedTuple):
    """Artefact that devices may have: its image is verified and on disk."""

    number: int
    """Number at this gateway, which is never used again."""
    wanted: ArtefactPart
    manifest: ArtefactManifest
    envelope: bytes
    image: Path


class ArtefactTrouble(NamedTuple):
    """Reason why a wanted artefact is not here."""

    words: str
    fault: ArtefactFault | None = None
    """None: it is not refused, and comes when the reason is over."""


class ArtefactTask(NamedTuple):
    """Next thing to fetch."""

    wanted: ArtefactPart
    artefact: IndexedArtefact | None
    """Artefact of the image to fetch; None: fetch the manifest."""
    start: int = 0
    """First missing byte of the image."""

    @property
    def key(self) -> Key:
        """Name and version."""
        return self.wanted.key


class ArtefactLibrary:
    """Artefacts of one gateway. Methods raise OSError and `IndexUnusable`."""

    def __init__(self, storage: ArtefactStorage) -> None:
        self._storage = storage
        self._spec = ArtefactsSpec()
        self._keys: list[MakerPublicKey] = []
        self._failures: dict[Key, tuple[int, float]] = {}
        """Failures in a row, and the monotonic time before which nothing is tried again."""
        self._refused: dict[Key, ArtefactTrouble] = {}
        self._troubles: dict[Key, ArtefactTrouble] = {}
        self.held: Mapping[Key, HeldArtefact] = {}
        """Artefacts for devices."""
        self.troubles: Mapping[Key, ArtefactTrouble] = {}
        """Why wanted artefacts are not here."""

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._storage.close()

    def configure(self, spec: ArtefactsSpec) -> None:
        """Hold these artefacts and no others."""
        self._spec = spec
        self._keys = [MakerPublicKey.parse(pem) for pem in spec.trusted_keys]
        self._failures.clear()
        self._refused.clear()
        self._storage.keep_only({each.key for each in spec.artefacts})

    def next_task(self, now: float, free: int | None) -> ArtefactTask | None:
        """Return what is fetched next; None: nothing now. `now`: monotonic seconds. `free`: bytes of the card that
        images may use; None: no limit."""
        held: dict[Key, HeldArtefact] = {}
        manifests, images = list[ArtefactTask](), list[tuple[int, ArtefactTask]]()
        self._troubles = dict(self._refused)
        room = self._spec.storage_bytes
        for wanted in self._spec.artefacts:
            key = wanted.key
            artefact = self._storage.get(*key)
            refused = None if artefact is None else self._check(artefact, wanted)
            if refused is not None:
                self._troubles[key] = refused
            if artefact is None or refused is not None:
                manifests.append(ArtefactTask(wanted, None))
                continue
            room -= artefact.size
            if artefact.stored and not self._storage.missing(artefact):
                image = self._storage.image(artefact)
                held[key] = HeldArtefact(artefact.id, wanted, artefact.manifest, artefact.envelope, image)
            elif room < 0:
                self._troubles[key] = ArtefactTrouble("all images together exceed storage.bytes of the Artefacts")
            else:
                task = ArtefactTask(wanted, artefact, self._storage.have(artefact))
                if free is not None and artefact.size - task.start > free:
                    self._troubles[key] = ArtefactTrouble("the card has no room for its image beside the messages")
                else:
                    images.append((artefact.sequence, task))
        self.held, self.troubles = held, self._troubles
        ordered = [*manifests, *(task for _, task in sorted(images, key=lambda each: each[0]))]
        return next((task for task in ordered if self._failures.get(task.key, (0, now))[1] <= now), None)

    def take_manifest(self, task: ArtefactTask, envelope: bytes, now: float, utc_s: float | None) -> None:
        """Verify a manifest and accept it, or note why it is refused. `utc_s`: None while the clock may be wrong."""
        wanted = task.wanted
        try:
            manifest = verify_manifest(envelope, self._keys, utc_s)
            if (manifest.name, manifest.version) != task.key:
                words = f"the hub's manifest of {wanted.name} {wanted.version} is that of {manifest.label}"
                raise ArtefactRefused(ArtefactFault.FORGED, words)  # noqa: TRY301 - answered with the others
            _check_boards(manifest, wanted)
            self._storage.accept(manifest, envelope)
        except ArtefactRefused as why:
            self._refuse(task.key, why, now)
            return
        self._refused.pop(task.key, None)
        self._failures.pop(task.key, None)
        artefact = self._storage.get(*task.key)
        if artefact is not None and artefact.wrong >= WRONG_IMAGES_MAX:  # the same manifest as before
            self._failures[task.key] = 0, now + REFUSED_RETRY_S

    def take_content(self, task: ArtefactTask, content: bytes, now: float) -> None:
        """Append bytes to an image. A complete one is verified, and held or refused."""
        artefact = task.artefact
        if artefact is None:
            return
        if content:
            self._storage.append(artefact, content)
        self._failures.pop(task.key, None)
        self._refused.pop(task.key, None)
        if task.start + len(content) < artefact.size:
            return
        try:
            self._storage.complete(artefact)
        except ArtefactRefused as why:
            log.warning("artefact %s %s: %s", *task.key, why)
            self._failures[task.key] = 0, now + RETRY_S[-1]
            return
        log.info("artefact %s %s is here: %d bytes, verified", *task.key, artefact.size)

    def refuse_image(self, task: ArtefactTask, why: ArtefactRefused, now: float) -> None:
        """Note that the hub has another image than the manifest says."""
        self._refuse(task.key, why, now)

    def fail(self, task: ArtefactTask, why: str, now: float) -> None:
        """Note that the hub does not have this artefact now."""
        failures = self._failures.get(task.key, (0, 0.0))[0]
        self._failures[task.key] = failures + 1, now + RETRY_S[min(failures, len(RETRY_S) - 1)]
        self._refused[task.key] = ArtefactTrouble(why)

    def evict(self, served_at: Mapping[int, float]) -> bool:
        """Delete one image, a download in progress first, then the one served longest ago; False: there is none.
        `served_at`: monotonic times by the number of the artefact."""
        here = [artefact for artefact in self._storage if self._storage.have(artefact)]
        if not here:
            return False
        chosen = min(here, key=lambda one: (one.stored, served_at.get(one.id, 0.0), -one.size))
        self._storage.evict(chosen)
        log.warning("artefact %s %s: its image is deleted, as messages need the room", chosen.name, chosen.version)
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check(self, artefact: IndexedArtefact, wanted: ArtefactPart) -> ArtefactTrouble | None:
        """Return why an accepted artefact is not for devices under the present configuration."""
        if artefact.wrong >= WRONG_IMAGES_MAX:
            words = f"the image of {artefact.name} {artefact.version} had a wrong checksum {WRONG_IMAGES_MAX} times"
            return ArtefactTrouble(words, ArtefactFault.FORGED)
        try:
            _check_boards(verify_manifest(artefact.envelope, self._keys, None), wanted)
        except ArtefactRefused as why:
            return ArtefactTrouble(str(why), why.fault)
        return None

    def _refuse(self, key: Key, why: ArtefactRefused, now: float) -> None:
        if self._refused.get(key) != (trouble := ArtefactTrouble(str(why), why.fault)):
            log.warning("artefact %s %s is refused (%s): %s", *key, why.fault.value, why)
        self._refused[key] = trouble
        self._failures[key] = 0, now + REFUSED_RETRY_S


def _check_boards(manifest: ArtefactManifest, wanted: ArtefactPart) -> None:
    """Check that an artefact is for a board of the devices here. Raises `ArtefactRefused`."""
    if wanted.boards and not set(wanted.boards) & set(manifest.boards):
        check_board(manifest, wanted.boards[0])
