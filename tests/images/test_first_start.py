"""The first start of a card, cut off at any moment: the next one ends enrolled, once.

Of one first start copies are taken at random moments, of the disks of card and hub, while both stand still: that is
what a power cut leaves. Each is then started, at the hub as it was.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.location import sqlite_file
from tests.images.emulated import BOOT_S, HOST, MARKS, Gateway
from tests.support.enrolled import EnrolledFleet
from tests.support.processes import standing_still, wait_until
from tests.support.seeds import chosen_seed

pytestmark = [*MARKS]

MOMENTS = 50
PAUSE_S = 2.0
"""Between two copies, at most: a first start takes a minute and more."""


class Moment(NamedTuple):
    """What was on the disks."""

    number: int
    after_s: float
    """Since power-on."""
    card: Path
    hub: Path

    @property
    def digest(self) -> str:
        """The same where a card starts from the same: the hub's clock and logs go on by themselves."""
        digest = hashlib.sha256(self.card.read_bytes())
        with closing(Enrolments(sqlite_file(self.hub / "registry.db"))) as registry:
            digest.update(repr(list(registry.certificates())).encode())
        return digest.hexdigest()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EnrolledFleet]:
    with EnrolledFleet(tmp_path, "--name", HOST) as made:
        yield made


def set_up(gateway: Gateway) -> bool:
    """It has said so on its console."""
    return gateway.machine is not None and f"Waypost {gateway.name}: set up" in gateway.machine.told


def moments_of_a_first_start(gateway: Gateway, folder: Path, chance: random.Random) -> list[Moment]:
    """From power-on until it is set up."""
    folder.mkdir()
    began, found = time.monotonic(), list[Moment]()
    emulated = gateway.start()
    try:
        while not set_up(gateway):
            assert time.monotonic() - began < BOOT_S, emulated.told[-2000:]
            time.sleep(chance.uniform(0, PAUSE_S))
            place = folder / str(len(found))
            with standing_still(emulated.pid), standing_still(gateway.fleet.hub.pid):
                found.append(Moment(len(found), time.monotonic() - began, place / "card.qcow2", place / "hub"))
                shutil.copytree(gateway.fleet.folder / "hub", place / "hub")
                shutil.copy(gateway.drive, place / "card.qcow2")
    finally:
        emulated.cut_off()
    return found


def start_from(moment: Moment, gateway: Gateway) -> float:
    """Until it is set up, at the hub as it was; how long that takes, s."""
    fleet = gateway.fleet
    fleet.hub.stop()
    shutil.rmtree(fleet.folder / "hub")
    shutil.copytree(moment.hub, fleet.folder / "hub")
    shutil.copy(moment.card, gateway.drive)
    fleet.hub.start()
    began = time.monotonic()
    gateway.start()
    try:
        wait_until(lambda: set_up(gateway), timeout_s=BOOT_S, what="it is set up", every_s=1)
        took = time.monotonic() - began
        wait_until(lambda: bool(gateway.attested()), timeout_s=BOOT_S, what="its attestation", every_s=1)
    finally:
        gateway.cut_off()
    return took


def certificates(gateway: Gateway) -> list[str]:
    """Serials of a gateway's, those that were revoked too."""
    with closing(Enrolments(sqlite_file(gateway.fleet.folder / "hub" / "registry.db"))) as registry:
        return [each.serial for each in registry.certificates() if each.gateway == gateway.name]


def test_cut_off_at_any_moment_it_ends_enrolled_once(tmp_path: Path, image: Path, fleet: EnrolledFleet) -> None:
    chance = random.Random(chosen_seed())
    gateway = Gateway(tmp_path, image, fleet)
    all_of_them = moments_of_a_first_start(gateway, tmp_path / "moments", chance)
    chosen = sorted(chance.sample(all_of_them, min(MOMENTS, len(all_of_them))))
    different = {each.digest: each for each in reversed(chosen)}
    print(f"{len(chosen)} moments of {all_of_them[-1].after_s:.0f} s, {len(different)} with other disks", flush=True)
    assert len(chosen) == MOMENTS
    for each in sorted(different.values()):
        took = start_from(each, gateway)
        [serial] = certificates(gateway)
        assert gateway.attested()["certificate"] == serial
        print(f"cut off after {each.after_s:.1f} s: enrolled once, {took:.0f} s after the next power-on", flush=True)
