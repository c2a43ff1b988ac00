"""Artefacts that a gateway shall hold: which are here, which one is fetched next, and why one is refused.

It knows the configuration and the storage, not the network. Its methods take milliseconds; use them from one thread at
a time. `held` and `troubles` are replaced as a whole, so other threads may read them.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import check_board, verify_manifest
from edge.appliance.artefacts.index import IndexedArtefact
from edge.appliance.artefacts.limits import (
    FAILURES_SHOWN,
    MANIFEST_CHECK_S,
    REFUSED_RETRY_S,
    RETRY_S,
    WRONG_IMAGES_MAX,
    WRONG_RETRY_S,
)
from edge.appliance.artefacts.reports import ReportedArtefact
from edge.appliance.artefacts.storage import ArtefactStorage, OldHashes
from edge.configuration.resources import ArtefactPart, ArtefactsSpec

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Name and version."""


class HeldArtefact(NamedTuple):
    """Artefact that devices may have, by an accepted manifest. Its image is verified, and on disk if `stored`."""

    number: int
    """Number at this gateway, which is never used again."""
    wanted: ArtefactPart
    manifest: ArtefactManifest
    envelope: bytes
    image: Path
    stored: bool = True
    """False while its image is being fetched."""
    hashes: tuple[str, str] = ("", "")
    """SHA-1 and MD5 of the image, for old clients."""

    @property
    def reported(self) -> ReportedArtefact:
        """The artefact, for reports."""
        return _reported(self.number, self.manifest)


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
    check: bool = False
    """The artefact is here, and stays good if this request fails."""
    replaces: IndexedArtefact | None = None
    """Superseded artefact. Its image leaves when the first new bytes come, as there is room for one only."""
    displaces: tuple[IndexedArtefact, ...] = ()
    """Later artefacts of the list that `storage.bytes` has no room for then. Their images leave in the same way."""

    @property
    def key(self) -> Key:
        """Name and version."""
        return self.wanted.key

    @property
    def complete(self) -> bool:
        """True when all bytes are here, and have to be verified."""
        return self.artefact is not None and self.start >= self.artefact.size


class _Superseded(NamedTuple):
    """Artefact of a version that was signed again, and its form for devices."""

    artefact: IndexedArtefact
    served: HeldArtefact


