"""Limits of the artefact service, and images that were lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from cloud.hub.artefacts import service as module
from cloud.hub.artefacts.image_store import FOLDER, ImageStore
from cloud.hub.artefacts.service import ArtefactIncomplete, ArtefactsBusy, HubArtefacts, StoreFailed
from cloud.hub.registry.artefacts import UnknownArtefact
from cloud.hub.registry.location import sqlite_url
from cloud.place.folder import Folder
from edge.broker.http.ranges import ByteRange
from tests.support.artefacts import IMAGE, KEY, sealed

T = TypeVar("T")
NAMES = ("acme", "blinker", "1.2.0")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[HubArtefacts]:
    service = HubArtefacts(
        sqlite_url(folder / "registry.db"), ImageStore(Folder(folder)), lambda: 1_800_000_000_000_000
    )
    await service.open()
    try:
        await service.add_key("acme", KEY.public, "", "anna")
        yield service
    finally:
        await service.close()


def run(folder: Path, test: Callable[[HubArtefacts], Awaitable[T]]) -> T:
    async def main() -> T:
        async with opened(folder) as service:
            return await test(service)

    return asyncio.run(main())


async def store(service: HubArtefacts) -> None:
    await service.add("acme", sealed(), "anna")
    await service.put(*NAMES, 0, IMAGE)
    await service.complete(*NAMES)


async def downloaded(service: HubArtefacts) -> bytes:
    row = await service.stored(*NAMES)
    return b"".join([each async for each in service.download(row, ByteRange(0, row.size))])


def test_stored_artefact_survives_a_restart(tmp_path: Path) -> None:
    run(tmp_path, store)
    assert run(tmp_path, downloaded) == IMAGE


def test_nothing_is_served_before_it_is_complete(tmp_path: Path) -> None:
    async def test(service: HubArtefacts) -> None:
        await service.add("acme", sealed(), "anna")
        await service.put(*NAMES, 0, IMAGE)
        with pytest.raises(ArtefactIncomplete):
            await service.stored(*NAMES)

    run(tmp_path, test)


def test_key_that_was_removed_during_the_upload(tmp_path: Path) -> None:
    async def test(service: HubArtefacts) -> None:
        await service.add("acme", sealed(), "anna")
        await service.put(*NAMES, 0, IMAGE)
        await service.remove_key("acme", KEY.public.id)
        with pytest.raises(module.ArtefactRefused):
            await service.complete(*NAMES)

    run(tmp_path, test)


def test_downloads_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOWNLOADS_MAX", 1)

    async def test(service: HubArtefacts) -> None:
        await store(service)
        row = await service.stored(*NAMES)
        running = service.download(row, ByteRange(0, row.size))
        await anext(running)
        with pytest.raises(ArtefactsBusy):
            await service.stored(*NAMES)
        await running.aclose()  # type: ignore[attr-defined]
        await service.stored(*NAMES)

    run(tmp_path, test)


def test_waiting_requests_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 1)
    goes_on = threading.Event()

    async def test(service: HubArtefacts) -> None:
        service._registry_thread.submit(goes_on.wait)
        first = asyncio.ensure_future(service.keys("acme"))
        await asyncio.sleep(0)
        try:
            with pytest.raises(ArtefactsBusy):
                await service.keys("acme")
        finally:
            goes_on.set()
        await first

    run(tmp_path, test)


def test_admitted_downloads_do_not_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers have started: nothing may refuse them."""

    async def test(service: HubArtefacts) -> None:
        await store(service)
        row = await service.stored(*NAMES)
        monkeypatch.setattr(module, "WAITING_MAX", 0)
        assert b"".join([each async for each in service.download(row, ByteRange(0, row.size))]) == IMAGE

    run(tmp_path, test)


def test_tenant_leaves_downloads_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_DOWNLOADS_MAX", 1)

    async def test(service: HubArtefacts) -> None:
        await store(service)
        service._downloads["other"] = 1
        await service.stored(*NAMES)
        service._downloads["acme"] = 1
        with pytest.raises(ArtefactsBusy):
            await service.stored(*NAMES)

    run(tmp_path, test)


def test_upload_continues_with_a_torn_part(tmp_path: Path) -> None:
    """A kill within a part leaves some of its bytes under its name."""

    async def test(service: HubArtefacts) -> None:
        await service.add("acme", sealed(), "anna")
        await service.put(*NAMES, 0, IMAGE)
        [part] = (tmp_path / FOLDER).rglob("00000")
        part.write_bytes(IMAGE[:100])
        assert (await service.add("acme", sealed(), "anna")).missing == [0]
        with pytest.raises(ArtefactIncomplete):
            await service.complete(*NAMES)
        await service.put(*NAMES, 0, IMAGE)
        await service.complete(*NAMES)
        assert await downloaded(service) == IMAGE

    run(tmp_path, test)


def test_stop_ends_a_verification(tmp_path: Path) -> None:
    async def test(service: HubArtefacts) -> None:
        await service.add("acme", sealed(), "anna")
        await service.put(*NAMES, 0, IMAGE)
        service._stopping.set()
        with pytest.raises(StoreFailed):
            await service.complete(*NAMES)

    run(tmp_path, test)


def test_closed_service_is_busy(tmp_path: Path) -> None:
    service = HubArtefacts(sqlite_url(tmp_path / "registry.db"), ImageStore(Folder(tmp_path)), lambda: 0)
    with pytest.raises(ArtefactsBusy):
        asyncio.run(service.keys("acme"))


def test_lost_image_is_a_failure_of_the_store(tmp_path: Path) -> None:
    run(tmp_path, store)
    for part in (tmp_path / FOLDER).rglob("00000"):
        part.unlink()
    with pytest.raises(StoreFailed):
        run(tmp_path, downloaded)


def test_interrupted_removal_ends_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that was stopped between mark and deletion."""

    async def interrupted(service: HubArtefacts) -> None:
        await store(service)
        with monkeypatch.context() as patched:
            patched.setattr(service._store, "delete", _fail)
            with pytest.raises(StoreFailed):
                await service.remove(*NAMES)

    async def test(service: HubArtefacts) -> None:
        with pytest.raises(UnknownArtefact):
            await service.get(*NAMES)
        await store(service)

    run(tmp_path, interrupted)
    assert list((tmp_path / FOLDER).rglob("00000"))
    run(tmp_path, test)
    assert run(tmp_path, downloaded) == IMAGE


def _fail(_key: object) -> None:
    raise OSError("disk failure")
