"""Thinning: summaries replace old messages, the others stay unchanged, and the ledger lists the replaced ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.amqp_values import DescribedValue, Ulong, encode
from bridge.message import AMQP, Run
from edge.broker.message.translation import parse_message
from edge.broker.retention import summaries
from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import Summary
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, flat, memory_rig, sqlite_rig

S = 1_000_000_000
SUMMARY = Summary(summaries.kind, summaries.summarise)


def reading(number: int, at_s: float, device: str = "d", address: str = "plant/7") -> Run:
    body = b'{"t": %d, "pad": "%s"}' % (number, b"x" * 80)
    return Run(address, device, 1, b"", [body], int(at_s * S))


def made_rig(kind: str, directory: Path, summary: Summary | None) -> Rig:
    return sqlite_rig(directory, summary=summary) if kind == "sqlite" else memory_rig(summary=summary)


@pytest.fixture(params=["sqlite", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = made_rig(request.param, tmp_path, SUMMARY)
    yield made
    made.store.close()


def fill(rig: Rig, minutes: int = 10, per_minute: int = 20) -> int:
    log = rig.store.logs.open("a")
    rig.store.cursors.open("c", log, 0)
    for number in range(minutes * per_minute):
        rig.store.logs.append(log, reading(number, number * 60 / per_minute))
        if number % 10 == 9:
            rig.commit()
    return log


def kept(rig: Rig, log: int) -> list[tuple[int, int, dict[str, object]]]:
    """Return (position, sequence, document) of every stored message."""
    return [(position, sequence, json.loads(body)) for position, _, sequence, body in rig.read_all(log)]


def check_whole(rig: Rig, log: int, total: int) -> None:
    """Check that every sequence is stored or in the ledger, never both, and that every reading counts once."""
    there = kept(rig, log)
    lost = [n for entry in rig.store.ledger.entries(0, 1000) for n in range(entry.first, entry.last + 1)]
    assert sorted([sequence for _, sequence, _ in there] + lost) == list(range(total))
    stands_for = 0
    for position, sequence, document in there:
        assert position == sequence == document["t"]
        thinned = document.get("thinned", {"messages": 1})
        assert isinstance(thinned, dict)
        stands_for += int(thinned["messages"])
    evicted = {
        n for e in rig.store.ledger.entries(0, 1000) if e.reason == "evicted" for n in range(e.first, e.last + 1)
    }
    assert evicted or stands_for == total


def test_oldest_minutes_become_one_message_each(rig: Rig) -> None:
    log = fill(rig)
    before = rig.store.retention.log_bytes(log)
    rig.store.retention.thin(log, 1000)
    rig.commit()
    assert rig.store.retention.log_bytes(log) <= before - 1000
    check_whole(rig, log, 200)
    assert {entry.reason for entry in rig.store.ledger.entries(0, 1000)} == {"thinned"}
    position, sequence, document = kept(rig, log)[0]
    assert (position, sequence) == (19, 19)
    assert document["thinned"] == {
        "messages": 20,
        "from": 0,
        "to": 57 * S,
        "min": {"t": 0},
        "max": {"t": 19},
        "mean": {"t": 9.5},
    }


def test_cursor_skips_thinned_messages(rig: Rig) -> None:
    log = fill(rig)
    rig.store.retention.thin(log, 15_000)
    rig.commit()
    positions = [position for position, _, _ in kept(rig, log)]
    (record,) = rig.store.cursor_records()
    done = record.position
    for position in positions:
        rig.store.cursors.acknowledge(record.cursor, done, position)
        done = position + 1
    rig.settle()
    assert rig.store.logs.bounds(log) == (200, 200)
    assert rig.store.retention.log_bytes(log) == 0
    assert rig.store.info().bytes == 0


def test_thinning_precedes_eviction_of_the_oldest(rig: Rig) -> None:
    log = fill(rig)
    sizes = [rig.store.retention.log_bytes(log)]
    for _ in range(40):
        rig.store.retention.thin(log, 1_500)
        rig.commit()
        check_whole(rig, log, 200)
        assert rig.store.retention.log_bytes(log) <= max(0, sizes[-1] - 1_500)
        sizes.append(rig.store.retention.log_bytes(log))
    assert sizes[-1] == 0
    reasons = {entry.reason for entry in rig.store.ledger.entries(0, 1000)}
    assert reasons == {"thinned", "evicted"}


def test_partly_acknowledged_run_is_unchanged(rig: Rig) -> None:
    log = fill(rig, minutes=2)
    rig.store.cursors.acknowledge(1, 0, 4)
    rig.store.cursors.acknowledge(1, 25, 27)
    rig.commit()
    rig.store.retention.thin(log, 500)
    rig.commit()
    bodies = {sequence: document for _, sequence, document in kept(rig, log)}
    assert all("thinned" not in bodies[sequence] for sequence in (*range(5, 10), *range(28, 30)) if sequence in bodies)


def test_messages_passed_by_an_idle_cursor_are_unchanged(rig: Rig) -> None:
    log = fill(rig, minutes=2)
    rig.store.cursors.make_idle(rig.store.cursors.open("idle", log, 0))
    rig.commit()
    rig.store.cursors.pass_all(log, [rig.store.cursors.open("idle", log, 0)], 40)
    rig.commit()
    before = kept(rig, log)
    rig.store.retention.thin(log, 100)
    rig.commit()
    assert not any("thinned" in document for _, _, document in kept(rig, log))
    assert kept(rig, log) == before[-len(kept(rig, log)) :], "the oldest went instead"


def test_devices_are_separate_and_other_messages_unchanged(rig: Rig) -> None:
    log = rig.store.logs.open("a")
    rig.store.cursors.open("c", log, 0)
    for number in range(40):
        rig.store.logs.append(log, reading(number, number, device=f"d{number % 2}", address=f"plant/{number % 2}"))
        rig.store.logs.append(log, Run("plant/text", "d", 1, b"", [b"some words %d" % number], number * S))
    rig.commit()
    rig.store.retention.thin(log, 2_000)
    rig.commit()
    there = flat(rig.read(log, 0))
    assert [body for _, address, _, body in there if address == "plant/text"] == [
        b"some words %d" % number for number in range(40)
    ]
    documents = [json.loads(body) for _, address, _, body in there if address != "plant/text"]
    assert [(document["t"], document["thinned"]["messages"]) for document in documents] == [(38, 20), (39, 20)]


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_oldest_are_evicted_without_a_summary_function(kind: str, tmp_path: Path) -> None:
    rig = made_rig(kind, tmp_path, None)
    log = fill(rig)
    rig.store.retention.thin(log, 1_000)
    rig.commit()
    assert {entry.reason for entry in rig.store.ledger.entries(0, 1000)} == {"evicted"}
    check_whole(rig, log, 200)
    rig.store.close()


def test_summary_that_raises_fails_only_its_commit(tmp_path: Path) -> None:
    def raises(run: Run, body: bytes) -> str | None:
        raise ValueError("a message nobody thought of")

    rig = sqlite_rig(tmp_path, summary=Summary(raises, summaries.summarise))
    log = fill(rig)
    rig.store.retention.thin(log, 1_000)
    assert "ValueError: see the log" in str(rig.commit().error)
    ticket = rig.store.state.put("kind", "key", b"")
    assert rig.commit().error is None
    assert (ticket.decided, ticket.error) == (True, None)
    rig.store.close()


def test_thinned_log_is_restored_and_verifies(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, summary=SUMMARY)
    log = fill(rig)
    rig.store.retention.thin(log, 3_000)
    rig.commit()
    before, size = kept(rig, log), rig.store.retention.log_bytes(log)
    rig.reopen()
    assert kept(rig, log) == before
    assert rig.store.retention.log_bytes(log) == size
    for position in (5, 19, 20, 21, 39, 150):
        assert flat(rig.read(log, position))[0][0] == min(p for p, _, _ in before if p >= position)
    rig.store.retention.thin(log, 10_000)
    rig.commit()
    check_whole(rig, log, 200)
    rig.store.close()


def test_one_commit_reads_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, StoreLimits(thin_bytes_max=2_000), SUMMARY)
    log = fill(rig)
    rig.store.retention.thin(log, 4_000)
    rig.commit()
    thinned = [entry for entry in rig.store.ledger.entries(0, 1000) if entry.reason == "thinned"]
    assert sum(entry.bytes for entry in thinned) <= 1 << 20, "a piece, as one is read before it is counted"
    check_whole(rig, log, 200)
    rig.store.close()


def test_read_does_not_return_replaced_messages(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, summary=SUMMARY)
    log = fill(rig)
    assert isinstance(rig.store.medium, SqliteMedium)
    assert flat(rig.read(log, 0, 100))[-1][0] < 9, "a part of a segment, of which the reader keeps the rest"
    rig.store.retention.thin(log, 3_000)
    rig.commit()
    assert flat(rig.read(log, 2, 100))[0][0] == 19
    rig.store.close()


def test_one_commit_reads_a_bounded_number_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.broker.store.thinning.PIECE_BYTES", 400)
    rig = sqlite_rig(tmp_path, StoreLimits(thin_messages_max=20), SUMMARY)
    log = fill(rig)
    rig.store.retention.thin(log, 4_000)
    rig.commit()
    thinned = [entry for entry in rig.store.ledger.entries(0, 1000) if entry.reason == "thinned"]
    assert 0 < sum(entry.messages for entry in thinned) <= 20 + 20, "a piece is two commits of ten"
    check_whole(rig, log, 200)
    rig.store.close()


@pytest.mark.parametrize("at_most", [1, 300, 600, 5_000])
def test_thinning_is_limited(rig: Rig, at_most: int) -> None:
    log = fill(rig)
    size = rig.store.retention.log_bytes(log)
    rig.store.retention.thin(log, min(500, at_most), at_most)
    rig.commit()
    assert size - at_most <= rig.store.retention.log_bytes(log) <= size
    check_whole(rig, log, 200)


def test_readings_sent_over_amqp_are_summarised(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, summary=SUMMARY)
    log = rig.store.logs.open("a")
    rig.store.cursors.open("c", log, 0)
    for number in range(40):
        body = encode(DescribedValue(Ulong(0x77), {"t": number, "unit": "C", "pad": "x" * 60}))
        rig.store.logs.append(log, Run("plant", "d", 1 | AMQP, b"", [body], number * S))
    rig.commit()
    rig.store.retention.thin(log, 1_000)
    rig.commit()
    ((_, _, sequence, body),) = flat(rig.read(log, 0))
    found = json.loads(parse_message(body).body)
    assert (sequence, found["t"], found["thinned"]["mean"]) == (39, 39, {"t": 19.5})
    assert parse_message(body).annotations == {"x-opt-waypost-thinned": 40}
    (entry,) = rig.store.ledger.entries(0, 10)
    assert (entry.first, entry.last, entry.messages, entry.reason) == (0, 38, 39, "thinned")
    rig.store.close()
