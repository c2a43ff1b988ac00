"""Rule of completeness: Spark and `waypost prove` give the same result for the same address."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.manifest import ManifestStatement
from cloud.lake.sequences import SequenceStream
from cloud.proof import judgement as proof
from cloud.proof.landed import LandedSequences
from spark.kernels import judgement
from tests.support.completeness_cases import GOLDEN, HOUR, START, Case, judge_with_spark

STREAM = SequenceStream("t", "gw", "e", "a")


def of_proof(said: Case) -> proof.StreamJudgement:
    landed = LandedSequences()
    for span in said["landed"]:
        landed.add(*span)
    statements = [(statement(first, last, hours), START + hours * HOUR) for first, last, hours in said["stated"]]
    waits = said["waiting"]
    backlog = proof.ReportedBacklog(waits, START + said["said"] * HOUR) if waits is not None else None
    ledger = [proof.DiscardedRange(*gone) for gone in said["ledger"]]
    return proof.judge(STREAM, landed, ledger, statements, proof.SendingState(backlog, said["lanes"]))


def statement(first: int, last: int, hours: float) -> ManifestStatement:
    values: dict[str, Any] = dict.fromkeys(ManifestStatement.__struct_fields__, "")
    values |= {"hour": nanoseconds(START), "until": nanoseconds(START) + int(hours * 3.6e12)}
    return ManifestStatement(**(values | {"first_sequence": first, "last_sequence": last}))


def nanoseconds(at: datetime.datetime) -> int:
    return int(at.timestamp()) * 1_000_000_000


def compare(said: Case) -> list[judgement.AccountLine]:
    """Check that both agree, line by line and in every gap; return Spark's result."""
    proved, lines = of_proof(said), judge_with_spark(said)
    expected = [
        (one.hour is None, one.first, one.last, one.accepted, one.landed, one.given_up, one.waiting, one.unexplained)
        for one in proved.lines
    ]
    assert [(one.hour is None, *one[1:8]) for one in lines] == expected
    holes = judgement.SequenceRanges(
        (first, last) for line in lines for first, last, reason in line.gaps if reason is None
    )
    assert holes.spans == [(each.first, each.last) for each in proved.findings if each.kind.value == "hole"]
    for line in lines:
        assert line.accepted == line.landed + sum(line.given_up.values()) + line.waiting + line.unexplained
        assert sum(last + 1 - first for first, last, reason in line.gaps if reason is not None) == sum(
            line.given_up.values()
        )
    return lines


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_cases_agree(name: str) -> None:
    said, expected = GOLDEN[name]
    assert [tuple(line[1:8]) for line in compare(said)] == expected


SPANS = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda span: (span[0], span[0] + span[1]))
CASES = st.fixed_dictionaries(
    {
        "landed": st.lists(SPANS, max_size=6),
        "ledger": st.lists(st.tuples(SPANS, st.sampled_from(["evicted", "expired"])), max_size=3).map(
            lambda gone: sorted(((*span, reason) for span, reason in gone), key=lambda one: one[2])
        ),
        "stated": st.lists(st.tuples(SPANS, st.integers(0, 5)).map(lambda one: (*one[0], one[1])), max_size=4),
        "waiting": st.none() | st.integers(0, 3),
        "said": st.floats(0, 6),
        "lanes": st.booleans(),
    }
)


@given(CASES)
@settings(max_examples=400, deadline=None)
def test_any_case_agrees(said: Case) -> None:
    compare(said)
