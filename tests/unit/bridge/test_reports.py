"""A gateway reports its lineage before its ledger; the answers of the hub decide the order."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge import plain
from bridge.engine import Condition, DeliveryState, Link
from bridge.reports import OLDER_COPY, Reports


class Wire:
    """Engine that only records."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, _link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        self.sent.append((tag, msgspec.json.decode(plain.body_of(message))))

    def settle_sent(self, _link: Link, _tag: int) -> None:
        pass


class Bench:
    """Reports with a ledger link; each fork extends the lineage."""

    def __init__(self, *, forks: bool = True) -> None:
        self.shared: list[str] = []
        self.told: list[bool] = []

        def fork(shared: str) -> bool:
            self.shared.append(shared)
            return forks

        self.reports = Reports(lambda: {"epoch": f"e{len(self.shared)}", "openings": ["o"]}, fork)
        self.wire = Wire()
        self.connect()

    def connect(self) -> None:
        engine: Any = self.wire
        self.link = Link(None, None, "ledger", is_sender=True, ours=True)
        self.link.credit = 10
        self.reports.hold()
        self.reports.attached(engine, ledger=self.link)

    def loss(self) -> None:
        self.reports.ledger({"ranges": []}, self.told.append)

    def answer(self, state: DeliveryState, condition: Condition | None = None) -> None:
        self.reports.flush()
        self.reports.settled(self.link, [(self.wire.sent[-1][0], state, True, condition)])

    def sent(self) -> list[Any]:
        self.reports.flush()
        return [document for _, document in self.wire.sent]


def test_ledger_waits_for_the_answer_of_the_hub() -> None:
    bench = Bench()
    bench.loss()
    assert bench.sent() == []
    bench.reports.announce()
    assert bench.sent() == [{"lineage": {"epoch": "e0", "openings": ["o"]}}]
    assert bench.reports.held
    bench.answer(DeliveryState.ACCEPTED)
    assert not bench.reports.held
    assert bench.sent()[1:] == [{"ranges": []}]
    bench.answer(DeliveryState.ACCEPTED)
    assert bench.told == [True]


def test_older_copy_forks_and_reports_its_new_lineage() -> None:
    bench = Bench()
    bench.reports.announce()
    bench.answer(DeliveryState.REJECTED, Condition(OLDER_COPY, "o7"))
    assert bench.shared == ["o7"]
    assert bench.reports.held
    assert bench.sent()[-1] == {"lineage": {"epoch": "e1", "openings": ["o"]}}
    bench.answer(DeliveryState.ACCEPTED)
    assert not bench.reports.held
    assert not bench.reports.stuck


def test_store_that_cannot_fork_reports_so() -> None:
    bench = Bench(forks=False)
    bench.reports.announce()
    bench.answer(DeliveryState.REJECTED, Condition(OLDER_COPY))
    assert (bench.reports.stuck, bench.reports.held, len(bench.sent())) == (True, True, 1)
    bench.reports.detached()
    bench.connect()
    assert not bench.reports.stuck


def test_hub_that_does_not_compare_lineages_gets_the_ledger() -> None:
    bench = Bench()
    bench.loss()
    bench.reports.announce()
    bench.answer(DeliveryState.REJECTED, Condition("amqp:decode-error"))
    assert bench.shared == []
    assert bench.sent()[1:] == [{"ranges": []}]


def test_peer_without_a_ledger_gets_nothing() -> None:
    bench = Bench()
    bench.reports.detached()
    bench.reports.hold()
    bench.reports.announce()
    assert not bench.reports.held
    assert bench.sent() == []


def test_connection_may_break_before_the_answer() -> None:
    bench = Bench()
    bench.reports.announce()
    bench.reports.detached()
    bench.connect()
    assert bench.reports.held
    bench.reports.announce()
    bench.answer(DeliveryState.ACCEPTED)
    assert not bench.reports.held


def test_unsent_reports_are_rebuilt() -> None:
    bench = Bench()
    bench.loss()
    bench.reports.clear()
    bench.reports.announce()
    bench.answer(DeliveryState.ACCEPTED)
    assert len(bench.sent()) == 1
