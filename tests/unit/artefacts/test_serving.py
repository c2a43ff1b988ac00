"""Artefacts for the devices of a gateway: rights, ranges, reports, and an exchange of hawkBit's DDI."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from bridge.artefacts.report import UpdateState
from bridge.device_pages import OfferedUpdate
from edge.appliance.artefacts import limits, reporting, reports, serving, turns
from edge.appliance.artefacts.ddi import DdiApi
from edge.appliance.artefacts.errors import IndexUnusable
from edge.appliance.artefacts.library import HeldArtefact
from edge.appliance.artefacts.reporting import UpdateReporting
from edge.appliance.artefacts.reports import DeviceReports, KnownReport, ReportedArtefact, ReportedDevice, UpdateReport
from edge.appliance.artefacts.routes import DeviceArtefactApi, DeviceGate
from edge.appliance.artefacts.serving import ArtefactServing
from edge.broker.configuration import AuthenticationMode, DeviceApiConfiguration
from edge.broker.hono.http import HonoApi
from edge.broker.hono.reporting import ReportingHonoDevices
from edge.broker.hono.service import DeviceService
from edge.broker.http.access import HttpAccess
from edge.broker.http.api import HttpDeviceApi
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import ReportingDevices
from edge.broker.limits import Limits
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.configuration.resources import ArtefactPart, ArtefactsSpec
from tests.support.artefacts import IMAGE, manifest_of, sealed
from tests.support.memory_store import MemoryStore

USERS = ("pump-1", "pump-2", "viewer", "gateway-3", "pump-1@T", "other@T", "everything")
PUMPS = ("pump-*",)


class Keeper:
    """Artefacts that are here, without a hub."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spec: Any = ArtefactsSpec()
        self.known: dict[tuple[str, str], HeldArtefact] = {}
        self.loaded = True
        self.served: list[int] = []
        self.remembered: list[ReportedArtefact] = []
        self.offers: dict[tuple[tuple[str, str], str], OfferedUpdate] = {}
        """Offers of campaigns by artefact and device."""

    def add(self, number: int = 1, devices: tuple[str, ...] = PUMPS, **fields: Any) -> None:
        manifest = manifest_of(**fields)
        image = self._folder / f"{number}.image"
        image.write_bytes(IMAGE)
        wanted = ArtefactPart(name=manifest.name, version=manifest.version, devices=devices)
        self.spec = ArtefactsSpec(artefacts=(*self.spec.artefacts, wanted))
        self.known[wanted.key] = HeldArtefact(
            number, wanted, manifest, sealed(**fields), image, True, ("a" * 40, "b" * 32)
        )

    def withdraw(self, version: str = "1.2.0") -> None:
        """Remove an artefact from the configuration; it is remembered."""
        found = self.known.pop(("blinker", version))
        self.remembered.append(found.reported)
        kept = tuple(each for each in self.spec.artefacts if each.key != found.wanted.key)
        self.spec = ArtefactsSpec(artefacts=kept)

    def offer_to(self, device: str, version: str = "1.2.0", **fields: Any) -> None:
        """Let a campaign of the hub offer a version to a device."""
        offer = OfferedUpdate(artefact="blinker", version=version, **fields)
        self.offers[("blinker", version), device] = offer

    def offer(self, key: tuple[str, str], device: str) -> OfferedUpdate | None:
        return self.offers.get((key, device))

    def names(self, key: tuple[str, str], device: str) -> bool:
        return self._configures(key, device) or (key, device) in self.offers

    def may_fetch(self, key: tuple[str, str], device: str) -> bool:
        offer = self.offers.get((key, device))
        return self._configures(key, device) if offer is None else not offer.withheld

    def _configures(self, key: tuple[str, str], device: str) -> bool:
        return any(each.names(device) for each in self.spec.artefacts if each.key == key)

    async def remembered_version(self, name: str, version: str) -> ReportedArtefact | None:
        return next((each for each in self.remembered if each[:2] == (name, version)), None)

    async def remembered_number(self, number: int) -> ReportedArtefact | None:
        return next((each for each in self.remembered if each.number == number), None)

    def fetch_again(self, version: str = "1.2.0") -> None:
        """Lose an image."""
        key = ("blinker", version)
        self.known[key] = self.known[key]._replace(stored=False)

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[None]:
        self.served.append(number)
        try:
            yield
        finally:
            self.served.remove(number)


@functools.cache
def users() -> CredentialSnapshot:
    """Return users who may send below their own name; gateway-3 below every name."""
    own = (AccessRule(("plant/%u/#",), frozenset((Operation.SEND,))),)
    rules = dict.fromkeys(USERS, own) | {
        "viewer": (AccessRule(("#",), frozenset((Operation.VIEW,))),),
        "gateway-3": (AccessRule(("plant/#",), frozenset((Operation.SEND,))),),
        "everything": (AccessRule(("#",), frozenset((Operation.SEND,))),),
    }
    return CredentialSnapshot({name: with_secret(new_user(name, rules[name]), "secret", at_s=0.0) for name in USERS})


def gate() -> Authenticator:
    """Return a gate for the users."""
    return Authenticator(
        AuthenticationMode.STANDARD,
        users(),
        worker=lambda work, done: done(work()),
        clock=time.monotonic,
    )


class Rig:
    """The routes over a router and a store in memory."""

    def __init__(self, folder: Path, *, hono: bool) -> None:
        loop = asyncio.get_running_loop()
        self.store = MemoryStore(post=loop.call_soon)
        queues = [AddressRule("plant/#", AddressType.QUEUE), AddressRule("event/#", AddressType.QUEUE)]
        table = AddressTable(queues, AddressRule("#", AddressType.TOPIC))
        self.router = Router(
            self.store, table, clock_ns=time.time_ns, flush_soon=lambda: loop.call_soon(self.router.flush)
        )
        access = HttpAccess(gate())
        configuration = DeviceApiConfiguration(tenant="T")
        service = DeviceService(configuration, self.router, self.store.state)
        plain, with_hono = HttpDeviceApi(self.router, Limits(), access), HonoApi(service, Limits(), access)
        self.devices: DeviceGate = (
            ReportingHonoDevices(with_hono, service, access) if hono else ReportingDevices(plain, access)
        )
        self.keeper = Keeper(folder)
        self.serving = ArtefactServing(cast(Any, self.keeper), UpdateReporting(folder, cast(Any, self.keeper)))
        routes = [*DeviceArtefactApi(self.serving, self.devices).routes, *DdiApi(self.serving, self.devices).routes]
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(Starlette(routes=routes)), base_url="http://gateway:8080"
        )

    async def ask(self, method: str, path: str, user: str = "pump-1", **options: Any) -> httpx.Response:
        shown = base64.b64encode(f"{user}:secret".encode()).decode()
        fields = {"Authorization": f"Basic {shown}", **options.pop("headers", {})}
        return await self.client.request(method, path, headers=fields, **options)

    async def links(self) -> dict[str, Any]:
        """Poll as a client of DDI; return what there is to do."""
        return dict((await self.ask("GET", TestDdi.ROOT)).json()["_links"])

    def reports(self, device: str = "pump-1") -> int:
        """Return the number of reports that were published for a device."""
        address = f"plant/{device}/artefact-report"
        return self.router.queues.backlog(address) if address in self.router.queues else 0


