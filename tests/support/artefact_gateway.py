"""Keeper of artefacts of a gateway without a broker, on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bridge.device_pages import OfferedUpdate
from bridge.pace import Pacer
from bridge.resources.parse import parse
from edge.appliance.artefacts.keeper import ArtefactKeeper, CardRoom, HubLink, OfferSource
from edge.appliance.artefacts.library import HeldArtefact
from edge.broker.configuration import Connector, EndpointHost
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from tests.support.artefacts import KEY

NOON = 1_800_014_400.0
"""UTC seconds at noon."""
STEPS_MAX = 400


class HubOffers:
    """Offers of the hub, as a gateway has stored them."""

    def __init__(self, gateway: ArtefactGateway) -> None:
        self._gateway = gateway

    @property
    def offers_revision(self) -> int:
        return self._gateway.offers_revision

    @property
    def offered_devices(self) -> int:
        return len(self._gateway.offers)

    def offers(self) -> list[tuple[str, OfferedUpdate]]:
        return self._gateway.offers


class ArtefactGateway:
    """Gateway on one data directory, with hubs at ports of this machine."""

    def __init__(self, data: Path, *ports: int) -> None:
        self.data = data
        self.connectors = [
            Connector(name="hub", hosts=tuple(EndpointHost(host="127.0.0.1", port=port) for port in ports))
        ]
        self.room = CardRoom(None, 0)
        self.pacer: Pacer | None = None
        self.connected = True
        self.clock_good = True
        self.offers: list[tuple[str, OfferedUpdate]] = []
        """Offers of the hub, by device."""
        self.offers_revision = 0
        self.now = 1_000.0
        self.last: tuple[dict[tuple[str, str], HeldArtefact], list[str]] = {}, []
        """Artefacts and problems at the end of the last run."""

    def want(self, *artefacts: dict[str, Any], keys: Sequence[str] = (KEY.public.pem,), **spec: Any) -> None:
        """Apply an `Artefacts` resource; without artefacts the usual one."""
        wanted = artefacts or ({"name": "blinker", "version": "1.2.0"},)
        document = {
            "apiVersion": "waypost/v1",
            "kind": "Artefacts",
            "metadata": {"name": "gateway"},
            "spec": {"trustedKeys": list(keys), "artefacts": list(wanted), **spec},
        }
        Repository(self.data).apply(parse(KINDS, msgspec.json.encode(document).decode(), "test"))

    def offer(self, *devices: str, version: str = "1.2.0", **fields: Any) -> None:
        """Let the hub offer a version of the blinker to devices, in addition to other offers."""
        offer = OfferedUpdate(artefact="blinker", version=version, **fields)
        self.offers += [(device, offer) for device in devices]
        self.offers_revision += 1

    def withdraw(self) -> None:
        """Let the hub withdraw all offers."""
        self.offers = []
        self.offers_revision += 1

    def run(self, until: Callable[[ArtefactKeeper], bool]) -> ArtefactKeeper:
        """Run a keeper, as after a start, until a condition holds; return it."""

        async def main() -> ArtefactKeeper:
            keeper = self.make()
            try:
                for _ in range(STEPS_MAX):
                    keeping, fetching = await keeper.keep(), await keeper.fetch()
                    if until(keeper):
                        return keeper
                    self.now += max(0.001, min(keeping, fetching))
            finally:
                self.last = dict(keeper.held), [f"{each.name}: {each.what}" for each in keeper.problems()]
                await keeper.stop()
            raise AssertionError(f"the condition does not hold; problems: {self.last[1]}")

        return asyncio.run(main())

    def fetch(self, *versions: str) -> list[bytes]:
        """Run until these versions of the blinker are held; return their images."""
        wanted = {("blinker", each) for each in versions or ("1.2.0",)}
        self.run(lambda keeper: set(keeper.held) == wanted)
        return [self.last[0]["blinker", each].image.read_bytes() for each in versions or ("1.2.0",)]

    def problem(self, words: str) -> str:
        """Run until a problem has these words; return it."""

        def is_there(keeper: ArtefactKeeper) -> bool:
            return any(words in each.what for each in keeper.problems())

        self.run(is_there)
        return next(each for each in self.last[1] if words in each)

    def settle(self) -> list[str]:
        """Run some minutes; return the problems."""
        end = self.now + 600.0
        self.run(lambda _: self.now >= end)
        return self.last[1]

    def _ask_room(self) -> CardRoom:
        """The store answers on the loop only: RuntimeError elsewhere."""
        asyncio.get_running_loop()
        return self.room

    def make(self, offers: OfferSource | None = None) -> ArtefactKeeper:
        """Return a keeper, in a running loop; the caller stops it. `offers`: instead of `offer`."""
        return ArtefactKeeper(
            self.data,
            connectors=lambda: self.connectors,
            link=lambda _: HubLink(self.connected, self.pacer),
            room=self._ask_room,
            clock_good=lambda: self.clock_good,
            offers=offers or HubOffers(self),
            monotonic_s=lambda: self.now,
            utc_s=lambda: NOON + self.now,
        )
