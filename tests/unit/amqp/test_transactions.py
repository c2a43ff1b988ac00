"""Local transactions over AMQP 1.0 (part 4): declare, posting, retirement and discharge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from bridge.amqp_values import Symbol, decode, encode
from bridge.engine import Condition, DeliveryState, Detached, Link, Terminus, TerminusKind, TransactionalState
from bridge.engine.terminus import source, target
from cloud.hub.spaces import TABLE
from edge.broker import limits
from edge.broker.amqp.coordinator import CAPABILITIES
from edge.broker.model.address_policy import AddressPolicy, Durability, DurabilityMode, Redelivery, WhenFull
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.transactions import registry
from edge.broker.router.transactions.changes import TransactionRefused
from edge.broker.store.errors import StoreFull
from tests.unit.amqp.broker import Site, received_payloads, send_texts
from tests.unit.amqp.transacting import DECLARE, DISCHARGE, Controller, make_transactional, request
from tests.unit.amqp.wire import message, of_kind

COORDINATOR = Terminus(kind=TerminusKind.COORDINATOR)
ROLLBACK, TIMEOUT, UNKNOWN = (f"amqp:transaction:{name}" for name in ("rollback", "timeout", "unknown-id"))


def condition_of(found: Condition | None) -> str:
    return "" if found is None else found.name


def attempts_of(message: bytes) -> int:
    """Return the delivery-count in the header of a message."""
    fields = decode(message, 3)[0] if message[:3] == b"\x00\x53\x70" else []
    return fields[4] if len(fields) > 4 else 0


class Party(Origin):
    """Controller of a user."""

    def __init__(self, user: str) -> None:
        self.name = self.user = user

    def accepted(self, tokens: Sequence[int]) -> None:
        """Do nothing."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Do nothing."""


class Bench:
    """A controller that receives from `queue/in` and sends to `queue/out`, which another client reads."""

    def __init__(self, *texts: str, address: str = "queue/out") -> None:
        self.site = Site()
        self.control = Controller(self.site)
        self.client = self.control.client
        self.other = self.site.client("other")
        self.reader = self.other.receiver(address, "reader")
        feed = self.other.sender("queue/in", "feed")
        send_texts(self.other, feed, *texts)
        self.site.settle_down()
        self.sender = self.client.sender(address, "out")
        self.receiver = self.client.receiver("queue/in", "in")
        self._tags = count(100)

    @property
    def out(self) -> list[bytes]:
        """Messages that the other client has received."""
        return received_payloads(self.other, self.reader)

    @property
    def received(self) -> list[bytes]:
        return received_payloads(self.client, self.receiver)

    def post(self, body: bytes, name: bytes, link: Link | None = None) -> tuple[DeliveryState, object]:
        """Post a message; return the answer."""
        link, tag = link or self.sender, next(self._tags)
        self.control.post(link, tag, body, name)
        self.site.settle_down()
        return next((state, detail) for at, state, detail in self.client.outcomes(link) if at == tag)

    def retire(self, name: bytes, outcome: DeliveryState = DeliveryState.ACCEPTED, *, place: int = -1) -> None:
        """Settle a delivery in a transaction, the last one by default."""
        self.control.retire(self.receiver, [self.client.deliveries(self.receiver)[place]], name, outcome)
        self.site.settle_down()

    def left(self) -> int:
        """Return the messages of `queue/in` that no commit has acknowledged."""
        queue = self.site.router.queues["queue/in"]
        return self.site.store.cursors.backlog(queue.cursor)

    def refused(self, answer: tuple[DeliveryState, object]) -> str:
        """Return the error of a posting that is refused in its transaction."""
        state, detail = answer
        assert state is DeliveryState.TRANSACTIONAL
        assert isinstance(detail, TransactionalState)
        assert detail.outcome is DeliveryState.REJECTED
        assert isinstance(detail.detail, Condition)
        return detail.detail.name


