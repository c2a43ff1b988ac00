"""A forwarder takes all messages that match its filter, under any type of address. None is stranded when a rule comes
or goes while messages arrive and commits run."""

from __future__ import annotations

import logging
import random

import pytest

from bridge.message import Run
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.forwarding import Forwarding
from tests.support.router_site import RouterSite, SilentOrigin
from tests.support.run_consumer import RunConsumer

QUEUE, TOPIC = AddressType.QUEUE, AddressType.TOPIC
PLANT = AddressRule("plant/#", AddressType.TOPIC)


def table(kind: AddressType | None) -> AddressTable:
    """Return the address table, with or without a second rule next to `PLANT`."""
    return AddressTable([PLANT, *([AddressRule("plant/press/#", kind)] if kind is not None else [])])


class Peer(RunConsumer):
    """Peer that settles its messages when the test decides."""

    name = "uplink"
    credit = 50

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.unsettled: list[tuple[Subscription, int, int]] = []

    def take(self, subscription: Subscription, stored: object) -> None:
        run, position = stored.run, stored.position  # type: ignore[attr-defined]
        self.got += run.bodies
        self.unsettled.append((subscription, position, position + len(run.bodies) - 1))

    def settle(self) -> None:
        unsettled, self.unsettled = self.unsettled, []
        for subscription, first, last in unsettled:
            subscription.settle(self, first, last, DeliveryOutcome.ACCEPTED)


class Device(SilentOrigin):
    """Device that remembers its accepted messages."""

    def __init__(self, site: RouterSite) -> None:
        self.accepted_bodies: list[bytes] = []
        self._sent: list[bytes] = []
        self._site = site

    def send(self, address: str) -> None:
        token = len(self._sent)
        self._sent.append(b"%d" % token)
        self._site.router.publish(Publication(self, Run(address, self.name, 1, b"", [self._sent[token]]), [token]))

    def accepted(self, tokens: object) -> None:
        self.accepted_bodies += [self._sent[token] for token in tokens]  # type: ignore[attr-defined]

    def refused(self, tokens: object, why: Refusal) -> None:
        raise AssertionError(why)


class Forwarders:
    """Two forwarders of one connector, set up as in `edge.broker.router.connector_uplink`."""

    def __init__(self, site: RouterSite, *patterns: str) -> None:
        self.peer = Peer()
        self.site = site
        self.all = [Forwarding(site.router, self.peer, f"forwarder/hub/{pattern}", pattern) for pattern in patterns]
        self.follow()

    def follow(self) -> None:
        for forwarding in self.all:
            forwarding.follow()

    def apply(self, kind: AddressType | None) -> None:
        self.site.router.reconfigure(table(kind))
        self.follow()

    def drain(self) -> None:
        for _ in range(50):
            self.site.settle_down(wait_s=0.2)
            self.peer.settle()
            for forwarding in self.all:
                for subscription in forwarding.subscriptions:
                    subscription.pump()


@pytest.mark.parametrize("kinds", [(TOPIC, None), (QUEUE, None), (QUEUE, TOPIC, None)])
@pytest.mark.parametrize("patterns", [("plant/#",), ("plant/#", "plant/press/#"), ("plant/press/#",)])
@pytest.mark.parametrize("seed", range(4))
def test_rule_added_and_removed_under_load_loses_nothing(
    kinds: tuple[AddressType | None, ...], patterns: tuple[str, ...], seed: int
) -> None:
    site, chance = RouterSite(), random.Random(seed)
    site.router.reconfigure(table(None))
    forwarders, device = Forwarders(site, *patterns), Device(site)
    for turn in range(300):
        device.send(f"plant/press/{turn % 3}")
        match chance.randrange(8):
            case 0:
                forwarders.apply(chance.choice(kinds))
            case 1 | 2:
                site.router.flush()
            case 3 if site.posted:
                site.posted.popleft()()
            case 4:
                forwarders.peer.settle()
            case 5:
                site.router.tick()
    forwarders.apply(None)
    forwarders.drain()
    assert len(device.accepted_bodies) == 300
    assert set(forwarders.peer.got) == set(device.accepted_bodies)
    assert site.lost == []


def test_rest_of_a_former_queue_is_forwarded_after_a_restart() -> None:
    site = RouterSite()
    site.router.reconfigure(table(AddressType.QUEUE))
    device = Device(site)
    device.send("plant/press/1")
    site.settle_down()
    site.table = table(None)
    site.boot()
    forwarders = Forwarders(site, "plant/#")
    forwarders.drain()
    assert forwarders.peer.got == device.accepted_bodies == [b"0"]


def test_queue_configured_again_belongs_to_its_consumers() -> None:
    site = RouterSite()
    site.router.reconfigure(table(AddressType.QUEUE))
    forwarders, device = Forwarders(site, "plant/#"), Device(site)
    forwarders.apply(None)
    forwarders.apply(AddressType.QUEUE)
    device.send("plant/press/1")
    forwarders.drain()
    assert forwarders.peer.got == []
    consumer = site.consumer("plant/press/1")
    assert [body for body, _ in consumer.got] == ["0"]


