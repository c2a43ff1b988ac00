"""Data of a gateway on an NVMe or USB disk next to its card: moved at the first start, used by all later ones.

Power is cut at random moments of the move and under load. Without its disk the gateway says so and serves nothing.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from images.emulator import machine
from tests.images.emulated import BOOT_S, MARKS, Gateway
from tests.support.enrolled import EnrolledFleet
from tests.support.lake import rows
from tests.support.processes import wait_until
from tests.support.publisher import Publisher
from tests.support.seeds import chosen_seed

pytestmark = [*MARKS]

CUTS_OF_THE_MOVE = 6
CUT_S = 8.0
"""Latest cut after the start of the copy: by then the data are on the disk, also on a busy machine."""
COPIES, MOVED, SETTLED = "copying the data to", "the data are on /dev/", "settings unchanged"
"""Text on the console when the copy begins, when it has ended, and when the data are where they belong."""
ACKED_BEFORE_A_CUT = 200
DEVICES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "nvme": ({"driver": "nvme", "drive": "data", "serial": "1"}, "/dev/nvme0n1"),
    "usb": ({"driver": "usb-storage", "bus": "usb.0", "drive": "data", "id": "data"}, "/dev/sd"),
}
"""Device of QEMU and name in Linux, by the kind of disk."""


def make_disk(folder: Path, kind: str) -> Sequence[str]:
    """Return QEMU's words for an empty disk of 3 GiB."""
    file = folder / "data.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(file), "3G"], check=True)
    node = f"driver=qcow2,node-name=data,file.driver=file,file.filename={file}"
    return (
        "-blockdev",
        node,
        "-device",
        ",".join(f"{name}={value}" for name, value in DEVICES[kind][0].items()).removeprefix("driver="),
    )


@pytest.mark.parametrize("kind", list(DEVICES))
def test_data_move_to_a_disk_and_power_cuts_lose_nothing(
    kind: str, tmp_path: Path, image: Path, fleet: EnrolledFleet
) -> None:
    chance = random.Random(chosen_seed())
    gateway = Gateway(tmp_path, image, fleet, [f"data.disk={kind}"])
    disk = make_disk(tmp_path, kind)
    publisher: Publisher | None = None
    try:
        for cut in range(CUTS_OF_THE_MOVE):
            emulated = gateway.start(more=disk)
            wait_until(
                lambda e=emulated: COPIES in e.told or SETTLED in e.told,  # type: ignore[misc]
                timeout_s=BOOT_S, what="the copy", every_s=0.2,
            )  # fmt: skip
            after_s = chance.uniform(0, CUT_S)
            time.sleep(after_s)  # at any point
            gateway.cut_off()
            moved = "not needed" if COPIES not in emulated.told else "ended" if MOVED in emulated.told else "begun"
            print(f"cut {cut + 1}, {after_s:.1f} s after its start: the copy was {moved}", flush=True)
            if COPIES not in emulated.told:
                break
        began = time.monotonic()
        gateway.start(more=disk)
        wait_until(lambda: bool(gateway.attested()), timeout_s=BOOT_S, what="its attestation", every_s=2)
        print(f"{time.monotonic() - began:.0f} s from power-on to the attestation")
        gateway.wait_for_shell()
        assert gateway.shell("findmnt", "-no", "SOURCE", "/data").startswith(DEVICES[kind][1])
        names = ("/dev/waypost/card-data", "/dev/waypost/data")
        of_card, of_disk = gateway.shell("blkid", "-o", "value", "-s", "LABEL", *names).split()
        assert of_card == of_disk
        password = gateway.add_device("pump7")
        publisher = Publisher("pump7", gateway.ports["mqtt"], "plant/pump7/temp", password=password, pause_s=0.01)
        publisher.start()
        for _ in range(2):
            enough = len(publisher.acked) + ACKED_BEFORE_A_CUT
            wait_until(lambda e=enough: len(publisher.acked) >= e, timeout_s=BOOT_S, what="acknowledgements")  # type: ignore[misc,union-attr]
            gateway.cut_off()
            gateway.start(more=disk)
        gateway.wait_for_shell()
        assert gateway.shell("ls", "-A", "/data/settings").split().count("card-emptied") == 1
        publisher.end()
        acknowledged = set(publisher.acked)

        def missing() -> set[bytes]:
            return acknowledged - {row["body"] for row in rows(fleet.lake, "telemetry")}

        wait_until(lambda: not missing(), timeout_s=BOOT_S, what="all of it in the lake", every_s=3)
        lost = gateway.machine
        assert lost is not None
        if kind == "usb":
            lost.control(("device_del", {"id": "data"}))
            lost.wait_for("the disk with the data is gone")
        else:
            gateway.cut_off()
            lost = gateway.start()
        lost.wait_for("its data are on another disk")
        since = lost.told.rpartition("the disk with the data is gone")[2]
        assert machine.SERVES not in since, "the old copy is not used"
        if kind == "usb":
            lost.control(("device_add", DEVICES[kind][0]))
        else:
            gateway.cut_off()
            gateway.start(more=disk)
        gateway.wait_for_shell()
        assert gateway.shell("findmnt", "-no", "SOURCE", "/data").startswith(DEVICES[kind][1])
    finally:
        gateway.cut_off()
        if publisher is not None and publisher.is_alive():
            publisher.end()
    landed = Counter(row["body"] for row in rows(fleet.lake, "telemetry"))
    assert max(landed.values()) == 1, "once"
    print(f"{len(acknowledged)} acknowledged, {len(landed)} in the lake, each once")
