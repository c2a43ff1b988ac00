"""The proof for a gateway behind another one names every missing or duplicate message by its first sequence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from bridge.store_account import AccountLoss, AccountRange, AddressAccount, StoreAccount
from cloud.lake.contract import contract
from cloud.lake.rows import record_rows
from cloud.proof.account import prove_account
from cloud.proof.cli import prove as command
from cloud.proof.proof import Proof
from tests.support.command import item_in
from tests.support.stated_lake import START_US, StatedLake

OLD_ROW = {
    "tenant": "default", "gateway": "gw1", "epoch": "e1", "address": "a", "sequence": 3, "device": "d", "lane": "live",
    "event_time": START_US, "received_at": START_US, "clock_quality": "good", "body": b"x",
}  # fmt: skip
LATER_US, EARLIER_US = START_US + 120_000_000, START_US


def account(
    last: int = 9, *, given_up: tuple[AccountLoss, ...] = (), waiting: tuple[AccountRange, ...] = ()
) -> StoreAccount:
    one = AddressAccount("e-low", "line/7", 0, last, given_up, waiting)
    return StoreAccount("hall/out", (START_US + 60_000_000) * 1_000, (one,))


def relay(lake: StatedLake, sequences: Iterable[int], *, epoch: str = "e-low", lane: str = "live") -> None:
    """Land messages of the lower gateway under names of the upper one."""
    names = {"tenant": "default", "gateway": "upper", "epoch": "e-up", "address": "plant/7", "lane": lane}
    names |= {"device": "press-1", "clock_quality": "good", "body": b"x", "origin_gateway": "lower"}
    names |= {"origin_epoch": epoch, "origin_address": "line/7", "relayed_by": "hall-3"}
    rows = [
        {**names, "event_time": START_US, "received_at": START_US, "sequence": 100 + i, "origin_sequence": n}
        for i, n in enumerate(sequences)
    ]
    lake.append("telemetry", rows, START_US)


def report(lake: StatedLake, backlog: int, at_us: int = LATER_US) -> None:
    """Land a status of the upper gateway."""
    row = {
        "tenant": "default",
        "gateway": "upper",
        "reported_at": at_us,
        "state": "online",
        "backlog_messages": backlog,
    }
    lake.append("gateway_status", [row], at_us)


def found(proof: Proof) -> list[tuple[str, str, str, int, int]]:
    return [(each.kind.value, each.gateway, each.address, each.first, each.last) for each in proof.findings]


@pytest.fixture
def lake(tmp_path: Path) -> StatedLake:
    return StatedLake(tmp_path / "lake")


def test_all_accepted_messages_are_found(lake: StatedLake) -> None:
    relay(lake, range(10))
    relay(lake, range(5), epoch="another store")
    report(lake, 0)
    proof = prove_account(lake.path, account())
    (total,) = proof.totals
    assert proof.complete
    assert (total.stream.gateway, total.accepted, total.landed, total.waiting) == ("lower", 10, 10, 0)


def test_missing_and_repeated_messages_are_named(lake: StatedLake) -> None:
    relay(lake, [0, 1, 4, 5, 5, 6, 7])
    report(lake, 0)
    proof = prove_account(lake.path, account())
    assert found(proof) == [
        ("hole", "lower", "line/7", 2, 3),
        ("hole", "lower", "line/7", 8, 9),
        ("twice", "lower", "line/7", 5, 5),
    ]
    assert (proof.totals[0].unexplained, proof.totals[0].twice) == (4, 1)


def test_messages_dropped_or_waiting_at_the_lower_gateway_are_explained(lake: StatedLake) -> None:
    relay(lake, [0, 1, 4, 5])
    report(lake, 0)
    said = account(given_up=(AccountLoss(2, 3, "evicted"),), waiting=(AccountRange(6, 9),))
    proof = prove_account(lake.path, said)
    total = proof.totals[0]
    assert proof.complete
    assert (total.landed, total.given_up, total.waiting) == (4, {"evicted": 2}, 4)


@pytest.mark.parametrize(("backlog", "at_us"), [(3, LATER_US), (0, EARLIER_US), (None, 0)])
def test_messages_that_may_be_at_the_upper_gateway_wait(lake: StatedLake, backlog: int | None, at_us: int) -> None:
    relay(lake, [0, 1, 3])
    if backlog is not None:
        report(lake, backlog, at_us)
    proof = prove_account(lake.path, account())
    assert found(proof) == [("hole", "lower", "line/7", 2, 2)], "what is above the highest may come, and this may not"
    assert proof.totals[0].waiting == 6


def test_lake_of_an_older_program_has_no_origins(lake: StatedLake) -> None:
    gateway = lake.gateway()
    gateway.land("a", gateway.accept("a", 3))
    assert prove_account(lake.path, account()).totals[0].landed == 0


def test_command_reports_damage_and_exits_with_4(lake: StatedLake, tmp_path: Path) -> None:
    relay(lake, [0, 1, 3, 4, 5, 6, 7, 8, 9])
    report(lake, 0)
    file = tmp_path / "lower.json"
    file.write_bytes(msgspec.json.encode(account()))

    def ran(*more: str) -> Any:
        return CliRunner().invoke(command, ["--lake", str(lake.path), "--account", str(file), *more])

    result = ran("--json")
    assert result.exit_code == 4, result.output
    document = item_in(result.output)
    assert not document["complete"]
    assert [(one["kind"], one["first"], one["last"]) for one in document["findings"]] == [("hole", 2, 2)]
    assert ran().exit_code == 4
    relay(lake, [2])
    assert ran().exit_code == 0
    assert ran("--gateway", "lower").exit_code == 2
    file.write_text("{}")
    assert ran().exit_code == 1


def test_lake_created_without_origins_gets_them(tmp_path: Path) -> None:
    """Rows of an older lake have no origin; new rows do, and both are read."""
    schema = contract().tables["telemetry"].arrow_schema
    origins = [name for name in schema.names if name.startswith("origin_") or name == "relayed_by"]
    old = record_rows("telemetry", [OLD_ROW], START_US).drop_columns(origins)
    write_deltalake(tmp_path / "lake" / "telemetry", old, partition_by=["ingest_date"])
    lake = StatedLake(tmp_path / "lake")
    relay(lake, range(10))
    report(lake, 0)
    proof = prove_account(lake.path, account())
    found = DeltaTable(lake.path / "telemetry").to_pyarrow_table().to_pylist()
    assert (proof.complete, proof.totals[0].landed, len(found)) == (True, 10, 11)
    assert [row["sequence"] for row in found if row["origin_gateway"] is None] == [3]
