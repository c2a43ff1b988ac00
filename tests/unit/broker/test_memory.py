"""Addresses in memory, as the router sees them: order of messages and time of answers. And an unreadable medium: no
message is skipped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from bridge.message import RETAIN, Run
from edge.broker.model import interfaces
from edge.broker.model.address_policy import AddressPolicy, Durability, DurabilityMode, Redelivery, WhenFull
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, SubscribeOptions
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreFull
from edge.broker.store.limits import StoreLimits
from edge.broker.store.logs import LogState
from edge.broker.store.medium import FAILED, ReadDone
from edge.broker.store.ticket import Ticket
from tests.support.router_site import RecordingConsumer, RouterSite

MEMORY = AddressPolicy(durability=Durability(DurabilityMode.MEMORY))
DURABLE = SubscribeOptions(durable_name="d", all_qos=True)


class Sender(interfaces.Origin):
    """Sender that remembers its answers."""

    name = "sender"

    def __init__(self, router: Router) -> None:
        self.router = router
        self.answered: list[int] = []
        self.why: Refusal | None = None
        self._token = 0

    def send(self, address: str, *bodies: bytes, flags: int = 1) -> None:
        tokens = range(self._token, self._token + len(bodies))
        self._token += len(bodies)
        self.router.publish(Publication(self, Run(address, self.name, flags, b"", list(bodies)), tokens))

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answered += tokens

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answered += tokens
        self.why = why


@pytest.fixture
def site() -> RouterSite:
    return RouterSite(queue=MEMORY, topic=MEMORY, deadletter=MEMORY)


@pytest.fixture
def sender(site: RouterSite) -> Sender:
    """Return a sender that has published a first message to its addresses."""
    made = Sender(site.router)
    made.send("queue/a", b"first")
    site.settle_down()
    return made


def bodies(consumer: RecordingConsumer) -> list[str]:
    return [body for body, _ in consumer.got]


def test_answer_does_not_wait(site: RouterSite, sender: Sender) -> None:
    sender.send("queue/a", b"1", b"2")
    assert sender.answered == [0, 1, 2]
    assert not site.store.commits.committing


def test_messages_are_delivered_at_the_end_of_the_turn_in_order(site: RouterSite, sender: Sender) -> None:
    consumer = site.consumer("queue/a")
    sender.send("queue/a", b"1", b"2")
    sender.send("queue/a", b"3")
    site.router.flush()
    assert bodies(consumer) == ["first", "1", "2", "3"]


def test_housekeeping_skips_no_new_message(site: RouterSite, sender: Sender) -> None:
    consumer = site.consumer("queue/a")
    consumer.answer(DeliveryOutcome.ACCEPTED)
    for n in range(5):
        sender.send("queue/a", b"%d" % n)
        site.router.tick()
    assert bodies(consumer) == ["first", "0", "1", "2", "3", "4"]
    assert site.unacknowledged("queue/a") == 5


def test_sender_to_both_kinds_is_answered_in_its_order(site: RouterSite, sender: Sender) -> None:
    site.policies = {"queue/#": MEMORY}
    site.router.reconfigure(site.table, site.policies)
    site.consumer("topic/t", options=DURABLE)
    sender.send("queue/a", b"again")
    site.settle_down()
    sender.send("topic/t", b"to the disk")
    sender.send("queue/a", b"in memory")
    assert sender.answered == [0, 1]
    site.settle_down()
    assert sender.answered == [0, 1, 2, 3]


def test_retained_message_is_answered_when_it_is_on_disk(site: RouterSite, sender: Sender) -> None:
    site.consumer("topic/t", options=DURABLE)
    sender.send("topic/t", b"0")
    site.settle_down()
    sender.send("topic/t", b"1")
    assert sender.answered[-1] == 2
    sender.send("topic/t", b"2", flags=1 | RETAIN)
    assert sender.answered[-1] == 2
    site.settle_down()
    assert sender.answered[-1] == 3


def test_retained_message_is_answered_when_the_log_has_it_too(
    site: RouterSite, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.consumer("topic/t", options=DURABLE)
    reserved = Ticket()
    monkeypatch.setattr(site.store.logs, "append", lambda _log, _run: reserved)
    sender.send("topic/t", b"1", flags=1 | RETAIN)
    site.settle_down()
    assert sender.answered == [0], "only the retained message is on disk"
    reserved.decide(StoreFull("no numbers can be reserved"))
    site.router.flush()
    assert (sender.answered, sender.why) == ([0, 1], Refusal.FULL)


def test_messages_of_many_addresses_and_turns_arrive_once_and_in_order(site: RouterSite, sender: Sender) -> None:
    consumer = site.consumer("topic/#", credit=100_000, options=DURABLE)
    for n in range(400):
        sender.send(f"topic/{n % 3}", b"%d" % n)
        if n % 7 == 0:
            site.router.flush()
        if n % 11 == 0 and site.posted:
            site.posted.popleft()()
    site.settle_down()
    assert bodies(consumer) == [str(n) for n in range(400)]
    assert sender.answered == list(range(401))


def test_returning_consumer_resumes_from_memory(site: RouterSite, sender: Sender) -> None:
    consumer = site.consumer("queue/a", credit=2)
    sender.send("queue/a", b"1", b"2", b"3")
    site.settle_down()
    assert bodies(consumer) == ["first", "1"]
    assert consumer.joined is not None
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
    assert bodies(site.consumer("queue/a", "other")) == ["first", "1", "2", "3"]


def test_dead_letter_in_memory_is_recorded_in_the_ledger() -> None:
    buried = AddressPolicy(
        durability=Durability(DurabilityMode.MEMORY), redelivery=Redelivery(attempts_max=1), deadletter="deadletter/x"
    )
    site = RouterSite(queue=buried, deadletter=MEMORY)
    for n in range(3):
        site.send("queue/a", b"%d" % n)
    consumer = site.consumer("queue/a", credit=1)
    for _ in range(3):
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        consumer.credit = 1
        assert consumer.joined is not None
        consumer.joined.pump()
        site.settle_down()
    assert bodies(site.consumer("deadletter/x")) == ["0", "1", "2"]
    assert site.unacknowledged("queue/a") == 0
    assert sum(last - first + 1 for _, first, last in site.dead_letters) == 3


def test_full_medium_refuses_once_the_reserved_numbers_are_used(site: RouterSite, sender: Sender) -> None:
    site.store.failure = StoreFull("the medium is full")
    sent = 0
    while sender.why is None:
        sender.send("queue/a", b"%d" % sent)
        site.settle_down(wait_s=1.0)
        sent += 1
        assert sent < 100
    assert sent >= 30
    assert sender.why is Refusal.FULL
    site.store.failure = None
    site.settle_down(wait_s=10.0)
    assert bodies(site.consumer("queue/a")) == ["first", *map(str, range(sent - 1))]


@pytest.mark.parametrize("when_full", [WhenFull.DROP_OLDEST, WhenFull.THIN])
def test_quota_drops_the_oldest(when_full: WhenFull) -> None:
    site = RouterSite(queue=msgspec.structs.replace(MEMORY, quota_bytes=1_000, when_full=when_full))
    sender = Sender(site.router)
    for n in range(20):
        sender.send("queue/a", b"%0100d" % n)
        site.settle_down()
    assert (len(sender.answered), sender.why) == (20, None)
    assert site.store.retention.log_bytes(1) <= 1_000
    site.settle_down(wait_s=30.0)
    kept = [int(body) for body in bodies(site.consumer("queue/a"))]
    lost = [n for entry in site.store.ledger.entries(0, 10) for n in range(entry.first, entry.last + 1)]
    assert {entry.reason for entry in site.store.ledger.entries(0, 10)} == {"evicted"}
    assert lost + kept == list(range(20))
    assert kept


def test_quota_that_rejects_loses_nothing() -> None:
    site = RouterSite(queue=msgspec.structs.replace(MEMORY, quota_bytes=1_000, when_full=WhenFull.REJECT))
    sender = Sender(site.router)
    for n in range(20):
        sender.send("queue/a", b"%0100d" % n)
        site.settle_down()
    assert sender.why is Refusal.FULL
    assert [int(body) for body in bodies(site.consumer("queue/a"))] == list(range(10))
    assert site.store.ledger.entries(0, 10) == []


def test_full_ring_without_a_quota_drops_its_oldest() -> None:
    site = RouterSite(queue=msgspec.structs.replace(MEMORY, when_full=WhenFull.REJECT))
    sender = Sender(site.router)
    for n in range(10):
        sender.send("queue/a", b"%04000000d" % n)
        site.settle_down()
    assert (len(sender.answered), sender.why) == (10, None)
    assert site.store.retention.log_bytes(1) <= StoreLimits().memory_bytes_max
    site.settle_down(wait_s=30.0)
    assert sum(entry.messages for entry in site.store.ledger.entries(0, 10)) >= 4
    assert {entry.reason for entry in site.store.ledger.entries(0, 10)} == {"evicted"}


def test_messages_in_memory_are_accepted_when_the_medium_refuses_others(site: RouterSite, sender: Sender) -> None:
    site.store.failure = StoreFull("the medium is full")
    sender.answered.clear()
    sender.send("other", b"x", flags=1 | RETAIN)
    sender.send("queue/a", b"taken")
    assert sender.answered == []
    refused: list[int] = []
    sender.refused = lambda tokens, _: refused.extend(tokens)  # type: ignore[method-assign,assignment]
    site.settle_down()
    site.store.failure = None
    assert (refused, sender.answered) == ([1], [2])
    assert bodies(site.consumer("queue/a")) == ["first", "taken"]


def test_unreadable_backlog_is_not_skipped() -> None:
    site = RouterSite()
    site.send("queue/a", b"1", b"2")
    failing = [True]
    read = site.store.medium.read

    def fails(log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        if failing[0]:
            site.posted.append(lambda: done(FAILED))
        else:
            read(log, position, end, bytes_max, done)

    site.store.medium.read = fails  # type: ignore[method-assign]
    consumer = site.consumer("queue/a")
    for _ in range(20):
        site.settle_down(wait_s=1.0)
    assert bodies(consumer) == []
    assert site.unacknowledged("queue/a") == 2
    failing[0] = False
    site.settle_down(wait_s=2.0)
    assert bodies(consumer) == ["1", "2"]
