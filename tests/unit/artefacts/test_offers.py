"""Offers of a hub's campaigns at a gateway: held in addition to the configuration, within its keys and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.device_pages import (
    SHA256,
    DeviceAccount,
    DeviceEntry,
    DevicePage,
    DeviceSecretHash,
    OfferedUpdate,
    digest_of,
)
from edge.appliance.artefacts import offers as module
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.offers import with_offers
from edge.broker.security.hub_devices import HubDevices
from edge.configuration.resources import ArtefactPart, ArtefactsSpec
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY, sealed

BLINKER = "blinker", "1.2.0"


def offered(version: str = "1.2.0", **fields: Any) -> OfferedUpdate:
    return OfferedUpdate(artefact="blinker", version=version, **fields)


def _with(part: ArtefactPart, version: str) -> ArtefactPart:
    return msgspec.structs.replace(part, version=version)


def versions(spec: ArtefactsSpec) -> list[str]:
    return [each.version for each in spec.artefacts]


class TestSpec:
    def test_offers_are_added_to_the_configuration(self) -> None:
        own = ArtefactPart(name="other", version="1", devices=("x",))
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("b", offered()), ("a", offered()), ("c", offered("2"))])
        first, second = found.spec.artefacts[1:]
        assert found.spec.artefacts[0] == own
        assert (first, second) == (
            ArtefactPart(name="blinker", version="1.2.0"),
            msgspec.structs.replace(first, version="2"),
        )
        assert found.offers == {BLINKER: {"a": offered(), "b": offered()}, ("blinker", "2"): {"c": offered("2")}}

    def test_artefact_in_both_stays_as_it_is_configured(self) -> None:
        own = ArtefactPart(name="blinker", version="1.2.0", boards=("pico-w",), devices=("x",))
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("a", offered()), ("x", offered(withheld=True))])
        assert found.spec.artefacts == (own,)
        assert found.offers[BLINKER].keys() == {"a", "x"}

    def test_newest_campaign_comes_first_and_done_ones_last(self) -> None:
        offers = [
            ("a", offered("1", begun_at=100)),
            ("a", offered("2", begun_at=300, done=True)),
            ("a", offered("3", begun_at=200)),
            ("a", offered("4")),
            ("b", offered("5", begun_at=400, done=True)),
            ("c", offered("5", begun_at=400, withheld=True)),
        ]
        assert versions(with_offers(ArtefactsSpec(), offers).spec) == ["5", "3", "1", "4", "2"]

    def test_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ARTEFACTS_MAX", 2)
        own = ArtefactPart(name="own", version="0")
        offers = [("a", offered("1", begun_at=1)), ("a", offered("2", begun_at=2))]
        found = with_offers(ArtefactsSpec(artefacts=(own,)), offers)
        assert (versions(found.spec), found.left) == (["0", "2"], 1)
        full = with_offers(ArtefactsSpec(artefacts=(own, _with(own, "a"), _with(own, "b"))), offers)
        assert (len(full.spec.artefacts), full.left) == (3, 2), "what is configured stays"


class TestVersions:
    """Gateways and hubs of other versions."""

    def test_hub_that_does_not_name_campaigns(self) -> None:
        found = msgspec.json.decode(b'{"artefact":"blinker","version":"1.2.0"}', type=OfferedUpdate)
        assert (found.campaign, found.begun_at, found.done) == ("", 0, False)

    def test_gateway_that_does_not_know_a_field(self) -> None:
        class Older(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
            artefact: str
            version: str
            withheld: bool = False

        new = offered(campaign="c1", begun_at=1, done=True, withheld=True)
        entry = DeviceEntry(device="a", offers=(new,))
        page = msgspec.json.encode(entry).replace(b'"done":true', b'"done":true,"later":[1]')
        assert msgspec.json.decode(page, type=DeviceEntry) == entry
        assert msgspec.json.decode(msgspec.json.encode(new), type=Older) == Older(
            artefact="blinker", version="1.2.0", withheld=True
        )


class TestKeeper:
    """A real keeper and a hub over HTTP."""

    @pytest.fixture
    def hub(self) -> Iterator[ArtefactHubServer]:
        with ArtefactHubServer() as hub:
            hub.add()
            yield hub

    @pytest.fixture
    def gateway(self, tmp_path: Path, hub: ArtefactHubServer) -> ArtefactGateway:
        made = ArtefactGateway(tmp_path, hub.port)
        made.want({"name": "none", "version": "0"})
        return made

    def test_offered_artefact_is_fetched_once_and_kept_without_the_hub(
        self, gateway: ArtefactGateway, hub: ArtefactHubServer
    ) -> None:
        gateway.offer("pump-1")
        assert gateway.fetch() == [IMAGE]
        assert hub.ranges() != []
        asked = len(hub.ranges())
        gateway.offer("pump-2")
        gateway.connected = False
        assert gateway.fetch() == [IMAGE], "after a start"
        assert len(hub.ranges()) == asked

    def test_change_of_offers_is_followed_while_it_runs(self, gateway: ArtefactGateway) -> None:
        def step(keeper: ArtefactKeeper) -> bool:
            offer = keeper.offer(BLINKER, "pump-1")
            if BLINKER in keeper.held and offer == offered():
                assert keeper.may_fetch(BLINKER, "pump-1")
                assert not keeper.names(BLINKER, "pump-2"), "it is not for all devices"
                gateway.offers.clear()
                gateway.offer("pump-1", withheld=True)
            elif offer == offered(withheld=True):
                assert BLINKER in keeper.held, "the image stays"
                assert not keeper.may_fetch(BLINKER, "pump-1")
                assert keeper.names(BLINKER, "pump-1")
                gateway.withdraw()
            return not gateway.offers and BLINKER not in keeper.known

        gateway.offer("pump-1")
        gateway.run(step)
        assert not list((gateway.data / "artefacts").glob("*.image"))

    def test_configuration_decides_for_the_devices_that_it_names(self, gateway: ArtefactGateway) -> None:
        gateway.want({"name": "blinker", "version": "1.2.0", "devices": ["pump-*"]})
        gateway.offer("pump-1", withheld=True)
        gateway.offer("fan-1", withheld=True)

        def step(keeper: ArtefactKeeper) -> bool:
            return BLINKER in keeper.held and [
                keeper.may_fetch(BLINKER, each) for each in ("pump-1", "pump-2", "fan-1", "fan-2")
            ] == [True, True, False, False]

        gateway.run(step)

    def test_no_key_is_trusted(self, tmp_path: Path, hub: ArtefactHubServer) -> None:
        gateway = ArtefactGateway(tmp_path, hub.port)
        gateway.offer("pump-1")
        assert "no key of a maker is trusted" in gateway.problem("offers software")
        assert hub.asked == []

    def test_another_key_is_trusted(self, gateway: ArtefactGateway) -> None:
        gateway.want({"name": "none", "version": "0"}, keys=(OTHER_KEY.public.pem,))
        gateway.offer("pump-1")
        assert "unknown-key" in gateway.problem("unknown-key")
        gateway.want({"name": "none", "version": "0"}, keys=(KEY.public.pem,))
        assert gateway.fetch() == [IMAGE]

    def test_newest_campaign_displaces_others(self, gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
        """The image of an earlier one stays until bytes of the newer one come."""
        hub.add(version="1.3.0", sequence=13)
        gateway.want({"name": "none", "version": "0"}, storage={"bytes": 2 * len(IMAGE) - 1})
        gateway.offer("pump-1", begun_at=1)
        assert gateway.fetch() == [IMAGE]
        gateway.offer("pump-1", version="1.3.0", begun_at=2)
        gateway.connected = False
        gateway.settle()
        assert BLINKER in gateway.last[0]
        gateway.connected = True
        assert gateway.fetch("1.3.0") == [IMAGE]
        assert any("1.2.0" in each and "storage.bytes" in each for each in gateway.settle())
        assert len(list((gateway.data / "artefacts").glob("*.image"))) == 1

    def test_more_offers_than_a_gateway_holds(self, gateway: ArtefactGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ARTEFACTS_MAX", 1)
        gateway.offer("pump-1")
        assert "not held" in gateway.problem("not held")


class TestChanges:
    """Changes of devices begin nothing again: tens of thousands of them may change while a campaign goes on."""

    @pytest.fixture
    def hub(self) -> Iterator[ArtefactHubServer]:
        with ArtefactHubServer() as hub:
            hub.add()
            yield hub

    @staticmethod
    def watch(keeper: ArtefactKeeper, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return a list that gets what is started again."""
        begun = list[str]()
        library = keeper._library
        assert library is not None
        configure = library.configure
        monkeypatch.setattr(library, "configure", lambda spec: (begun.append("library"), configure(spec)))
        make = keeper._make_pacer
        monkeypatch.setattr(keeper, "_make_pacer", lambda spec: (begun.append("pacer"), make(spec))[1])
        return begun

    def test_new_password_changes_nothing(
        self, tmp_path: Path, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = ArtefactGateway(tmp_path, hub.port)
        gateway.want({"name": "none", "version": "0"})

        async def main() -> None:
            devices = DevicesOfHub(tmp_path)
            devices.put("pump-1", "old", offered(campaign="c1"))
            devices.put("pump-2", "old")
            keeper = gateway.make(devices.devices)
            try:
                while BLINKER not in keeper.held:
                    gateway.now += max(0.001, min(await keeper.keep(), await keeper.fetch()))
                begun = self.watch(keeper, monkeypatch)
                read = list[str]()
                monkeypatch.setattr(devices.devices, "offers", lambda: read.append("offers") or iter(()))
                before = keeper.known
                for device in ("pump-1", "pump-2"):
                    devices.put(device, "new", *([offered(campaign="c1")] if device == "pump-1" else []))
                    await keeper.keep()
                    assert keeper.loaded
                    assert keeper.known is before
                    assert keeper.may_fetch(BLINKER, "pump-1")
                assert (begun, read) == ([], [])
            finally:
                await keeper.stop()
                devices.devices.close()

        asyncio.run(main())

    def test_offers_to_more_devices_change_only_these(
        self, tmp_path: Path, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = ArtefactGateway(tmp_path, hub.port)
        gateway.want({"name": "none", "version": "0"}, rate=1 << 20)
        gateway.offer("pump-1")
        begun = list[str]()

        def step(keeper: ArtefactKeeper) -> bool:
            nonlocal begun
            if BLINKER not in keeper.held:
                return False
            if len(gateway.offers) == 1:
                begun = self.watch(keeper, monkeypatch)
                gateway.offer("pump-2")
            return keeper.loaded and keeper.may_fetch(BLINKER, "pump-2")

        gateway.run(step)
        assert begun == []

    def test_further_artefact_forgets_no_refusal_and_no_debt(
        self, tmp_path: Path, hub: ArtefactHubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = ArtefactGateway(tmp_path, hub.port)
        gateway.want({"name": "none", "version": "0"}, rate=1 << 20)
        hub.add(envelope=sealed(key=OTHER_KEY), version="1.1.0")
        gateway.offer("pump-1", version="1.1.0")
        begun = list[str]()

        def step(keeper: ArtefactKeeper) -> bool:
            nonlocal begun
            if len(gateway.offers) == 1 and any("unknown-key" in each.what for each in keeper.problems()):
                begun = self.watch(keeper, monkeypatch)
                gateway.offer("pump-2")
            return BLINKER in keeper.held

        gateway.run(step)
        assert begun == ["library"]
        assert [path for path, _ in hub.asked].count("blinker/1.1.0/manifest") == 1
        assert any("unknown-key" in each for each in gateway.last[1]), "it is still a problem"


class DevicesOfHub:
    """Devices of a hub at a gateway, by pages."""

    def __init__(self, data: Path) -> None:
        self.devices = HubDevices(data, ())
        self._pages = 0

    def put(self, device: str, password: str, *offers: OfferedUpdate) -> None:
        """Receive a device with a password and offers."""
        self._pages += 1
        secrets = (DeviceSecretHash(id="1", function=SHA256, hashed=password),)
        entry = DeviceEntry(device=device, logins=(DeviceAccount(auth_id=device, secrets=secrets),), offers=offers)
        page = DevicePage(
            tenant="acme",
            gateway="hall",
            base=digest_of(self.devices.cursor),
            cursor=str(self._pages),
            devices_of="acme",
            entries=(entry,),
        )
        fitted = self.devices.fit(page)
        self.devices.take(fitted, self.devices.store(fitted))