class TestCoordinator:
    def test_it_offers_local_transactions(self) -> None:
        control = Controller(Site())
        assert control.link.target.kind is TerminusKind.COORDINATOR
        assert control.link.target.capabilities == CAPABILITIES
        assert control.link.credit > 0

    def test_txn_ids_differ(self) -> None:
        control, other = Controller(site := Site()), Controller(site, "other")
        assert len({control.declare(), control.declare(), other.declare()}) == 3

    @pytest.mark.parametrize(
        ("wanted", "condition"),
        [
            (request(DECLARE, b"global"), "amqp:not-implemented"),
            (request(0x99), "amqp:not-implemented"),
            (request(DISCHARGE, b"none", False), UNKNOWN),
            (request(DISCHARGE, None), UNKNOWN),
            (request(DISCHARGE), UNKNOWN),
            (message(b"data"), "amqp:decode-error"),
            (b"\x00\x53\x77\x41", "amqp:decode-error"),
        ],
    )
    def test_other_requests_are_rejected(self, wanted: bytes, condition: str) -> None:
        control = Controller(Site())
        answer = control.answer(control.ask(wanted))
        assert answer is not None
        assert (answer[0], condition_of(answer[1])) == (DeliveryState.REJECTED, condition)
        control.declare()

    def test_symbolic_descriptors_are_understood(self) -> None:
        control = Controller(Site())
        name = control.declare()
        for wanted in ("amqp:declare:list", "amqp:discharge:list"):
            text = wanted.encode()
            body = b"\x00\x53\x77\x00\xa3" + bytes([len(text)]) + text
            fields = b"\x45" if wanted == "amqp:declare:list" else b"\xc0\x0c\x02\xa0\x08" + name + b"\x41"
            answer = control.answer(control.ask(body + fields))
            assert answer is not None
            assert answer[0] in (DeliveryState.DECLARED, DeliveryState.ACCEPTED)

    def test_a_settled_request_ends_the_link(self) -> None:
        control = Controller(Site())
        control.client.engine.send(control.link, 0, request(DECLARE, None), settled=True)
        control.site.settle_down()
        (detached,) = of_kind(control.client.events, Detached)
        assert detached.condition.name == "amqp:not-allowed"

    def test_a_source_without_rejected_gets_a_detach(self) -> None:
        site = Site()
        control = Controller(site)
        client = site.client("strict")
        control.client, control.link = (
            client,
            client.sender(COORDINATOR, "control", source=source("c", outcomes=("amqp:accepted:list",))),
        )
        control.ask(request(DISCHARGE, b"none", True))
        site.settle_down()
        (detached,) = of_kind(client.events, Detached)
        assert detached.condition.name == UNKNOWN

    def test_requests_behind_one_that_ends_the_link_are_not_processed(self) -> None:
        """All come in one read."""
        site = Site()
        client = site.client("strict")
        link = client.sender(COORDINATOR, "control", source=source("c", outcomes=("amqp:accepted:list",)))
        client.engine.send_all(link, 0, [message(b"bad"), request(DECLARE, None), request(DECLARE, None)])
        site.settle_down()
        assert len(of_kind(client.events, Detached)) == 1
        assert len(site.router.transactions) == 0

    def test_only_its_own_link_discharges_a_transaction(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        other = Controller(bench.site, "stranger")
        assert condition_of(other.discharge(name)) == UNKNOWN
        assert bench.control.discharge(name) is None
        assert condition_of(bench.control.discharge(name)) == UNKNOWN


class TestPosting:
    def test_nothing_is_visible_before_the_discharge(self) -> None:
        bench = Bench()
        name = bench.control.declare()
        answer = bench.post(b"1", name)
        assert answer == (DeliveryState.TRANSACTIONAL, TransactionalState(name, DeliveryState.ACCEPTED))
        bench.post(b"2", name)
        assert bench.out == []
        assert bench.control.discharge(name) is None
        assert bench.out == [b"1", b"2"]

    def test_the_answer_waits_for_the_commit(self) -> None:
        bench = Bench()
        name = bench.control.declare()
        bench.post(b"1", name)
        tag = bench.control.ask(request(DISCHARGE, name, False))
        bench.site.turn()
        assert bench.control.answer(tag) is None
        bench.site.commit()
        bench.site.turn()
        assert bench.control.answer(tag) == (DeliveryState.ACCEPTED, None)

    def test_a_rollback_drops_messages(self) -> None:
        bench = Bench()
        name = bench.control.declare()
        bench.post(b"1", name)
        assert bench.control.discharge(name, fail=True) is None
        assert bench.out == []
        assert bench.site.router.transactions.bytes == 0

    def test_several_transactions_are_open_at_once(self) -> None:
        bench = Bench()
        one, two = bench.control.declare(), bench.control.declare()
        bench.post(b"1", one)
        bench.post(b"2", two)
        bench.post(b"1b", one)
        assert bench.control.discharge(two) is None
        assert bench.control.discharge(one) is None
        assert bench.out == [b"2", b"1", b"1b"]

    def test_settled_messages_are_part_of_it(self) -> None:
        bench = Bench()
        name = bench.control.declare()
        bench.client.engine.send(bench.sender, 1, message(b"outside"), settled=True)
        bench.site.settle_down()
        for tag, body in enumerate((b"1", b"2"), 2):
            bench.client.engine.send(bench.sender, tag, message(body))
            make_transactional(bench.sender, tag, name)
            bench.client.engine.settle_sent(bench.sender, tag)
        bench.site.settle_down()
        assert bench.out == [b"outside"]
        assert bench.control.discharge(name) is None
        assert bench.out == [b"outside", b"1", b"2"]

    def test_an_unknown_transaction_is_refused(self) -> None:
        bench = Bench()
        state, detail = bench.post(b"1", b"unknown")
        assert state is DeliveryState.REJECTED
        assert isinstance(detail, Condition)
        assert detail.name == UNKNOWN
        assert bench.out == []

    def test_messages_outside_and_inside_keep_apart(self) -> None:
        """Both come in one read, on one link."""
        bench = Bench()
        name = bench.control.declare()
        for tag in range(6):
            bench.client.engine.send(bench.sender, tag, message(b"%d" % tag))
            if tag % 3:
                make_transactional(bench.sender, tag, name)
        bench.site.settle_down()
        assert bench.out == [b"0", b"3"]
        bench.control.discharge(name)
        assert bench.out == [b"0", b"3", b"1", b"2", b"4", b"5"]

    def test_durable_and_live_subscribers_of_a_topic_get_it_with_the_commit(self) -> None:
        bench = Bench(address="topic/t")
        durable = bench.other.receiver(source("topic/t", durability=2, expiry="never"), "durable")
        name = bench.control.declare()
        bench.post(b"1", name)
        assert bench.out == received_payloads(bench.other, durable) == []
        assert bench.control.discharge(name) is None
        assert bench.out == received_payloads(bench.other, durable) == [b"1"]

    def test_the_time_to_live_counts_from_the_posting(self) -> None:
        bench = Bench()
        name = bench.control.declare()
        for tag, ttl_ms in ((1, 1_000), (2, 60_000)):
            header = b"\x00\x53\x70\xc0\x08\x03\x40\x40\x70" + ttl_ms.to_bytes(4, "big")
            bench.client.engine.send(bench.sender, tag, header + message(b"%d" % ttl_ms))
            make_transactional(bench.sender, tag, name)
        bench.site.settle_down()
        bench.site.now_ns += 2 * 10**9
        assert bench.control.discharge(name) is None
        assert bench.out == [b"60000"]

    def test_a_topic_without_subscribers_is_no_error(self) -> None:
        bench = Bench(address="topic/t")
        link = bench.client.sender("topic/nobody", "nobody")
        name = bench.control.declare()
        bench.post(b"1", name, link)
        assert bench.control.discharge(name) is None
        assert bench.site.router.figures.unrouted == 1

    def test_a_temporary_queue_takes_replies(self) -> None:
        bench = Bench()
        replies = bench.other.receiver(source(None, dynamic=True), "replies")
        link = bench.client.sender(replies.source.address, "reply")
        name = bench.control.declare()
        bench.post(b"1", name, link)
        assert received_payloads(bench.other, replies) == []
        assert bench.control.discharge(name) is None
        assert received_payloads(bench.other, replies) == [b"1"]

    @pytest.mark.parametrize("address", ["anycast/a", "multicast/a"])
    def test_addresses_that_store_nothing_are_refused(self, address: str) -> None:
        bench = Bench("a")
        bench.other.receiver(address, "taker")
        link = bench.client.sender(address, "direct")
        name = bench.control.declare()
        bench.retire(name)
        assert bench.refused(bench.post(b"1", name, link)) == "amqp:not-implemented"
        assert condition_of(bench.control.discharge(name)) == ROLLBACK
        assert bench.left() == 1

    def test_retained_and_scheduled_messages_are_refused(self) -> None:
        bench = Bench()
        relay = bench.client.sender(target(None), "relay")
        for key, value in (("x-opt-retain-message", True), ("x-opt-delivery-delay", 5)):
            annotated = b"\x00\x53\x72" + encode({Symbol(key): value}) + message(b"x")
            name = bench.control.declare()
            bench.client.engine.send(bench.sender, 1, annotated)
            make_transactional(bench.sender, 1, name)
            bench.site.settle_down()
            assert condition_of(bench.control.discharge(name)) == ROLLBACK
        name = bench.control.declare()
        assert bench.refused(bench.post(b"no address", name, relay)) == "amqp:invalid-field"
        assert bench.refused(bench.post(b"\xff", name)) == ROLLBACK
        assert condition_of(bench.control.discharge(name)) == ROLLBACK


class TestRetirement:
    def test_a_commit_moves_a_message(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        assert (bench.left(), bench.out) == (1, [])
        assert bench.control.discharge(name) is None
        assert (bench.left(), bench.out) == (0, [b"b"])
        assert bench.site.router.transactions.bytes == bench.client.server._owned_bytes == 0
        queue = bench.site.router.queues["queue/in"]
        assert (queue.outstanding, queue.deliveries._by_consumer.keys() - set(queue.group.consumers)) == (0, set())

    def test_a_rollback_delivers_again_with_a_count(self) -> None:
        bench = Bench("a", "b")
        name = bench.control.declare()
        bench.retire(name, place=0)
        bench.retire(name, place=1)
        assert bench.control.discharge(name, fail=True) is None
        assert bench.received == [b"a", b"b", b"a", b"b"]
        assert [attempts_of(each) for each in bench.client.received(bench.receiver)] == [0, 0, 1, 1]
        again = bench.control.declare()
        bench.retire(again, place=2)
        bench.retire(again, place=3)
        assert bench.control.discharge(again) is None
        assert bench.left() == 0

    def test_an_unsettled_delivery_ends_with_the_commit(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        (number,) = bench.client.deliveries(bench.receiver)
        bench.control.retire_unsettled(bench.receiver, number, name)
        assert bench.control.discharge(name) is None
        assert bench.left() == 0
        assert bench.client.server._links.deliveries.unsettled == 0

    def test_an_unsettled_delivery_stays_with_its_client_after_a_rollback(self) -> None:
        bench = Bench("a")
        (number,) = bench.client.deliveries(bench.receiver)
        name = bench.control.declare()
        bench.control.retire_unsettled(bench.receiver, number, name)
        assert bench.control.discharge(name, fail=True) is None
        assert bench.received == [b"a"]
        name = bench.control.declare()
        bench.control.retire(bench.receiver, [number], name)
        assert bench.control.discharge(name) is None
        assert bench.left() == 0

    def test_a_delivery_settled_later_is_delivered_again_after_a_rollback(self) -> None:
        bench = Bench("a")
        (number,) = bench.client.deliveries(bench.receiver)
        name = bench.control.declare()
        bench.control.retire_unsettled(bench.receiver, number, name)
        bench.control.retire(bench.receiver, [number], name)
        assert bench.control.discharge(name, fail=True) is None
        assert bench.received == [b"a", b"a"]

    def test_an_unknown_transaction_ends_the_link(self) -> None:
        bench = Bench("a")
        bench.retire(b"unknown")
        (detached,) = of_kind(bench.client.events, Detached)
        assert detached.condition.name == UNKNOWN
        assert bench.left() == 1
        assert received_payloads(bench.other, bench.other.receiver("queue/in", "again")) == [b"a"]

    def test_the_receiver_may_leave_before_the_discharge(self) -> None:
        bench = Bench("a", "b")
        name = bench.control.declare()
        bench.retire(name, place=0)
        bench.client.engine.detach(bench.receiver)
        bench.site.settle_down()
        others = bench.other.receiver("queue/in", "others")
        assert received_payloads(bench.other, others) == [b"b"]
        assert bench.control.discharge(name) is None
        assert bench.left() == 1

    @pytest.mark.parametrize("unsettled", [False, True])
    def test_a_rollback_after_the_receiver_left_returns_its_messages(self, unsettled: bool) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        if unsettled:
            bench.control.retire_unsettled(bench.receiver, bench.client.deliveries(bench.receiver)[0], name)
        else:
            bench.retire(name)
        bench.client.engine.detach(bench.receiver)
        bench.site.settle_down()
        others = bench.other.receiver("queue/in", "others")
        assert received_payloads(bench.other, others) == []
        assert bench.control.discharge(name, fail=True) is None
        assert received_payloads(bench.other, others) == [b"a"]
        assert attempts_of(bench.other.received(others)[0]) == 1

    def test_a_rejected_message_is_a_dead_letter_of_the_commit(self) -> None:
        bench = Bench()
        rules = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("dead", AddressType.DEADLETTER)]
        bench.site.router.reconfigure(AddressTable(rules), {"queue/#": AddressPolicy(deadletter="dead")})
        feed = bench.other.sender("queue/in", "feed 2")
        send_texts(bench.other, feed, "bad", "worse")
        bench.site.settle_down()
        dead = bench.other.receiver("dead", "dead")
        name = bench.control.declare()
        bench.retire(name, DeliveryState.REJECTED, place=0)
        bench.post(b"b", name)
        assert received_payloads(bench.other, dead) == []
        assert bench.control.discharge(name, fail=True) is None
        assert received_payloads(bench.other, dead) == []
        assert bench.received == [b"bad", b"worse", b"bad"]
        name = bench.control.declare()
        bench.retire(name, DeliveryState.REJECTED, place=2)
        bench.retire(name, place=1)
        bench.post(b"b", name)
        assert bench.control.discharge(name) is None
        assert received_payloads(bench.other, dead) == [b"bad"]
        assert (bench.left(), bench.out) == (0, [b"b"])
        assert [entry.reason for entry in bench.site.store.ledger.entries(0, 10)] == ["dead-lettered: rejected"]

    def test_a_rejected_message_without_a_dead_letter_address_is_in_the_ledger(self) -> None:
        bench = Bench("bad")
        name = bench.control.declare()
        bench.retire(name, DeliveryState.REJECTED)
        assert list(bench.site.store.ledger.entries(0, 10)) == []
        assert bench.control.discharge(name) is None
        assert [entry.reason for entry in bench.site.store.ledger.entries(0, 10)] == ["rejected"]
        assert bench.left() == 0

    def test_other_outcomes_return_the_message_with_the_commit(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name, DeliveryState.RELEASED)
        assert bench.received == [b"a"]
        assert bench.control.discharge(name) is None
        assert bench.received == [b"a", b"a"]
        assert bench.left() == 1

    def test_a_rejected_message_waits_for_room_at_its_dead_letter_address(self) -> None:
        bench = Bench()
        rules = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("dead", AddressType.DEADLETTER)]
        policies = {"queue/#": AddressPolicy(deadletter="dead"), "dead": AddressPolicy(quota_bytes=1)}
        bench.site.router.reconfigure(AddressTable(rules), policies)
        send_texts(bench.other, bench.other.sender("queue/in", "feed 2"), "bad")
        bench.site.settle_down()
        name = bench.control.declare()
        bench.retire(name, DeliveryState.REJECTED)
        bench.post(b"b", name)
        assert bench.control.discharge(name) is None
        assert (bench.out, bench.left(), bench.received) == ([b"b"], 1, [b"bad"])
        bench.site.router.reconfigure(AddressTable(rules), {"queue/#": AddressPolicy(deadletter="dead")})
        bench.site.router.tick()
        bench.site.settle_down()
        assert received_payloads(bench.other, bench.other.receiver("dead", "dead")) == [b"bad"]
        assert bench.left() == 0

    def test_a_deleted_subscription_does_not_hold_up_the_discharge(self) -> None:
        bench = Bench()
        durable = bench.client.receiver(source("topic/t", durability=2, expiry="never"), "durable")
        send_texts(bench.other, bench.other.sender("topic/t", "feed 2"), "a")
        bench.site.settle_down()
        name = bench.control.declare()
        bench.control.retire(durable, bench.client.deliveries(durable), name)
        bench.client.engine.detach(durable)
        bench.site.settle_down()
        assert bench.control.discharge(name) is None

    def test_a_delivery_that_the_consumer_lost_is_not_acknowledged(self) -> None:
        bench = Bench("a")
        queue = bench.site.router.queues["queue/in"]
        consumer = queue.group.consumers[0]
        for first, last in queue.deliveries.drop(consumer):
            queue.requeue(first, last)
        name = bench.control.declare()
        bench.retire(name)
        assert bench.control.discharge(name) is None
        assert bench.left() == 1

    def test_another_state_for_a_delivery_ends_the_link(self) -> None:
        bench = Bench("a")
        (number,) = bench.client.deliveries(bench.receiver)
        one, two = bench.control.declare(), bench.control.declare()
        bench.control.retire_unsettled(bench.receiver, number, one)
        bench.control.retire(bench.receiver, [number], two)
        bench.site.settle_down()
        (detached,) = of_kind(bench.client.events, Detached)
        assert detached.condition.name == "amqp:not-allowed"

    def test_an_anycast_sender_gets_its_answer_with_the_commit(self) -> None:
        bench = Bench()
        receiver = bench.client.receiver("anycast/a", "any")
        sender = bench.other.sender("anycast/a", "any")
        send_texts(bench.other, sender, "x", "y")
        bench.site.settle_down()
        first, second = bench.client.deliveries(receiver)
        name = bench.control.declare()
        bench.control.retire(receiver, [first], name)
        bench.site.settle_down()
        assert bench.other.outcomes(sender) == []
        assert bench.control.discharge(name) is None
        assert bench.other.outcomes(sender) == [(0, DeliveryState.ACCEPTED, None)]
        name = bench.control.declare()
        bench.control.retire(receiver, [second], name)
        bench.client.engine.detach(receiver)  # the message goes to others, or back to its sender
        bench.site.settle_down()
        assert condition_of(bench.control.discharge(name)) == ROLLBACK


class TestRollback:
    def test_the_end_of_the_connection_rolls_back(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.client.cut()
        bench.site.clients.remove(bench.client)
        bench.site.settle_down()
        others = bench.other.receiver("queue/in", "others")
        assert (received_payloads(bench.other, others), bench.out) == ([b"a"], [])
        assert (len(bench.site.router.transactions), bench.site.router.transactions.bytes) == (0, 0)

    def test_the_end_of_the_control_link_rolls_back(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.client.engine.detach(bench.control.link)
        bench.site.settle_down()
        assert (bench.received, bench.out) == ([b"a", b"a"], [])
        bench.retire(name)  # it is not known any more
        (detached,) = of_kind(bench.client.events, Detached)
        assert detached.condition.name == UNKNOWN

    def test_a_connection_that_ends_during_the_commit_does_not_undo_it(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.control.ask(request(DISCHARGE, name, False))
        bench.client.cut()
        bench.site.clients.remove(bench.client)
        bench.site.settle_down()
        assert (bench.left(), bench.out) == (0, [b"b"])

    def test_a_failed_commit_rolls_back(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.site.store.medium.failure = StoreFull("the medium is full")
        found = bench.control.discharge(name)
        bench.site.store.medium.failure = None
        assert condition_of(found) == ROLLBACK
        bench.site.settle_down()
        assert (bench.left(), bench.out, bench.received) == (1, [], [b"a", b"a"])
        assert attempts_of(bench.client.received(bench.receiver)[1]) == 0  # the consumer did not fail
        name = bench.control.declare()
        bench.retire(name)
        assert bench.control.discharge(name) is None
        assert bench.left() == 0

    @pytest.mark.parametrize("counts", [False, True])
    def test_a_lost_link_counts_where_the_address_says_so(self, counts: bool) -> None:
        bench = Bench()
        policy = AddressPolicy(redelivery=Redelivery(count_on_link_loss=counts))
        bench.site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.QUEUE)]), {"queue/#": policy})
        send_texts(bench.other, bench.other.sender("queue/in", "feed 2"), "a")
        bench.site.settle_down()
        bench.retire(bench.control.declare())
        bench.client.cut()
        bench.site.clients.remove(bench.client)
        bench.site.settle_down()
        others = bench.other.receiver("queue/in", "others")
        assert [attempts_of(each) for each in bench.other.received(others)] == [int(counts)]

    def test_an_unexpected_error_of_the_commit_returns_the_deliveries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        with monkeypatch.context() as patched:
            patched.setattr(bench.site.store.logs, "append", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                bench.control.ask(request(DISCHARGE, name, False))
        bench.site.settle_down()
        assert (bench.received, bench.left(), bench.out) == ([b"a", b"a"], 1, [])
        assert (len(bench.site.router.transactions), bench.site.router.transactions.bytes) == (0, 0)

    def test_a_full_quota_rolls_back_all(self) -> None:
        bench = Bench("a")
        rules = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("small", AddressType.QUEUE)]
        policies = {
            "small": AddressPolicy(quota_bytes=20),
            "queue/#": AddressPolicy(quota_bytes=50, when_full=WhenFull.DROP_OLDEST),
        }
        bench.site.router.reconfigure(AddressTable(rules), policies)
        small = bench.client.sender("small", "small")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"x" * 40, name)  # would drop the oldest of queue/in
        bench.post(b"1234", name, small)
        bench.post(b"5678", name, small)
        quotas = bench.site.router.quotas
        quotas.released = 30  # for others, in the same group
        assert condition_of(bench.control.discharge(name)) == ROLLBACK
        assert (bench.left(), bench.out, bench.received) == (1, [], [b"a", b"a"])
        assert list(bench.site.store.ledger.entries(0, 10)) == []
        assert quotas.released == 30
        name = bench.control.declare()
        bench.post(b"1234", name, small)
        assert bench.control.discharge(name) is None

    def test_oldest_messages_are_dropped_in_the_same_commit(self) -> None:
        bench = Bench()
        bench.site.router.reconfigure(
            AddressTable([AddressRule("queue/#", AddressType.QUEUE)]),
            {"queue/#": AddressPolicy(quota_bytes=40, when_full=WhenFull.DROP_OLDEST)},
        )
        link = bench.client.sender("queue/ring", "ring")
        for body in (b"old" * 10, b"new" * 10):
            name = bench.control.declare()
            bench.post(body, name, link)
            assert bench.control.discharge(name) is None
        ring = bench.other.receiver("queue/ring", "ring")
        assert received_payloads(bench.other, ring) == [b"new" * 10]
        assert [entry.reason for entry in bench.site.store.ledger.entries(0, 10)] == ["evicted"]

    def test_an_address_in_memory_is_refused(self) -> None:
        bench = Bench()
        memory = AddressPolicy(durability=Durability(DurabilityMode.MEMORY))
        bench.site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.QUEUE)]), {"queue/#": memory})
        bench.site.settle_down()
        name = bench.control.declare()
        link = bench.client.sender("queue/new", "new")
        assert bench.refused(bench.post(b"1", name, link)) == "amqp:not-implemented"

    def test_an_address_that_changes_before_the_discharge_rolls_back(self) -> None:
        bench = Bench("a")
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"1", name)
        rules = [AddressRule("queue/in", AddressType.QUEUE), AddressRule("queue/out", AddressType.ANYCAST)]
        bench.site.router.reconfigure(AddressTable(rules))
        bench.site.settle_down()
        assert condition_of(bench.control.discharge(name)) == ROLLBACK
        assert bench.left() == 1

    def test_rollbacks_count_as_attempts(self) -> None:
        bench = Bench()
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=2))
        bench.site.router.reconfigure(AddressTable([AddressRule("queue/#", AddressType.QUEUE)]), {"queue/#": policy})
        send_texts(bench.other, bench.other.sender("queue/in", "feed 2"), "poison")
        bench.site.settle_down()
        for _ in range(2):
            name = bench.control.declare()
            bench.retire(name)
            assert bench.control.discharge(name, fail=True) is None
        bench.site.settle_down()
        assert bench.received == [b"poison"] * 2
        assert [entry.reason for entry in bench.site.store.ledger.entries(0, 10)] == ["delivery attempts exceeded"]


