"""Messages over links that break, between ends that are killed, while certificates are renewed and revoked.

Enrolled gateways talk to a hub with mutual TLS through links that are cut (`tests/fault/flaps`). Their certificates are
renewed again and again. One gateway is revoked on the way, and enrolled again while its devices continue. Messages that
were acknowledged to a device are in the lake, once, and the manifests confirm it.

The test prints the seed; ``WAYPOST_SEED=n`` repeats the same choice of flaps and moments.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud.proof.proof import Proof, prove
from tests.fault.flaps.flaps import Flaps
from tests.fault.flaps.fleet import Fleet, running
from tests.fault.flaps.judge import COLUMNS, faults
from tests.support.processes import wait_until
from tests.support.seeds import chosen_seed

DRAINED_S = 180.0


def proved(fleet: Fleet) -> Proof:
    """Return the proof of the lake, once its manifests state everything that the gateways accepted."""
    found: list[Proof] = []

    def stated() -> bool:
        for gateway in fleet.gateways:
            gateway.ask("/state", "POST")
        found.append(prove(fleet.lake))
        totals = found[-1].totals
        return len(totals) == 2 * len(fleet.gateways) and not any(total.unstated or total.waiting for total in totals)

    wait_until(stated, timeout_s=DRAINED_S, what="all of it is stated", every_s=1.0)
    return found[-1]


@pytest.mark.parametrize(
    ("flaps", "names", "pause_s"),
    [
        pytest.param(2, ["hall", "yard"], 0.02, marks=pytest.mark.timeout(400)),
        pytest.param(100, ["hall", "roof", "yard"], 0.002, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_acknowledged_messages_are_in_the_lake_once(
    tmp_path: Path, flaps: int, names: list[str], pause_s: float
) -> None:
    chance = random.Random(chosen_seed())
    began = time.monotonic()
    with running(tmp_path, names, pause_s=pause_s) as fleet:
        outcast = chance.choice(fleet.gateways)
        striking = Flaps(fleet, chance)

        def admission(number: int) -> None:
            if number == flaps // 3:
                fleet.revoke(outcast)
            elif number == 2 * flaps // 3:
                fleet.enrol_again(outcast)

        striking.strike(flaps, admission)
        for gateway in fleet.gateways:
            for device in gateway.devices:
                device.end()
        for gateway in fleet.gateways:
            gateway.until(lambda said: said["backlog_messages"] == 0, "the backlog has drained", nudged=True)
        renewals = fleet.renewals
        proof = proved(fleet)
        connections = sum(gateway.link.connections for gateway in fleet.gateways)
        for process in (*(gateway.process for gateway in fleet.gateways), fleet.hub):
            assert process.stop() == 0
        journals = {
            (gateway.name, f"plant/{gateway.name}/{kind}"): (device.acked, device.sent)
            for gateway in fleet.gateways
            for kind, device in zip(("exact", "once"), gateway.devices, strict=True)
        }
    table = DeltaTable(fleet.lake / "telemetry").to_pyarrow_table(columns=list(COLUMNS))
    acked = sum(len(bodies) for bodies, _ in journals.values())
    print(
        f"{time.monotonic() - began:.0f} s: {dict(striking.struck)}; {connections} connections, {renewals} renewals, "
        f"{acked} acknowledged, {table.num_rows} in the lake"
    )
    assert not list(faults(table, journals))
    assert proof.complete, proof.findings
    assert sum(total.accepted for total in proof.totals) == table.num_rows
    assert sum(total.landed for total in proof.totals) == table.num_rows
    assert not any(total.given_up for total in proof.totals)
    assert renewals >= len(fleet.gateways), "certificates were renewed meanwhile"
    assert acked > 50 * flaps, "there was load"


def row(sequence: int, body: bytes, *, epoch: str = "e", address: str = "a") -> tuple[str, str, str, int, bytes]:
    return ("gw", epoch, address, sequence, body)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([row(0, b"d:0"), row(1, b"d:1"), row(2, b"d:2")], ""),
        ([row(0, b"d:0")], "1 of 2 acknowledged are missing"),
        ([row(0, b"d:0"), row(1, b"d:1"), row(1, b"d:1")], "2 times in the lake"),
        ([row(0, b"d:0"), row(1, b"d:1"), row(2, b"d:1")], "1 are there twice"),
        ([row(0, b"d:0"), row(2, b"d:1")], "sequences are left out"),
        ([row(0, b"d:1"), row(1, b"d:0")], "not in the order"),
        ([row(0, b"d:0"), row(1, b"d:1", epoch="f")], "2 epochs"),
        ([row(0, b"d:0"), row(1, b"d:1"), row(0, b"d:0", address="b")], "nobody published it"),
    ],
)
def test_judge_finds_each_fault(rows: list[tuple[str, str, str, int, bytes]], fault: str) -> None:
    table = pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    found = list(faults(table, {("gw", "a"): ([b"d:0", b"d:1"], 3)}))
    assert any(fault in each for each in found) if fault else found == []
