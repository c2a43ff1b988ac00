"""Health report of a hub: its landing, its gateways and its listeners."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud.hub.committer import Fault
from cloud.hub.copies import CopyFigures
from cloud.hub.fleet import HubTotals
from cloud.hub.groups import GatewaySession
from cloud.hub.health import HubHealth
from cloud.hub.older_copy import OlderCopyNotice, OlderCopySign
from cloud.hub.takeovers import RemoteProgram, Takeovers
from cloud.lake.lake import TableRefusal
from edge.health.problems import HealthProblem, Severity


class Hub:
    """Everything that the health of a hub reads; healthy until a test changes it."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o700)
        self.committer = SimpleNamespace(fault=None, failing=False, held=[])
        self.totals = HubTotals()
        self.listener = SimpleNamespace(refused=0)
        self.shed = SimpleNamespace(shed=0)
        self.trouble: str | None = None
        self.users: str | None = None
        self.gate = SimpleNamespace(waits_s=0.0, late=0)
        self.spaces = SimpleNamespace(troubles={})
        self.missed = 0
        copies: Any = SimpleNamespace(all_figures=lambda: {"acme": CopyFigures(1, self.missed)})
        spaces: Any = self.spaces
        self.takeovers = Takeovers(lambda: 0.0)
        self.refusals: dict[str, TableRefusal] = {}
        fleet: Any = SimpleNamespace(totals=self.totals, takeovers=self.takeovers, refusals=self.refusals)
        connections: Any = SimpleNamespace(listener=self.listener, admission=SimpleNamespace(figures=self.shed))
        certificates: Any = lambda: SimpleNamespace(trouble=self.trouble)  # noqa: E731
        committer: Any = self.committer
        self.health = HubHealth(
            fleet=fleet,
            committer=committer,
            connections=connections,
            spaces=spaces,
            copies=copies,
            users=lambda: self.users,
            gate=self.gate,
            certificates=certificates,
            tls=None,
            data=folder,
        )

    def problems(self) -> list[HealthProblem]:
        return self.health.problems()


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def fails(hub: Hub) -> None:
    hub.committer.fault, hub.committer.failing = Fault(0.0, "no space left on device"), True


def stands(hub: Hub) -> None:
    hub.committer.fault = Fault(0.0, "the current landing does not finish")


def refuses(hub: Hub) -> None:
    refusal = TableRefusal("has the Delta feature checkConstraints", "drop the constraint", fences=True)
    hub.refusals["telemetry"] = refusal
    fault = Fault(0.0, f"table telemetry in /lake {refusal.why}: {refusal.next_step}")
    hub.committer.fault, hub.committer.failing = fault, True
    hub.committer.held.append((GatewaySession("default", "gw1", "-"), fault))


def holds(hub: Hub) -> None:
    hub.committer.held.append((GatewaySession("default", "gw1", "-"), Fault(0.0, "its stream is damaged")))


@pytest.mark.parametrize(
    ("change", "name", "words", "severity"),
    [
        (fails, "landing", "it fails: no space left", Severity.ERROR),
        (stands, "landing", "it does not progress: the current landing", Severity.ERROR),
        (refuses, "table telemetry", "has the Delta feature checkConstraints", Severity.ERROR),
        (holds, "gateway gw1", "cannot land and is retried: its stream is damaged", Severity.ERROR),
        (lambda hub: setattr(hub.totals, "rejected", 1), "intake", "rejected within the last minute", Severity.WARNING),
        (lambda hub: setattr(hub.totals, "quarantined", 1), "quarantine", "moved to quarantine", Severity.WARNING),
        (lambda hub: setattr(hub.totals, "holes_closed", 1), "sequences", "were closed", Severity.WARNING),
        (lambda hub: setattr(hub.listener, "refused", 1), "connections", "connection limit reached", Severity.ERROR),
        (lambda hub: setattr(hub.shed, "shed", 1), "memory", "held the most memory", Severity.WARNING),
        (lambda hub: setattr(hub, "users", "the file is locked"), "users", "the file is locked", Severity.ERROR),
        (lambda hub: hub.spaces.troubles.update(acme="full"), "tenant acme", "is not open: full", Severity.ERROR),
        (lambda hub: setattr(hub.gate, "late", 1), "logins", "logins wait", Severity.WARNING),
        (lambda hub: setattr(hub.gate, "waits_s", 5.0), "logins", "logins wait", Severity.WARNING),
        (lambda hub: setattr(hub, "missed", 1), "tenant acme", "live copies were dropped", Severity.WARNING),
        (lambda hub: setattr(hub, "trouble", "no PEM"), "certificate", "no PEM", Severity.ERROR),
    ],
)
def test_faults_are_reported_as_problems(
    hub: Hub, change: Callable[[Hub], None], name: str, words: str, severity: Severity
) -> None:
    assert hub.problems() == []
    change(hub)
    [problem] = hub.problems()
    assert (problem.name, problem.severity) == (name, severity)
    assert words in problem.what
    assert problem.next_step


def test_older_copy_of_the_registry_is_a_problem_until_the_notice_is_removed(hub: Hub, tmp_path: Path) -> None:
    notice = OlderCopyNotice(tmp_path)
    notice.add(OlderCopySign.LAKE)
    notice.add(OlderCopySign.REVOCATIONS)
    notice.add(OlderCopySign.LAKE)
    assert notice.signs() == [OlderCopySign.LAKE, OlderCopySign.REVOCATIONS]
    [problem] = hub.problems()
    assert (problem.name, problem.severity) == ("registry", Severity.WARNING)
    assert str(notice.file) in problem.next_step
    notice.file.unlink()
    assert hub.problems() == []


def test_two_machines_with_one_identity_are_a_problem(hub: Hub) -> None:
    machines = [RemoteProgram("first", "10.0.0.1"), RemoteProgram("second", "10.0.0.2")] * 2
    for displaced, arrived in pairwise(machines):
        hub.takeovers.add(("acme", "gw1"), displaced, arrived)
    [problem] = hub.problems()
    assert (problem.name, problem.severity) == ("gateway gw1 of tenant acme", Severity.WARNING)
    assert "10.0.0.1, 10.0.0.2" in problem.what
    assert "--gateway gw1" in problem.next_step
