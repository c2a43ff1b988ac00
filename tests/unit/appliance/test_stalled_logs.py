"""Backlogs that do not shrink although a consumer is connected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge.appliance.health import SUBSCRIPTIONS_CHECKED, StalledLogs
from edge.health.problems import FoundProblem, Severity
from edge.health.stall_detector import STALLED_S


class Group:
    def __init__(self, credit: int, consumers: int = 1) -> None:
        self.credit = credit
        self._consumers = consumers

    def __bool__(self) -> bool:
        return self._consumers > 0


def subscription(
    *,
    backlog: int = 5,
    outstanding: int = 0,
    credit: int = 10,
    consumers: int = 1,
    parked: bool = False,
    order: Any = None,
) -> Any:
    return SimpleNamespace(
        group=Group(credit, consumers),
        backlog=backlog,
        outstanding=outstanding,
        window=SimpleNamespace(next=7),
        order=order,
        failures=SimpleNamespace(parked=parked),
        log=1,
    )


def looked_at(queues: dict[str, Any], now: list[float]) -> StalledLogs:
    router = SimpleNamespace(queues=SimpleNamespace(opened=queues), durable_subscriptions=SimpleNamespace(opened={}))
    broker: Any = SimpleNamespace(router=router)
    return StalledLogs(broker, lambda: now[0])


def found_after_a_minute(one: Any) -> list[FoundProblem]:
    now = [0.0]
    logs = looked_at({"a": one}, now)
    assert not list(logs.problems())
    now[0] += STALLED_S
    return list(logs.problems())


@pytest.mark.parametrize(
    ("one", "severity", "words"),
    [
        (subscription(), Severity.ERROR, "none was delivered"),
        (subscription(credit=0, outstanding=3), Severity.WARNING, "have settled none"),
        (subscription(parked=True), Severity.WARNING, "no consumer takes"),
        (subscription(order=SimpleNamespace(serves=True)), Severity.WARNING, "selects"),
    ],
)
def test_stalled_backlog_is_reported(one: Any, severity: Severity, words: str) -> None:
    [found] = found_after_a_minute(one)
    assert found.name == "queue a"
    assert found.severity is severity
    assert words in found.what


@pytest.mark.parametrize(
    "one",
    [
        subscription(backlog=0),
        subscription(consumers=0),
        subscription(credit=0),
        subscription(backlog=0, credit=0, outstanding=3),
    ],
)
def test_empty_or_unselected_queue_is_not_reported(one: Any) -> None:
    assert not found_after_a_minute(one)


def test_report_ends_when_the_backlog_shrinks() -> None:
    now = [0.0]
    one = subscription()
    logs = looked_at({"a": one}, now)
    for _ in range(3):
        list(logs.problems())
        now[0] += STALLED_S
    assert list(logs.problems())
    one.window.next = 8
    assert not list(logs.problems())


def test_deleted_queue_is_forgotten() -> None:
    now = [0.0]
    queues = {"a": subscription()}
    logs = looked_at(queues, now)
    list(logs.problems())
    now[0] += STALLED_S
    assert list(logs.problems())
    queues.clear()
    list(logs.problems())
    assert not list(logs.problems())


def test_few_queues_are_examined_at_a_time() -> None:
    now = [0.0]
    queues = {str(number): subscription() for number in range(3 * SUBSCRIPTIONS_CHECKED)}
    logs = looked_at(queues, now)
    for _ in range(3):
        list(logs.problems())
    now[0] += STALLED_S
    counts = [len(list(logs.problems())) for _ in range(4)]
    assert counts == [SUBSCRIPTIONS_CHECKED * part for part in (1, 2, 3, 3)]
