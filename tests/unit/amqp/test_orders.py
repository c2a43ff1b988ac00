"""Unusual orders of events in one session: a link ends while other work is pending."""

from __future__ import annotations

import pytest

from bridge.engine import DeliveryState, Detached, Engine, Link, LinkFlow
from bridge.engine.terminus import source
from bridge.message import Run
from bridge.sasl import SaslClient
from edge.broker.message.translation import payload_of
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.authorization import Ended
from edge.broker.router.batch import Publication
from edge.broker.store.errors import StoreFull
from tests.unit.amqp.broker import Client, MqttDevice, Site
from tests.unit.amqp.wire import NOW, message, of_kind


def bodies(client: Client, link: Link) -> list[bytes]:
    return [payload_of(each)[2] for each in client.received(link)]


def send(client: Client, link: Link, *texts: str, first: int = 0, settled: bool = False) -> None:
    client.engine.send_all(link, first, [message(text.encode()) for text in texts], settled=settled)


def publish(site: Site, address: str, *texts: str) -> None:
    site.router.publish(Publication(MqttDevice(), Run(address, "d", 1, b"", [text.encode() for text in texts]), ()))
    site.settle_down()


def retyped(site: Site, address: str, kind: AddressType) -> None:
    """Give the address another type in the configuration."""
    rules = [AddressRule(address, kind), *(AddressRule(f"{each.value}/#", each) for each in AddressType)]
    site.router.reconfigure(AddressTable(rules))


class TestEndsWhileACommitRuns:
    @pytest.mark.parametrize("end", ["detach", "close", "session", "socket"])
    @pytest.mark.parametrize("fails", [False, True])
    def test_answer_without_a_connection_is_dropped(self, end: str, fails: bool) -> None:
        site = Site()
        client, other = site.client(), site.client("other")
        link, theirs = client.sender("queue/a"), other.sender("queue/a")
        send(client, link, "one")
        send(other, theirs, "two")
        site.turn()
        site.store.failure = StoreFull("no space left") if fails else None
        site.router.flush()  # the commit runs
        if end == "socket":
            client.cut()
        elif end == "close":
            client.engine.close()
        else:
            client.engine.detach(link, closed=end == "detach")
        site.turn()
        site.settle_down()
        state = DeliveryState.REJECTED if fails else DeliveryState.ACCEPTED
        assert [answer for _, answer, _ in other.outcomes(theirs)] == [state]
        assert client.outcomes(link) == []
        assert site.router.queues["queue/a"].backlog == (0 if fails else 2)

    def test_new_link_of_the_same_name_gets_no_old_answers(self) -> None:
        """Answers for the first link do not settle deliveries of the second, which counts from the start again."""
        site = Site()
        client = site.client()
        first = client.sender("queue/a", "s")
        send(client, first, "old")
        site.turn()
        site.router.flush()
        client.engine.detach(first)
        site.turn()
        second = client.engine.attach_sender("s", "queue/a")
        site.turn()
        send(client, second, "new")
        site.turn()
        site.posted.popleft()()  # the commit of the old one ends
        site.turn()
        assert client.outcomes(second) == []
        site.settle_down()
        assert client.outcomes(second) == [(0, DeliveryState.ACCEPTED, None)]


