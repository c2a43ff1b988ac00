"""AMQP session of the broker: bytes of clients at one end, the real router and store at the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bridge.amqp_values import DescribedValue, Symbol, Timestamp, Ulong, decode, encode
from bridge.engine import Closed, Condition, DeliveryState, Detached, LinkFlow, PeerOpened, Terminus
from bridge.engine.terminus import source, target
from bridge.message import DURABLE, Run
from edge.broker.amqp.arrivals import AnycastMessages
from edge.broker.amqp.session import SOLE_CONNECTION
from edge.broker.limits import ANYCAST_REQUEUED_MAX, SCHEDULED_AHEAD_MS_MAX
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.authorization import Ended
from edge.broker.model.interfaces import Explanation, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.router import SubscribeOptions
from edge.broker.store.errors import StoreFull
from tests.unit.amqp.broker import CLOCK_NS, Client, MqttDevice, Site, received_payloads, send_texts
from tests.unit.amqp.wire import NOW, message, of_kind


def header_of(message: bytes) -> list[object]:
    """Return the fields of its header section, or none."""
    return list(decode(message, 3)[0]) if message[:3] == b"\x00\x53\x70" else []


class TestSendingToAQueue:
    def test_accepted_comes_with_the_commit_and_not_before(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        assert link.credit == 1000
        send_texts(client, link, "one", "two")
        site.turn()
        assert client.outcomes(link) == []
        site.commit()
        site.turn()
        assert client.outcomes(link) == [(0, DeliveryState.ACCEPTED, None), (1, DeliveryState.ACCEPTED, None)]

    def test_credit_is_renewed_after_the_commit(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        send_texts(client, link, *["x"] * 900)
        site.turn()
        assert link.credit == 100  # not before: pending deliveries count
        site.settle_down()
        assert link.credit == 1000

    def test_settled_messages_renew_their_credit_at_once(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        send_texts(client, link, *["x"] * 900, settled=True)
        site.turn()
        assert link.credit == 1000

    def test_no_credit_is_given_while_commits_fail(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        direct = client.sender("topic/nobody", "direct")
        site.store.failure = StoreFull("no space left")
        send_texts(client, link, *["x"] * 900)
        send_texts(client, direct, *["x"] * 900)
        site.settle_down()
        assert {condition and condition.name for _, _, condition in client.outcomes(link)} == {
            "amqp:resource-limit-exceeded"
        }
        assert link.credit == 100
        assert direct.credit == 1000  # the address stores no message
        late = client.sender("queue/b", "late")
        for _ in range(3):
            site.router.tick()
            site.settle_down()
        assert (link.credit, late.credit) == (100, 0)
        site.store.failure = None
        for _ in range(3):
            site.clock += 1.0
            site.router.tick()
            site.settle_down()
        assert (link.credit, late.credit) == (1000, 1000)

    def test_full_store_rejects_with_the_reason(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        site.store.failure = StoreFull("no space left")
        send_texts(client, link, "one")
        site.settle_down()
        ((_, state, condition),) = client.outcomes(link)
        assert state is DeliveryState.REJECTED
        assert condition is not None
        assert condition.name == "amqp:resource-limit-exceeded"

    def test_invalid_message_is_rejected_without_affecting_others(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        client.engine.send_all(link, 0, [message(b"good"), b"\xffgarbage", message(b"also good")])
        site.settle_down()
        states = [(tag, state) for tag, state, _ in client.outcomes(link)]
        assert states == [(0, DeliveryState.ACCEPTED), (1, DeliveryState.REJECTED), (2, DeliveryState.ACCEPTED)]
        receiver = client.receiver("queue/a")
        assert received_payloads(client, receiver) == [b"good", b"also good"]

    @pytest.mark.parametrize("rest", [b"", b"\x00", b"\x00\x53", b"\x00Ss", b"\x00Ss\xc0", b"\x00Ss\xc0\x03"])
    def test_truncated_message_is_rejected_without_affecting_others(self, rest: bytes) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        client.engine.send_all(link, 0, [message(b"good"), rest, message(b"also good")])
        site.settle_down()
        states = [(tag, state) for tag, state, _ in client.outcomes(link)]
        assert states == [(0, DeliveryState.ACCEPTED), (1, DeliveryState.REJECTED), (2, DeliveryState.ACCEPTED)]

    def test_bare_message_is_unchanged(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        header, annotations = b"\x00\x53\x70\xc0\x03\x02\x41\x40", b"\x00\x53\x71\xc1\x01\x00"
        bare = b"\x00\x53\x73\xc0\x01\x00" + b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x02hi"
        client.engine.send(link, 1, header + annotations + bare)
        site.settle_down()
        receiver = client.receiver("queue/a")
        assert client.received(receiver) == [header + bare]


class TestRevoked:
    def test_revoked_client_gets_no_message_however_long_its_close_takes(self) -> None:
        site = Site()
        gone, sender = site.client("gone"), site.client("sender")
        gone.receiver("queue/a")
        gone.session._revoked(Ended.CHANGED)
        gone.engine.data_to_send()
        link = sender.sender("queue/a")
        send_texts(sender, link, "secret")
        site.clients.remove(gone)  # it does not answer the broker's close
        site.settle_down()
        assert b"secret" not in gone.server.data_to_send()
        assert not site.router.queues["queue/a"].group
        assert site.router.queues["queue/a"].outstanding == 0


class TestAddresses:
    @pytest.mark.parametrize(
        ("wanted", "condition"),
        [
            (target("a/#"), "amqp:invalid-field"),
            (target("a+b"), "amqp:invalid-field"),
            (target(""), "amqp:invalid-field"),
            (target("topic/a::sub"), "amqp:invalid-field"),
            (target("x" * 20_000), "amqp:invalid-field"),
            (target("$management/#"), "amqp:invalid-field"),
        ],
    )
    def test_invalid_sender_addresses_are_refused(self, wanted: Terminus, condition: str) -> None:
        client = Site().client()
        client.sender(wanted)
        (detached,) = of_kind(client.events, Detached)
        assert detached.condition.name == condition

    @pytest.mark.parametrize(
        ("wanted", "condition"),
        [
            (source(""), "amqp:invalid-field"),
            (source("a/#/b"), "amqp:invalid-field"),
            (source("queue/a::sub"), "amqp:not-found"),
            (source("topic/a::"), "amqp:not-found"),
            (source("queue/#", distribution_mode="copy"), "amqp:not-implemented"),
        ],
    )
    def test_invalid_receiver_addresses_are_refused(self, wanted: Terminus, condition: str) -> None:
        client = Site().client()
        client.receiver(wanted)
        (detached,) = of_kind(client.events, Detached)
        assert detached.condition.name == condition
        assert not client.ended  # the link is refused, the connection stays

    def test_anonymous_relay_uses_the_address_of_the_message(self) -> None:
        site = Site()
        client = site.client()
        relay = client.sender(target(None))
        to_a = b"\x00\x53\x73\xc0\x0c\x03\x40\x40\xa1\x07queue/a" + message(b"for a")
        to_b = b"\x00\x53\x73\xc0\x0c\x03\x40\x40\xa1\x07queue/b" + message(b"for b")
        client.engine.send_all(relay, 0, [to_a, to_b, message(b"for nobody"), to_a])
        site.settle_down()
        states = [state for _, state, _ in client.outcomes(relay)]
        assert states == [
            DeliveryState.ACCEPTED,
            DeliveryState.ACCEPTED,
            DeliveryState.REJECTED,
            DeliveryState.ACCEPTED,
        ]
        assert received_payloads(client, client.receiver("queue/a", "ra")) == [b"for a", b"for a"]
        assert received_payloads(client, client.receiver("queue/b", "rb")) == [b"for b"]

    def test_dynamic_source_is_a_reply_address(self) -> None:
        site = Site()
        asker, answerer = site.client("asker"), site.client("answerer")
        replies = asker.receiver(source(None, dynamic=True))
        assert replies.source.address is not None
        back = answerer.sender(replies.source.address)
        send_texts(answerer, back, "the answer")
        site.settle_down()
        assert received_payloads(asker, replies) == [b"the answer"]


class TestReceivingFromAQueue:
    def test_accepted_released_and_rejected_messages_are_settled(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/a"), "one", "two", "three")
        site.settle_down()
        link = client.receiver("queue/a", credit=3)
        assert received_payloads(client, link) == [b"one", b"two", b"three"]
        client.engine.settle(link, [0])
        client.engine.settle(link, [1], DeliveryState.RELEASED)
        client.engine.settle(link, [2], DeliveryState.REJECTED, Condition("amqp:not-allowed", "no"))
        client.events.clear()
        client.engine.grant(link, 3)
        site.settle_down()
        assert received_payloads(client, link) == [b"two"]
        assert site.router.queues["queue/a"].outstanding == 1

    def test_unsettled_messages_go_to_the_next_consumer(self) -> None:
        site = Site()
        first, second = site.client("first"), site.client("second")
        send_texts(first, first.sender("queue/a"), "one", "two")
        site.settle_down()
        link = first.receiver("queue/a")
        first.engine.settle(link, [0])
        site.settle_down()
        first.cut()
        again = second.receiver("queue/a")
        assert received_payloads(second, again) == [b"two"]

    def test_credit_is_respected(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/a"), *map(str, range(10)))
        site.settle_down()
        link = client.receiver("queue/a", credit=4)
        assert len(client.received(link)) == 4
        client.engine.grant(link, 2)
        site.settle_down()
        assert len(client.received(link)) == 6

    def test_drain_delivers_what_is_available_and_returns_the_rest(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/a"), "one", "two")
        site.settle_down()
        link = client.engine.attach_receiver("r", "queue/a")
        site.settle_down()
        client.engine.grant(link, 10, drain=True)
        site.settle_down()
        assert received_payloads(client, link) == [b"one", b"two"]
        assert of_kind(client.events, LinkFlow)[-1] == LinkFlow(link, 0, True)

    def test_settled_receiver_gets_messages_at_most_once(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/a"), "one")
        site.settle_down()
        link = client.receiver("queue/a", snd_settle_mode=1)
        assert client.deliveries(link) == []
        assert received_payloads(client, link) == [b"one"]
        assert site.router.queues["queue/a"].outstanding == 0

    def test_peer_that_does_not_read_gets_no_more(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver("queue/a")
        client.driver.congested = True
        send_texts(client, client.sender("queue/a"), "one")
        site.settle_down()
        assert client.received(link) == []
        client.driver.congested = False
        client.session.writable()
        site.settle_down()
        assert received_payloads(client, link) == [b"one"]

    def test_message_above_the_maximum_size_of_the_receiver_goes_elsewhere(self) -> None:
        site = Site()
        client = site.client()
        send_texts(client, client.sender("queue/a"), "small", "x" * 2000, "small too")
        site.settle_down()
        link = client.receiver("queue/a", max_message_size=1000)
        assert received_payloads(client, link) == [b"small", b"small too"]
        other = site.client("other")
        larger = other.receiver("queue/a", max_message_size=4000)
        assert received_payloads(other, larger) == [b"x" * 2000]

    def test_message_too_large_for_a_receiver_is_not_an_attempt(self) -> None:
        """A message that is too large for the receiver does not raise the delivery-count, which counts failed transfers
        (AMQP 1.0 section 3.2.1)."""
        site = Site()
        rule = AddressPolicy(redelivery=Redelivery(attempts_max=1), deadletter="deadletter/d")
        site.router.reconfigure(site.router.addresses.table, {"queue/#": rule})
        client, other = site.client(), site.client("other")
        small = client.receiver("queue/a", max_message_size=1000)
        send_texts(client, client.sender("queue/a"), "x" * 2000)
        site.settle_down()
        assert client.received(small) == []
        assert client.received(client.receiver("deadletter/d", name="dead")) == []
        large = other.receiver("queue/a")
        assert received_payloads(other, large) == [b"x" * 2000]
        [found] = other.received(large)
        assert header_of(found)[4:] == [], "no delivery-count"
        assert site.store.ledger.entries(0, 10) == []

    def test_message_too_large_for_a_sole_receiver_is_dropped(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver(source("topic/a", durability=2, expiry="never"), max_message_size=1000)
        send_texts(client, client.sender("topic/a"), "x" * 2000, "small")
        site.settle_down()
        assert received_payloads(client, link) == [b"small"]
        assert [lost.reason for lost in site.store.ledger.entries(0, 10)] == ["undeliverable"]


class TestDeliveryTime:
    """Messages with a requested delivery time."""

    @staticmethod
    def annotated(annotations: dict[str, object], text: bytes = b"m") -> bytes:
        section = DescribedValue(Ulong(0x72), {Symbol(name): value for name, value in annotations.items()})
        return encode(section) + message(text)

    @staticmethod
    def outcome(site: Site, address: str, *messages: bytes) -> list[tuple[int, DeliveryState, str]]:
        client = site.client("asker")
        link = client.sender(address)
        client.engine.send_all(link, 0, messages)
        site.settle_down()
        return [(tag, state, condition.name if condition else "") for tag, state, condition in client.outcomes(link)]

    @pytest.mark.parametrize("address", ["queue/a", "topic/a"])
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-opt-delivery-delay", Ulong(600_000)),
            ("x-opt-delivery-delay", 1),
            ("x-opt-delivery-time", CLOCK_NS // 1_000_000 + 600_000),
            ("x-opt-scheduled-enqueue-time", Timestamp(CLOCK_NS // 1_000_000 + 600_000)),
        ],
    )
    def test_message_is_accepted_and_delivered_later(self, address: str, name: str, value: object) -> None:
        site = Site(clock_good=True)
        worker = site.client("worker")
        receiver = worker.receiver(address)
        later = self.annotated({"x-opt-other": 1, name: value})
        now = self.annotated({"x-opt-other": 1}, b"now")
        found = self.outcome(site, address, message(b"first"), later, now)
        assert found == [(tag, DeliveryState.ACCEPTED, "") for tag in range(3)]
        assert received_payloads(worker, receiver) == [b"first", b"now"]
        assert len(site.router.scheduled) == 1

    def test_message_that_is_due_has_its_other_annotations_and_no_delay(self) -> None:
        """A broker that gets it from here must not delay it again."""
        site = Site()
        worker = site.client("worker")
        receiver = worker.receiver("queue/a")
        self.outcome(site, "queue/a", self.annotated({"x-opt-other": 1, "x-opt-delivery-delay": 1}))
        site.now_ns += 1_000_000_000
        site.router.tick()
        site.settle_down()
        [found] = worker.received(receiver)
        assert b"x-opt-other" in found
        assert b"x-opt-delivery-delay" not in found

    @pytest.mark.parametrize(
        ("address", "annotations", "condition"),
        [
            ("anycast/a", {"x-opt-delivery-delay": 1000}, "amqp:not-implemented"),
            ("multicast/a", {"x-opt-delivery-delay": 1000}, "amqp:not-implemented"),
            ("queue/a", {"x-opt-delivery-delay": SCHEDULED_AHEAD_MS_MAX + 1}, "amqp:precondition-failed"),
            ("queue/a", {"x-opt-delivery-delay": "soon"}, "amqp:decode-error"),
            ("queue/a", {"x-opt-delivery-delay": True}, "amqp:decode-error"),
            ("queue/a", {"x-opt-delivery-delay": float("nan")}, "amqp:decode-error"),
        ],
    )
    def test_message_that_cannot_be_scheduled_is_refused(
        self, address: str, annotations: dict[str, object], condition: str
    ) -> None:
        site = Site()
        site.client("worker").receiver(address)
        found = self.outcome(site, address, self.annotated(annotations), message(b"now"))
        assert (0, DeliveryState.REJECTED, condition) in found
        assert (1, DeliveryState.ACCEPTED, "") in found or address.startswith(("anycast", "multicast"))
        assert len(site.router.scheduled) == 0

    def test_refused_messages_leave_the_credit_of_their_sender(self) -> None:
        site = Site()
        site.router.quotas.closed = True
        client = site.client()
        link = client.sender("queue/a")
        client.engine.send_all(link, 0, [self.annotated({"x-opt-delivery-delay": 1000})] * 900)
        site.settle_down()
        assert {condition.name for _, _, condition in client.outcomes(link) if condition is not None} == {
            "amqp:resource-limit-exceeded"
        }
        assert link.credit == 1000

    def test_sender_on_the_anonymous_relay_may_schedule(self) -> None:
        site = Site()
        to = encode(DescribedValue(Ulong(0x73), [None, None, "queue/a"]))
        section = self.annotated({"x-opt-delivery-delay": 1000}, b"")[: -len(message(b""))]
        client = site.client("asker")
        link = client.sender(target(None))
        client.engine.send_all(link, 0, [section + to + message(b"m")])
        site.settle_down()
        [waiting] = site.router.scheduled
        assert waiting.kept.address == "queue/a"

    @pytest.mark.parametrize(
        "annotations",
        [
            {"x-opt-delivery-delay": 0},
            {"x-opt-delivery-delay": None},
            {"x-opt-delivery-time": CLOCK_NS // 1_000_000},
            {"x-opt-delivery-delay": -5},
            {"x-opt-scheduled-enqueue-time": Timestamp(CLOCK_NS // 1_000_000 - 1)},
            {"x-opt-why": "x-opt-delivery-delay"},
        ],
    )
    def test_past_delivery_time_means_now(self, annotations: dict[str, object]) -> None:
        site = Site(clock_good=True)
        assert self.outcome(site, "queue/a", self.annotated(annotations)) == [(0, DeliveryState.ACCEPTED, "")]
        assert len(site.router.scheduled) == 0

    def test_last_of_several_times_counts(self) -> None:
        site = Site(clock_good=True)
        later = CLOCK_NS // 1_000_000 + 3_600_000
        for both in (
            {"x-opt-delivery-delay": 5000, "x-opt-delivery-time": later},
            {"x-opt-delivery-time": later, "x-opt-delivery-delay": 5000},
        ):
            self.outcome(site, "queue/a", self.annotated(both))
        assert [each.kept.wait_ms for each in site.router.scheduled] == [3_600_000] * 2

    def test_clock_that_may_be_wrong_is_not_asked_for_the_time_of_day(self) -> None:
        """Clients of JMS send the time of their clock as well: the difference is the delay."""
        site = Site(clock_good=False)
        time_ms = CLOCK_NS // 1_000_000 - 86_400_000  # the gateway's clock is a day ahead
        annotations = {"x-opt-delivery-time": time_ms + 600_000}
        found = self.outcome(site, "queue/a", self.annotated(annotations))
        assert found == [(0, DeliveryState.REJECTED, "amqp:precondition-failed")]
        created = encode(DescribedValue(Ulong(0x73), [None] * 9 + [Timestamp(time_ms)]))
        section = self.annotated(annotations, b"")[: -len(message(b""))]
        client = site.client("jms")
        link = client.sender("queue/a")
        client.engine.send_all(link, 0, [section + created + message(b"m")])
        site.settle_down()
        [waiting] = site.router.scheduled
        assert (waiting.kept.wait_ms, waiting.kept.at_ms) == (600_000, None), (
            "a clock that becomes right changes nothing"
        )


class TestLosingAReceiver:
    """Deliveries of a receiver that vanished without a close are counted by `countOnLinkLoss`."""

    @staticmethod
    def count_after(end: str) -> list[object]:
        site = Site()
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=5))
        site.router.reconfigure(site.router.addresses.table, {"queue/#": policy})
        client, other = site.client("one"), site.client("two")
        link = client.receiver("queue/a", credit=1)
        send_texts(other, other.sender("queue/a"), "m", "n")
        site.settle_down()
        assert received_payloads(client, link) == [b"m"]
        if end == "cut":
            client.cut()
        elif end == "error":
            client.engine.detach(link, condition=Condition("amqp:internal-error"))
        elif end == "connection error":
            client.engine.close(Condition("amqp:internal-error"))
        elif end == "detach":
            client.engine.detach(link)
        elif end == "close":
            client.engine.close()
        else:
            client.session.shut_down()
            site.turn()
            client.cut()
        site.settle_down()
        again = other.receiver("queue/a", credit=5)
        first, second = other.received(again)
        assert received_payloads(other, again) == [b"m", b"n"]
        assert header_of(second)[4:] == []
        return header_of(first)[4:]

    @pytest.mark.parametrize("end", ["cut", "error", "connection error"])
    def test_lost_receiver_counts_as_an_attempt(self, end: str) -> None:
        assert self.count_after(end) == [1]

    @pytest.mark.parametrize("end", ["detach", "close", "the broker stops"])
    def test_normal_detach_does_not_count(self, end: str) -> None:
        assert self.count_after(end) == []


class TestAnycast:
    def test_sender_learns_that_the_message_is_too_large_for_the_receiver(self) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        worker.receiver("anycast/a", max_message_size=1000)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "x" * 2000)
        site.settle_down()
        [(_, state, condition)] = asker.outcomes(sender)
        assert (state, condition.name) == (DeliveryState.REJECTED, "amqp:link:message-size-exceeded")

    def test_answered_messages_are_counted(self) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        sender = asker.sender("anycast/a")
        link = worker.receiver("anycast/a", credit=5)
        send_texts(asker, sender, "one", "two", "three")
        site.settle_down()
        worker.engine.settle(link, worker.deliveries(link)[:2])
        worker.engine.settle(link, worker.deliveries(link)[2:], DeliveryState.REJECTED)
        site.settle_down()
        assert (site.router.figures.acknowledged, site.router.figures.refused) == (2, 1)

    def test_credit_follows_the_consumers_and_outcomes_pass_end_to_end(self) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        sender = asker.sender("anycast/a")
        assert sender.credit == 0
        link = worker.receiver("anycast/a", credit=5)
        assert sender.credit == 5
        send_texts(asker, sender, "one", "two")
        site.settle_down()
        assert asker.outcomes(sender) == []
        worker.engine.settle(link, [0])
        worker.engine.settle(link, [1], DeliveryState.REJECTED)
        site.settle_down()
        assert [state for _, state, _ in asker.outcomes(sender)] == [DeliveryState.ACCEPTED, DeliveryState.REJECTED]

    def test_outcome_of_the_consumer_goes_to_the_sender(self) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        link = worker.receiver("anycast/a", credit=9)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one", "two", "three", "four")
        site.settle_down()
        first, second, third, fourth = worker.deliveries(link)
        why = [Condition("example:torn", "no lid"), Condition("example:wet")]
        annotations = encode({Symbol("x-opt-part"): "gasket"})
        worker.engine.settle(link, [first], DeliveryState.REJECTED, why[0])
        worker.engine.settle(link, [second], DeliveryState.REJECTED, why[1])
        worker.engine.settle(link, [third], DeliveryState.REJECTED)
        worker.engine.settle(link, [fourth], DeliveryState.MODIFIED_UNDELIVERABLE, annotations)
        site.settle_down()
        *rejected, (_, state, said) = asker.outcomes(sender)
        assert rejected == [
            (0, DeliveryState.REJECTED, why[0]),
            (1, DeliveryState.REJECTED, why[1]),
            (2, DeliveryState.REJECTED, Condition("amqp:precondition-failed", "rejected by the consumer")),
        ]
        assert (state, decode(said)[0]) == (DeliveryState.MODIFIED_UNDELIVERABLE, {"x-opt-part": "gasket"})
        assert worker.deliveries(link) == [first, second, third, fourth]

    def test_message_that_one_consumer_cannot_take_goes_to_another(self) -> None:
        site = Site()
        asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
        link = worker.receiver("anycast/a", credit=9)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one", "two")
        site.settle_down()
        there = other.receiver("anycast/a", credit=9)
        worker.engine.settle(link, worker.deliveries(link), DeliveryState.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        assert asker.outcomes(sender) == []
        one, two = other.deliveries(there)
        other.engine.settle(there, [one])
        other.engine.settle(there, [two], DeliveryState.REJECTED, Condition("example:torn"))
        site.settle_down()
        assert asker.outcomes(sender) == [
            (0, DeliveryState.ACCEPTED, None),
            (1, DeliveryState.REJECTED, Condition("example:torn")),
        ]

    @pytest.mark.parametrize("annotations", [None, {"x-opt-why": "busy"}])
    @pytest.mark.parametrize(
        "state",
        [
            DeliveryState.RELEASED,
            DeliveryState.MODIFIED,
            DeliveryState.MODIFIED_FAILED,
            DeliveryState.MODIFIED_UNDELIVERABLE,
        ],
    )
    def test_sole_consumer_releases_a_message_once_and_the_sender_gets_the_outcome(
        self, state: DeliveryState, annotations: dict[str, str] | None
    ) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        link = worker.receiver("anycast/a", credit=9)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one", "two")
        site.settle_down()
        said = annotations and encode({Symbol(name): text for name, text in annotations.items()})
        worker.engine.settle(link, worker.deliveries(link)[:1], state, said)
        site.settle_down()
        [(_, heard, detail)] = asker.outcomes(sender)
        if state is DeliveryState.RELEASED or (state is DeliveryState.MODIFIED and said is None):
            assert (heard, detail) == (DeliveryState.RELEASED, None)
        else:
            assert (heard, detail and decode(detail)[0]) == (state, annotations)
        worker.engine.settle(link, worker.deliveries(link)[1:])
        site.settle_down()
        assert received_payloads(worker, link) == [b"one", b"two"]

    @pytest.mark.parametrize(
        ("first", "second", "heard"),
        [
            (DeliveryState.RELEASED, DeliveryState.RELEASED, DeliveryState.RELEASED),
            (DeliveryState.RELEASED, DeliveryState.MODIFIED_FAILED, DeliveryState.MODIFIED_FAILED),
            (DeliveryState.MODIFIED_UNDELIVERABLE, DeliveryState.RELEASED, DeliveryState.MODIFIED_FAILED),
            (
                DeliveryState.MODIFIED_UNDELIVERABLE,
                DeliveryState.MODIFIED_UNDELIVERABLE,
                DeliveryState.MODIFIED_UNDELIVERABLE,
            ),
        ],
    )
    def test_each_consumer_is_offered_the_message_once(
        self, first: DeliveryState, second: DeliveryState, heard: DeliveryState
    ) -> None:
        site = Site()
        asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
        link = worker.receiver("anycast/a", credit=9)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one")
        site.settle_down()
        there = other.receiver("anycast/a", credit=9)
        worker.engine.settle(link, worker.deliveries(link), first)
        site.settle_down()
        assert asker.outcomes(sender) == []
        other.engine.settle(there, other.deliveries(there), second)
        site.settle_down()
        assert [state for _, state, _ in asker.outcomes(sender)] == [heard]
        assert received_payloads(worker, link) == received_payloads(other, there) == [b"one"]

    def test_message_waiting_for_credit_does_not_block_others(self) -> None:
        site = Site()
        asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
        link = worker.receiver("anycast/a", credit=9)
        there = other.receiver("anycast/a", credit=0)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one", "two")
        site.settle_down()
        worker.engine.settle(link, worker.deliveries(link)[:1], DeliveryState.RELEASED)
        send_texts(asker, sender, "three")
        site.settle_down()
        assert received_payloads(worker, link) == [b"one", b"two", b"three"]
        assert sender.credit > 0
        other.engine.grant(there, 1)
        site.settle_down()
        assert received_payloads(other, there) == [b"one"]

    def test_message_continues_when_its_awaited_consumer_leaves(self) -> None:
        site = Site()
        asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
        link = worker.receiver("anycast/a", credit=9)
        other.receiver("anycast/a", credit=0)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one")
        site.settle_down()
        worker.engine.settle(link, worker.deliveries(link), DeliveryState.RELEASED)
        site.settle_down()
        assert asker.outcomes(sender) == []
        other.cut()
        site.settle_down()
        assert asker.outcomes(sender) == [(0, DeliveryState.RELEASED, None)]

    def test_messages_beyond_the_waiting_limit_are_answered_at_once(self) -> None:
        site = Site()
        asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
        link = worker.receiver("anycast/a", credit=ANYCAST_REQUEUED_MAX + 10)
        other.receiver("anycast/a", credit=0)
        sender = asker.sender("anycast/a")
        sent = 0
        while sent < ANYCAST_REQUEUED_MAX + 2:
            count = min(sender.credit, ANYCAST_REQUEUED_MAX + 2 - sent)
            assert count
            for tag in range(sent, sent + count):
                asker.engine.send(sender, tag, message(b"m"))
            sent += count
            site.settle_down()
        worker.engine.settle(link, worker.deliveries(link), DeliveryState.RELEASED)
        site.settle_down()
        assert [state for _, state, _ in asker.outcomes(sender)] == [DeliveryState.RELEASED] * 2

    @pytest.mark.parametrize(
        ("listed", "states"),
        [
            ((), [DeliveryState.REJECTED, DeliveryState.MODIFIED_UNDELIVERABLE]),
            (("amqp:accepted:list", "amqp:modified:list"), [DeliveryState.NONE, DeliveryState.MODIFIED_UNDELIVERABLE]),
            (("amqp:accepted:list", "amqp:rejected:list"), [DeliveryState.REJECTED, DeliveryState.NONE]),
        ],
    )
    def test_sender_gets_a_listed_outcome_or_its_default(
        self, listed: tuple[str, ...], states: list[DeliveryState]
    ) -> None:
        """The broker settles without an outcome where the source does not list it; the source then assumes its default
        (section 3.5.3)."""
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        link = worker.receiver("anycast/a", credit=9)
        sender = asker.sender("anycast/a", source=source("asker", outcomes=listed))
        send_texts(asker, sender, "one", "two")
        site.settle_down()
        one, two = worker.deliveries(link)
        worker.engine.settle(link, [one], DeliveryState.REJECTED, Condition("example:torn"))
        worker.engine.settle(link, [two], DeliveryState.MODIFIED_UNDELIVERABLE)
        site.settle_down()
        assert [state for _, state, _ in asker.outcomes(sender)] == states

    def test_each_of_many_senders_gets_its_own_outcome(self) -> None:
        heard: list[tuple[str, Sequence[int], object]] = []

        class Sender(MqttDevice):
            def explained(self, tokens: Sequence[int], said: Explanation) -> None:
                heard.append((self.name, tokens, said))

            def refused(self, tokens: Sequence[int], why: Refusal) -> None:
                heard.append((self.name, tokens, why))

        members: Any = [(Sender(name), number, b"", 0, b"") for name, number in (("a", 7), ("b", 8), ("c", 9))]
        together = AnycastMessages(Any, "a", members, 0, 0)  # type: ignore[arg-type]
        together.explained([1, 2], Explanation("example:torn"))
        together.refused([1, 2], Refusal.REJECTED)
        torn = Explanation("example:torn")
        assert heard == [
            ("b", (8,), torn),
            ("c", (9,), torn),
            ("b", (8,), Refusal.REJECTED),
            ("c", (9,), Refusal.REJECTED),
        ]

    def test_messages_are_released_when_the_last_consumer_leaves(self) -> None:
        site = Site()
        asker, worker = site.client("asker"), site.client("worker")
        worker.receiver("anycast/a", credit=5)
        sender = asker.sender("anycast/a")
        send_texts(asker, sender, "one")
        site.settle_down()
        worker.cut()
        site.settle_down()
        assert asker.outcomes(sender) == [(0, DeliveryState.RELEASED, None)]


class TestAcrossProtocols:
    def test_mqtt_message_reaches_an_amqp_receiver(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver("queue/a")
        device = MqttDevice()
        run = Run("queue/a", device.name, 1 | DURABLE, b"\x03\x00\x10application/json", [b'{"t":1}', b'{"t":2}'])
        site.router.publish(Publication(device, run, [1, 2]))
        site.settle_down()
        assert device.answers == [("accepted", 1), ("accepted", 2)]
        assert received_payloads(client, link) == [b'{"t":1}', b'{"t":2}']
        assert b"application/json" in client.received(link)[0]

    def test_amqp_message_reaches_a_consumer_of_the_router(self) -> None:
        site = Site()
        client, device = site.client(), MqttDevice()
        site.router.subscriptions.subscribe(device, "topic/#", SubscribeOptions())
        send_texts(client, client.sender("topic/a/b"), "one", "two")
        site.settle_down()
        (run,) = device.runs
        assert (run.address, run.device, len(run.bodies)) == ("topic/a/b", "device-1", 2)
        assert run.flags & DURABLE
        assert run.qos == 1


class TestLife:
    def test_every_link_ends_although_one_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site()
        client = site.client("device-1", SOLE_CONNECTION)
        for name in ("r1", "r2", "r3"):
            client.receiver(f"queue/{name}", name)
        unsubscribe = site.router.subscriptions.unsubscribe

        def faulty(consumer: Any, subscription: Any, *, forget: bool) -> None:
            if subscription is site.router.queues.get("queue/r2"):
                raise ValueError("a fault of ours")
            unsubscribe(consumer, subscription, forget=forget)

        monkeypatch.setattr(site.router.subscriptions, "unsubscribe", faulty)
        with pytest.raises(ValueError, match="a fault of ours"):
            client.cut()
        assert [bool(site.router.queues[f"queue/{name}"].group) for name in ("r1", "r2", "r3")] == [False, True, False]
        assert len(client.ended) == 1
        assert site.containers.sole == set()
        assert not site.router.address_listeners

    def test_end_of_the_connection_is_reported_once_with_the_reason(self) -> None:
        site = Site()
        client = site.client()
        client.receiver("topic/a")
        client.engine.close(Condition("amqp:connection:forced", "bye"))
        site.settle_down()
        client.cut()
        assert client.ended == [Condition("amqp:connection:forced", "bye")]

    def test_container_id_is_exclusive_where_requested(self) -> None:
        site = Site()
        first, second = site.client("same", SOLE_CONNECTION), site.client("same", SOLE_CONNECTION)
        assert not of_kind(first.events, Closed)
        (opened,) = of_kind(second.events, PeerOpened)
        assert opened.properties == {"amqp:connection-establishment-failed": True}
        (closed,) = of_kind(second.events, Closed)
        assert closed.condition.name == "amqp:invalid-field"
        assert first.attached(first.receiver("queue/a"))
        assert not of_kind(site.client("other", SOLE_CONNECTION).events, Closed)
        assert not of_kind(site.client("same").events, Closed)
        first.cut()
        assert not of_kind(site.client("same", SOLE_CONNECTION).events, Closed)

    def test_refusal_names_the_container_id_as_the_invalid_field(self) -> None:
        site = Site()
        site.client("same", SOLE_CONNECTION)
        second, sent = Client(site, "same", (SOLE_CONNECTION,)), b""
        for _ in range(4):
            second.session.handle(second.server.receive_data(second.engine.data_to_send(), NOW))
            down = second.server.data_to_send()
            second.engine.receive_data(down, NOW)
            sent += down
        assert encode(Symbol("invalid-field")) + encode(Symbol("container-id")) in sent

    def test_answers_after_the_end_are_ignored(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        send_texts(client, link, "one")
        site.turn()
        client.cut()
        site.commit()
        assert site.router.queues["queue/a"].backlog == 1

    def test_sender_with_pending_messages_may_detach(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        send_texts(client, link, "one")
        client.engine.detach(link)
        site.settle_down()
        assert site.router.queues["queue/a"].backlog == 1
        assert client.server.links == []
