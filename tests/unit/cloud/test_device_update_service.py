"""Reports of devices at a hub: a batch is answered when its reports are on disk, and refused when they cannot be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cloud.hub.device_updates import service as module
from cloud.hub.device_updates.reading import read_reports
from cloud.hub.device_updates.service import DeviceUpdatesBusy, HubDeviceUpdates
from cloud.hub.registry import device_updates as registry
from cloud.hub.registry.artefacts import ArtefactRow, RegisteredArtefacts
from cloud.hub.registry.device_updates import DeviceUpdate, UpdateFilter
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry_thread import RegistryClosed
from cloud.lake.faults import RegistryError
from tests.support.artefact_reports import batch, body, event, run

ALL = UpdateFilter("acme")


@pytest.fixture
def url(tmp_path: Path) -> sa.URL:
    url = sqlite_url(tmp_path / "registry.db")
    with contextlib.closing(open_registry(url).database) as database:
        row = ArtefactRow("acme", "blinker", "1.2.0", "firmware", 1, "0" * 64, 1, "i" * 32, b"e", "k", 1, "anna")
        RegisteredArtefacts(database).add(row)
    return url


def execute(url: sa.URL, text: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as tx:
        tx.execute(sa.text(text))


class Answers:
    """Answers to batches."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bool] = asyncio.Queue()

    def add(self, kept: bool) -> None:
        self._queue.put_nowait(kept)

    async def next(self) -> bool:
        async with asyncio.timeout(60):
            return await self._queue.get()


def with_service(url: sa.URL, work: Callable[[HubDeviceUpdates, Answers], object]) -> None:
    async def main() -> None:
        service = HubDeviceUpdates(url)
        await service.open()
        try:
            await work(service, Answers())  # type: ignore[misc]
        finally:
            await service.close()
            await service.close()

    asyncio.run(main())


def test_batch_is_answered_when_its_reports_are_on_disk(url: sa.URL) -> None:
    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        assert not service.handle_batch("acme", "hall", batch(run("plant/t", b"21")), answers.add)
        assert not service.handle_batch("acme", "hall", batch(event(kind="text/plain")), answers.add)
        assert service.handle_batch("acme", "hall", batch(run(content=b"{")), answers.add)
        assert await answers.next(), "nothing to store"
        some = batch(*(run(f"plant/{name}/artefact-report", body(name), device=name) for name in ("a", "b")))
        for _ in range(2):
            assert service.handle_batch("acme", "hall", some, answers.add)
        assert await answers.next()
        assert [each.device for each in await service.page(ALL, None, 9)] == ["a", "b"]
        assert await answers.next()
        assert [each.devices for each in await service.counts(ALL)] == [2]

    with_service(url, work)


def test_batch_is_refused_while_its_reports_cannot_be_stored(url: sa.URL) -> None:
    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        execute(url, "ALTER TABLE device_updates RENAME TO away")
        service.handle_batch("acme", "hall", batch(run()), answers.add)
        assert not await answers.next()
        assert service.trouble is not None
        execute(url, "ALTER TABLE away RENAME TO device_updates")
        service.handle_batch("acme", "hall", batch(run()), answers.add)
        assert await answers.next()
        assert service.trouble is None
        assert len(await service.page(ALL, None, 9)) == 1

    with_service(url, work)