class ArtefactLibrary:
    """Artefacts of one gateway. Methods raise OSError; times are monotonic seconds, except `utc_s`."""

    def __init__(self, storage: ArtefactStorage) -> None:
        self._storage = storage
        self._spec = ArtefactsSpec()
        self._keys: list[MakerPublicKey] = []
        self._failures: dict[Key, tuple[int, float]] = {}
        """Failures in a row, and the time before which nothing is tried again."""
        self._refused: dict[Key, ArtefactTrouble] = {}
        self._verified: dict[int, tuple[bytes, ArtefactManifest | ArtefactTrouble]] = {}
        """Manifest and result of its verification by the number of the artefact, until the configuration changes."""
        self._outdated: set[Key] = set()
        """Artefacts with an image of another size at the hub: their manifests are fetched first."""
        self._check_at: dict[Key, float] = {}
        """Time at which the manifest of a held artefact is fetched again."""
        self._wrong_until: dict[int, float] = {}
        """Time at which an image that was wrong is fetched again, by the number of the artefact."""
        self.held: Mapping[Key, HeldArtefact] = {}
        """Artefacts for devices."""
        self.known: Mapping[Key, HeldArtefact] = {}
        """The same, also those without an image now."""
        self.troubles: Mapping[Key, ArtefactTrouble] = {}
        """Why wanted artefacts are not here."""

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._storage.close()

    def configure(self, spec: ArtefactsSpec) -> None:
        """Hold these artefacts and no others. What failed or was refused is tried again at once where its part or the
        trusted keys have changed."""
        before, self._spec = self._spec, spec
        kept = set[Key]()
        if spec.trusted_keys == before.trusted_keys:
            kept = {each.key for each in set(spec.artefacts) & set(before.artefacts)}
        self._keys = [MakerPublicKey.parse(pem) for pem in spec.trusted_keys]
        self._failures = {key: each for key, each in self._failures.items() if key in kept}
        self._refused = {key: each for key, each in self._refused.items() if key in kept}
        self._verified.clear()
        self._storage.keep_only({each.key for each in spec.artefacts})

    def next_task(self, now: float, free: int | None, utc_s: float | None) -> ArtefactTask | None:
        """Return what is fetched next; None: nothing now. `free`: bytes of the card that images may use; None: no
        limit. `utc_s`: UTC seconds; None while the clock may be wrong."""
        known: dict[Key, HeldArtefact] = {}
        troubles = dict(self._refused)
        manifests, images, checks = list[ArtefactTask](), list[tuple[int, ArtefactTask]](), list[ArtefactTask]()
        beyond = list[IndexedArtefact]()
        room = self._spec.storage_bytes
        for wanted in self._spec.artefacts:
            artefact = self._storage.get(*wanted.key)
            if artefact is None:
                manifests.append(ArtefactTask(wanted, None))
                continue
            stored = artefact.stored and not self._storage.missing(artefact)
            before = None if stored else self._before(wanted, now, utc_s)
            if before is not None:
                known[wanted.key] = before.served
            manifest = self._check(artefact, wanted, now, utc_s)
            if isinstance(manifest, ArtefactTrouble):
                troubles[wanted.key] = manifest
                manifests.append(ArtefactTask(wanted, None))
                room -= 0 if before is None else before.artefact.size
                continue
            room -= artefact.size
            task = ArtefactTask(wanted, artefact, self._storage.have(artefact))
            if before is None:
                known[wanted.key] = self._held(artefact, wanted, manifest, stored=stored)
            elif _needs_place_of(before.artefact.size, artefact.size - task.start, room, free):
                task = task._replace(replaces=before.artefact)
            else:
                room -= before.artefact.size
            if stored:
                if room < 0:
                    beyond.append(artefact)
                if now >= self._check_at.setdefault(wanted.key, now + MANIFEST_CHECK_S):
                    checks.append(ArtefactTask(wanted, None, check=True))
                continue
            short = None if task.replaces is not None else _shortage(artefact.size - task.start, room, free)
            if short is not None:
                troubles[wanted.key] = short
            else:
                images.append((artefact.sequence, task))
        self.held = {key: each for key, each in known.items() if each.stored}
        self.known, self.troubles = known, troubles
        in_order = (self._image_task(task, beyond) for _, task in sorted(images, key=lambda each: each[0]))
        ordered = [*manifests, *in_order, *checks]
        return next((task for task in ordered if self._failures.get(task.key, (0, now))[1] <= now), None)

    def take_manifest(self, task: ArtefactTask, envelope: bytes, now: float, utc_s: float | None) -> None:
        """Verify a manifest and accept it, or note why it is refused."""
        wanted = task.wanted
        self._check_at.pop(task.key, None)
        self._outdated.discard(task.key)
        try:
            manifest = verify_manifest(envelope, self._keys, utc_s)
            if (manifest.name, manifest.version) != task.key:
                words = f"the hub's manifest of {wanted.name} {wanted.version} is that of {manifest.label}"
                raise ArtefactRefused(ArtefactFault.FORGED, words)  # noqa: TRY301 - answered with the others
            _check_boards(manifest, wanted)
            self._storage.accept(manifest, envelope)
        except ArtefactRefused as why:
            self.refuse(task, why, now)
            return
        self._succeed(task)
        artefact = self._storage.get(*task.key)
        if artefact is not None and artefact.wrong >= WRONG_IMAGES_MAX:  # the same manifest as before
            self._failures[task.key] = 0, now + REFUSED_RETRY_S

    def take_content(self, task: ArtefactTask, content: bytes) -> None:
        """Append bytes to an image, unless it was evicted during the request."""
        artefact = task.artefact
        if artefact is None or not content or self._storage.have(artefact) != task.start:
            return
        for each in (*task.displaces, *([] if task.replaces is None else [task.replaces])):
            self._storage.evict(each)
        self._storage.append(artefact, content)
        self._succeed(task)

    def complete_file(self, artefact: IndexedArtefact) -> Path:
        """Return the file with a complete image, which is verified elsewhere."""
        return self._storage.complete_file(artefact)

    def keep_verified(self, task: ArtefactTask, hashes: OldHashes) -> None:
        """Hold an image that was verified, unless it was evicted during that."""
        artefact = task.artefact
        if artefact is not None and self._storage.have(artefact) == artefact.size:
            self._storage.keep_verified(artefact, hashes)
            self._succeed(task)
            log.info("artefact %s %s is here: %d bytes, verified", *task.key, artefact.size)

    def drop_wrong(self, task: ArtefactTask, why: ArtefactRefused, now: float) -> None:
        """Delete an image with a wrong checksum."""
        log.warning("artefact %s %s: %s", *task.key, why)
        if task.artefact is not None:
            self._storage.drop_wrong(task.artefact)
        self._failures[task.key] = 0, now + RETRY_S[-1]

    def refuse(self, task: ArtefactTask, why: ArtefactRefused, now: float) -> None:
        """Note that a manifest, or the size of its image at the hub, is refused."""
        trouble = ArtefactTrouble(str(why), why.fault)
        if self._refused.get(task.key) != trouble:
            log.warning("artefact %s %s is refused (%s): %s", *task.key, why.fault.value, why)
        self._refused[task.key] = trouble
        self._failures[task.key] = 0, now + REFUSED_RETRY_S
        if task.artefact is not None:
            self._outdated.add(task.key)

    def fail(self, task: ArtefactTask, why: str, now: float, *, shown: bool) -> None:
        """Note that a request failed. `shown`: it is a problem at once, and not only after some failures."""
        if task.check:
            self._check_at[task.key] = now + RETRY_S[-1]
            return
        failures = self._failures.get(task.key, (0, 0.0))[0] + 1
        self._failures[task.key] = failures, now + RETRY_S[min(failures, len(RETRY_S)) - 1]
        if shown or failures >= FAILURES_SHOWN:
            self._refused[task.key] = ArtefactTrouble(why)

    def remembered_version(self, name: str, version: str) -> ReportedArtefact | None:
        """Return an artefact that is, or was, here by its name and version; None if it is unknown."""
        found = self._storage.get(name, version)
        return None if found is None else _reported(found.id, found.manifest)

    def remembered_number(self, number: int) -> ReportedArtefact | None:
        """Return an artefact that is, or was, here by its number; None if it is unknown."""
        found = self._storage.of_number(number)
        return None if found is None else _reported(found.id, found.manifest)

    def evict(self, served_at: Mapping[int, float], reading: Container[int]) -> int | None:
        """Delete one image, a download in progress first, then the one served longest ago, and one that devices read at
        last. Return the number of the artefact; None: none is here. `served_at`: times by number."""
        here = [artefact for artefact in self._storage if self._storage.have(artefact)]
        if not here:
            return None
        chosen = min(here, key=lambda one: (one.id in reading, one.stored, served_at.get(one.id, 0.0), -one.size))
        self._storage.evict(chosen)
        log.warning("artefact %s %s: its image is deleted, as messages need the room", chosen.name, chosen.version)
        return chosen.id

    # --- inside -----------------------------------------------------------------------------------------------------

    def _before(self, wanted: ArtefactPart, now: float, utc_s: float | None) -> _Superseded | None:
        """Return the artefact that is served until the present image of its version is verified; None without one."""
        artefact = self._storage.before(*wanted.key)
        manifest = None if artefact is None else self._check(artefact, wanted, now, utc_s)
        if artefact is None or not isinstance(manifest, ArtefactManifest):
            return None
        return _Superseded(artefact, self._held(artefact, wanted, manifest, stored=True))

    def _image_task(self, task: ArtefactTask, beyond: Sequence[IndexedArtefact]) -> ArtefactTask:
        """Return the task for an image, or for its manifest if that is outdated. `beyond`: images without room then."""
        if task.key in self._outdated:
            return ArtefactTask(task.wanted, None)
        return task._replace(displaces=tuple(beyond))

    def _held(
        self, artefact: IndexedArtefact, wanted: ArtefactPart, manifest: ArtefactManifest, *, stored: bool
    ) -> HeldArtefact:
        image, hashes = self._storage.image(artefact), (artefact.sha1, artefact.md5)
        return HeldArtefact(artefact.id, wanted, manifest, artefact.envelope, image, stored, hashes)

    def _check(
        self, artefact: IndexedArtefact, wanted: ArtefactPart, now: float, utc_s: float | None
    ) -> ArtefactManifest | ArtefactTrouble:
        """Return the manifest of an accepted artefact, or why it is not for devices now."""
        if artefact.wrong >= WRONG_IMAGES_MAX:
            if now < self._wrong_until.setdefault(artefact.id, now + WRONG_RETRY_S):
                words = f"its image had a wrong checksum {WRONG_IMAGES_MAX} times; it is tried again after a day"
                return ArtefactTrouble(words, ArtefactFault.FORGED)
            del self._wrong_until[artefact.id]
            self._storage.evict(artefact)  # and so it counts from zero
        known = self._verified.get(artefact.id)
        if known is None or known[0] != artefact.envelope:
            known = self._verified[artefact.id] = artefact.envelope, self._verify(artefact, wanted)
        found = known[1]
        if isinstance(found, ArtefactManifest) and None not in (utc_s, found.not_before):
            try:
                verify_manifest(artefact.envelope, self._keys, utc_s)
            except ArtefactRefused as why:
                return ArtefactTrouble(str(why), why.fault)
        return found

    def _verify(self, artefact: IndexedArtefact, wanted: ArtefactPart) -> ArtefactManifest | ArtefactTrouble:
        try:
            manifest = verify_manifest(artefact.envelope, self._keys, None)
            _check_boards(manifest, wanted)
        except ArtefactRefused as why:
            return ArtefactTrouble(str(why), why.fault)
        return manifest

    def _succeed(self, task: ArtefactTask) -> None:
        self._failures.pop(task.key, None)
        self._refused.pop(task.key, None)


