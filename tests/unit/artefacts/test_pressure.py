"""Messages before artefacts: a hub that hangs, a full card, failures of one artefact, and damage."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.appliance.artefacts import keeper as keeper_module
from edge.appliance.artefacts import storage, wiring
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.index import ArtefactIndex
from edge.appliance.artefacts.keeper import ArtefactKeeper, CardRoom
from edge.appliance.artefacts.limits import EVICTION_MARGIN_BYTES, FAILURES_SHOWN, WRONG_RETRY_S
from edge.appliance.artefacts.storage import ArtefactStorage
from tests.support.artefact_gateway import NOON, ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import IMAGE, sealed

FLOOR = 10 << 20
SHORT = CardRoom(FLOOR + EVICTION_MARGIN_BYTES - 1, FLOOR)
BLINKER, NEXT = {"name": "blinker", "version": "1.2.0"}, {"name": "blinker", "version": "1.3.0"}


@pytest.fixture
def hub() -> Iterator[ArtefactHubServer]:
    with ArtefactHubServer() as made:
        made.add()
        yield made


@pytest.fixture
def gateway(tmp_path: Path, hub: ArtefactHubServer) -> ArtefactGateway:
    made = ArtefactGateway(tmp_path / "data", hub.port)
    made.want()
    return made


def images(gateway: ArtefactGateway) -> list[str]:
    return sorted(each.name for each in (gateway.data / "artefacts").glob("*.image"))


def test_hub_that_hangs_delays_neither_eviction_nor_stop(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    gateway.fetch()
    gateway.want(BLINKER, NEXT)
    asked, go_on = threading.Event(), threading.Event()

    def hang(_path: str) -> None:
        asked.set()
        go_on.wait(60)

    hub.hook = hang

    async def main() -> None:
        keeper = gateway.make()
        await keeper.keep()
        fetching = asyncio.create_task(keeper.fetch())
        await asyncio.to_thread(asked.wait, 30)
        assert set(keeper.held) == {("blinker", "1.2.0")}
        gateway.room = SHORT
        await keeper.keep()
        assert images(gateway) == []
        assert not fetching.done()
        fetching.cancel()
        async with asyncio.timeout(10):
            await keeper.stop()

    try:
        asyncio.run(main())
    finally:
        go_on.set()


def test_request_that_takes_too_long_is_ended(
    gateway: ArtefactGateway, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "REQUEST_S", 0.05)
    go_on = threading.Event()

    def hang(_path: str) -> None:
        go_on.wait(60)

    hub.hook = hang

    async def main() -> None:
        keeper = gateway.make()
        await keeper.keep()
        async with asyncio.timeout(10):
            assert await keeper.fetch() > 0
        await keeper.stop()

    try:
        asyncio.run(main())
    finally:
        go_on.set()


def test_card_without_room_for_a_write_evicts(
    gateway: ArtefactGateway, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.fetch()
    hub.add(version="1.3.0", sequence=13)
    gateway.want(BLINKER, NEXT)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(ArtefactStorage, "append", full)
    gateway.run(lambda keeper: not keeper.held)
    assert images(gateway) == []


def test_eviction_needs_no_write(gateway: ArtefactGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.fetch()

    def full(*_: object) -> None:
        raise IndexUnusable("database or disk is full")

    monkeypatch.setattr(ArtefactIndex, "mark_missing", full)
    gateway.room = SHORT
    gateway.run(lambda _: images(gateway) == [])


def test_room_is_that_of_the_file_system_and_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    for for_messages, expected in ((5_000, 1_000), (500, 500), (None, 1_000)):
        retention = SimpleNamespace(free_bytes=lambda found=for_messages: found)
        store: Any = SimpleNamespace(retention=retention)
        assert wiring._free_bytes(tmp_path, store) == expected


def test_failure_of_one_artefact_does_not_hold_others(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    broken = {"name": "broken", "version": "1"}
    hub.broken.add("broken/1/manifest")
    gateway.want(broken, BLINKER)
    gateway.run(lambda keeper: set(keeper.held) == {("blinker", "1.2.0")})
    assert hub.asked.count(("broken/1/manifest", "")) < FAILURES_SHOWN
    gateway.problem("500")


def test_downgrade_is_refused_after_a_version_was_signed_again(
    gateway: ArtefactGateway, hub: ArtefactHubServer
) -> None:
    hub.add(version="1.3.0", sequence=13)
    gateway.want(NEXT)
    gateway.fetch("1.3.0")
    for wanted in ({"name": "other", "version": "1"}, BLINKER):
        gateway.want(wanted)
        gateway.settle()
    assert "downgraded" in gateway.last[1][0]
    with sqlite3.connect(gateway.data / "artefacts" / "index.db") as index:
        assert index.execute("SELECT name, sequence FROM sequences").fetchall() == [("blinker", 13)]
        index.execute("DELETE FROM artefacts")
    gateway.problem("(downgraded)")


def test_image_that_is_not_valid_by_a_clock_that_became_good(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    gateway.clock_good = False
    hub.add(envelope=sealed(not_before=int(NOON) + 10**6))
    gateway.fetch()
    gateway.clock_good = True
    gateway.problem("(not-yet-valid)")
    assert gateway.last[0] == {}


def test_wrong_image_is_tried_again_after_a_day(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    hub.files["blinker/1.2.0/image"] = IMAGE[:-1] + b"x"
    gateway.problem("wrong checksum 2 times")
    hub.add()

    def held_after_a_day(keeper: ArtefactKeeper) -> bool:
        gateway.now += WRONG_RETRY_S / 10
        return bool(keeper.held)

    gateway.run(held_after_a_day)


def test_damage_behind_the_first_page_is_found(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    gateway.fetch()
    index = gateway.data / "artefacts" / "index.db"
    content = bytearray(index.read_bytes())
    assert len(content) > 8_192
    content[4_096 : 2 * 4_096] = b"\xaa" * 4_096
    index.write_bytes(content)
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == 2


def test_room_is_made_although_the_configuration_cannot_be_read(gateway: ArtefactGateway) -> None:
    gateway.fetch()
    [configured] = gateway.data.glob("**/resources.json")
    configured.write_text("{")
    gateway.room = SHORT
    gateway.run(lambda _: images(gateway) == [])
    assert gateway.last[1], "it says why"


def test_room_is_made_although_the_index_cannot_be_opened(
    gateway: ArtefactGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.fetch()

    def fail(_data: Path) -> ArtefactStorage:
        raise IndexUnusable("it is of a newer version")

    monkeypatch.setattr(ArtefactStorage, "open", fail)
    gateway.room = SHORT
    gateway.run(lambda _: images(gateway) == [])


def test_image_that_cannot_be_read_is_fetched_again(gateway: ArtefactGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = storage.verify_file, [OSError(errno.EIO, "Input/output error")]

    def verify(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(storage, "verify_file", verify)
    assert gateway.fetch() == [IMAGE]
    assert not failures