def test_messages_without_a_forwarder_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    site = RouterSite()
    site.router.reconfigure(table(AddressType.QUEUE))
    Device(site).send("plant/press/1")
    site.settle_down()
    with caplog.at_level(logging.WARNING):
        site.router.reconfigure(table(None))
    assert "plant/press/1" in caplog.text
    assert "1 messages in 1 queues" in caplog.text
    site.router.reconfigure(table(AddressType.QUEUE))
    assert [body for body, _ in site.consumer("plant/press/1").got] == ["0"]


def test_messages_of_former_topics_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    site = RouterSite()
    site.router.reconfigure(table(None))
    options = SubscribeOptions(durable_name="amqp/c/s", all_qos=True)
    consumer = site.consumer("plant/press/1", options=options)
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
    Device(site).send("plant/press/1")
    site.settle_down()
    with caplog.at_level(logging.WARNING):
        site.router.reconfigure(table(AddressType.QUEUE))
    assert "up to 1 messages in 1 durable subscriptions, for example 'amqp/c/s'" in caplog.text
    site.router.reconfigure(table(None))
    assert [body for body, _ in site.consumer("plant/press/1", options=options).got] == ["0"]


def test_forwarder_receives_broker_names_where_the_default_is_a_queue() -> None:
    site = RouterSite()
    site.router.reconfigure(AddressTable([], AddressRule("#", QUEUE)))
    forwarders, device = Forwarders(site, "$plant/#"), Device(site)
    device.send("$plant/1")
    forwarders.drain()
    assert forwarders.peer.got == device.accepted_bodies == [b"0"]


def test_removed_forwarder_releases_its_messages() -> None:
    site = RouterSite()
    site.router.reconfigure(table(AddressType.QUEUE))
    device = Device(site)
    device.send("plant/press/1")
    forwarders = Forwarders(site, "plant/#")
    forwarders.apply(None)
    site.settle_down()
    forwarders.all[0].end()
    forwarders.peer.settle()
    device.send("plant/press/1")
    site.settle_down()
    assert forwarders.peer.got == [b"0"]
    assert [queue.group.consumers for queue in site.router.queues.values()] == [[]]


@pytest.mark.parametrize("narrower", [TOPIC, QUEUE])
@pytest.mark.parametrize("restarted", [False, True])
def test_changed_filter_continues_with_the_pending_messages(narrower: AddressType, restarted: bool) -> None:
    """The filter of a forwarder changes while its peer is away."""
    site = RouterSite()
    site.router.reconfigure(table(None))
    forwarders, device = Forwarders(site, "plant/#"), Device(site)
    forwarders.peer.credit = 0
    keeper = SubscribeOptions(durable_name="keeper")
    site.consumer("#", options=keeper)  # else unforwarded messages are not stored
    for address in ("plant/1", "plant/hall/1"):
        device.send(address)
    site.settle_down()
    site.table = AddressTable([AddressRule("plant/+", narrower)])
    if restarted:
        site.boot()
        site.consumer("#", options=keeper)
    else:
        site.router.reconfigure(site.table)
        forwarders.all[0].end()
    forwarders = Forwarders(site)
    peer = forwarders.peer
    forwarders.all = [Forwarding(site.router, peer, "forwarder/hub/plant/#", "plant/+")]
    forwarders.follow()
    for address in ("plant/hall/2", "plant/2"):
        device.send(address)
    forwarders.drain()
    assert sorted(peer.got) == [b"0", b"1", b"3"]
    assert len(device.accepted_bodies) == 4
    assert site.lost == []
    site.boot()
    forwarders.all = [Forwarding(site.router, peer, "forwarder/hub/plant/#", "plant/+")]
    forwarders.follow()
    forwarders.drain()
    assert len(peer.got) == 3, "a start sends nothing again"


def test_address_at_its_limit_of_consumers_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    site = RouterSite()
    site.router.reconfigure(table(QUEUE), {"plant/press/#": AddressPolicy(consumers_max=1)})
    first = site.consumer("plant/press/1", credit=0)
    forwarders = Forwarders(site, "plant/press/1", "plant/#")
    full, other = forwarders.all
    assert (full.subscriptions, other.fault) == ([], None)
    assert full.fault is not None
    assert full.fault.endswith("has 1 consumer, its limit")
    forwarders.follow()
    assert caplog.text.count("cannot subscribe") == 1, "it is said once"
    site.router.subscriptions.unsubscribe(first, first.joined, forget=False)
    forwarders.follow()
    assert full.fault is None
    device = Device(site)
    device.send("plant/press/1")
    forwarders.drain()
    assert forwarders.peer.got == device.accepted_bodies == [b"0"]
