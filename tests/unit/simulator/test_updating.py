"""A simulated device that updates itself: success, roll-back, refusals, and resets while it downloads."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from bridge.artefacts.manifest import ArtefactManifest
from simulator.kinds import SoftwareUpdates
from simulator.tally import DeviceTally
from simulator.updating import DeviceReset, DeviceUpdater
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY, sealed

SETTINGS = SoftwareUpdates(artefact="blinker", board="pico-w", key_file="maker.pub", poll=0.001)
PART = 1_000


class Looked(Exception):
    """The device has looked for an update often enough."""


class Exchange:
    """Gateway that offers one artefact."""

    def __init__(self, envelope: bytes, image: bytes = IMAGE, looks: int = 3) -> None:
        self.envelope = envelope
        self.image = image
        self.reports: list[str] = []
        self.starts: list[int] = []
        self._looks = looks

    async def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    async def offered(self, version: str) -> bytes | None:
        self._looks -= 1
        if self._looks < 0:
            raise Looked
        return self.envelope if version != "1.2.0" else None

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        self.starts.append(start)
        return self.image[start : start + PART]

    async def report(self, artefact: tuple[str, str], state: str, reason: str) -> None:
        self.reports.append(state)


def updater_of(tally: DeviceTally, **settings: Any) -> DeviceUpdater:
    found = SoftwareUpdates(artefact="blinker", board="pico-w", key_file="maker.pub", poll=0.001, **settings)
    return DeviceUpdater(found, KEY.public, ("1.1.0", 11), random.Random(1), tally)


def used(updater: DeviceUpdater, exchange: Exchange) -> int:
    """Let the device update until it has looked often enough; return its resets."""
    resets = 0
    while True:
        try:
            asyncio.run(updater.run(exchange))
        except DeviceReset:
            resets += 1
        except Looked:
            return resets


def test_good_version_is_installed_once() -> None:
    tally = DeviceTally()
    updater, exchange = updater_of(tally), Exchange(sealed())
    assert used(updater, exchange) == 1
    assert exchange.reports == ["downloading", "verified", "installed", "healthy"]
    assert (updater.version, updater.ended, +tally.versions) == ("1.2.0", True, {"1.2.0": 1})
    assert exchange.starts == list(range(0, len(IMAGE), PART))


def test_version_that_does_not_start_is_rolled_back_and_not_tried_again() -> None:
    tally = DeviceTally()
    updater, exchange = updater_of(tally, failing=1.0), Exchange(sealed())
    assert used(updater, exchange) == 1
    assert exchange.reports == ["downloading", "verified", "installed", "rolled-back"]
    assert (updater.version, updater.ended, updater.fails) == ("1.1.0", True, True)
    assert tally.states["rolled-back"] == 1


@pytest.mark.parametrize(("envelope", "fault"), [
    (sealed(key=OTHER_KEY), "unknown-key"),
    (sealed(boards=("esp32",)), "wrong-board"),
    (sealed(sequence=10), "downgraded"),
    (sealed(from_versions=("1.0.0",)), "wrong-from-version"),
    (sealed(IMAGE[:-1] + b"x"), "forged"),
    (sealed()[:-3], "truncated"),
])  # fmt: skip
def test_wrong_artefacts_are_refused_once(envelope: bytes, fault: str) -> None:
    tally = DeviceTally()
    updater, exchange = updater_of(tally), Exchange(envelope)
    assert used(updater, exchange) == 0
    assert tally.errors == {f"artefact-{fault}": 1}
    assert updater.version == "1.1.0"


def test_download_continues_after_a_reset() -> None:
    updater, exchange = updater_of(DeviceTally(), resets=1e-9), Exchange(sealed(), looks=20)
    resets = used(updater, exchange)
    assert resets >= len(IMAGE) // PART
    assert exchange.starts == list(range(0, len(IMAGE), PART))
    assert exchange.reports == ["downloading", "verified", "installed", "healthy"]