def run(folder: Path, test: Callable[[Rig], Coroutine[Any, Any, None]], *, hono: bool = False) -> None:
    async def main() -> None:
        rig = Rig(folder, hono=hono)
        try:
            async with rig.client:
                await test(rig)
        finally:
            await rig.serving.close()

    asyncio.run(main())


def test_device_gets_what_is_listed_for_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        rig.keeper.add(2, ("other",), version="1.3.0", sequence=13)
        found = (await rig.ask("GET", "/artefacts")).json()["artefacts"]
        assert [(each["name"], each["version"], each["size"]) for each in found] == [("blinker", "1.2.0", len(IMAGE))]
        image = await rig.ask("GET", "/artefacts/blinker/1.2.0/image")
        assert (image.status_code, image.content) == (200, IMAGE)
        assert image.headers["etag"] == f'"{manifest_of().digest}"'
        manifest = await rig.ask("GET", "/artefacts/blinker/1.2.0/manifest")
        assert manifest.content == sealed()
        assert (await rig.ask("GET", "/artefacts/blinker/1.3.0/image")).status_code == 404
        assert rig.keeper.served == [], "every download has ended"

    run(tmp_path, test)


def test_ranges(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        path, tag = "/artefacts/blinker/1.2.0/image", f'"{manifest_of().digest}"'
        part = await rig.ask("GET", path, headers={"Range": "bytes=10-19", "If-Range": tag})
        assert (part.status_code, part.content) == (206, IMAGE[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(IMAGE)}"
        rest = await rig.ask("GET", path, headers={"Range": f"bytes={len(IMAGE) - 5}-"})
        assert rest.content == IMAGE[-5:]
        assert (await rig.ask("GET", path, headers={"Range": f"bytes={len(IMAGE)}-"})).status_code == 416
        assert (await rig.ask("GET", path, headers={"If-None-Match": tag})).status_code == 304
        head = await rig.ask("HEAD", path)
        assert (head.content, head.headers["content-length"]) == (b"", str(len(IMAGE)))

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("user", "query", "status"),
    [
        ("viewer", "", 403),
        ("pump-2", "?device=pump-1", 403),
        ("gateway-3", "?device=pump-1", 200),
        ("gateway-3", "", 404),
        ("unknown", "", 401),
        ("gateway-3", "?device=a/b", 400),
    ],
)
def test_rights(tmp_path: Path, user: str, query: str, status: int) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        answer = await rig.ask("GET", f"/artefacts/blinker/1.2.0/image{query}", user)
        assert answer.status_code == status, answer.text

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("query", "reason"), [("board=esp32", "wrong-board"), ("board=pico-w&installed=0.9", "wrong-from-version")]
)
def test_artefact_for_another_board_or_version_is_refused(tmp_path: Path, query: str, reason: str) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add(from_versions=("1.0", "1.1"))
        answer = await rig.ask("GET", f"/artefacts/blinker/1.2.0/image?{query}")
        assert (answer.status_code, answer.json()["reason"]) == (422, reason)
        assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image?board=pico-w&installed=1.1")).status_code == 200

    run(tmp_path, test)


def test_report_is_a_message_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        path = "/artefacts/blinker/1.2.0/report"
        for state in ("downloading", "downloading", "installed"):
            assert (await rig.ask("POST", path, json={"state": state})).status_code == 202
        assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 2
        assert (await rig.ask("POST", path, json={"state": "eaten"})).status_code == 400

    run(tmp_path, test)
    with_reports = DeviceReports.open(tmp_path / "artefacts")
    [report] = with_reports.get("pump-1").reports
    assert (report.version, report.state, report.published) == ("1.2.0", UpdateState.INSTALLED, True)
    with_reports.close()


