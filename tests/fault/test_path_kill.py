"""SIGKILL of gateway and hub at random moments under load: acknowledged messages are in the lake, once.

The test prints the seed; ``WAYPOST_SEED=n`` repeats the same choice of victims and moments. For more kills than a usual
run has time for: ``./waypost test tests/fault/test_path_kill.py -m slow -s``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cloud.proof.proof import prove
from tests.support.lake import manifests_asked_for
from tests.support.processes import edge, free_port, hub, landing_soon, wait_until
from tests.support.publisher import Publisher
from tests.support.seeds import chosen_seed
from tests.support.uplink import backlog

PUBLISHERS = 3


def stated(lake: Path) -> bool:
    """Return whether the manifest covers every message in the lake."""
    totals = prove(lake).totals
    return len(totals) == PUBLISHERS and not any(total.unstated for total in totals)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.timeout(400)),
        pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)]),
    ],
)
def test_acknowledged_messages_are_in_the_lake_once(tmp_path: Path, kills: int) -> None:
    chance = random.Random(chosen_seed())
    mqtt, amqp = free_port(), free_port()
    the_hub = hub(tmp_path, f"--amqp=127.0.0.1:{amqp}", *landing_soon(tmp_path))
    uplink = [f"--hub=amqp://127.0.0.1:{amqp}", "--gateway=gw1", "--forward=load/#"]
    gateway = edge(tmp_path, "gw1", f"--mqtt=127.0.0.1:{mqtt}", *uplink)
    with the_hub, gateway:
        publishers = [Publisher(f"p{i}", mqtt, f"load/{i}") for i in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        for _ in range(kills):
            time.sleep(chance.uniform(0.1, 0.8))  # the random moment
            victims = chance.choice([[gateway], [gateway], [the_hub], [gateway, the_hub]])
            for victim in victims:
                victim.kill()
            for victim in victims:
                victim.start()
        time.sleep(chance.uniform(0.1, 0.8))
        for publisher in publishers:
            publisher.end()
        wait_until(lambda: backlog(gateway) == 0, timeout_s=120, what="the backlog has drained", every_s=0.2)
        wait_until(lambda: manifests_asked_for(tmp_path / "gw1"), timeout_s=30, what="the hub asks for manifests")
        assert gateway.stop() == 0
        gateway.start()
        wait_until(lambda: stated(tmp_path / "hub" / "lake"), timeout_s=60, what="all is stated", every_s=0.5)
        assert gateway.stop() == 0
        assert the_hub.stop() == 0
    acked = [body for publisher in publishers for body in publisher.acked]
    rows = DeltaTable(tmp_path / "hub" / "lake" / "telemetry").to_pyarrow_table(
        columns=["gateway", "epoch", "address", "sequence", "body"]
    )
    bodies = Counter(rows.column("body").to_pylist())
    names = Counter(zip(*(rows.column(name).to_pylist() for name in rows.column_names[:4]), strict=True))
    print(f"{len(acked)} acked, {sum(p.sent for p in publishers)} sent, {rows.num_rows} in the lake")
    assert len(acked) > kills * PUBLISHERS, "there was load"
    proof = prove(tmp_path / "hub" / "lake")
    assert proof.complete, proof.findings
    assert sum(total.landed for total in proof.totals) == sum(total.accepted for total in proof.totals) == rows.num_rows
    missing = [body for body in acked if body not in bodies]
    assert not missing, f"{len(missing)} acked messages are missing, first {missing[:3]}"
    assert max(names.values()) == 1, "no (gateway, epoch, address, sequence) twice"
    assert max(bodies.values()) == 1, "no body twice: each was sent once"
    for i, publisher in enumerate(publishers):
        in_lake = [
            (sequence, int(body.split(b":")[1]))
            for address, sequence, body in zip(
                *(rows.column(name).to_pylist() for name in ("address", "sequence", "body")), strict=True
            )
            if address == f"load/{i}"
        ]
        in_lake.sort()
        assert [s for s, _ in in_lake] == list(range(len(in_lake))), "sequences are dense"
        numbers = [number for _, number in in_lake]
        assert numbers == sorted(numbers), f"{publisher.name}: order of the producer"
