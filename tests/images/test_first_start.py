"""First start of a card with a power cut at any moment: the next start ends enrolled, once.

One first start is watched by a log of its writes to the card. At random moments, while card and hub are suspended, the
log's length is recorded and the hub's disk copied. A power cut then leaves the flushed writes, and of each later write
a random part: all, its first sectors, or nothing. The machine restarts from that, with the hub of that moment.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Hashable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.location import sqlite_url
from images.emulator import machine
from tests.images.emulated import BOOT_S, MARKS, Gateway
from tests.images.write_log import Write, WriteLog
from tests.support.enrolled import EnrolledFleet
from tests.support.processes import standing_still, wait_until
from tests.support.seeds import chosen_seed

pytestmark = [*MARKS]

CUTS = int(os.environ.get("WAYPOST_CUTS", "50"))
"""Number of cuts; runs with other seeds add up."""
PAUSE_S = 1.0
"""Longest pause between two moments: a first start takes a minute and more, and writes now and then."""
LONGER_MAX = 8
"""Longest later start relative to the first one; a longer one is stuck."""
LAST_CHARACTERS = 2000
"""Characters of a failed start's console that are shown."""


class Moment(NamedTuple):
    """Content of the disks at a moment."""

    number: int
    after_s: float
    """Seconds since power-on."""
    logged: int
    """Bytes of the log of the card's writes."""
    hub: Path


class Cut(NamedTuple):
    """Content of the card after a power cut at a moment."""

    moment: Moment
    card: Sequence[Write]

    @property
    def disks(self) -> Hashable:
        """Return equal values for equal starting points: the hub's clock and logs advance by themselves."""
        return tuple(self.card), certificates(self.moment.hub)


def certificates(hub: Path) -> tuple[str, ...]:
    """Return the serials of all gateway certificates, including revoked ones."""
    with closing(Enrolments(sqlite_url(hub / "registry.db"))) as registry:
        return tuple(sorted(each.serial for each in registry.certificates()))


def set_up(gateway: Gateway) -> bool:
    """Return True when its console has reported the end of the set-up."""
    return gateway.machine is not None and f"Waypost {gateway.name}: set up" in gateway.machine.told


def moments_of_a_first_start(gateway: Gateway, log: WriteLog, folder: Path, chance: random.Random) -> list[Moment]:
    """Record moments from power-on until the set-up has ended."""
    folder.mkdir()
    began, found = time.monotonic(), list[Moment]()
    emulated = gateway.start(log)
    try:
        while not set_up(gateway):
            assert time.monotonic() - began < BOOT_S, emulated.told[-LAST_CHARACTERS:]
            time.sleep(chance.uniform(0, PAUSE_S))
            place = folder / str(len(found))
            with standing_still(emulated.pid), standing_still(gateway.fleet.hub.pid):
                found.append(Moment(len(found), time.monotonic() - began, log.size, place))
                shutil.copytree(gateway.fleet.folder / "hub", place)
    finally:
        emulated.cut_off()
    return found


def different_cuts(moments: Sequence[Moment], log: WriteLog, chance: random.Random) -> Sequence[Cut]:
    """Return different cuts at random moments; all moments before the first write give the same one."""
    found = dict[Hashable, Cut]()
    while len(found) < CUTS:
        moment = chance.choice(moments)
        cut = Cut(moment, log.left(moment.logged, chance))
        found.setdefault(cut.disks, cut)
    return list(found.values())


def start_after(cut: Cut, log: WriteLog, gateway: Gateway, folder: Path, limit_s: float) -> float:
    """Start with the hub of that moment until the set-up has ended and the gateway is enrolled once; return the
    seconds.

    `folder`: for its disks.
    """
    folder.mkdir()
    card = folder / "card.img"
    subprocess.run(["cp", "--sparse=always", str(gateway.card), str(card)], check=True)
    subprocess.run(["truncate", "--size", machine.CARD, str(card)], check=True)
    log.write(cut.card, card)
    fleet, hub = gateway.fleet, gateway.fleet.folder / "hub"
    fleet.hub.stop()
    shutil.rmtree(hub)
    shutil.copytree(cut.moment.hub, hub)
    fleet.hub.start()
    gateway.drive = machine.make_disk(card, folder, folder / "log")
    began = time.monotonic()
    gateway.start()
    try:
        wait_until(lambda: set_up(gateway), timeout_s=limit_s, what="it is set up", every_s=1)
        took = time.monotonic() - began
        wait_until(lambda: bool(gateway.attested()), timeout_s=limit_s, what="its attestation", every_s=1)
    finally:
        gateway.cut_off()
    [serial] = certificates(hub)
    assert gateway.attested()["certificate"] == serial
    return took


def test_power_cut_at_any_moment_ends_enrolled_once(tmp_path: Path, image: Path, fleet: EnrolledFleet) -> None:
    chance = random.Random(chosen_seed())
    gateway, log = Gateway(tmp_path, image, fleet), WriteLog(tmp_path / "writes")
    moments = moments_of_a_first_start(gateway, log, tmp_path / "moments", chance)
    cuts, took_s = different_cuts(moments, log, chance), moments[-1].after_s
    print(f"{len(moments)} moments of {took_s:.0f} s, {len(cuts)} cuts that leave other disks", flush=True)
    failed = []
    for number, cut in enumerate(cuts, 1):
        said = f"{time.strftime('%H:%M:%S')} cut {number} of {len(cuts)}, after {cut.moment.after_s:.1f} s"
        folder = tmp_path / f"cut-{number}"
        try:
            took = start_after(cut, log, gateway, folder, max(took_s, 100) * LONGER_MAX)
        except Exception as error:  # the other cuts run all the same
            failed.append(f"{said}: {error!r}")
            told = gateway.machine.told if gateway.machine else ""
            (folder / "console").write_text(told)
            shutil.copytree(fleet.folder / "hub", folder / "hub")
            print(f"{failed[-1]}; its disks and console are in {folder}\n{told[-LAST_CHARACTERS:]}", flush=True)
        else:
            print(f"{said}: enrolled once, {took:.0f} s after the next power-on", flush=True)
            shutil.rmtree(folder)
    assert not failed, failed
