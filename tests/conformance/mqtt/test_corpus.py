"""The corpus against the machine, and the statements that it exercises."""

from __future__ import annotations

import re

import pytest

from edge.broker.mqtt import packets as p
from tests.conformance.mqtt import corpus
from tests.conformance.mqtt.authenticating import AUTHENTICATING
from tests.conformance.mqtt.broker_corpus import BROKER_SCENARIOS
from tests.conformance.mqtt.loopback import LoopbackTarget
from tests.conformance.mqtt.runner import Failure, Run
from tests.conformance.mqtt.steps import Scenario, closed, expect, send

SCENARIOS = [*corpus.SCENARIOS, *AUTHENTICATING]
CASES = [
    pytest.param(scenario, version, id=f"{scenario.name}-{version}")
    for scenario in SCENARIOS
    for version in scenario.statements
]


@pytest.mark.parametrize(("scenario", "version"), CASES)
def test_machine_follows_the_corpus(scenario: Scenario, version: int) -> None:
    Run(LoopbackTarget(), version).play(scenario)


def test_statements_are_exercised(record_testsuite_property: object) -> None:
    """The number of exercised statements may grow; it must not shrink unnoticed."""
    exercised: dict[int, set[str]] = {4: set(), 5: set()}
    for scenario in [*SCENARIOS, *BROKER_SCENARIOS]:
        for version, statements in scenario.statements.items():
            exercised[version].update(statements.split())
    for version, statements in exercised.items():
        assert all(re.fullmatch(r"\d-?\.?\d+[.]\d-\d+|\d[.]\d+[.]\d-\d+", each) for each in statements), statements
        record_testsuite_property(f"mqtt_statements_level_{version}", len(statements))  # type: ignore[operator]
    assert len(exercised[4]) >= 100
    assert len(exercised[5]) >= 160


def test_names_are_unique() -> None:
    names = [scenario.name for scenario in [*SCENARIOS, *BROKER_SCENARIOS]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "steps",
    [
        (send("a", p.Connect("a")), expect("a", p.ConnAck(True))),
        (send("a", p.Connect("a")), expect("a", p.ConnAck()), closed("a")),
        (send("a", p.Connect("a"), p.PingReq()), expect("a", p.ConnAck()), closed("a")),
        (send("a", p.Connect("a"), p.Publish("t", b"", 1, packet_id=1)), expect("a", p.ConnAck(), p.PubAck(2))),
    ],
)
def test_runner_can_fail(steps: tuple[object, ...]) -> None:
    with pytest.raises(Failure):
        Run(LoopbackTarget(), 4).play(Scenario("wrong", {4: ""}, steps))  # type: ignore[arg-type]
