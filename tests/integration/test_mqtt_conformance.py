"""The conformance corpus against a running gateway: packets in, packets out, over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.mqtt.broker_corpus import BROKER_SCENARIOS
from tests.conformance.mqtt.corpus import SCENARIOS
from tests.conformance.mqtt.runner import Run
from tests.conformance.mqtt.socket_target import SocketTarget
from tests.conformance.mqtt.steps import Scenario
from tests.support.processes import Waypost, edge

CASES = [
    pytest.param(scenario, version, id=f"{scenario.name}-{version}")
    for scenario in [*SCENARIOS, *BROKER_SCENARIOS]
    for version in scenario.statements
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketTarget]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    running: Waypost
    with edge(folder, "gw") as running:
        yield SocketTarget("127.0.0.1", running.port("mqtt"))


@pytest.mark.parametrize(("scenario", "version"), CASES)
def test_gateway_conforms(target: SocketTarget, scenario: Scenario, version: int) -> None:
    Run(target, version).play(scenario)