def _reported(number: int, manifest: ArtefactManifest) -> ReportedArtefact:
    return ReportedArtefact(manifest.name, manifest.version, manifest.digest, manifest.sequence, number)


def _needs_place_of(before: int, missing: int, room: int, free: int | None) -> bool:
    """Return whether an image has room only in the place of the one before it. `before`: bytes of that one; `missing`:
    bytes to fetch; `room`: bytes that are left of all that images may have; `free`: those of the card."""
    short = room < before or (free is not None and missing > free)
    return short and room >= 0 and (free is None or missing <= free + before)


def _shortage(missing: int, room: int, free: int | None) -> ArtefactTrouble | None:
    """Return why there is no room for an image; None if there is. The bytes are those of `_needs_place_of`, after the
    image itself was subtracted from `room`."""
    if room < 0:
        return ArtefactTrouble("all images together exceed storage.bytes of the Artefacts")
    if free is not None and missing > free:
        return ArtefactTrouble("the card has no room for its image: messages need it")
    return None


def _check_boards(manifest: ArtefactManifest, wanted: ArtefactPart) -> None:
    """Check that an artefact is for a board of the devices here. Raises `ArtefactRefused`."""
    if wanted.boards and not set(wanted.boards) & set(manifest.boards):
        check_board(manifest, wanted.boards[0])