def test_report_with_the_device_api_is_an_event(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        path = "/artefacts/blinker/1.2.0"
        done = await rig.ask("POST", f"{path}/report", "pump-1@T", json={"state": "healthy"})
        assert (done.status_code, rig.router.queues.backlog("event/T")) == (202, 1)
        assert (await rig.ask("GET", f"{path}/image?device=pump-1", "other@T")).status_code == 403
        assert (await rig.ask("GET", f"{path}/image", "viewer")).status_code == 403

    run(tmp_path, test, hono=True)


def test_report_without_a_subscriber_is_published_again(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        rig.keeper.spec = msgspec.structs.replace(rig.keeper.spec, report_address="live/%u")
        path = "/artefacts/blinker/1.2.0/report?device=pump-1"
        for _ in range(2):
            answer = await rig.ask("POST", path, "everything", json={"state": "installed"})
            assert (answer.status_code, answer.headers["waypost-subscribers"]) == (202, "0")
        rig.keeper.spec = msgspec.structs.replace(rig.keeper.spec, report_address="plant/%u/report")
        assert "waypost-subscribers" not in (await rig.ask("POST", path, json={"state": "installed"})).headers
        assert rig.router.queues.backlog("plant/pump-1/report") == 1

    run(tmp_path, test)


def test_return_to_an_earlier_version_is_published(tmp_path: Path) -> None:
    """A device installs 1.2.0, 1.3.0, and after a reset 1.2.0 again."""

    async def test(rig: Rig) -> None:
        rig.keeper.add(1)
        rig.keeper.add(2, version="1.3.0", sequence=13)
        for version in ("1.2.0", "1.3.0", "1.2.0", "1.2.0"):
            await rig.ask("POST", f"/artefacts/blinker/{version}/report", json={"state": "installed"})
        assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 3, "the last one is a repetition"

    run(tmp_path, test)


def test_second_failure_is_published(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add(1)
        for state in ("rolled-back", "downloading", "rolled-back", "rolled-back"):
            await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": state})
        assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 3, "the last one is a repetition"

    run(tmp_path, test)


def test_report_is_taken_although_it_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add(1)

        def fail(*_: object) -> DeviceReports:
            raise IndexUnusable("the card is full")

        monkeypatch.setattr(DeviceReports, "open", fail)
        answer = await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": "installed"})
        assert answer.status_code == 202
        assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 1

    run(tmp_path, test)


def test_reports_of_one_device_at_a_time_are_published_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        path = "/artefacts/blinker/1.2.0/report"
        await asyncio.gather(*(rig.ask("POST", path, json={"state": "verified"}) for _ in range(5)))
        assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 1

    run(tmp_path, test)


def test_address_that_no_message_may_have_is_refused(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        rig.keeper.spec = msgspec.structs.replace(rig.keeper.spec, report_address="\x00/%u")
        path = "/artefacts/blinker/1.2.0/report?device=pump-1"
        assert (await rig.ask("POST", path, "everything", json={"state": "verified"})).status_code == 400

    run(tmp_path, test)


def test_download_of_an_evicted_image_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IMAGE_READ_BYTES", 100)

    async def test(rig: Rig) -> None:
        rig.keeper.add()
        read = rig.serving._read_by

        async def evicting(work: Any) -> Any:
            found = await read(work)
            if isinstance(found, bytes):
                rig.keeper.fetch_again()
            return found

        monkeypatch.setattr(rig.serving, "_read_by", evicting)
        with pytest.raises(ConnectionAbortedError):
            await rig.ask("GET", "/artefacts/blinker/1.2.0/image")
        assert rig.keeper.served == []
        assert not rig.serving._downloads

    run(tmp_path, test)


@pytest.mark.parametrize("offer", [None, {"withheld": True}])
def test_download_ends_with_its_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offer: dict[str, Any] | None
) -> None:
    """The campaign is halted, or stopped."""
    monkeypatch.setattr(serving, "IMAGE_READ_BYTES", 100)

    async def test(rig: Rig) -> None:
        rig.keeper.add(devices=("nobody",))
        rig.keeper.offer_to("pump-1")
        read = rig.serving._read_by

        async def halting(work: Any) -> Any:
            found = await read(work)
            if isinstance(found, bytes):
                rig.keeper.offers.clear()
                if offer is not None:
                    rig.keeper.offer_to("pump-1", **offer)
            return found

        monkeypatch.setattr(rig.serving, "_read_by", halting)
        with pytest.raises(ConnectionAbortedError):
            await rig.ask("GET", "/artefacts/blinker/1.2.0/image")
        assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image")).status_code == 404
        assert not rig.serving._downloads

    run(tmp_path, test)


def test_downloads_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "DEVICE_DOWNLOADS_MAX", 0)

    async def test(rig: Rig) -> None:
        rig.keeper.add()
        answer = await rig.ask("GET", "/artefacts/blinker/1.2.0/image")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")

    run(tmp_path, test)


def test_parts_for_all_devices_share_the_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP and MQTT; without pauses the parts for many devices are all sent before a PUBACK."""
    monkeypatch.setattr(serving, "IMAGE_READ_BYTES", -(-len(IMAGE) // 10))
    monkeypatch.setattr(turns, "PART_PAUSE_S_MIN", 0.02)

    async def test(rig: Rig) -> None:
        rig.keeper.add()
        digest, begun = rig.keeper.known["blinker", "1.2.0"].manifest.digest, time.monotonic()
        downloads = [rig.ask("GET", "/artefacts/blinker/1.2.0/image", user) for user in ("pump-1", "pump-2")]
        chunks = [rig.serving.chunk("pump-1", digest, 0, 100, cast(Any, rig.devices)) for _ in range(10)]
        answers, _ = await asyncio.gather(asyncio.gather(*downloads), asyncio.gather(*chunks))
        assert [answer.content for answer in answers] == [IMAGE, IMAGE]
        assert time.monotonic() - begun >= 29 * 0.02

    run(tmp_path, test)


def test_request_takes_a_turn_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ranges cost the loop more by their requests than by their bytes."""

    async def test(rig: Rig) -> None:
        rig.keeper.add()
        turn, taken = rig.serving._turns.take, [0]

        async def take() -> None:
            taken[0] += 1
            await turn()

        monkeypatch.setattr(rig.serving._turns, "take", take)
        for start in range(10):
            wanted = {"Range": f"bytes={start}-{start}"}
            answer = await rig.ask("GET", "/artefacts/blinker/1.2.0/image", headers=wanted)
            assert answer.content == IMAGE[start : start + 1]
        assert taken == [20]

    run(tmp_path, test)


def test_image_that_was_just_deleted(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.keeper.add()
        rig.keeper.known["blinker", "1.2.0"].image.unlink()
        assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image")).status_code == 503
        rig.keeper.fetch_again()
        assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image")).status_code == 503
        report = await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": "installed"})
        assert report.status_code == 202, "a report needs no image"
        rig.keeper.loaded = False
        assert (await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": "healthy"})).status_code == 503

    run(tmp_path, test)


def test_oldest_reports_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORTS_MAX", 3)
    monkeypatch.setattr(reports, "REPORTS_DROPPED", 2)
    monkeypatch.setattr(reports, "REPORTS_COUNTED_EVERY", 1)
    kept = DeviceReports.open(tmp_path)
    for device in "abcd":
        kept.put(device, KnownReport("blinker", "1", "", 1, UpdateState.INSTALLED, published=True))
        kept.put_device(device, "pico-w", "1")
    assert [len(kept.get(device).reports) for device in "abcd"] == [0, 0, 1, 1]
    assert [kept.get(device).board for device in "abcd"] == ["", "", "pico-w", "pico-w"]
    kept.close()


def test_reports_have_a_limit_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (limits.REPORTS_BYTES_MAX, limits.DEVICE_REPORTS_MAX) == (64 << 20, 256)
    most = 60_000
    monkeypatch.setattr(reports, "REPORTS_BYTES_MAX", most)
    kept = DeviceReports.open(tmp_path)
    for number in range(40):
        device = f"{number:0255}"
        line = KnownReport("n" * 64, "v" * 64, "d" * 64, 1, UpdateState.INSTALLED, published=True, history="h" * 9_000)
        kept.put(device, line)
        kept.put_device(device, "b" * 64, "v" * 64)
        assert kept._used_bytes() <= most
    assert (tmp_path / reports.FILE).stat().st_size <= most + 20_000, "a row or two more"
    assert len(kept.get(device).reports[0].history) == limits.HISTORY_CHARACTERS_MAX
    assert kept.get(f"{0:0255}") == ReportedDevice()
    kept.close()


def test_reports_of_one_device_do_not_displace_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "DEVICE_REPORTS_MAX", 3)
    kept = DeviceReports.open(tmp_path)
    for device in ("pump-1", "hostile"):
        for number in range(5 if device == "hostile" else 1):
            kept.put(device, KnownReport("blinker", f"{number}", "", 1, UpdateState.INSTALLED, published=True))
    assert [each.version for each in kept.get("hostile").reports] == ["2", "3", "4"]
    assert len(kept.get("pump-1").reports) == 1
    kept.close()


def test_database_of_another_format_is_replaced(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / reports.FILE)) as older:
        older.execute("CREATE TABLE reports (device TEXT)")
    kept = DeviceReports.open(tmp_path)
    assert kept.get("pump-1") == ReportedDevice()
    kept.close()


def test_database_is_read_once_for_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    get = DeviceReports.get
    monkeypatch.setattr(DeviceReports, "get", lambda self, device: (read.append(device), get(self, device))[1])
    monkeypatch.setattr(reporting, "REPORTS_CACHED_DEVICES", 2)
    monkeypatch.setattr(reporting, "REPORTS_CACHED_MAX", 2)

    async def test(rig: Rig) -> None:
        rig.keeper.add()
        asked = rig.serving.reporting
        for offset in range(5):
            await rig.serving.chunk("pump-1", manifest_of().digest, offset, 1, rig.devices)
        assert read == ["pump-1"]
        await asked.note(
            "pump-1", rig.keeper.known["blinker", "1.2.0"].reported, UpdateReport(state=UpdateState.HEALTHY)
        )
        assert (await asked.known("pump-1")).installed("blinker") == "1.2.0"
        await asked.put_device("pump-1", "pico-w", "1")
        assert (await asked.known("pump-1")).board == "pico-w"
        assert len(read) == 3

        reading = asyncio.create_task(asked.known("pump-2"))
        await asyncio.sleep(0)
        await asked.put_device("pump-2", "esp32", "1")
        assert (await reading).board == ""
        assert (await asked.known("pump-2")).board == "esp32", "what was read before a change is not kept"

        read.clear()
        for device in ("pump-1", "pump-2", "pump-3", "pump-2", "pump-1"):
            await asked.known(device)
        assert read == ["pump-3", "pump-1"], "the one of the oldest question is forgotten"
        for version in "123":
            await asked.note("pump-2", ReportedArtefact("a", version), UpdateReport(state=UpdateState.HEALTHY))
        read.clear()
        for _ in range(2):
            await asked.known("pump-2")
        assert len(read) == 2, "many reports are not kept in memory"

    run(tmp_path, test)


def test_database_of_the_format_before_is_kept(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / reports.FILE)) as older:
        older.executescript(
            "CREATE TABLE reports (device TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,"
            " digest TEXT NOT NULL, sequence INTEGER NOT NULL, state TEXT NOT NULL, published INTEGER NOT NULL,"
            " number INTEGER NOT NULL, goes_on INTEGER NOT NULL, history TEXT NOT NULL,"
            " UNIQUE (device, name, version));"
            "CREATE TABLE devices (device TEXT NOT NULL UNIQUE, board TEXT NOT NULL, version TEXT NOT NULL);"
            "INSERT INTO reports VALUES ('pump-1', 'blinker', '1.2.0', 'd', 12, 'healthy', 1, 7, 0, 'healthy');"
            "PRAGMA user_version = 2;"
        )
    row = KnownReport("blinker", "1.2.0", "d", 12, UpdateState.HEALTHY, True, 7, False, "healthy")
    for _ in range(2):
        kept = DeviceReports.open(tmp_path)
        assert kept.get("pump-1").reports == (row,)
        row = row._replace(campaign="c1")
        kept.put("pump-1", row)
        kept.close()


class TestReportAboutAnArtefactThatIsGone:
    PATH = "/artefacts/blinker/1.2.0/report"

    def test_it_is_taken_and_recorded(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            rig.keeper.withdraw()
            for _ in range(2):
                assert (await rig.ask("POST", self.PATH, json={"state": "installed"})).status_code == 202
            assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 1
            [report] = (await rig.serving.reporting.known("pump-1")).reports
            assert (report.number, report.sequence, report.digest) == (7, 12, manifest_of().digest)

        run(tmp_path, test)

    def test_resource_is_gone(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            assert (await rig.ask("POST", self.PATH, json={"state": "downloading"})).status_code == 202
            rig.keeper.spec = None
            rig.keeper.known.clear()
            assert (await rig.ask("POST", self.PATH, json={"state": "installed"})).status_code == 202
            assert [each.state for each in (await rig.serving.reporting.known("pump-1")).reports] == [
                UpdateState.INSTALLED
            ]

        run(tmp_path, test)

    def test_artefact_was_never_here(self, tmp_path: Path) -> None:
        """The device was at another gateway before."""

        async def test(rig: Rig) -> None:
            assert (await rig.ask("POST", self.PATH, json={"state": "healthy"})).status_code == 202
            assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 1
            odd = "/artefacts/No%20name/1.2.0/report"
            assert (await rig.ask("POST", odd, json={"state": "healthy"})).status_code == 404

        run(tmp_path, test)

    def test_image_that_was_replaced_is_told_by_its_checksum(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await rig.ask("POST", self.PATH, json={"state": "downloading"})
            known = rig.keeper.known["blinker", "1.2.0"]
            rig.keeper.known["blinker", "1.2.0"] = known._replace(number=8, manifest=manifest_of(b"x", sequence=13))
            done = {"state": "installed", "sha256": manifest_of().digest}
            assert (await rig.ask("POST", self.PATH, json=done)).status_code == 202
            [report] = (await rig.serving.reporting.known("pump-1")).reports
            assert (report.number, report.sequence) == (7, 12)
            assert (await rig.ask("POST", self.PATH, json=done | {"sha256": "x"})).status_code == 400

        run(tmp_path, test)


class TestCampaigns:
    """Artefacts that a campaign of the hub offers, or withholds."""

    @pytest.mark.parametrize("is_offered", [True, False])
    def test_refusal_of_an_offered_artefact_is_reported_once(self, tmp_path: Path, is_offered: bool) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add()
            if is_offered:
                rig.keeper.offer_to("pump-1")
            await rig.serving.reporting.put_device("pump-1", "esp32", "")
            for part in ("image", "manifest", "image"):
                answer = await rig.ask("GET", f"/artefacts/blinker/1.2.0/{part}")
                assert (answer.status_code, answer.json()["reason"]) == (422, "wrong-board")
            assert rig.reports() == is_offered

        run(tmp_path, test)

    @pytest.mark.parametrize("query", ["board=esp32", "installed=0.9"])
    def test_parameter_of_a_request_is_no_failure(self, tmp_path: Path, query: str) -> None:
        """A campaign is not halted by a request that a technician types."""

        async def test(rig: Rig) -> None:
            rig.keeper.add(from_versions=("1.0",))
            rig.keeper.offer_to("pump-1")
            assert (await rig.ask("GET", f"/artefacts/blinker/1.2.0/image?{query}")).status_code == 422
            assert rig.reports() == 0

        run(tmp_path, test)

    def test_refusal_over_mqtt_is_reported_once(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add()
            rig.keeper.offer_to("pump-1", campaign="c1")
            await rig.serving.reporting.put_device("pump-1", "esp32", "")
            for _ in range(2):
                with pytest.raises(RequestRefused) as refused:
                    await rig.serving.chunk("pump-1", manifest_of().digest, 0, 9, rig.devices)
                assert refused.value.status == 422
            assert rig.reports() == 1
            assert (await rig.serving.offered("pump-1", rig.devices)).artefact is None
            assert rig.reports() == 1

        run(tmp_path, test)

    def test_second_campaign_of_a_version_is_offered_and_reported_again(self, tmp_path: Path) -> None:
        """The first one failed for a reason that is gone: a flat battery."""

        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            rig.keeper.offer_to("pump-1", campaign="c1")
            feedback = {"status": {"execution": "closed", "result": {"finished": "failure"}}}
            path = (await rig.links())["deploymentBase"]["href"]
            assert path.endswith("/7")
            for count in (1, 1):
                assert (await rig.ask("POST", f"{path}/feedback", json=feedback)).status_code == 200
                assert rig.reports() == count, "a repeated one is swallowed"
            assert "deploymentBase" not in await rig.links()
            rig.keeper.offers.clear()
            assert "deploymentBase" not in await rig.links(), "the campaign has ended"
            rig.keeper.offer_to("pump-1", campaign="c2")
            again = (await rig.links())["deploymentBase"]["href"]
            assert again != path, "clients do not try an action twice"
            assert (await rig.ask("GET", again)).json()["id"] == again.rpartition("/")[2]
            for finished in ("failure", "success"):
                repeated = {"status": {"execution": "closed", "result": {"finished": finished}}}
                assert (await rig.ask("POST", f"{path}/feedback", json=repeated)).status_code == 200
                assert rig.reports() == 1, "about the first campaign"
            for count in (2, 2):
                assert (await rig.ask("POST", f"{again}/feedback", json=feedback)).status_code == 200
                assert rig.reports() == count
            assert "deploymentBase" not in await rig.links()
            rig.keeper.offer_to("pump-1", campaign="c3")
            third = (await rig.links())["deploymentBase"]["href"]
            assert len({path, again, third}) == 3
            assert int(third.rpartition("/")[2]) < 1 << 31, "clients have 31 bits"
            done = {"status": {"execution": "closed", "result": {"finished": "success"}}}
            assert (await rig.ask("POST", f"{third}/feedback", json=done)).status_code == 200
            installed = (await rig.links())["installedBase"]["href"]
            assert installed.rpartition("/")[2] == third.rpartition("/")[2]
            assert (await rig.ask("GET", installed)).json()["id"] == third.rpartition("/")[2]

        run(tmp_path, test)

    @pytest.mark.parametrize("finished", ["failure", "success"])
    def test_old_feedback_says_nothing_while_a_campaign_is_paused(self, tmp_path: Path, finished: str) -> None:
        """A device repeats its last feedback at each boot, and would halt or prove the campaign."""

        async def test(rig: Rig) -> None:
            rig.keeper.add(7, devices=("nobody",))
            feedback = {"status": {"execution": "closed", "result": {"finished": finished}}}
            rig.keeper.offer_to("pump-1", campaign="c1")
            first = (await rig.links())["deploymentBase"]["href"]
            assert (await rig.ask("POST", f"{first}/feedback", json=feedback)).status_code == 200
            rig.keeper.offer_to("pump-1", campaign="c2")
            second = (await rig.links())["deploymentBase"]["href"]
            rig.keeper.offer_to("pump-1", campaign="c2", withheld=True)
            for path, count in ((first, 1), (second, 2), (second, 2), (first, 2)):
                assert (await rig.ask("POST", f"{path}/feedback", json=feedback)).status_code == 200
                assert rig.reports() == count, path
            rig.keeper.offers.clear()
            started = {"status": {"execution": "proceeding", "result": {"finished": "none"}}}
            assert (await rig.ask("POST", f"{second}/feedback", json=started)).status_code == 200
            assert rig.reports() == 3, "without a campaign each report counts"

        run(tmp_path, test)

    def test_feedback_counts_when_the_gateway_has_lost_its_reports(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            rig.keeper.offer_to("pump-1", campaign="c2")
            feedback = {"status": {"execution": "closed", "result": {"finished": "success"}}}
            action = f"{TestDdi.ROOT}/deploymentBase/{limits.ACTION_ARTEFACTS + 7}"
            assert (await rig.ask("POST", f"{action}/feedback", json=feedback)).status_code == 200
            assert rig.reports() == 1

        run(tmp_path, test)

    def test_wrong_board_is_reported_to_each_campaign(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add()
            await rig.serving.reporting.put_device("pump-1", "esp32", "")
            for count, campaign in enumerate(("c1", "c2"), start=1):
                rig.keeper.offer_to("pump-1", campaign=campaign)
                for _ in range(2):
                    assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image")).status_code == 422
                assert rig.reports() == count

        run(tmp_path, test)

    def test_update_of_a_second_campaign_is_withdrawn_as_any_other(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7, devices=("nobody",))
            report = "/artefacts/blinker/1.2.0/report"
            for campaign, states in (("c1", ("rolled-back",)), ("c2", ("downloading", "verified"))):
                rig.keeper.offer_to("pump-1", campaign=campaign)
                for state in states:
                    assert (await rig.ask("POST", report, json={"state": state})).status_code == 202
            assert rig.reports() == 3
            rig.keeper.offers.clear()
            cancelled = (await rig.links())["cancelAction"]["href"]
            shown = (await rig.ask("GET", cancelled)).json()
            assert shown["id"] == shown["cancelAction"]["stopId"] == cancelled.rpartition("/")[2] != "7"
            closed = {"status": {"execution": "canceled", "result": {"finished": "none"}}}
            assert (await rig.ask("POST", f"{cancelled}/feedback", json=closed)).status_code == 200
            assert "cancelAction" not in await rig.links()

        run(tmp_path, test)

    @pytest.mark.parametrize(
        ("offer", "is_offered"),
        [
            ({"campaign": "c2"}, True),
            ({"campaign": "c2", "done": True}, False),
            ({}, False),  # of a hub that does not name campaigns
        ],
    )
    def test_success_of_before_counts_if_the_hub_knows_it(
        self, tmp_path: Path, offer: dict[str, Any], is_offered: bool
    ) -> None:
        """Without it the device was replaced, or was set back."""

        async def test(rig: Rig) -> None:
            rig.keeper.add()
            assert (await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": "healthy"})).is_success
            rig.keeper.offer_to("pump-1", **offer)
            assert ("deploymentBase" in await rig.links()) is is_offered

        run(tmp_path, test)

    def test_device_that_was_updated_at_another_gateway(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add()
            rig.keeper.offer_to("pump-1", campaign="c1", done=True)
            assert "deploymentBase" not in await rig.links()
            assert (await rig.ask("GET", "/artefacts")).json()["artefacts"] != [], "others decide themselves"

        run(tmp_path, test)

    def test_refusal_at_a_poll_is_reported(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(from_versions=("1.0",))
            rig.keeper.offer_to("pump-1")
            attributes = {"mode": "merge", "data": {"board": "pico-w", "version": "0.9"}}
            assert (await rig.ask("PUT", f"{TestDdi.ROOT}/configData", json=attributes)).status_code == 200
            for _ in range(2):
                assert "deploymentBase" not in (await rig.ask("GET", TestDdi.ROOT)).json()["_links"]
            assert rig.reports() == 1

        run(tmp_path, test)

    def test_downgrade_at_a_poll_is_reported(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(1, version="1.3.0", sequence=13)
            await rig.ask("POST", "/artefacts/blinker/1.3.0/report", json={"state": "healthy"})
            rig.keeper.add(2)
            rig.keeper.offer_to("pump-1")
            assert "deploymentBase" not in (await rig.ask("GET", TestDdi.ROOT)).json()["_links"]
            assert rig.reports() == 2

        run(tmp_path, test)

    def test_withheld_artefact_is_not_fetched_and_takes_reports(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add()
            rig.keeper.offer_to("pump-1", withheld=True)
            assert (await rig.ask("GET", "/artefacts")).json()["artefacts"] == []
            assert (await rig.ask("GET", "/artefacts/blinker/1.2.0/image")).status_code == 404
            links = (await rig.ask("GET", TestDdi.ROOT)).json()["_links"]
            assert not {"deploymentBase", "cancelAction"} & links.keys()
            report = await rig.ask("POST", "/artefacts/blinker/1.2.0/report", json={"state": "healthy"})
            assert (report.status_code, rig.reports()) == (202, 1)

        run(tmp_path, test)


class TestDdi:
    """The exchange as the documentation of hawkBit shows it."""

    ROOT = "/DEFAULT/controller/v1/pump-1"

    def test_update(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            base = f"http://gateway:8080{self.ROOT}"
            root = (await rig.ask("GET", self.ROOT)).json()
            assert root == {
                "config": {"polling": {"sleep": "00:05:00"}},
                "_links": {
                    "deploymentBase": {"href": f"{base}/deploymentBase/7"},
                    "configData": {"href": f"{base}/configData"},
                },
            }
            told = {"mode": "merge", "data": {"board": "pico-w", "hwRevision": "2"}}
            assert (await rig.ask("PUT", f"{self.ROOT}/configData", json=told)).status_code == 200
            assert "configData" not in (await rig.ask("GET", self.ROOT)).json()["_links"]
            update = (await rig.ask("GET", f"{self.ROOT}/deploymentBase/7")).json()
            assert (update["id"], update["deployment"]["download"], update["deployment"]["update"]) == (
                "7",
                "forced",
                "forced",
            )
            [chunk] = update["deployment"]["chunks"]
            assert (chunk["part"], chunk["name"], chunk["version"]) == ("bApp", "blinker", "1.2.0")
            [file] = chunk["artifacts"]
            assert (file["filename"], file["size"]) == ("blinker", len(IMAGE))
            assert file["hashes"]["sha256"] == manifest_of().digest
            assert [len(file["hashes"][name]) for name in ("sha1", "md5")] == [40, 32]
            assert len(json.dumps(update)) < 1_100, "the buffer of Zephyr's client"
            image = await rig.ask("GET", file["_links"]["download-http"]["href"])
            assert image.content == IMAGE
            for execution, finished in (("proceeding", "none"), ("proceeding", "none"), ("closed", "success")):
                done = await self.feedback(rig, execution, finished)
                assert done.status_code == 200
            assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 2
            links = (await rig.ask("GET", self.ROOT)).json()["_links"]
            assert links == {"installedBase": {"href": f"{base}/installedBase/7"}}, "it is done"

        run(tmp_path, test)

    async def feedback(
        self,
        rig: Rig,
        execution: str,
        finished: str,
        *details: str,
        kind: str = "deploymentBase",
        action: int = 7,
    ) -> httpx.Response:
        result = {"finished": finished, "progress": {"cnt": 1, "of": 2}}
        status = {"execution": execution, "result": result, "code": 0, "details": list(details)}
        body = {"id": str(action), "time": "20261130T120000", "status": status}
        return await rig.ask("POST", f"{self.ROOT}/{kind}/{action}/feedback", json=body)

    @pytest.mark.parametrize(
        ("execution", "finished", "state"),
        [
            ("closed", "success", UpdateState.INSTALLED),
            ("closed", "failure", UpdateState.ROLLED_BACK),
            ("closed", "none", UpdateState.INSTALLED),
            ("rejected", "none", UpdateState.DOWNLOADING),
            ("canceled", "none", UpdateState.ROLLED_BACK),
            ("download", "none", UpdateState.DOWNLOADING),
            ("downloaded", "none", UpdateState.VERIFIED),
            ("resumed", "none", UpdateState.DOWNLOADING),
        ],
    )
    def test_feedback(self, tmp_path: Path, execution: str, finished: str, state: UpdateState) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            assert (await self.feedback(rig, execution, finished, "no room")).status_code == 200
            assert [each.state for each in (await rig.serving.reporting.known("pump-1")).reports] == [state]
            offered = "deploymentBase" in (await rig.ask("GET", self.ROOT)).json()["_links"]
            assert offered is not state.final
            assert (await self.feedback(rig, "dancing", "none")).status_code == 400

        run(tmp_path, test)

    def test_offer_fits_board_and_version(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            rig.keeper.add(8, version="1.3.0", sequence=13, from_versions=("1.2.0",))
            rig.keeper.add(9, version="1.0.0", sequence=10)
            assert await self.action(rig) == "7"
            await self.feedback(rig, "closed", "success")
            assert await self.action(rig) == "8", "over the version that is installed, and nothing older"
            rig.keeper.fetch_again("1.2.0")
            assert (await rig.ask("GET", f"{self.ROOT}/deploymentBase/8")).status_code == 200
            await rig.ask("PUT", f"{self.ROOT}/configData", json={"data": {"board": "esp32"}})
            assert await self.action(rig) is None, "made for another board"
            for path in ("deploymentBase/8", "softwaremodules/8/artifacts", "softwaremodules/8/artifacts/blinker"):
                assert (await rig.ask("GET", f"{self.ROOT}/{path}")).status_code == 404

        run(tmp_path, test)

    def test_device_that_does_not_say_its_board_has_to_be_named(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7, ())
            rig.keeper.add(8, version="1.3.0", sequence=13, from_versions=("1.1.0",))
            assert await self.action(rig) is None
            await rig.ask("PUT", f"{self.ROOT}/configData", json={"data": {"version": "1.1.0"}})
            assert await self.action(rig) == "8"
            await rig.ask("PUT", f"{self.ROOT}/configData", json={"data": {"board": "pico-w"}})
            assert await self.action(rig) == "7"

        run(tmp_path, test)

    def test_firmware_that_a_device_says_to_run_is_not_offered(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await rig.ask("PUT", f"{self.ROOT}/configData", json={"data": {"version": "1.2.0"}})
            assert await self.action(rig) is None
            rig.keeper.add(8, version="1.3.0", sequence=13)
            assert await self.action(rig) == "8"

        run(tmp_path, test)

    def test_version_that_was_signed_again_is_another_artefact(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await self.feedback(rig, "closed", "success")
            key = ("blinker", "1.2.0")
            signed_again = manifest_of(IMAGE + b"x", sequence=14)
            rig.keeper.known[key] = rig.keeper.known[key]._replace(manifest=signed_again)
            assert await self.action(rig) == "7"

        run(tmp_path, test)

    async def action(self, rig: Rig) -> str | None:
        links = (await rig.ask("GET", self.ROOT)).json()["_links"]
        found = links.get("deploymentBase", {}).get("href")
        return None if found is None else str(found.rpartition("/")[2])

    def test_withdrawn_update_is_cancelled(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await self.feedback(rig, "proceeding", "none")
            assert (await rig.ask("GET", f"{self.ROOT}/cancelAction/7")).status_code == 404
            rig.keeper.withdraw()
            rig.keeper.add(8, version="1.3.0", sequence=13)
            links = (await rig.ask("GET", self.ROOT)).json()["_links"]
            assert "deploymentBase" not in links, "first it gives up the other one"
            assert links["cancelAction"]["href"].endswith("/cancelAction/7")
            cancellation = (await rig.ask("GET", f"{self.ROOT}/cancelAction/7")).json()
            assert cancellation == {"id": "7", "cancelAction": {"stopId": "7"}}
            for execution, finished in (("proceeding", "none"), ("closed", "success"), ("closed", "success")):
                done = await self.feedback(rig, execution, finished, kind="cancelAction")
                assert done.status_code == 200
            assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 2, "once as begun, once as cancelled"
            assert await self.action(rig) == "8"
            rig.keeper.add(7)
            await self.feedback(rig, "closed", "success", action=8)
            assert await self.action(rig) is None, "it is older than what the device runs"

        run(tmp_path, test)

    def test_cancelled_update_that_comes_back_is_offered_again(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await self.feedback(rig, "downloaded", "none")
            rig.keeper.withdraw()
            await self.feedback(rig, "canceled", "none", kind="cancelAction")
            assert (await rig.ask("GET", self.ROOT)).json()["_links"].keys() == {"configData"}
            rig.keeper.add(7)
            assert await self.action(rig) == "7"

        run(tmp_path, test)

    @pytest.mark.parametrize(("execution", "finished"), [("rejected", "none"), ("closed", "failure")])
    def test_device_that_does_not_cancel_goes_on(self, tmp_path: Path, execution: str, finished: str) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await self.feedback(rig, "proceeding", "none")
            rig.keeper.withdraw()
            assert (await self.feedback(rig, execution, finished, kind="cancelAction")).status_code == 200
            assert "cancelAction" not in (await rig.ask("GET", self.ROOT)).json()["_links"]
            assert (await self.feedback(rig, "downloaded", "none")).status_code == 200
            assert "cancelAction" not in (await rig.ask("GET", self.ROOT)).json()["_links"], "it is asked once"
            assert (await self.feedback(rig, "closed", "success")).status_code == 200
            [report] = (await rig.serving.reporting.known("pump-1")).reports
            assert (report.state, report.sequence) == (UpdateState.INSTALLED, 12)
            assert (await self.feedback(rig, "dancing", "none", kind="cancelAction")).status_code == 400

        run(tmp_path, test)

    def test_update_is_not_cancelled_while_it_is_away(self, tmp_path: Path) -> None:
        """While its manifest is not accepted for a time, and while the gateway reads its index."""

        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            await self.feedback(rig, "proceeding", "none")
            away = rig.keeper.known.pop(("blinker", "1.2.0"))
            assert (await rig.ask("GET", self.ROOT)).json()["_links"].keys() == {"configData"}
            rig.keeper.loaded = False
            assert (await rig.ask("GET", self.ROOT)).status_code == 503
            rig.keeper.loaded = True
            rig.keeper.known["blinker", "1.2.0"] = away._replace(number=8, manifest=manifest_of(b"x", sequence=13))
            links = (await rig.ask("GET", self.ROOT)).json()["_links"]
            assert links["cancelAction"]["href"].endswith("/7"), "the version was signed again"

        run(tmp_path, test)

    def test_feedback_about_an_update_that_is_gone_is_taken(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            rig.keeper.withdraw()
            assert (await self.feedback(rig, "closed", "success")).status_code == 200
            assert rig.router.queues.backlog("plant/pump-1/artefact-report") == 1
            rig.keeper.remembered.clear()
            assert (await self.feedback(rig, "closed", "failure")).status_code == 200, "by the report before"
            assert (await self.feedback(rig, "closed", "success", action=9)).status_code == 404

        run(tmp_path, test)

    def test_history_and_installed_update(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            path = f"{self.ROOT}/deploymentBase/7?actionHistory"
            assert (await rig.ask("GET", f"{path}=5")).json()["actionHistory"] == {
                "status": "RETRIEVED",
                "messages": [],
            }
            await self.feedback(rig, "download", "none", "begun")
            await self.feedback(rig, "downloaded", "none")
            found = (await rig.ask("GET", f"{path}=1")).json()["actionHistory"]
            assert found == {"status": "DOWNLOADED", "messages": ["verified"]}
            assert "actionHistory" not in (await rig.ask("GET", f"{path}=0")).json()
            assert (await rig.ask("GET", f"{path}=many")).status_code == 400
            assert (await rig.ask("GET", f"{self.ROOT}/installedBase/7")).status_code == 404
            await self.feedback(rig, "closed", "success")
            installed = (await rig.ask("GET", f"{self.ROOT}/installedBase/7?actionHistory=-1")).json()
            assert installed["deployment"]["chunks"][0]["version"] == "1.2.0"
            messages = ["installed", "verified", "downloading: begun"]
            assert installed["actionHistory"] == {"status": "FINISHED", "messages": messages}
            rig.keeper.withdraw()
            assert (await rig.ask("GET", f"{self.ROOT}/installedBase/7")).status_code == 404

        run(tmp_path, test)

    @pytest.mark.parametrize(
        ("mode", "data", "known"),
        [
            ("merge", {"version": "2"}, ("pico-w", "2")),
            ("replace", {"version": "2"}, ("", "2")),
            ("remove", {"board": ""}, ("", "1")),
        ],
    )
    def test_modes_of_attributes(self, tmp_path: Path, mode: str, data: dict[str, str], known: tuple[str, str]) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            path, first = f"{self.ROOT}/configData", {"data": {"board": "pico-w", "version": "1"}}
            assert (await rig.ask("PUT", path, json=first)).status_code == 200
            assert (await rig.ask("PUT", path, json={"mode": mode, "data": data})).status_code == 200
            found = await rig.serving.reporting.known("pump-1")
            assert (found.board, found.version) == known
            assert (await rig.ask("PUT", path, json={"mode": "eat", "data": data})).status_code == 400
            assert (await rig.ask("PUT", path, json=[1])).status_code == 400

        run(tmp_path, test)

    def test_checksum_of_a_file(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            found = await rig.ask("GET", f"{self.ROOT}/softwaremodules/7/artifacts/blinker.MD5SUM")
            assert found.text.split() == ["b" * 32, "blinker"]

        run(tmp_path, test)

    def test_target_token_is_user_and_password(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            token = base64.b64encode(b"pump-1:secret").decode()
            answer = await rig.client.get(self.ROOT, headers={"Authorization": f"TargetToken {token}"})
            assert answer.status_code == 200
            gateway = base64.b64encode(b"gateway-3:secret").decode()
            found = await rig.client.get(self.ROOT, headers={"Authorization": f"GatewayToken {gateway}"})
            assert found.status_code == 200, "its user may act for the device"
            other = await rig.client.get(
                self.ROOT.replace("pump-1", "pump-2"), headers={"Authorization": f"TargetToken {token}"}
            )
            assert other.status_code == 403
            wrong = await rig.client.get(self.ROOT, headers={"Authorization": "TargetToken bhVahL1Il1shie2aj2poojee"})
            assert wrong.status_code == 401

        run(tmp_path, test)

    def test_other_devices_and_actions(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.add(7)
            assert (await rig.ask("GET", self.ROOT, "pump-2")).status_code == 403
            assert (await rig.ask("GET", f"{self.ROOT}/deploymentBase/8")).status_code == 404
            assert (await rig.ask("GET", f"{self.ROOT}/softwaremodules/7/artifacts/other")).status_code == 404
            assert (await rig.ask("POST", f"{self.ROOT}/deploymentBase/7/feedback", content=b"{")).status_code == 400

        run(tmp_path, test)

    def test_gateway_without_artefacts_answers_polls(self, tmp_path: Path) -> None:
        async def test(rig: Rig) -> None:
            rig.keeper.spec = None
            assert (await rig.ask("GET", self.ROOT)).json()["_links"].keys() == {"configData"}
            await rig.ask("PUT", f"{self.ROOT}/configData", json={"data": {"board": "esp32"}})
            assert not (tmp_path / "artefacts").exists()

        run(tmp_path, test)