def test_more_queries_than_allowed_are_refused(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES_MAX", 1)

    async def work(service: HubDeviceUpdates, _answers: Answers) -> None:
        first, second = await asyncio.gather(service.counts(ALL), service.counts(ALL), return_exceptions=True)
        assert first == []
        assert isinstance(second, DeviceUpdatesBusy)
        await service.close()
        with pytest.raises(RegistryClosed):
            await service.counts(ALL)

    with_service(url, work)


def test_fault_of_one_batch_does_not_hold_up_others(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch with an internal error is answered, as its messages are in the lake."""

    def read(tenant: str, gateway: str, *given: Any) -> Any:
        if gateway == "wrong":
            raise ValueError("internal")
        return read_reports(tenant, gateway, *given)

    monkeypatch.setattr(module, "read_reports", read)

    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        def refuse(_kept: bool) -> None:
            raise ValueError("its connection is gone")

        service.handle_batch("acme", "gone", batch(run("p/x/artefact-report", body("x"), device="x")), refuse)
        service.handle_batch("acme", "wrong", batch(run()), answers.add)
        service.handle_batch("acme", "hall", batch(run()), answers.add)
        assert [await answers.next(), await answers.next()] == [True, True]
        assert len(await service.page(ALL, None, 9)) == 2
        assert service.trouble is None

    with_service(url, work)


class Recorder:
    """Counts calls of `DeviceUpdates.record`, and fails for some batches."""

    def __init__(self, fault: Exception, devices: frozenset[str] = frozenset()) -> None:
        """`devices`: those with a fault; empty for all."""
        self.calls = 0
        self._fault, self._devices, self._record = fault, devices, registry.DeviceUpdates.record

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def record(updates: registry.DeviceUpdates, reports: Sequence[DeviceUpdate]) -> int:
            self.calls += 1
            if not self._devices or self._devices & {each.device for each in reports}:
                raise RegistryError("it cannot be used") from self._fault
            return self._record(updates, reports)

        monkeypatch.setattr(registry.DeviceUpdates, "record", record)


def put(service: HubDeviceUpdates, answers: Answers, *devices: str) -> None:
    for name in devices:
        some = batch(run(f"p/{name}/artefact-report", body(name), device=name))
        assert service.handle_batch("acme", "hall", some, answers.add)


def test_all_batches_are_refused_at_once_while_the_registry_is_away(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one alone would wait for its own time-out."""
    away = Recorder(sa.exc.OperationalError("INSERT", {}, Exception("away")))
    away.install(monkeypatch)
    monkeypatch.setattr(module, "BATCHES_AT_ONCE", 2)

    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        put(service, answers, "a", "b", "c", "d", "e")
        assert [await answers.next() for _ in range(5)] == [False] * 5
        assert away.calls == 1
        assert service.trouble is not None

    with_service(url, work)


@pytest.mark.parametrize("fault", [sa.exc.DataError, sa.exc.IntegrityError])
def test_batch_that_the_database_refuses_is_answered(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch, fault: type[sa.exc.DBAPIError]
) -> None:
    """It would be refused for ever, and its gateway would stand still; its messages are in the lake."""
    wrong = Recorder(fault("INSERT", {}, Exception("too large")), frozenset({"b"}))
    wrong.install(monkeypatch)

    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        put(service, answers, "a", "b", "c")
        assert [await answers.next() for _ in range(3)] == [True] * 3
        assert [each.device for each in await service.page(ALL, None, 9)] == ["a", "c"]
        assert service.trouble is None

    with_service(url, work)


def test_registry_that_goes_away_between_single_batches(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch is refused, and then the registry cannot be reached."""
    faults = iter([sa.exc.DataError("", {}, Exception()), None, sa.exc.OperationalError("", {}, Exception())])
    calls: list[int] = []

    def record(updates: registry.DeviceUpdates, reports: Sequence[DeviceUpdate]) -> int:
        calls.append(len(reports))
        if (fault := next(faults)) is not None:
            raise RegistryError("it cannot be used") from fault
        return len(reports)

    monkeypatch.setattr(registry.DeviceUpdates, "record", record)

    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        put(service, answers, "a", "b", "c")
        assert [await answers.next() for _ in range(3)] == [True, False, False]
        assert calls == [3, 1, 1]

    with_service(url, work)


def test_full_tenant_is_a_problem(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TENANT_DEVICE_UPDATES_MAX", 1)

    async def work(service: HubDeviceUpdates, answers: Answers) -> None:
        for name in ("a", "b"):
            some = batch(run(f"p/{name}/artefact-report", body(name), device=name))
            service.handle_batch("acme", "hall", some, answers.add)
        assert [await answers.next(), await answers.next()] == [True, True]
        assert "acme" in str(service.trouble)

    with_service(url, work)