class TestAtTheHub:
    """The address space of a tenant at a hub: queues below `queue/`, commands, topics otherwise."""

    def test_queues_and_topics_take_part_and_commands_do_not(self) -> None:
        bench = Bench("a", address="topic/t")
        bench.site.router.reconfigure(AddressTable(*TABLE))
        bench.site.settle_down()
        name = bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.post(b"c", name, bench.client.sender("queue/out", "queue"))
        assert bench.control.discharge(name) is None
        assert (bench.left(), bench.out) == (0, [b"b"])
        assert received_payloads(bench.other, bench.other.receiver("queue/out", "reads")) == [b"c"]
        name = bench.control.declare()
        bench.other.receiver("command/gateway/device", "device")
        command = bench.client.sender("command/gateway/device", "command")
        assert bench.refused(bench.post(b"d", name, command)) == "amqp:not-implemented"


class TestLimits:
    def test_transactions_of_one_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.broker.amqp.coordinator.TRANSACTIONS_PER_CONNECTION_MAX", 2)
        control = Controller(Site())
        first = control.declare()
        control.declare()
        answer = control.answer(control.ask(request(DECLARE, None)))
        assert answer is not None
        assert condition_of(answer[1]) == "amqp:resource-limit-exceeded"
        control.discharge(first)
        control.declare()

    def test_transactions_of_a_space(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "TRANSACTIONS_MAX", 2)
        control, other = Controller(site := Site()), Controller(site, "other")
        control.declare()
        other.declare()
        answer = control.answer(control.ask(request(DECLARE, None)))
        assert answer is not None
        assert condition_of(answer[1]) == "amqp:resource-limit-exceeded"

    def test_transactions_of_a_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "TRANSACTIONS_MAX", 4)
        transactions = Site().router.transactions
        one, other = Party("one"), Party("other")
        open_ones = [transactions.declare(one, int) for _ in range(2)]
        with pytest.raises(TransactionRefused):
            transactions.declare(one, int)
        transactions.declare(other, int)
        open_ones[0].roll_back()
        transactions.declare(one, int)

    def test_one_transaction_fits_into_what_a_connection_may_hold(self) -> None:
        for mib in (1, 2, 4, 6, 16, 64):
            some = limits.Limits(packet_bytes_max=mib << 20, memory_bytes_max=64 * (mib << 20))
            most = max(limits.PACKETS_HELD_MAX * some.packet_bytes_max, limits.LINKS_HELD_BYTES_MAX)
            site = Site()
            each = registry.Transactions(site.router, site.store, some, site.router.now_s).bytes_each_max
            assert some.packet_bytes_max < each < most

    @pytest.mark.parametrize("name", ["bytes_each_max", "bytes_max"])
    def test_memory_of_posted_messages(self, name: str) -> None:
        bench = Bench("a")
        setattr(bench.site.router.transactions, name, limits.POSTED_MESSAGE_BYTES + limits.RETIRED_DELIVERY_BYTES + 600)
        txn_id = bench.control.declare()
        bench.retire(txn_id)
        bench.post(b"x" * 500, txn_id)
        assert bench.client.server.held_bytes >= bench.site.router.transactions.bytes > 500
        assert bench.refused(bench.post(b"y", txn_id)) == "amqp:resource-limit-exceeded"
        assert bench.site.router.transactions.bytes == limits.RETIRED_DELIVERY_BYTES  # the messages are dropped
        assert condition_of(bench.control.discharge(txn_id)) == ROLLBACK
        assert bench.site.router.transactions.bytes == 0
        assert bench.client.server._owned_bytes == 0
        assert (bench.left(), bench.out) == (1, [])

    def test_memory_of_retired_deliveries(self) -> None:
        bench = Bench("a", "b", "c")
        bench.site.router.transactions.bytes_each_max = 2 * limits.RETIRED_DELIVERY_BYTES
        name = bench.control.declare()
        for place in range(3):
            bench.retire(name, place=place)
        assert bench.received == [b"a", b"b", b"c"] * 2
        assert condition_of(bench.control.discharge(name)) == ROLLBACK
        assert bench.left() == 3

    def test_an_idle_transaction_is_rolled_back(self) -> None:
        bench = Bench("a")
        empty, name = bench.control.declare(), bench.control.declare()
        bench.retire(name)
        bench.post(b"b", name)
        bench.site.now_ns += int((limits.TRANSACTION_IDLE_S - 1) * 1e9)
        bench.site.router.tick()
        bench.site.settle_down()
        assert bench.received == [b"a"]
        bench.site.now_ns += 2 * 10**9
        bench.site.router.tick()
        bench.site.settle_down()
        assert bench.received == [b"a", b"a"]
        assert bench.refused(bench.post(b"c", name)) == TIMEOUT
        assert condition_of(bench.control.discharge(name)) == TIMEOUT
        assert bench.control.discharge(empty) is None
        assert bench.out == []
