"""Credit of a sender to a direct address is withdrawn when its last consumer leaves."""

from __future__ import annotations

import pytest

from bridge.engine import DeliveryState, Link
from tests.unit.amqp.broker import NOW, Client, Site, send_texts, take_all

DIRECT = ["anycast/a", "multicast/a"]


def leave(client: Client, link: Link) -> None:
    client.engine.detach(link)
    client.site.settle_down()


def return_credit(client: Client, link: Link) -> None:
    """Answer a drain as clients do that have nothing to send."""
    assert link.draining
    client.engine.drained(link)
    client.site.settle_down()


@pytest.mark.parametrize("address", DIRECT)
def test_credit_is_withdrawn_when_the_last_consumer_leaves_and_granted_to_the_next(address: str) -> None:
    site = Site()
    asker, worker = site.client("asker"), site.client("worker")
    sender, link = asker.sender(address), worker.receiver(address, credit=50)
    assert sender.credit > 0
    leave(worker, link)
    return_credit(asker, sender)
    assert sender.credit == 0
    worker.receiver(address, "again", credit=50)
    assert sender.credit > 0
    assert not sender.draining
    send_texts(asker, sender, "one")
    site.settle_down()
    assert not [state for _, state, _ in asker.outcomes(sender) if state is DeliveryState.RELEASED]


@pytest.mark.parametrize("address", DIRECT)
def test_it_stays_while_another_consumer_is_left(address: str) -> None:
    site = Site()
    asker, worker, other = site.client("asker"), site.client("worker"), site.client("other")
    sender, link = asker.sender(address), worker.receiver(address, credit=50)
    other.receiver(address.replace("/a", "/#"), credit=50)
    leave(worker, link)
    assert sender.credit > 0
    assert not sender.draining


def test_messages_sent_before_the_sender_sees_it_are_released() -> None:
    site = Site()
    asker, worker = site.client("asker"), site.client("worker")
    sender, link = asker.sender("anycast/a"), worker.receiver("anycast/a", credit=50)
    leave(worker, link)
    send_texts(asker, sender, "one", "two")
    return_credit(asker, sender)
    assert [state for _, state, _ in asker.outcomes(sender)] == [DeliveryState.RELEASED] * 2
    assert sender.credit == 0


def test_a_sender_that_answers_no_drain_sends_again_to_the_next_consumer() -> None:
    site = Site()
    asker, worker = site.client("asker"), site.client("worker")
    sender, link = asker.sender("anycast/a"), worker.receiver("anycast/a", credit=50)
    leave(worker, link)
    assert sender.draining
    link = worker.receiver("anycast/a", "again", credit=50)
    assert not sender.draining
    send_texts(asker, sender, "one")
    site.settle_down()
    worker.engine.settle(link, worker.deliveries(link))
    site.settle_down()
    assert [state for _, state, _ in asker.outcomes(sender)] == [DeliveryState.ACCEPTED]


def test_a_late_answer_to_a_drain_takes_no_credit_for_good() -> None:
    site = Site()
    asker, worker = site.client("asker"), site.client("worker")
    sender, link = asker.sender("anycast/a"), worker.receiver("anycast/a", credit=50)
    leave(worker, link)
    asker.engine.drained(sender)
    site.clients.remove(asker)  # its answer is on the way, while a consumer comes and leaves
    leave(worker, worker.receiver("anycast/a", "second", credit=1))
    asker.session.handle(take_all(asker.server, asker.engine.data_to_send(), NOW))
    worker.receiver("anycast/a", "third", credit=1)
    site.clients.append(asker)
    site.settle_down()
    if sender.draining:
        return_credit(asker, sender)
    assert sender.credit > 0


def test_a_sender_that_has_ended_is_forgotten() -> None:
    site = Site()
    asker, worker = site.client("asker"), site.client("worker")
    sender, link = asker.sender("anycast/a"), worker.receiver("anycast/a", credit=50)
    leave(asker, sender)
    leave(worker, link)
    watchers = site.router._watchers
    assert not watchers._senders
    assert not watchers._sends_to
