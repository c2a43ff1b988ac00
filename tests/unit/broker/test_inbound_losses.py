"""Messages that a connector fetched and no address accepts enter the ledger before the peer gets its
acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import INBOX_WINDOW
from bridge.message import Run
from bridge.reports import Reports
from edge.broker.configuration import Direction, Forwarder
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Refusal
from edge.broker.retention.loss_reports import LossReports
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.inbound_losses import InboundLosses
from edge.broker.router.recent_names import RecentNames
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError
from tests.support.memory_store import MemoryStore

FORWARDER = Forwarder(name="f", filter="a/#", connector="c", remote_address="a/#", direction=Direction.IN)


class Rig:
    """A router on a store in memory, with one incoming forwarder from a peer that does not support refusal."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.store = MemoryStore(post=self.posted.append)
        table = AddressTable([AddressRule("a/#", AddressType.QUEUE)])
        self.router = Router(self.store, table, clock_ns=lambda: 1, flush_soon=lambda: None)
        self.answers: list[tuple[Sequence[int], ForwardOutcome]] = []
        self.start()

    def start(self) -> None:
        self.losses = InboundLosses(self.store.state, self.store.ledger, self.router)
        self.router.participate(self.losses)
        self.inbound = IncomingForwarder(self.router, FORWARDER, RecentNames(), "gw1", losses=self.losses)
        self.attach()

    def attach(self) -> None:
        self.inbound.attached(lambda tokens, outcome, _why: self.answers.append((tokens, outcome)), lambda: None)

    def commit(self) -> None:
        self.router.flush()
        while self.posted:
            self.posted.pop(0)()

    def entries(self) -> list[tuple[object, ...]]:
        return [entry[1:8] for entry in self.store.ledger.entries(0, 100)]


def unreadable(token: int, code: str = "too-large", size: int = 100) -> Incoming:
    return Incoming(token, ("a/b",), b"", (), Run("a/b", "", 0, b"", []), fault="too large", code=code, bytes=size)


def test_peer_is_acknowledged_after_the_commit_of_the_entry() -> None:
    rig = Rig()
    rig.inbound.receive([unreadable(1), unreadable(2)])
    assert (rig.answers, rig.inbound.credit) == ([], INBOX_WINDOW - 2)
    rig.commit()
    assert rig.answers == [([1], ForwardOutcome.REJECTED), ([2], ForwardOutcome.REJECTED)]
    assert rig.entries() == [("inbound/c/f", "$inbound/c/f", 0, 1, 2, 200, "inbound-too-large")]
    assert rig.inbound.credit == INBOX_WINDOW


def test_failed_commit_answers_no_peer_and_loses_no_entry() -> None:
    rig = Rig()
    rig.inbound.receive([unreadable(1)])
    rig.store.medium.failure = StoreError("full")
    rig.router.flush()
    rig.posted.pop(0)()
    assert rig.answers == []
    rig.store.medium.failure = None
    rig.inbound.receive([unreadable(2)])
    rig.commit()
    assert rig.answers == [([1], ForwardOutcome.REJECTED), ([2], ForwardOutcome.REJECTED)]
    assert [entry[2:5] for entry in rig.entries()] == [(0, 1, 2)]


def test_peer_is_not_answered_over_another_connection() -> None:
    rig = Rig()
    rig.inbound.receive([unreadable(1)])
    rig.inbound.detached()
    rig.attach()
    rig.commit()
    assert rig.answers == []
    assert len(rig.entries()) == 1


def test_disconnection_waits_for_the_entry() -> None:
    rig = Rig()
    left: list[str] = []
    rig.inbound.receive([unreadable(1)])
    rig.inbound.leave(lambda: left.append("left"))
    assert not left
    rig.commit()
    assert (left, rig.answers) == (["left"], [([1], ForwardOutcome.REJECTED)])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (unreadable(1, "unreadable"), "inbound-unreadable"),
        (Incoming(1, ("other",), b"", (), Run("other", "", 1, b"", [b"x"])), "inbound-no-address"),
        (Incoming(1, ("a/b",), b"", ("g",) * 32, Run("a/b", "", 1, b"", [b"x"])), "inbound-too-many-hops"),
    ],
)
def test_every_rejection_has_its_reason(message: Incoming, reason: str) -> None:
    rig = Rig()
    rig.inbound.receive([message])
    rig.commit()
    assert [entry[6] for entry in rig.entries()] == [reason]
    assert [outcome for _, outcome in rig.answers] == [ForwardOutcome.REJECTED]


def test_permanent_refusal_of_the_router_is_recorded() -> None:
    rig = Rig()
    rig.inbound.receive([Incoming(1, ("a/b",), b"", (), Run("a/b", "", 1, b"", [b"xyz"]))])
    rig.inbound.refused([0], Refusal.NOT_AUTHORIZED)
    assert rig.answers == []
    rig.commit()
    assert [entry[4:7] for entry in rig.entries()] == [(1, 3, "inbound-not-authorized")]
    assert rig.answers == [([1], ForwardOutcome.REJECTED)]


def test_numbers_continue_after_a_restart_separately_for_each_reason() -> None:
    rig = Rig()
    rig.inbound.receive([unreadable(1), unreadable(2, "unreadable"), unreadable(3)])
    rig.commit()
    rig.start()
    rig.inbound.receive([unreadable(1)])
    rig.commit()
    assert sorted((entry[6], entry[2], entry[3]) for entry in rig.entries()) == [
        ("inbound-too-large", 0, 2),
        ("inbound-unreadable", 0, 0),
    ]


def test_hub_receives_the_losses_of_its_forwarders() -> None:
    rig, reports = Rig(), Reports()
    losses = LossReports(rig.store.state, rig.store.lineage, rig.store.ledger, reports, "hub")
    rig.inbound.receive([unreadable(1)])
    rig.commit()
    credit = reports.ledger_credit
    losses.feed()
    assert reports.ledger_credit == credit - 1
