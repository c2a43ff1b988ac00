"""Manifests state every accepted sequence once, whatever the clock does and wherever the process ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.engine import DeliveryState
from bridge.manifest import GENESIS, HOUR_NS, ManifestStatement, digest_of
from bridge.message import Run
from bridge.reports import Reports
from edge.broker.limits import STATEMENTS_A_DOCUMENT
from edge.broker.retention import manifests as module
from edge.broker.security.statement_key import FILE, StatementKey
from edge.broker.store.records import Loss
from tests.contract.store.rig import fail_commits, heal, memory_rig, sqlite_rig
from tests.support.manifest_bench import HOUR, ManifestBench, StubSigner, manifests_of, read_statements


@pytest.fixture(params=["sqlite", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    rig = sqlite_rig(tmp_path) if request.param == "sqlite" else memory_rig()
    yield ManifestBench(rig)
    rig.store.close()


def test_many_addresses_are_stated_over_several_looks(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_STATED_TOGETHER", 2)
    for number in range(5):
        bench.append(f"plant/{number}", 3)
    bench.later(1)
    assert (bench.manifests.waiting, bench.manifests.stated_until) == (2, HOUR * HOUR_NS), "the hour is not over"
    bench.append("plant/4", 1)
    bench.append("plant/0", 1)
    bench.look()
    assert bench.manifests.stated_until == HOUR * HOUR_NS
    bench.look()
    assert bench.manifests.stated_until == (HOUR + 1) * HOUR_NS
    statements = bench.taken()
    assert [len(spans(statements, f"plant/{number}")) for number in range(5)] == [1] * 5
    assert [one.statements for one in statements] == [2, 2, 2, 2, 1], "as many as were made together"
    assert [one.closing for one in statements] == [1, 1, 2, 2, 3]
    bench.later(1)
    after = bench.taken()
    assert spans(after, "plant/0")[-1][1:] == (3, 3)
    assert spans(after, "plant/4")[-1][1:] == (3, 3)


def test_reader_during_a_statement_gets_all_addresses(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_STATED_TOGETHER", 2)
    for number in range(4):
        bench.append(f"plant/{number}", 1)
    bench.later(1)
    bench.append("plant/0", 1)
    bench.manifests.request_close()
    while bench.manifests.close_requested:
        bench.look()
    statements = bench.taken()
    assert [span[1:] for span in spans(statements, "plant/0")] == [(0, 0), (1, 1)]
    assert [len(spans(statements, f"plant/{number}")) for number in range(1, 4)] == [1, 1, 1]


def spans(statements: list[ManifestStatement], address: str) -> list[tuple[int, int, int]]:
    """Return (hour, first, last) of an address; check the chain."""
    mine = [one for one in statements if one.address == address]
    previous = GENESIS
    for one in mine:
        assert (one.previous, one.digest) == (previous, digest_of("gw", one))
        assert one.count == one.last_sequence + 1 - one.first_sequence
        previous = one.digest
    return [(one.hour // HOUR_NS, one.first_sequence, one.last_sequence) for one in mine]


def test_hour_is_stated_once_it_is_over(bench: ManifestBench) -> None:
    bench.append("plant/1", 5)
    bench.append("office/1", 5)
    bench.later(0.5)
    bench.append("plant/1", 2)
    assert bench.taken() == []
    bench.later(0.6)
    (one,) = bench.taken()
    assert (one.address, one.hour, one.first_sequence, one.last_sequence) == ("plant/1", HOUR * HOUR_NS, 0, 6)
    assert (one.epoch, one.store_epoch, one.closing, one.statements) == (
        bench.store.lineage.epoch,
        bench.store.lineage.epoch,
        1,
        1,
    )
    assert one.clock_quality == "good"
    bench.later(1)
    bench.append("plant/2", 1)
    bench.append("plant/1", 1)
    bench.later(1)
    found = bench.taken()
    assert spans(found, "plant/1") == [(HOUR, 0, 6), (HOUR + 2, 7, 7)]
    assert spans(found, "plant/2") == [(HOUR + 2, 0, 0)]
    assert [(each.closing, each.statements) for each in found] == [(1, 1), (2, 2), (2, 2)], (
        "an empty hour has no number"
    )


@pytest.mark.parametrize("jump", [-3.0, 24 * 365 * 10.0, -float(HOUR)], ids=["back", "2035", "1970"])
def test_clock_step_ends_the_hour(bench: ManifestBench, jump: float) -> None:
    bench.append("plant/1", 3)
    bench.good = jump > 0
    bench.later(jump)
    bench.append("plant/1", 2)
    bench.later(-jump)
    found = bench.taken()
    assert spans(found, "plant/1") == [(HOUR, 0, 2), (HOUR + int(jump), 3, 4)]
    assert [one.clock_quality for one in found] == (["good", "good"] if jump > 0 else ["unknown", "unknown"])


def test_nothing_is_stated_before_a_hub_asks(bench: ManifestBench) -> None:
    quiet = manifests_of(bench.store, Reports(), "other", gateway="gw", covers=lambda _: True, signer=StubSigner())
    bench.append("plant/1", 1)
    quiet.poll(HOUR * HOUR_NS, clock_good=True)
    quiet.poll((HOUR + 2) * HOUR_NS, clock_good=True)
    assert quiet.stated_until is None
    assert quiet.waiting == 0


def test_messages_accepted_by_an_earlier_process_are_stated_at_the_start(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    bench = ManifestBench(rig)
    bench.append("plant/1", 3)
    bench.hours += 0.2
    bench.restart()
    bench.append("plant/1", 1)
    bench.later(1)
    assert spans(bench.taken(), "plant/1") == [(HOUR, 0, 2), (HOUR, 3, 3)]
    rig.store.close()


def test_manifests_created_during_a_commit_continue_from_it(bench: Any) -> None:
    """A change of the configuration replaces the manifests during a commit, and no statement counts as waiting for
    ever."""
    bench.append("plant/1", 3)
    bench.hours += 1
    bench.manifests.poll(int(bench.hours * HOUR_NS), clock_good=True)
    assert bench.store.commits.flush()  # the statement is being committed
    bench.begin()
    assert spans(bench.taken(), "plant/1") == [(HOUR, 0, 2)]
    bench.append("plant/1", 1)
    bench.later(1)
    bench.manifests.feed()
    bench.reports.flush()
    ((tag, _),) = bench.wire.sent[1:]
    bench.reports.settled(bench.link, [(tag, DeliveryState.ACCEPTED, True, None)])
    bench.begin()  # that is not committed yet
    assert spans(bench.taken(), "plant/1") == []
    assert bench.manifests.waiting == 0


def test_unconfirmed_statement_is_repeated_unchanged(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    bench = ManifestBench(rig)
    bench.append("plant/1", 3)
    bench.later(1)
    bench.manifests.feed()
    bench.reports.flush()
    ((_, first),) = bench.wire.sent
    bench.restart()
    assert bench.taken() == read_statements(first)
    bench.restart()
    assert bench.taken() == []
    assert bench.manifests.waiting == 0
    rig.store.close()


def test_failed_commit_states_nothing_twice(bench: ManifestBench) -> None:
    bench.append("plant/1", 3)
    fail_commits(bench.rig)
    bench.hours += 1
    log = bench.store.logs.open("topic office/#")
    for _ in range(3):
        bench.store.logs.append(log, Run("office/1", "d", 1, b"", [bytes(100_000)], 0))  # the store has no room for it
        bench.manifests.poll(int(bench.hours * HOUR_NS), clock_good=True)
        bench.rig.commit()
    bench.hours += 1
    heal(bench.rig)
    bench.look()
    bench.append("plant/1", 1)
    bench.later(1)
    bench.later(1)
    assert [span[1:] for span in spans(bench.taken(), "plant/1")] == [(0, 2), (3, 3)]


def test_dropped_messages_are_stated_by_reason(bench: ManifestBench) -> None:
    bench.append("plant/1", 10)
    log = bench.store.logs.open("topic plant/#")
    cursor = bench.store.cursors.open("forwarder/hub/up", log, 0)
    bench.rig.commit()
    bench.store.cursors.discard(cursor, 0, 3, [Loss("forwarder/hub/up", "plant/1", 0, 3, 4, 40, "expired", 1)])
    bench.rig.commit()
    bench.later(1)
    bench.store.cursors.discard(cursor, 4, 4, [Loss("forwarder/hub/up", "plant/1", 4, 4, 1, 10, "expired", 1)])
    bench.store.cursors.discard(cursor, 6, 6, [Loss("forwarder/hub/up", "plant/1", 6, 6, 1, 10, "evicted", 1)])
    bench.store.cursors.discard(cursor, 7, 7, [Loss("forwarder/other/up", "plant/1", 7, 7, 1, 10, "evicted", 1)])
    bench.rig.commit()
    bench.later(1)
    found = bench.taken()
    assert spans(found, "plant/1") == [(HOUR, 0, 9), (HOUR + 1, 10, 9)]
    assert [one.given_up for one in found] == [{"expired": 4}, {"expired": 1, "evicted": 1}]


def test_hours_are_merged_while_too_many_wait(bench: ManifestBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATEMENTS_KEPT_MAX", 2)
    bench.link.credit = 0
    for _ in range(5):
        bench.append("plant/1", 1)
        bench.later(1)
    assert bench.manifests.waiting == 2
    bench.link.credit = 1_000
    assert len(bench.taken()) == 2
    bench.later(1)
    assert spans(bench.taken(), "plant/1") == [(HOUR, 0, 0), (HOUR + 1, 1, 1), (HOUR + 2, 2, 4)]


def test_many_addresses_make_several_documents(bench: ManifestBench) -> None:
    for number in range(2 * STATEMENTS_A_DOCUMENT + 1):
        bench.append(f"plant/{number}", 1)
    bench.later(1)
    found = bench.taken()
    assert len(bench.wire.sent) == 3
    assert len({one.address for one in found}) == len(found) == found[0].statements == 2 * STATEMENTS_A_DOCUMENT + 1


def test_waiting_statements_are_restated_under_a_new_epoch(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    bench = ManifestBench(rig)
    bench.append("plant/1", 3)
    bench.later(1)
    assert len(bench.taken()) == 1
    bench.link.credit = 0
    bench.append("plant/1", 2)
    bench.later(1)
    assert bench.manifests.waiting == 1
    before = bench.store.lineage.epoch
    rig.store.lineage.begin_epoch()
    bench.append("plant/1", 4)
    bench.reports.clear()
    bench.manifests.restate()
    bench.link.credit = 1_000
    bench.look()
    bench.look()
    old, *_ = found = bench.taken()[1:]
    assert [(one.epoch, one.first_sequence, one.last_sequence) for one in found] == [
        (before, 3, 4),
        (bench.store.lineage.epoch, 5, 8),
    ]
    assert old.previous != GENESIS
    assert found[1].previous == GENESIS
    assert {(one.store_epoch, one.closing) for one in found} == {(bench.store.lineage.epoch, 1)}
    rig.store.close()


def test_key_is_created_once_and_private(tmp_path: Path) -> None:
    first = StatementKey(tmp_path)
    signature = first.sign("digest")
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    again = StatementKey(tmp_path)
    assert (again.public_key, again.sign("digest")) == (first.public_key, signature)
