"""The verdict is ok only when every fact is, and the report reads `facts.json`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.demo.accounting import Account, total
from tests.demo.facts import ANOMALIES, Event, Proved, Trial, document, facts_of, notes_of, passed

GOOD = Account("gw1", acknowledged=10, landed=10, rows=12, resent=2, twice=2)
TRIAL = Trial(
    gateway_cut="gw1",
    cut_s=20.0,
    acknowledged_meanwhile=1000,
    backlog_messages=990,
    gateway_killed="gw2",
    down_s=2.5,
    epoch_kept=True,
)


PROVED = Proved(accepted=12, landed=12, unstated=0, statements=3)


def verdict(
    one: Account = GOOD, trial: Trial = TRIAL, drained_s: float | None = 3.0, proved: Proved | None = PROVED
) -> bool:
    return passed(facts_of([one], total([one]), trial, drained_s, proved))


def test_good_run_passes() -> None:
    assert verdict()
    assert verdict(trial=replace(TRIAL, epoch_kept=None)), "a gateway that does not tell its epoch"


@pytest.mark.parametrize("fault", ["duplicates", "unexplained_gaps", "unconfessed", "unacknowledged", "dropped"])
def test_any_fault_fails(fault: str) -> None:
    assert not verdict(replace(GOOD, **{fault: 1}))


def test_loss_or_inactivity_fails() -> None:
    assert not verdict(replace(GOOD, landed=9))
    assert not verdict(replace(GOOD, acknowledged=0, landed=0))
    assert not passed([])


def test_ineffective_trial_fails() -> None:
    assert not verdict(trial=replace(TRIAL, backlog_messages=500)), "the cut leaked"
    assert not verdict(trial=replace(TRIAL, acknowledged_meanwhile=0, backlog_messages=0)), "the devices were stopped"
    assert not verdict(trial=replace(TRIAL, epoch_kept=False)), "the gateway came back with another store"
    assert not verdict(drained_s=None)
    assert not verdict(proved=None)


def test_lake_that_differs_from_the_statements_fails() -> None:
    for fault in ({"landed": 11}, {"unstated": 1}, {"accepted": 0, "landed": 0}):
        assert not verdict(proved=replace(PROVED, **fault))


def test_report_reads_the_document() -> None:
    facts = facts_of([GOOD], total([GOOD]), TRIAL, 3.0, PROVED)
    found = document(facts, ["a note"], [Event(0.5, "cut", 20.25), Event(60.0, "stopped")])
    assert found["verdict"] == "ok"
    assert found["notes"] == ["a note"]
    assert found["events"] == [
        {"at": "1970-01-01T00:00:00.500Z", "label": "cut", "until": "1970-01-01T00:00:20.250Z"},
        {"at": "1970-01-01T00:01:00.000Z", "label": "stopped", "until": None},
    ]
    first = {"name": "Acknowledged readings found in the lake", "value": 10, "expected": 10, "ok": True}
    assert found["facts"][0] == first
    assert document([], [], [])["verdict"] == "failed"


def test_notes_name_repeats_and_missing_readings() -> None:
    bad = replace(GOOD, given_up=3, missing=[("d1", seq) for seq in range(12)])
    notes = notes_of(bad, "firmware: none")
    assert "firmware: none" in notes
    assert any("sent 2 readings again" in note for note in notes)
    assert any("3 sequences" in note for note in notes)
    assert any("d1 #9, ..." in note for note in notes)


def test_notes_state_that_anomalies_are_expected() -> None:
    assert ANOMALIES in notes_of(GOOD, "no firmware")


def test_numbers_have_one_format() -> None:
    """The title of the table, the expected backlog and the found one use the same format."""
    trial = replace(TRIAL, acknowledged_meanwhile=13_719, backlog_messages=13_719)
    proved = replace(PROVED, accepted=13_719, landed=13_719, unstated=0, statements=1)
    shown = [f"{fact.value} {fact.expected}" for fact in facts_of([GOOD], total([GOOD]), trial, 3.0, proved)]
    assert "13,719 in 1 statement 13,719" in shown
    assert "13719 about 13,719" in shown, "numbers are formatted by the table"
