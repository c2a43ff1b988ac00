"""Two machines with one identity, and single machines that look like two."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cloud.hub.limits import TAKEOVERS_SHARED, TAKEOVERS_WITHIN_S
from cloud.hub.takeovers import RemoteProgram, Takeovers

KEY = ("acme", "gw1")
FIRST, SECOND = RemoteProgram("first", "10.0.0.1"), RemoteProgram("second", "10.0.0.2")


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.takeovers = Takeovers(lambda: self.now)

    def connect(self, machines: list[RemoteProgram], every_s: float = 10.0) -> list[str | None]:
        """Return the result of each takeover among these connections."""
        said = []
        for displaced, arrived in pairwise(machines):
            self.now += every_s
            said.append(self.takeovers.add(KEY, displaced, arrived))
        return said


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_third_alternating_takeover_reports_both_addresses(rig: Rig) -> None:
    said = rig.connect([FIRST, SECOND, FIRST, SECOND, FIRST])
    assert said == [None] * (TAKEOVERS_SHARED - 1) + ["10.0.0.1, 10.0.0.2"] * 2
    assert list(rig.takeovers.shared()) == [(KEY, "10.0.0.1, 10.0.0.2")]


def test_two_machines_behind_one_address_are_detected(rig: Rig) -> None:
    behind = SECOND._replace(address=FIRST.address)
    assert rig.connect([FIRST, behind, FIRST, behind])[-1] == "10.0.0.1"


def test_report_ends_when_takeovers_stop(rig: Rig) -> None:
    rig.connect([FIRST, SECOND, FIRST, SECOND])
    rig.now += TAKEOVERS_WITHIN_S - 25.0
    assert len(list(rig.takeovers.shared())) == 1
    rig.now += 10.0
    assert list(rig.takeovers.shared()) == []


@pytest.mark.parametrize(
    "machines",
    [
        [FIRST] * 6,
        [FIRST._replace(address=f"10.0.0.{i}") for i in range(6)],
        [RemoteProgram(f"run {i}", "10.0.0.1") for i in range(6)],
    ],
    ids=["a broken link", "a cellular link with changing addresses", "a gateway that is started again and again"],
)
def test_single_machine_is_not_reported(rig: Rig, machines: list[RemoteProgram]) -> None:
    assert rig.connect(machines) == [None] * 5


def test_distant_takeovers_are_not_reported(rig: Rig) -> None:
    assert rig.connect([FIRST, SECOND] * 3, every_s=TAKEOVERS_WITHIN_S) == [None] * 5


def test_gateways_are_distinguished(rig: Rig) -> None:
    rig.connect([FIRST, SECOND, FIRST])
    assert rig.takeovers.add(("acme", "gw2"), FIRST, SECOND) is None
