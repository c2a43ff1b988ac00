"""Topics over AMQP: copies, durable and shared subscriptions, and the way JMS clients find and end them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge.amqp_values import DescribedValue, Symbol, Ulong, decode, encode
from bridge.engine import DeliveryState, Detached, Link, Terminus
from bridge.engine.terminus import source, target
from bridge.sections import bare_message
from edge.broker.amqp.addressing import CONDITIONS
from edge.broker.delivery import shared
from edge.broker.limits import TRANSIENT_BUFFER_BYTES_MAX, Limits
from edge.broker.message.translation import payload_of
from edge.broker.model.interfaces import Refusal
from edge.broker.store.errors import StoreError
from tests.support.frames import DETACH, END, frame
from tests.support.machines import take_all
from tests.unit.amqp.broker import Client, Site, received_payloads, send_texts
from tests.unit.amqp.wire import NOW, message, of_kind


def application(properties: dict[str, Any]) -> bytes:
    return encode(DescribedValue(Ulong(0x74), properties))


def selecting(text: str) -> dict[str, Any]:
    return {"jms": DescribedValue(Symbol("apache.org:selector-filter:string"), text)}


class TestTopics:
    def test_every_receiver_gets_a_copy(self) -> None:
        site = Site()
        client = site.client()
        links = [client.receiver("topic/a", "r1"), client.receiver("topic/#", "r2")]
        sender = client.sender("topic/a")
        send_texts(client, sender, "one")
        site.settle_down()
        assert [received_payloads(client, link) for link in links] == [[b"one"], [b"one"]]
        assert client.outcomes(sender) == [(0, DeliveryState.ACCEPTED, None)]

    @pytest.mark.parametrize("wanted", [source("topic/a", durability=2, expiry="never"), source("topic/a::mine")])
    def test_durable_subscription_survives_the_connection_and_ends_with_close(self, wanted: Terminus) -> None:
        site = Site()
        client, other = site.client("subscriber"), site.client("publisher")
        client.receiver(wanted)
        client.cut()
        sender = other.sender("topic/a")
        send_texts(other, sender, "while away", settled=True)
        send_texts(other, sender, "and this", first=1)
        site.settle_down()
        assert other.outcomes(sender) == [(1, DeliveryState.ACCEPTED, None)]
        back = site.client("subscriber")
        link = back.receiver(wanted)
        assert received_payloads(back, link) == [b"while away", b"and this"]
        back.engine.settle(link, back.deliveries(link))
        back.engine.detach(link, closed=False)
        site.settle_down()
        assert len(site.router.durable_subscriptions) == 1
        link = back.receiver(wanted)
        assert back.attached(link)
        back.engine.detach(link)
        site.settle_down()
        assert site.router.durable_subscriptions == {}

    @pytest.mark.parametrize("failure", [None, StoreError("no")])
    def test_close_is_answered_when_the_deletion_is_on_disk(self, failure: StoreError | None) -> None:
        site = Site()
        client = site.client("subscriber")
        link = client.receiver(source("topic/a", durability=2, expiry="never"))
        client.engine.detach(link)
        client.session.handle(take_all(client.server, client.engine.data_to_send(), NOW))
        assert site.router.durable_subscriptions == {}
        assert client.server.data_to_send() == b""
        site.store.failure = failure
        site.commit()
        detach, _ = decode(client.server.data_to_send()[8:])
        assert detach.descriptor == DETACH
        assert detach.value[1], "closed"
        told = [str(each.value[0]) for each in detach.value[2:]]
        assert told == ([] if failure is None else [CONDITIONS[Refusal.STORE_FAILED]])
        assert not client.server._links.by_address

    @pytest.mark.parametrize("end", ["connection", "session"])
    def test_connection_may_end_before_the_deletion_is_on_disk(self, end: str) -> None:
        site = Site()
        client = site.client("subscriber")
        link = client.receiver(source("topic/a", durability=2, expiry="never"))
        client.engine.detach(link)
        up = client.engine.data_to_send() + (frame(END, None) if end == "session" else b"")
        client.session.handle(take_all(client.server, up, NOW))
        if end == "connection":
            client.cut()
        site.commit()
        assert not client.server._links.by_address
        assert site.router.durable_subscriptions == {}

    @pytest.mark.parametrize(
        ("wanted", "answered"),
        [
            (("never", 0), ("never", 0)),
            (("never", 60), ("never", 60)),
            (("session-end", 60), ("link-detach", 60)),
            (("connection-close", 60), ("link-detach", 60)),
            (("link-detach", 2**32 - 1), ("link-detach", Limits().subscription_unused_s)),
            (("session-end", 0), ("session-end", 0)),
        ],
    )
    @pytest.mark.parametrize("address", ["topic/a", "topic/a::mine"])
    def test_answer_contains_the_timeout_of_the_subscription(
        self, address: str, wanted: tuple[str, int], answered: tuple[str, int]
    ) -> None:
        site = Site()
        client = site.client("subscriber")
        link = client.receiver(source(address, durability=2, expiry=wanted[0], timeout_s=wanted[1]))
        assert (link.source.expiry, link.source.timeout_s) == answered
        [name] = site.router.durable_subscriptions
        expected = 0 if wanted[0] == "never" else wanted[1]
        assert site.router.durable_subscriptions[name].declaration.timeout_s == expected

    def test_unshared_subscription_has_one_receiver(self) -> None:
        site = Site()
        one, two = site.client("one"), site.client("two")
        wanted = source("topic/a", durability=1, capabilities=("global",))
        one.receiver(wanted)
        two.receiver(wanted)
        (detached,) = of_kind(two.events, Detached)
        assert detached.condition.name == "amqp:unauthorized-access"
        assert not of_kind(one.events, Detached)

    def test_same_device_steals_its_link(self) -> None:
        site = Site()
        one, two = site.client("same"), site.client("same")
        wanted = source("topic/a", durability=1)
        held = one.receiver(wanted)
        send_texts(two, two.sender("topic/a"), "unsettled")
        site.settle_down()
        assert received_payloads(one, held) == [b"unsettled"]
        link = two.receiver(wanted)
        (detached,) = of_kind(one.events, Detached)
        assert detached.condition.name == "amqp:link:stolen"
        assert received_payloads(two, link) == [b"unsettled"]
        one.cut()
        send_texts(two, two.sender("topic/a", name="t"), "more")
        site.settle_down()
        assert received_payloads(two, link) == [b"unsettled", b"more"]

    def test_shared_subscription_alternates(self) -> None:
        site = Site()
        client, other = site.client("a"), site.client("b")
        links = [client.receiver("topic/a::work"), other.receiver("topic/a::work")]
        send_texts(other, other.sender("topic/a"), *map(str, range(10)))
        site.settle_down()
        counts = [len(client.received(links[0])), len(other.received(links[1]))]
        assert sum(counts) == 10
        assert min(counts) > 0

    @pytest.mark.parametrize(
        ("name", "capabilities", "asked"),
        [("sub", (), "sub"), ("sub|2", ("shared",), "sub"), ("sub|global3", ("shared", "global"), "sub|global")],
    )
    def test_receiver_without_a_source_finds_and_ends_the_durable_subscription_of_its_name(
        self, name: str, capabilities: tuple[str, ...], asked: str
    ) -> None:
        site = Site()
        holder, client = site.client(), site.client()
        wanted = source("topic/a", durability=2, expiry="never", capabilities=capabilities)
        held = holder.receiver(msgspec.structs.replace(wanted, filters=selecting("k = 1")), name)
        client.receiver(Terminus(), asked)
        (busy,) = of_kind(client.events, Detached)
        assert busy.condition.name == "amqp:resource-locked"
        holder.engine.detach(held, closed=False)
        site.settle_down()
        found = client.receiver(Terminus(), asked, credit=0)
        assert (found.source.address, found.source.durability, found.source.expiry) == ("topic/a", 2, "never")
        assert [item.value for item in found.source.filters.values()] == ["k = 1"]
        client.engine.detach(found)
        site.settle_down()
        assert site.router.durable_subscriptions == {}
        client.receiver(Terminus(), asked)
        assert of_kind(client.events, Detached)[-1].condition.name == "amqp:not-found"

    def test_subscriptions_of_other_users_are_not_found(self) -> None:
        site = Site()
        one, two = site.client("one"), site.client("two")
        held = one.receiver(source("topic/a", durability=2, expiry="never"), "sub")
        one.engine.detach(held, closed=False)
        site.settle_down()
        two.receiver(Terminus(), "sub")
        (detached,) = of_kind(two.events, Detached)
        assert detached.condition.name == "amqp:not-found"

    @pytest.mark.parametrize("change", [{"address": "topic/b"}, {"filters": selecting("k = 2")}, {"filters": {}}])
    def test_durable_subscription_with_another_topic_is_a_new_one(self, change: dict[str, Any]) -> None:
        site = Site()
        client = site.client()
        wanted = source("topic/a", durability=2, filters=selecting("k = 1"))
        old = client.receiver(wanted, "sub")
        client.engine.detach(old, closed=False)
        sender = client.sender("topic/a")
        client.engine.send_all(sender, 0, [application({"k": 1}) + message(b"for the old one")])
        site.settle_down()
        new = client.receiver(msgspec.structs.replace(wanted, **change), "sub")
        assert client.attached(new)
        assert client.received(new) == []
        client.engine.detach(new, closed=False)
        site.settle_down()
        assert len(site.router.durable_subscriptions) == 1

    def test_same_topic_and_selector_resume_the_subscription(self) -> None:
        site = Site()
        client = site.client()
        wanted = source("topic/a", durability=2, filters=selecting("k = 1"))
        client.engine.detach(client.receiver(wanted, "sub"), closed=False)
        client.engine.send_all(
            client.sender("topic/a"), 0, [application({"k": k}) + message(b"%d" % k) for k in (1, 2, 1)]
        )
        site.settle_down()
        assert received_payloads(client, client.receiver(wanted, "sub")) == [b"1", b"1"]

    @pytest.mark.parametrize("durability", [0, 2])
    def test_shared_subscription_has_one_selector(self, durability: int) -> None:
        site = Site()
        client = site.client()

        def attach(name: str, selector: str) -> Link:
            wanted = source("topic/a", durability=durability, capabilities=("shared",), filters=selecting(selector))
            return client.receiver(wanted, name)

        links = [attach("sub", "k > 0"), attach("sub|2", "k > 0")]
        client.engine.send_all(
            client.sender("topic/a"), 0, [application({"k": k % 2}) + message(b"%d" % k) for k in range(40)]
        )
        site.settle_down()
        got = [received_payloads(client, link) for link in links]
        assert sorted(got[0] + got[1], key=int) == [b"%d" % k for k in range(1, 40, 2)]
        assert min(map(len, got)) > 0
        attach("sub|3", "k > 1")
        (detached,) = of_kind(client.events, Detached)
        assert detached.condition.name == "amqp:invalid-field"

    def test_queue_and_topic_are_distinct(self) -> None:
        client = Site().client()
        for wanted in (source("topic/a", capabilities=("queue",)), source("queue/a", capabilities=("topic",))):
            client.receiver(wanted)
        assert [each.condition.name for each in of_kind(client.events, Detached)] == ["amqp:not-found"] * 2
        allowed = [("queue/a", "queue"), ("topic/a", "topic"), ("anycast/a", "queue")]
        for address, capability in [*allowed, ("topic/a::sub", "queue"), ("topic/a::sub2", "topic")]:
            assert client.attached(client.receiver(source(address, capabilities=(capability,)), address))

    def test_no_local_is_supported(self) -> None:
        site = Site()
        client = site.client()
        no_local = {"no-local": DescribedValue(Symbol("apache.org:no-local-filter:list"), [])}
        other_filter = {"xpath": DescribedValue(Symbol("apache.org:xpath-filter:string"), "x = 1")}
        link = client.receiver(source("topic/a", filters={**no_local, **other_filter}))
        assert set(link.source.filters) == {"no-local"}  # the answer confirms only the actual state
        send_texts(client, client.sender("topic/a"), "mine")
        site.settle_down()
        assert client.received(link) == []


def temporary_queue(client: Client) -> tuple[Link, str]:
    """Attach a sending link as JMS clients do; its temporary queue lives as long as the link."""
    made = client.sender(target(None, dynamic=True, capabilities=("temporary-queue",)), "made")
    assert made.target.address is not None
    return made, made.target.address


class TestSharedWithoutDisk:
    def test_messages_of_a_departed_receiver_go_to_another_in_order(self) -> None:
        site = Site()
        one, two = site.client("one"), site.client("two")
        wanted = source("topic/a", capabilities=("shared", "global"))
        first = one.receiver(wanted, "sub|global1")
        send_texts(two, two.sender("topic/a"), *map(str, range(10)))
        site.settle_down()
        second = two.receiver(wanted, "sub|global2")
        one.engine.settle(first, one.deliveries(first)[:3])
        site.settle_down()
        one.cut()
        site.settle_down()
        assert received_payloads(two, second) == [b"%d" % i for i in range(3, 10)]

    def test_failures_count_and_rejected_or_undeliverable_messages_are_settled(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver(source("topic/a", capabilities=("shared",)), "sub")
        send_texts(client, client.sender("topic/a"), "failed", "released", "rejected", "undeliverable")
        site.settle_down()
        states = (
            DeliveryState.MODIFIED_FAILED,
            DeliveryState.RELEASED,
            DeliveryState.REJECTED,
            DeliveryState.MODIFIED_UNDELIVERABLE,
        )
        for delivery, state in zip(client.deliveries(link), states, strict=True):
            client.engine.settle(link, [delivery], state)
        site.settle_down()
        again = client.received(link)[4:]
        assert [payload_of(m[bare_message(m)[1] :])[2] for m in again] == [b"failed", b"released"]
        counts = [decode(m, 3)[0][4:] for m in again]
        assert counts == [[1], []]

    def test_waiting_and_unanswered_messages_are_bounded(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver(source("topic/a", capabilities=("shared",)), "sub", credit=1)
        sender = client.sender("topic/a")
        for i in range(20):
            client.engine.send_all(sender, i, [message(bytes(1024 * 1024))])
            site.settle_down()
        pool = site.router.pool
        assert 14 << 20 < pool.waiting_bytes <= TRANSIENT_BUFFER_BYTES_MAX
        assert pool.dropped == 20 - (pool.waiting_bytes >> 20)
        client.cut()
        site.settle_down()
        assert (pool.waiting_bytes, link.credit) == (0, 0)


class TestTemporaryQueues:
    def test_queue_stores_messages_before_its_consumers_which_compete(self) -> None:
        site = Site()
        client, other = site.client("one"), site.client("two")
        made, address = temporary_queue(client)
        send_texts(other, other.sender(address), *map(str, range(5)))
        site.settle_down()
        first = client.receiver(address, "first", credit=2)
        second = client.receiver(address, "second")
        assert received_payloads(client, first) == [b"0", b"1"]
        assert received_payloads(client, second) == [b"2", b"3", b"4"]
        client.engine.detach(first)
        site.settle_down()
        assert received_payloads(client, second)[3:] == [b"0", b"1"]
        client.engine.detach(second)
        third = client.receiver(address, "third", credit=10)
        assert received_payloads(client, third) == [b"%d" % i for i in range(5)]
        client.engine.detach(made)
        site.settle_down()
        assert not site.router.subscriptions.live.temporary_queues
        assert site.router.pool.waiting_bytes == 0

    def test_each_receiver_gets_what_it_selects_and_the_rest_waits(self) -> None:
        site = Site()
        client = site.client()
        made, address = temporary_queue(client)
        links = [client.receiver(source(address, filters=selecting(f"k = {k}")), f"k{k}") for k in (1, 2)]
        client.engine.send_all(made, 0, [application({"k": i % 4}) + message(b"%d" % i) for i in range(12)])
        site.settle_down()
        assert [received_payloads(client, link) for link in links] == [[b"1", b"5", b"9"], [b"2", b"6", b"10"]]
        client.engine.settle(links[0], client.deliveries(links[0]), DeliveryState.RELEASED)
        site.settle_down()
        assert received_payloads(client, links[0])[3:] == [b"1", b"5", b"9"]
        client.engine.detach(links[0])
        rest = client.receiver(address, "rest")
        assert received_payloads(client, rest) == [b"0", b"1", b"3", b"4", b"5", b"7", b"8", b"9", b"11"]

    def test_released_message_goes_to_another_receiver_first(self) -> None:
        site = Site()
        client = site.client()
        made, address = temporary_queue(client)
        filters = selecting("k = 1")
        links = [client.receiver(source(address, filters=filters), name, credit=1) for name in ("first", "second")]
        other = client.receiver(source(address, filters=filters), "other", credit=0)
        client.engine.send_all(made, 0, [application({"k": 1}) + message(b"m")])
        site.settle_down()
        first, second = links
        client.engine.grant(first, 5)
        client.engine.settle(first, client.deliveries(first), DeliveryState.RELEASED)
        site.settle_down()
        assert received_payloads(client, second) == [b"m"]
        client.engine.settle(second, client.deliveries(second), DeliveryState.RELEASED)
        site.settle_down()
        assert received_payloads(client, first) == [b"m"], "it waits for the third one"
        client.engine.detach(other)
        site.settle_down()
        assert received_payloads(client, first) == [b"m", b"m"]

    def test_unselected_messages_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared, "UNSELECTED_MAX", 10)
        site = Site()
        client = site.client()
        made, address = temporary_queue(client)
        link = client.receiver(source(address, filters=selecting("k = 1")))
        for i in range(12):
            client.engine.send_all(made, i, [application({"k": 2}) + message(b"%d" % i)])
            site.settle_down()
        assert site.router.pool.dropped == 2
        client.engine.detach(link)
        assert received_payloads(client, client.receiver(address, "rest")) == [b"%d" % i for i in range(10)]

    def test_queue_ends_with_the_link_that_created_it(self) -> None:
        site = Site()
        client, other = site.client("one"), site.client("two")
        node, address = temporary_queue(client)
        link = client.receiver(address)
        send_texts(other, other.sender(address), "unsettled")
        site.settle_down()
        assert received_payloads(client, link) == [b"unsettled"]
        client.engine.detach(node)
        site.settle_down()
        client.engine.settle(link, client.deliveries(link), DeliveryState.RELEASED)
        site.settle_down()
        assert received_payloads(client, link) == [b"unsettled"]
        assert site.router.pool.waiting_bytes == 0
