"""Offers of a hub's campaigns at a gateway: held in addition to the configuration, within its keys and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.device_pages import DeviceEntry, OfferedUpdate
from edge.appliance.artefacts import offers as module
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.offers import with_offers
from edge.configuration.resources import ArtefactPart, ArtefactsSpec
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY

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
        assert found.offer(BLINKER, "a") == found.offer(BLINKER, "b") == offered()
        assert found.offer(BLINKER, "c") is None
        assert not found.configures(BLINKER, "a"), "it is not for all devices, as a part without devices would be"

    def test_artefact_in_both_stays_as_it_is_configured(self) -> None:
        own = ArtefactPart(name="blinker", version="1.2.0", boards=("pico-w",), devices=("x",))
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("a", offered()), ("x", offered(withheld=True))])
        assert found.spec.artefacts == (own,)
        assert found.configures(BLINKER, "x")
        assert not found.configures(BLINKER, "a")
        assert found.offer(BLINKER, "a") == offered()

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
            part, offer = ArtefactPart(name="blinker", version="1.2.0"), keeper.offer(BLINKER, "pump-1")
            if BLINKER in keeper.held and offer == offered():
                assert keeper.may_fetch(part, "pump-1")
                assert not keeper.names(part, "pump-2")
                gateway.offers.clear()
                gateway.offer("pump-1", withheld=True)
            elif offer == offered(withheld=True):
                assert BLINKER in keeper.held, "the image stays"
                assert not keeper.may_fetch(part, "pump-1")
                assert keeper.names(part, "pump-1")
                gateway.withdraw()
            return not gateway.offers and BLINKER not in keeper.known

        gateway.offer("pump-1")
        gateway.run(step)
        assert not list((gateway.data / "artefacts").glob("*.image"))

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

    def test_more_offers_than_a_gateway_holds(self, gateway: ArtefactGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ARTEFACTS_MAX", 1)
        gateway.offer("pump-1")
        assert "not held" in gateway.problem("not held")
