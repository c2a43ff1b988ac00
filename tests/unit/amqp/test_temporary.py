"""Dynamic nodes: any client that knows the name may send, only the owner receives, and the store is not used."""

from __future__ import annotations

import pytest

from bridge.engine import Detached, Link
from bridge.engine.terminus import source
from bridge.message import DURABLE, RETAIN, Run
from edge.broker.amqp.addressing import temporary_address
from edge.broker.delivery.durable import Declaration
from edge.broker.model.interfaces import AddressError, Refusal, SubscribeOptions
from edge.broker.router.batch import Publication
from tests.unit.amqp.broker import Client, MqttDevice, Site
from tests.unit.amqp.wire import of_kind


@pytest.fixture
def site() -> Site:
    return Site()


def node(site: Site) -> tuple[str, Client, Link]:
    owner = site.client("owner")
    link = owner.receiver(source(None, dynamic=True))
    return str(link.source.address), owner, link


def publish(site: Site, device: MqttDevice, address: str, flags: int = 1 | DURABLE) -> None:
    site.router.publish(Publication(device, Run(address, device.name, flags, b"", [b"m"]), [1]))
    site.settle_down()


class TestSending:
    def test_messages_to_existing_and_missing_nodes_are_answered(self, site: Site) -> None:
        """A sender gets the same answer whether the node exists or not."""
        address, owner, link = node(site)
        device = MqttDevice()
        publish(site, device, address)
        publish(site, device, temporary_address())
        assert device.answers == [("accepted", 1)] * 2
        assert len(owner.received(link)) == 1

    def test_filters_do_not_match_it(self, site: Site) -> None:
        address, owner, link = node(site)
        listener, other = MqttDevice("listener"), MqttDevice()
        for pattern in ("#", "temp/#", "temp/+"):
            site.router.subscriptions.subscribe(listener, pattern, SubscribeOptions())
        publish(site, other, address)
        assert listener.runs == []
        assert len(owner.received(link)) == 1

    def test_messages_are_neither_stored_nor_retained(self, site: Site) -> None:
        kept = site.router.subscriptions.declare(Declaration(name="forwarder/hub/all", pattern="#", all_qos=True))
        publish(site, MqttDevice(), temporary_address(), flags=1 | DURABLE | RETAIN)
        assert sum(part.backlog for part in kept.parts) == 0
        assert len(site.router.retained) == 0


class TestReceiving:
    def test_other_clients_may_not_receive(self, site: Site) -> None:
        address, _, _ = node(site)
        other = site.client("other")
        other.receiver(address)
        (detached,) = of_kind(other.events, Detached)
        assert detached.condition.name == "amqp:unauthorized-access"
        for each in (address, temporary_address()):
            for options in (SubscribeOptions(), SubscribeOptions(durable_name="d"), SubscribeOptions(share_name="s")):
                with pytest.raises(AddressError) as raised:
                    site.router.subscriptions.subscribe(MqttDevice(), each, options)
                assert raised.value.refusal is Refusal.NOT_AUTHORIZED