class TestTypeChangesWhileMessagesAreInFlight:
    def test_messages_in_the_commit_are_answered_by_it(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        send(client, link, "one")
        site.turn()
        retyped(site, "queue/a", AddressType.ANYCAST)
        site.settle_down()
        [detached] = of_kind(client.events, Detached)
        assert detached.condition.name == "amqp:resource-deleted"
        assert client.ended == []

    def test_messages_after_the_detach_are_not_published(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        retyped(site, "queue/a", AddressType.TOPIC)
        send(client, link, "late")  # the client has not read the detach yet
        watcher = site.client("watcher").receiver("queue/a")
        site.settle_down()
        assert site.clients[-1].received(watcher) == []
        assert client.outcomes(link) == []
        assert client.ended == []

    def test_credit_of_direct_and_stored_addresses_differs(self) -> None:
        site = Site()
        client, worker = site.client(), site.client("worker")
        link = client.sender("anycast/a")
        worker.receiver("anycast/a", credit=3)
        assert link.credit == 3
        retyped(site, "anycast/a", AddressType.QUEUE)
        site.settle_down()
        assert link.closed
        again = client.sender("anycast/a", "again")
        assert again.credit == 1000
        send(client, again, *["x"] * 900)
        site.settle_down()
        assert [state for _, state, _ in client.outcomes(again)] == [DeliveryState.ACCEPTED] * 900


class TestDrain:
    def test_peer_that_does_not_read_gets_no_drain_answer(self) -> None:
        """A drain ends when the credit is used up or no message is left (section 2.6.7)."""
        site = Site()
        client = site.client()
        link = client.receiver("queue/a", credit=0)
        publish(site, "queue/a", "one", "two")
        client.driver.congested = True
        client.engine.grant(link, 5, drain=True)
        site.settle_down()
        assert of_kind(client.events, LinkFlow) == []
        client.driver.congested = False
        client.session.writable()
        site.settle_down()
        assert bodies(client, link) == [b"one", b"two"]
        assert link.credit == 0

    def test_drain_may_be_withdrawn_during_the_read(self) -> None:
        site = Site()
        client = site.client()
        publish(site, "queue/a", "one")
        link = client.receiver("queue/a", credit=0)
        client.engine.grant(link, 5, drain=True)
        client.carry()
        client.engine.detach(link)
        site.settle_down()
        assert client.ended == []
        assert site.router.queues["queue/a"].outstanding == 0
        assert site.router.queues["queue/a"].backlog == 1


class TestLateSettlement:
    @pytest.mark.parametrize(
        "state", [DeliveryState.ACCEPTED, DeliveryState.REJECTED, DeliveryState.MODIFIED_UNDELIVERABLE]
    )
    def test_settlement_after_the_link_was_stolen_is_handled(self, state: DeliveryState) -> None:
        """Deliveries of the older link go to the newer one: an outcome of the older one does not count."""
        site = Site()
        first, second = site.client(), site.client()
        durable = source("topic/a", durability=2, expiry="never")
        older = first.receiver(durable)
        publish(site, "topic/a", "m")
        newer = second.receiver(durable)
        first.engine.settle(older, first.deliveries(older), state)
        site.settle_down()
        assert bodies(second, newer) == [b"m"]
        second.engine.settle(newer, second.deliveries(newer))
        site.settle_down()
        [detached] = of_kind(first.events, Detached)
        assert detached.condition.name == "amqp:link:stolen"
        assert first.session._links.outgoing == [], "the session knows it no more"
        [found] = site.router.durable_subscriptions.values()
        assert sum(part.backlog + part.outstanding for part in found.parts) == 0

    def test_settlement_and_detach_may_come_in_one_read(self) -> None:
        site = Site()
        client = site.client()
        link = client.receiver("queue/a")
        publish(site, "queue/a", "one", "two")
        client.engine.settle(link, client.deliveries(link)[:1])
        client.engine.detach(link)
        site.settle_down()
        assert site.router.queues["queue/a"].backlog == 1

    def test_link_may_be_stolen_in_the_turn_in_which_it_receives(self) -> None:
        site = Site()
        first, second = site.client(), site.client()
        durable = source("topic/a", durability=2, expiry="never")
        older = first.receiver(durable, credit=1)
        publish(site, "topic/a", "m", "n")
        newer = second.engine.attach_receiver("r", durable)
        first.engine.grant(older, 5)
        site.turn()
        second.engine.grant(newer, 5)
        site.settle_down()
        assert bodies(second, newer) == [b"m", b"n"]


class TestAbortedMidway:
    def test_aborted_message_is_not_published(self) -> None:
        site = Site()
        client = site.client()
        link = client.sender("queue/a")
        client.engine.send(link, 0, message(b"x" * 3_000_000))
        half = client.engine.data_to_send()[:1_000_000]
        client.session.handle(client.server.receive_data(half, NOW))
        client.session.handle(client.server.receive_eof(NOW))
        site.commit()
        assert "queue/a" not in site.router.queues or site.router.queues["queue/a"].backlog == 0
        assert len(client.ended) == 1


class TestTooMuch:
    def test_message_above_the_agreed_size_is_not_published(self) -> None:
        """The sender is notified that its message was too large, so the broker must not deliver a copy."""
        site = Site()
        client = Client(site, "device-1")
        client.server = Engine(container_id="broker", server=True, max_message_size=1000)
        client.session = type(client.session)(client.driver, client.server, site.router)
        site.clients.append(client)
        site.settle_down()
        link = client.sender("queue/a")
        send(client, link, "before", "x" * 2000, "after")
        site.settle_down()
        [detached] = of_kind(client.events, Detached)
        assert detached.condition.name == "amqp:link:message-size-exceeded"
        receiver = client.receiver("queue/a")
        assert bodies(client, receiver) == [b"before"]


class TestWillOfAClosedConnection:
    def test_close_by_the_broker_does_not_withdraw_the_will(self) -> None:
        """The will is published when the broker closes for an expired token; the client's answer does not withdraw
        it."""
        site = Site()
        client = Client(site, "device-1")
        properties = {"x-opt-will-address": "queue/gone", "x-opt-will-body": b"bye"}
        client.engine = Engine(container_id="device-1", server=False, sasl=SaslClient(), properties=properties)
        client.engine.open()
        site.clients.append(client)
        site.settle_down()
        client.session._revoked(Ended.EXPIRED)
        site.settle_down()
        assert len(client.ended) == 1
        assert site.router.queues["queue/gone"].backlog == 1
