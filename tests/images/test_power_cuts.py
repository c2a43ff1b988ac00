"""A gateway from its card with a hub: it enrols by itself, and power cuts under load lose no acknowledged message."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.images.emulated import BOOT_S, HOST, MARKS, Gateway
from tests.support.enrolled import EnrolledFleet
from tests.support.lake import rows
from tests.support.processes import wait_until
from tests.support.publisher import Publisher
from tests.support.seeds import chosen_seed

pytestmark = [*MARKS]

CUTS = 10
ACKED_BEFORE_A_CUT = 300
DEVICES = ("pump7", "pump8")


def wait_for_acknowledgements(publishers: Sequence[Publisher]) -> None:
    """Wait for this many further acknowledgements."""

    def acked() -> int:
        return sum(len(each.acked) for each in publishers)

    enough = acked() + ACKED_BEFORE_A_CUT
    wait_until(lambda: acked() >= enough, timeout_s=BOOT_S, what="acknowledgements")


def test_power_cuts_under_load_lose_nothing_acknowledged(tmp_path: Path, image: Path) -> None:
    chance = random.Random(chosen_seed())
    with EnrolledFleet(tmp_path, "--name", HOST) as fleet:
        gateway = Gateway(tmp_path, image, fleet)
        began = time.monotonic()
        gateway.start()
        publishers: list[Publisher] = []
        try:
            wait_until(lambda: bool(gateway.attested()), timeout_s=BOOT_S, what="its attestation", every_s=2)
            print(f"{time.monotonic() - began:.0f} s from power-on to the attestation at the hub")
            attested = gateway.attested()
            root = (image / "root.sha256").read_text().strip()
            assert (attested["hostname"], attested["root"], attested["root_expected"]) == ("hall", root, root)
            for name in DEVICES:
                password = gateway.add_device(name)
                publishers.append(
                    Publisher(name, gateway.ports["mqtt"], f"plant/{name}/temp", password=password, pause_s=0.005)
                )
            for each in publishers:
                each.start()
            for cut in range(CUTS):
                wait_for_acknowledgements(publishers)
                time.sleep(chance.uniform(0, 5))  # at any point
                gateway.cut_off()
                acked = sum(len(each.acked) for each in publishers)
                print(f"cut {cut + 1} after {time.monotonic() - began:.0f} s: {acked} acknowledged")
                gateway.start()
            wait_for_acknowledgements(publishers)
            for each in publishers:
                each.end()
            acknowledged = {body for each in publishers for body in each.acked}

            def missing() -> set[bytes]:
                return acknowledged - {row["body"] for row in rows(fleet.lake, "telemetry")}

            wait_until(lambda: not missing(), timeout_s=BOOT_S, what="all of it in the lake", every_s=3)
        finally:
            gateway.cut_off()
            for each in publishers:
                if each.is_alive():
                    each.end()
        landed = Counter(row["body"] for row in rows(fleet.lake, "telemetry"))
        assert max(landed.values()) == 1, "once"
        print(f"{len(acknowledged)} acknowledged, {len(landed)} in the lake, each once")
