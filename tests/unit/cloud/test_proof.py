"""The proof of a lake: a complete lake passes, and each kind of damage is named with its sequences."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud.lake.faults import LakeError
from cloud.proof.cli import prove as command
from cloud.proof.proof import Proof, prove
from cloud.proof.statements import FindingKind
from tests.support.command import item_in
from tests.support.seeds import chosen_seed
from tests.support.stated_lake import StatedLake, day

FOUND = tuple[str, str, int, int]
"""Kind, address, first and last."""


def found(proof: Proof) -> list[FOUND]:
    return sorted((each.kind.value, each.address, each.first, each.last) for each in proof.findings)


def whole(path: Path) -> StatedLake:
    """Return a complete lake."""
    shutil.copytree(_made(), path / "lake")
    return StatedLake(path / "lake")


@functools.cache
def _made() -> Path:
    """Make a lake of two gateways with two addresses each and four hours; some messages were dropped and none waits."""
    lake = StatedLake(Path(tempfile.mkdtemp()) / "lake")
    atexit.register(shutil.rmtree, lake.path.parent)
    for name in ("gw1", "gw2"):
        gateway = lake.gateway(name, f"epoch-of-{name}")
        for hour in range(4):
            for address in ("plant/1", "plant/2"):
                sequences = gateway.accept(address, 10)
                gone = sequences[3:5] if hour == 1 else ()
                gateway.land(address, [n for n in sequences if n not in gone], hour=hour)
                if gone:
                    gateway.give_up(address, gone[0], gone[-1], hour=hour)
            gateway.state(hour)
        gateway.report(6, 0)
    return lake.path


def test_complete_lake_passes(tmp_path: Path) -> None:
    proof = prove(whole(tmp_path).path, every_hour=True)
    assert proof.complete
    assert found(proof) == []
    assert [(t.accepted, t.landed, t.given_up, t.waiting, t.unexplained, t.hours) for t in proof.totals] == [
        (40, 38, {"evicted": 2}, 0, 0, 4)
    ] * 4
    assert len(proof.hours) == 16
    assert proof.statements == 16


ONE = "gateway = 'gw1' AND address = 'plant/1'"

DAMAGE: dict[str, tuple[Callable[[StatedLake], None], list[FOUND]]] = {
    "a row removed": (
        lambda lake: lake.remove("telemetry", f"{ONE} AND sequence = 7"),
        [("hole", "plant/1", 7, 7)],
    ),
    "rows removed, the last ones": (
        lambda lake: lake.remove("telemetry", f"{ONE} AND sequence >= 36"),
        [("hole", "plant/1", 36, 39)],
    ),
    "every row of an address removed": (
        lambda lake: lake.remove("telemetry", ONE),
        [("hole", "plant/1", 0, 12), ("hole", "plant/1", 15, 39)],
    ),
    "a ledger range removed": (
        lambda lake: lake.remove("ledger", ONE),
        [("hole", "plant/1", 13, 14)],
    ),
    "rows twice": (
        lambda lake: lake.gateway("gw1", "epoch-of-gw1").land("plant/1", [4, 5, 6]),
        [("twice", "plant/1", 4, 6)],
    ),
    "an epoch changed": (
        lambda lake: lake.change("telemetry", f"{ONE} AND sequence = 21", epoch="'another'"),
        [("hole", "plant/1", 21, 21)],
    ),
    "a statement in the middle removed": (
        lambda lake: lake.remove("manifests", f"{ONE} AND first_sequence = 10"),
        [("statement missing", "", 0, -1), ("statement missing", "plant/1", 10, 19)],
    ),
    "the newest statement of an address removed": (
        lambda lake: lake.remove("manifests", f"{ONE} AND first_sequence = 30"),
        [("statement missing", "", 0, -1)],
    ),
    "all statements of an hour removed": (
        lambda lake: lake.remove("manifests", "gateway = 'gw1' AND closing = 2"),
        [
            ("statement missing", "", 0, -1),
            ("statement missing", "plant/1", 10, 19),
            ("statement missing", "plant/2", 10, 19),
        ],
    ),
    "a count forged": (
        lambda lake: lake.change("manifests", f"{ONE} AND closing = 4", last_sequence="38", count="9"),
        [("statement forged", "plant/1", 30, 38), ("statement missing", "", 0, -1)],
    ),
    "a reason forged": (
        lambda lake: lake.change("manifests", f"{ONE} AND closing = 4", given_up="'{\"evicted\":7}'"),
        [("statement forged", "plant/1", 30, 39), ("statement missing", "", 0, -1)],
    ),
    "two statements exchanged": (
        lambda lake: lake.change("manifests", f"{ONE} AND closing IN (3, 4)", closing="7 - closing"),
        [
            ("statement forged", "plant/1", 20, 29),
            ("statement forged", "plant/1", 30, 39),
            ("statement missing", "", 0, -1),
        ],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    lake = whole(tmp_path)
    damage, expected = DAMAGE[name]
    damage(lake)
    proof = prove(lake.path)
    assert set(found(proof)) >= set(expected)
    assert {each[:2] for each in found(proof)} == {each[:2] for each in expected}
    assert {each.gateway for each in proof.findings} == {"gw1"}, "nothing is wrong with the other one"
    assert not proof.complete


def test_statement_signed_with_another_key_is_forged(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    for hour, key in ((0, None), (1, Ed25519PrivateKey.generate())):
        gateway.land("plant/1", gateway.accept("plant/1", 5), hour=hour)
        gateway.state(hour, key=key)
    proof = prove(lake.path)
    assert ("statement forged", "plant/1", 5, 9) in found(proof)
    assert "a different key" in proof.findings[0].words


def test_statement_with_fewer_messages_overlaps(tmp_path: Path) -> None:
    """The owner of the key could sign a smaller statement again: the chain then forks."""
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    gateway.land("plant/1", gateway.accept("plant/1", 5))
    (said,) = gateway.state(0)
    less = msgspec.structs.replace(said, last_sequence=3, count=4).sealed("gw1")
    gateway.send([less], 0, gateway.key)
    assert ("statements overlap", "plant/1", 0, 4) in found(prove(lake.path))


def test_gateway_restored_from_an_older_copy_is_no_fault_without_loss(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    gateway.land("plant/1", gateway.accept("plant/1", 10))
    (first,) = gateway.state(0)
    gateway.land("plant/1", gateway.accept("plant/1", 8), hour=1)
    gateway.state(1)
    gateway.report(2.5, 0)
    # the copy knows the first hour, had accepted 4 messages of the second, and continues under an epoch of its own
    common = {"store_epoch": "e2", "closing": 1, "statements": 2, "hour": first.hour + 3_600_000_000_000}
    old = msgspec.structs.replace(
        first, first_sequence=10, last_sequence=13, count=4, previous=first.digest, **common
    ).sealed("gw1")
    new = msgspec.structs.replace(
        first, epoch="e2", first_sequence=14, last_sequence=19, count=6, previous="", **common
    ).sealed("gw1")
    gateway.send([old, new], 3, gateway.key)
    copy = lake.gateway("gw1", "e2")
    copy.land("plant/1", range(14, 20), hour=3)
    copy.report(5, 0)
    proof = prove(lake.path)
    assert found(proof) == []
    assert [(t.stream.epoch, t.accepted, t.landed) for t in proof.totals] == [("e1", 18, 18), ("e2", 6, 6)]


def test_messages_that_the_older_copy_never_sent_are_named(tmp_path: Path) -> None:
    """The older copy stated messages that were lost with its card."""
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    gateway.land("plant/1", gateway.accept("plant/1", 10)[:7])
    gateway.state(0)
    copy = lake.gateway("gw1", "e2")
    copy.land("plant/1", copy.accept("plant/1", 3), hour=1)
    copy.state(1)
    copy.report(3, 0)
    assert found(prove(lake.path)) == [("hole", "plant/1", 7, 9)]


# --- waiting messages -------------------------------------------------------------------------------------------------


def test_messages_above_the_highest_landed_wait_until_the_gateway_has_no_backlog(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    gateway.land("plant/1", gateway.accept("plant/1", 10)[:6])
    gateway.state(0)
    for hour, backlog in ((None, 0), (0.5, 0), (2.0, 4)):
        if hour is not None:
            gateway.report(hour, backlog)
        (total,) = (proof := prove(lake.path)).totals
        assert (total.landed, total.waiting, total.unexplained) == (6, 4, 0), f"status of hour {hour}"
        assert proof.complete
    gateway.report(3.0, 0)
    assert found(prove(lake.path)) == [("hole", "plant/1", 6, 9)]


def test_separate_backlog_lane_may_be_behind_the_live_lane(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    sequences = gateway.accept("plant/1", 20)
    gateway.land("plant/1", sequences[:5], lane="backlog")
    gateway.land("plant/1", sequences[15:])
    gateway.state(0)
    gateway.report(2, 10)
    (total,) = (proof := prove(lake.path)).totals
    assert (total.waiting, proof.complete) == (10, True)
    gateway.report(3, 0)
    assert found(prove(lake.path)) == [("hole", "plant/1", 5, 14)]


def test_unfinished_hour_is_compared_with_later_statements(tmp_path: Path) -> None:
    lake = whole(tmp_path)
    gateway = lake.gateway("gw1", "epoch-of-gw1")
    gateway.land("plant/1", [40, 41, 43], hour=5)
    proof = prove(lake.path)
    assert found(proof) == [("hole", "plant/1", 42, 42)]
    assert proof.totals[0].unstated == 4


def test_unstated_addresses_are_checked_for_duplicates_only(tmp_path: Path) -> None:
    lake = whole(tmp_path)
    gateway = lake.gateway("gw1", "epoch-of-gw1")
    gateway.land("queue/jobs", [0, 2, 5])
    assert prove(lake.path).complete
    gateway.land("queue/jobs", [5])
    assert found(prove(lake.path)) == [("twice", "queue/jobs", 5, 5)]


def test_statement_that_landed_twice_counts_once(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    gateway.land("plant/1", gateway.accept("plant/1", 5))
    gateway.send(gateway.state(0), 0, gateway.key)
    proof = prove(lake.path)
    assert (proof.complete, proof.statements) == (True, 1)


# --- size -------------------------------------------------------------------------------------------------------------


def test_many_gateways_are_read_in_parts(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    for number in range(30):
        gateway = lake.gateway(f"gw{number}")
        gateway.land("plant/1", gateway.accept("plant/1", 5))
        gateway.state(0)
    lake.remove("telemetry", "gateway = 'gw17' AND sequence = 2")
    at_once, in_parts = prove(lake.path), prove(lake.path, held_max=25)
    assert in_parts.bytes_read > at_once.bytes_read, "the tables were read more than once"
    assert found(in_parts) == found(at_once) == [("hole", "plant/1", 2, 2)]
    assert sorted(t.stream for t in in_parts.totals) == sorted(t.stream for t in at_once.totals)
    with pytest.raises(LakeError, match="--since"):
        prove(lake.path, gateway="gw1", held_max=1)


def test_since_reads_older_partitions_only_if_messages_seem_missing(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    for hour in range(0, 240, 12):
        gateway.land("plant/1", gateway.accept("plant/1", 50), hour=hour)
        gateway.state(hour)
    everything, newest = prove(lake.path), prove(lake.path, since=day(228))
    assert (everything.complete, newest.complete) == (True, True)
    assert newest.bytes_read < everything.bytes_read / 3
    assert 0 < newest.statements < everything.statements
    lake.remove("telemetry", "sequence IN (3, 990)")
    assert found(prove(lake.path, since=day(228))) == [("hole", "plant/1", 990, 990)]
    gateway.accept("plant/1", 5)
    gateway.state(240)
    gateway.land("plant/1", range(1_000, 1_005), hour=-200)
    assert ("hole", "plant/1", 1_000, 1_004) not in found(prove(lake.path, since=day(239))), "it had landed long before"


def test_gaps_and_duplicates_are_found_exactly(tmp_path: Path) -> None:
    chance = random.Random(chosen_seed())
    lake = StatedLake(tmp_path / "lake")
    gateway = lake.gateway()
    sequences = gateway.accept("plant/1", 400)
    gone = set(chance.sample(sequences, 40))
    explained = set(chance.sample(sorted(gone), 20))
    twice = set(chance.sample([n for n in sequences if n not in gone], 15))
    rows = [n for n in sequences if n not in gone] + sorted(twice)
    chance.shuffle(rows)
    for start in range(0, len(rows), 70):
        gateway.land("plant/1", rows[start : start + 70])
    for number in explained:
        gateway.give_up("plant/1", number, number, "expired")
    gateway.state(0)
    gateway.report(2, 0)
    proof = prove(lake.path)

    def named(kind: FindingKind) -> set[int]:
        return {n for f in proof.findings if f.kind is kind for n in range(f.first, f.last + 1)}

    assert named(FindingKind.HOLE) == gone - explained
    assert named(FindingKind.TWICE) == twice
    (total,) = proof.totals
    assert total.accepted == total.landed + sum(total.given_up.values()) + total.unexplained == 400


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(arguments), env={"COLUMNS": "80"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_command_output_fits_a_terminal_and_names_damage(tmp_path: Path) -> None:
    lake = whole(tmp_path)
    code, said = run("--lake", str(lake.path))
    assert code == 0
    assert "160 accepted = 152 landed + 8 given up + 0 waiting at their gateways; 0 unexplained" in said
    assert max(map(len, said.splitlines()[:5])) <= 80
    lake.remove("telemetry", f"{ONE} AND sequence = 7")
    code, said = run("--lake", str(lake.path), "--hours")
    assert code == 4
    assert "hole: gw1/epoch-of/plant/1 sequences 7..7: accepted" in said
    assert "11-21T08Z" in said
    assert max(map(len, said.splitlines()[:18])) <= 80


def test_command_prints_json(tmp_path: Path) -> None:
    lake = whole(tmp_path)
    code, said = run("--lake", str(lake.path), "--json", "--gateway", "gw2")
    document: dict[str, Any] = item_in(said)
    assert code == 0
    assert document["complete"]
    assert {stream["gateway"] for stream in document["streams"]} == {"gw2"}
    assert [hour["given_up"] for hour in document["hours"]] == [{"evicted": 2}] * 2
    assert document["keys"][0]["public_key"].startswith("ed25519:")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--lake", "nowhere"), 2, "is not a lake"),
        (("--lake", ".", "--since", "yesterday"), 2, "expected a day"),
        ((), 2, "Missing option '--lake'"),
    ],
)
def test_invalid_arguments_are_reported(arguments: tuple[str, ...], code: int, words: str) -> None:
    found_code, said = run(*arguments)
    assert (found_code, words in said) == (code, True), said
