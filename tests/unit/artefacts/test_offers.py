"""Offers of a hub's campaigns at a gateway: held in addition to the configuration, within its keys and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.device_pages import OfferedUpdate
from edge.appliance.artefacts import offers as module
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.offers import with_offers
from edge.configuration.resources import ArtefactPart, ArtefactsSpec
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY

BLINKER = "blinker", "1.2.0"


def offered(version: str = "1.2.0", *, withheld: bool = False) -> OfferedUpdate:
    return OfferedUpdate(artefact="blinker", version=version, withheld=withheld)


class TestSpec:
    def test_offers_are_added_to_the_configuration(self) -> None:
        own = ArtefactPart(name="other", version="1", devices=("x",))
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("b", offered()), ("a", offered()), ("c", offered("2"))])
        first, second = found.spec.artefacts[1:]
        assert found.spec.artefacts[0] == own
        assert (first.key, first.devices) == (BLINKER, ("a", "b"))
        assert (second.key, second.devices) == (("blinker", "2"), ("c",))
        assert found.offered[BLINKER] == {"a", "b"}

    def test_artefact_in_both_keeps_its_boards_and_gets_the_devices(self) -> None:
        own = ArtefactPart(name="blinker", version="1.2.0", boards=("pico-w",), devices=("x",))
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("a", offered()), ("x", offered(withheld=True))])
        [part] = found.spec.artefacts
        assert (part.boards, part.devices) == (("pico-w",), ("x", "a", "x"))
        assert found.withheld == {}, "what the operator configures is not withheld"
        other = with_offers(ArtefactsSpec(artefacts=(own,)), [("a", offered(withheld=True))])
        assert other.withheld == {BLINKER: {"a"}}, "the operator's part names another device"
        every = with_offers(
            ArtefactsSpec(artefacts=(ArtefactPart(name="blinker", version="1.2.0"),)), [("a", offered())]
        )
        assert every.spec.artefacts[0].devices == (), "for all devices"

    def test_withheld_offers_keep_the_artefact_for_reports(self) -> None:
        found = with_offers(ArtefactsSpec(), [("a", offered(withheld=True)), ("b", offered())])
        assert found.spec.artefacts[0].devices == ("a", "b")
        assert (found.offered[BLINKER], found.withheld[BLINKER]) == ({"b"}, {"a"})

    def test_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ARTEFACTS_MAX", 2)
        own = ArtefactPart(name="own", version="1")
        found = with_offers(ArtefactsSpec(artefacts=(own,)), [("a", offered("1")), ("a", offered("2"))])
        assert ([each.version for each in found.spec.artefacts], found.left) == (["1", "1"], 1)


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
        held = gateway.last[0][BLINKER]
        assert held.wanted.devices == ("pump-1", "pump-2")
        assert len(hub.ranges()) == asked

    def test_change_of_offers_is_followed_while_it_runs(self, gateway: ArtefactGateway) -> None:
        def step(keeper: ArtefactKeeper) -> bool:
            if BLINKER in keeper.held and keeper.is_offered(BLINKER, "pump-1"):
                gateway.offers.clear()
                gateway.offer("pump-1", withheld=True)
            elif keeper.is_withheld(BLINKER, "pump-1"):
                assert BLINKER in keeper.held, "the image stays"
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
