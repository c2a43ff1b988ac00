"""Artefacts of a hub on the event loop: the registry in one thread, images in a few others.

`open`, later `close`. An upload is: `add` the signed manifest, `put` each missing part, `complete`. Each step may be
repeated, at any hub. Only what is complete and verified is served.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.artefacts.envelope import open_envelope
from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import ImageVerifier, verify_manifest
from cloud.hub.artefacts.image_store import ImageKey, ImageStore
from cloud.hub.artefacts.limits import (
    DOWNLOADS_MAX,
    HUB_IMAGE_BYTES_MAX,
    READ_BYTES,
    STORE_THREADS,
    TENANT_DOWNLOADS_MAX,
    WAITING_MAX,
)
from cloud.hub.registry.artefacts import (
    ArtefactKeyRow,
    ArtefactPlace,
    ArtefactRow,
    RegisteredArtefacts,
    UnknownArtefact,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from edge.broker.http.ranges import ByteRange

log = logging.getLogger(__name__)

T = TypeVar("T")


class ArtefactsBusy(Exception):
    """Too many requests wait, or the hub starts or stops; the request may be repeated in some seconds."""


class StoreFailed(Exception):
    """The place of the images cannot be read or written now; the message says why."""


class ArtefactIncomplete(Exception):
    """The image of the artefact is not complete yet."""


class WaitingUpload(NamedTuple):
    """Artefact with the parts of its image that are missing."""

    row: ArtefactRow
    missing: list[int]


class HubArtefacts:
    """Artefacts of all tenants. Methods raise `ArtefactsBusy`, `StoreFailed`, `RegistryError`, `UnknownArtefact`, and
    what `cloud.hub.registry.artefacts` raises."""

    def __init__(self, registry: sa.URL, store: ImageStore, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self._url = registry
        self._store = store
        self.now_us = now_us
        self._registry_thread = ThreadPoolExecutor(1, thread_name_prefix="artefacts")
        self._store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="artefact-images")
        self._database: Database | None = None
        self._verifying_thread = ThreadPoolExecutor(1, thread_name_prefix="artefact-verification")
        self._waiting: Counter[ThreadPoolExecutor] = Counter()
        self._downloads: Counter[str] = Counter()
        """Downloads in progress by tenant."""
        self._not_removed: dict[str, str] = {}
        """Images that could not be deleted, with the reason: it is logged once."""
        self._stopping = threading.Event()

    async def open(self) -> None:
        """Open the registry, and finish removals that were interrupted. Raises `RegistryError`."""
        self._database = await self._run(lambda: open_registry(self._url).database)
        await self.finish_removals()

    async def close(self) -> None:
        """Close the registry, without waiting for requests in progress. Idempotent."""
        self._stopping.set()
        database, self._database = self._database, None
        if database is not None:
            await asyncio.get_running_loop().run_in_executor(self._registry_thread, database.close)
        for threads in (self._registry_thread, self._store_threads, self._verifying_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    # --- artefacts --------------------------------------------------------------------------------------------------

    async def add(self, tenant: str, envelope: bytes, by: str) -> WaitingUpload:
        """Add an artefact by its signed manifest; return what is missing of its image. Raises `ArtefactRefused`."""
        manifest = await self._verified(tenant, envelope)
        if manifest.size > HUB_IMAGE_BYTES_MAX:
            words = f"the image of {manifest.label} has {manifest.size} bytes, and a hub takes {HUB_IMAGE_BYTES_MAX}"
            raise ArtefactRefused(ArtefactFault.TOO_LARGE, words)
        await self.finish_removals()
        row = await self._ask(lambda tables: tables.add(self._new_row(tenant, manifest, envelope, by)))
        return await self._upload_of(row)

    async def get(self, tenant: str, name: str, version: str) -> WaitingUpload:
        """Return an artefact, and what is missing of its image."""
        return await self._upload_of(await self._row(tenant, name, version))

    async def page(self, tenant: str | None, name: str, after: ArtefactPlace, limit: int) -> list[ArtefactRow]:
        """Return a page of artefacts, see `RegisteredArtefacts.page`."""
        return await self._ask(lambda tables: tables.page(tenant, name, after, limit))

    async def put(self, tenant: str, name: str, version: str, number: int, content: bytes) -> None:
        """Store a part of an image. Raises `ArtefactRefused` for one of another size."""
        row = await self._row(tenant, name, version)
        key = image_of(row)
        if row.stored_at is not None:
            return
        if not 0 <= number < key.parts:
            raise UnknownArtefact(f"part {number} of {name} {version}, which has {key.parts}")
        if len(content) != key.part_bytes(number):
            fault = ArtefactFault.TRUNCATED if len(content) < key.part_bytes(number) else ArtefactFault.TOO_LARGE
            words = f"part {number} of {name} {version} has {len(content)} bytes, and not {key.part_bytes(number)}"
            raise ArtefactRefused(fault, words)
        await self._use_store(lambda: self._store.put(key, number, content))
        try:
            now = await self._row(tenant, name, version)
        except UnknownArtefact:
            now = None
        if now is None or now.image != row.image:  # its folder was deleted meanwhile, and would be left over
            await self._use_store(lambda: self._store.delete(key))
            raise UnknownArtefact(f"{name} {version}, whose upload was started again")

    async def complete(self, tenant: str, name: str, version: str) -> ArtefactRow:
        """Verify signature and image, and store the artefact for good. Raises `ArtefactRefused`, and
        `ArtefactIncomplete` while parts are missing. A wrong image is deleted: upload it again."""
        row = await self._row(tenant, name, version)
        if row.stored_at is not None:
            return row
        manifest = await self._verified(tenant, row.envelope)
        if (await self._upload_of(row)).missing:
            raise ArtefactIncomplete(f"parts of the image of {name} {version} are missing")
        try:
            await self._use_store(lambda: self._verify_image(row, manifest), self._verifying_thread)
        except ArtefactRefused:
            if await self._ask(lambda tables: tables.replace_image(row, secrets.token_hex(16))):
                await self._use_store(lambda: self._store.delete(image_of(row)))
            raise
        return await self._ask(lambda tables: tables.store(row, self.now_us()))

    async def remove(self, tenant: str, name: str, version: str) -> ArtefactRow:
        """Remove an artefact and its image."""
        row = await self._ask(lambda tables: tables.begin_removal(tenant, name, version))
        await self._finish_removal(row)
        return row

    async def download(self, row: ArtefactRow, wanted: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of a range of a stored image. Raises `StoreFailed`."""
        self._downloads[row.tenant] += 1
        try:
            key, at = image_of(row), wanted.start
            while at < wanted.stop:
                size = min(READ_BYTES, wanted.stop - at)
                found = await self._read(partial(self._store.read, key, at, size))
                at += len(found)
                yield found
        finally:
            self._downloads[row.tenant] -= 1

    async def _read(self, work: Callable[[], bytes]) -> bytes:
        """Read for a download, which is admitted already: it waits as long as it takes."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._store_threads, work)
        except OSError as error:
            raise StoreFailed(f"the image cannot be read now: {error.strerror or error}") from error

    async def stored(self, tenant: str, name: str, version: str) -> ArtefactRow:
        """Return an artefact that may be downloaded now. Raises `ArtefactIncomplete`."""
        row = await self._row(tenant, name, version)
        if row.stored_at is None:
            raise ArtefactIncomplete(f"the image of {name} {version} is not complete yet")
        if self._downloads.total() >= DOWNLOADS_MAX or self._downloads[tenant] >= TENANT_DOWNLOADS_MAX:
            raise ArtefactsBusy(f"{self._downloads[tenant]} downloads are under way; try again in some seconds")
        return row

    # --- keys -------------------------------------------------------------------------------------------------------

    async def keys(self, tenant: str) -> list[ArtefactKeyRow]:
        """Return the trusted keys of a tenant."""
        return await self._ask(lambda tables: tables.keys(tenant))

    async def add_key(self, tenant: str, key: MakerPublicKey, label: str, by: str) -> ArtefactKeyRow:
        """Trust a key."""
        new = ArtefactKeyRow(tenant, key.id, key.pem, label, self.now_us(), by)
        return await self._ask(lambda tables: tables.add_key(new))

    async def remove_key(self, tenant: str, key_id: str) -> None:
        """Trust a key no longer. Stored artefacts stay; new ones with its signature are refused."""
        await self._ask(lambda tables: tables.remove_key(tenant, key_id))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _new_row(self, tenant: str, manifest: ArtefactManifest, envelope: bytes, by: str) -> ArtefactRow:
        return ArtefactRow(
            tenant=tenant,
            name=manifest.name,
            version=manifest.version,
            kind=manifest.kind.value,
            sequence=manifest.sequence,
            sha256=manifest.digest,
            size=manifest.size,
            image=secrets.token_hex(16),
            envelope=envelope,
            key_id=open_envelope(envelope).key_id,
            added_at=self.now_us(),
            added_by=by,
        )

    async def _verified(self, tenant: str, envelope: bytes) -> ArtefactManifest:
        """Verify a manifest with the trusted keys of a tenant. Raises `ArtefactRefused`."""
        keys = [MakerPublicKey.parse(each.pem) for each in await self.keys(tenant)]
        return verify_manifest(envelope, keys, self.now_us() / 1_000_000)

    def _verify_image(self, row: ArtefactRow, manifest: ArtefactManifest) -> None:
        """Verify an image, on disk on return. Raises `ArtefactRefused`, OSError."""
        verifier = ImageVerifier(manifest)
        for content in self._store.parts(image_of(row)):
            if self._stopping.is_set():
                raise OSError("the hub stops")
            verifier.add(content)
        verifier.finish()
        self._store.sync(image_of(row))

    async def _row(self, tenant: str, name: str, version: str) -> ArtefactRow:
        return await self._ask(lambda tables: tables.get(tenant, name, version))

    async def _upload_of(self, row: ArtefactRow) -> WaitingUpload:
        if row.stored_at is not None:
            return WaitingUpload(row, [])
        return WaitingUpload(row, await self._use_store(lambda: self._store.missing(image_of(row))))

    async def _finish_removal(self, row: ArtefactRow) -> None:
        """Delete the image, the reports of devices in parts, then the row."""
        await self._use_store(lambda: self._store.delete(image_of(row)))
        while await self._ask(lambda tables: tables.forget_reports(row)):
            pass
        await self._ask(lambda tables: tables.end_removal(row))

    async def finish_removals(self) -> None:
        """Continue removals that were interrupted, or have failed."""
        for row in await self._ask(lambda tables: tables.removals()):
            try:
                await self._finish_removal(row)
            except StoreFailed as error:
                if self._not_removed.get(row.image) != str(error):
                    log.warning("artefact %s %s could not be removed yet: %s", row.name, row.version, error)
                self._not_removed[row.image] = str(error)
            else:
                self._not_removed.pop(row.image, None)

    async def _ask(self, work: Callable[[RegisteredArtefacts], T]) -> T:
        """Run `work` on the registry's thread."""
        database = self._database
        if database is None:
            raise ArtefactsBusy("the hub is starting or stopping; try again in some seconds")
        return await self._run(lambda: work(RegisteredArtefacts(database)))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._in_thread(self._registry_thread, work)

    async def _use_store(self, work: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        """Run `work` on a thread for images. `threads`: others than those for parts."""
        try:
            return await self._in_thread(threads or self._store_threads, work)
        except OSError as error:
            raise StoreFailed(f"the images of artefacts cannot be used now: {error.strerror or error}") from error

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._waiting[threads] >= WAITING_MAX:
            raise ArtefactsBusy(f"{WAITING_MAX} requests for artefacts wait already; try again in some seconds")
        self._waiting[threads] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        finally:
            self._waiting[threads] -= 1


def image_of(row: ArtefactRow) -> ImageKey:
    """Return the name of the image of an artefact."""
    return ImageKey(row.tenant, row.image, row.size)
