"""Dead letters: counted, retried, moved and deleted, over the router and the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from proton import Message

from bridge.message import AMQP, Run
from edge.appliance.messages import dead_letters
from edge.appliance.messages.browsing import MessageQuery
from edge.appliance.messages.dead_letters import DeadLetterService
from edge.appliance.messages.documents import DeadLetterOutcome, DeadLetterStep
from edge.broker.delivery.dead_letters import REASON_ANNOTATION
from edge.broker.delivery.transfers import DELETED
from edge.broker.http.refusal import RequestRefused
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.translation import payload_of
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.router.batch import Publication
from edge.broker.router.router import SubscribeOptions
from edge.broker.store.errors import StoreError
from tests.support.router_site import RouterSite, SilentOrigin, attempts, bodies_of

T = TypeVar("T")
DEAD = "deadletter/dead"


class DeadLetterSite(RouterSite):
    """Router with dead letters at `DEAD`, and the service."""

    def __init__(self) -> None:
        super().__init__(queue=attempts(1), topic=AddressPolicy(deadletter=DEAD))
        self.service = DeadLetterService(self.router, self.store)

    def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine, with the store's callbacks between its turns."""

        async def turns() -> T:
            task = asyncio.ensure_future(work())
            while not task.done():
                await asyncio.sleep(0)
                self.router.flush()
                while self.posted:
                    self.posted.popleft()()
            return await task

        return asyncio.run(turns())

    def kill(self, address: str, *bodies: bytes, properties: bytes = b"", flags: int = 1) -> None:
        """Send messages to a queue, and reject them."""
        self.send(address, *bodies, properties=properties, flags=flags)
        consumer = self.consumer(address, "rejecting")
        assert consumer.joined is not None
        consumer.answer(DeliveryOutcome.REJECTED, len(bodies))
        self.settle_down()
        self.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=False)
        self.settle_down()

    def groups(self) -> dict[tuple[str, str], int]:
        found = self.wait(self.service.groups)
        return {(each.reason, each.origin): each.messages for each in found.groups}

    def retry(self, **selection: object) -> DeadLetterOutcome:
        step = DeadLetterStep(queue=DEAD, **selection)  # type: ignore[arg-type]
        return self.wait(lambda: self.service.retry(step, "anna"))

    def texts(self, address: str) -> list[str]:
        """Return the messages that a new consumer gets."""
        return bodies_of(self.consumer(address, "reader"))


@pytest.fixture
def site() -> DeadLetterSite:
    return DeadLetterSite()


def test_groups_have_reason_origin_and_count(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1", b"2")
    site.kill("queue/b", b"3")
    site.send(DEAD, b"direct")
    assert site.groups() == {("rejected", "queue/a"): 2, ("rejected", "queue/b"): 1, ("", ""): 1}
    site.kill("queue/a", b"4")
    assert site.groups()["rejected", "queue/a"] == 3


def test_page_shows_messages_of_a_group(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1", b"2")
    site.kill("queue/b", b"3")
    site.groups()
    step = DeadLetterStep(queue=DEAD, origin="queue/a")
    page = site.wait(lambda: site.service.page(step, MessageQuery(address="#", limit=1, bytes_shown=100)))
    found = [(each.body, each.reason, each.origin, each.device) for each in page.messages]
    assert found == [("1", "rejected", "queue/a", "device")]
    step.after = page.next
    page = site.wait(lambda: site.service.page(step, MessageQuery(address="#", limit=1, bytes_shown=100)))
    assert ([each.body for each in page.messages], page.next) == (["2"], None)


def test_retry_sends_messages_back_without_marks(site: DeadLetterSite) -> None:
    properties = encode_run(Properties(content_type="text/plain", user_property=(("a", "b"),)))
    site.kill("queue/a", b"1", b"2", properties=properties)
    site.kill("queue/b", b"3")
    assert site.retry(origin="queue/a") == DeadLetterOutcome(messages=2, done=2)
    assert site.groups() == {("rejected", "queue/b"): 1}
    consumer = site.consumer("queue/a")
    assert bodies_of(consumer) == ["1", "2"]
    assert decode_run(consumer.runs[0].properties) == decode_run(properties)
    assert {run.device for run in consumer.runs} == {"device"}
    assert site.texts("queue/b") == []


def test_retried_message_that_dies_again_has_one_set_of_marks(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1")
    site.retry()
    consumer = site.consumer("queue/a")
    consumer.answer(DeliveryOutcome.REJECTED)
    site.settle_down()
    (run,) = site.consumer(DEAD).runs
    names = [name for name, _ in decode_run(run.properties).user_property]
    assert names.count(REASON_ANNOTATION) == 1


def test_amqp_messages_are_retried_as_they_were_sent(site: DeadLetterSite) -> None:
    body = Message(body="x", annotations={"x-opt-own": "kept"}).encode()
    bare = bytes(body[body.index(b"\x00\x53\x72") :])
    site.kill("queue/a", bare, flags=AMQP | 1)
    assert site.groups() == {("rejected", "queue/a"): 1}
    assert site.retry().done == 1
    (run,) = site.consumer("queue/a").runs
    assert payload_of(run.bodies[0])[1] == {"message-annotations": {"x-opt-own": "kept"}}


def test_dry_run_changes_nothing(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1")
    assert site.retry(dry_run=True) == DeadLetterOutcome(messages=1)
    assert site.groups() == {("rejected", "queue/a"): 1}


def test_chosen_messages_are_retried(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1", b"2", b"3")
    assert site.retry(positions=[1, 99]) == DeadLetterOutcome(messages=1, done=1)
    assert site.texts("queue/a") == ["2"]


def test_message_stays_if_its_address_would_not_store_it(site: DeadLetterSite) -> None:
    site.send(DEAD, b"direct")
    outcome = site.retry()
    assert (outcome.done, outcome.kept) == (0, 1)
    with pytest.raises(RequestRefused) as refused:
        site.wait(lambda: site.service.move(DeadLetterStep(queue=DEAD), "topic/nobody", "anna"))
    assert refused.value.status == 409
    assert site.texts(DEAD) == ["direct"]


def test_topic_with_a_durable_subscription_gets_retried_messages(site: DeadLetterSite) -> None:
    consumer = site.consumer("topic/t", options=SubscribeOptions(durable_name="durable"))
    site.send("topic/t", b"1")
    consumer.answer(DeliveryOutcome.REJECTED)
    site.settle_down()
    assert site.retry().done == 1
    site.settle_down()
    assert bodies_of(consumer) == ["1", "1"]


def test_move_and_delete(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1", b"2")
    step = DeadLetterStep(queue=DEAD, positions=[0])
    assert site.wait(lambda: site.service.move(step, "queue/elsewhere", "anna")).done == 1
    assert site.texts("queue/elsewhere") == ["1"]
    assert site.wait(lambda: site.service.delete(DeadLetterStep(queue=DEAD), "anna")).done == 1
    assert site.groups() == {}
    entry = site.lost[-1]
    assert (entry.reason, entry.address, entry.messages) == (DELETED, DEAD, 1)


def test_message_of_a_consumer_is_left_to_it(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1", b"2")
    consumer = site.consumer(DEAD, credit=1)
    outcome = site.retry()
    assert (outcome.messages, outcome.done, outcome.kept) == (2, 1, 1)
    consumer.answer(DeliveryOutcome.ACCEPTED)
    assert site.groups() == {}
    assert site.texts("queue/a") == ["2"]


def test_messages_that_wait_in_memory_for_a_consumer_are_retried_once(site: DeadLetterSite) -> None:
    consumer = site.consumer(DEAD, credit=1)
    site.kill("queue/a", b"1", b"2", b"3")
    assert bodies_of(consumer) == ["1"]
    assert site.retry().done == 2
    consumer.answer(DeliveryOutcome.ACCEPTED)
    consumer.credit = 10
    assert consumer.joined is not None
    consumer.joined.pump()
    site.settle_down()
    assert bodies_of(consumer) == ["1"]
    assert sorted(site.texts("queue/a")) == ["2", "3"]


def test_failed_commit_leaves_the_message_in_the_queue(site: DeadLetterSite) -> None:
    site.kill("queue/a", b"1")
    site.groups()
    site.store.failure = StoreError("the card is full")
    outcome = site.retry()
    site.store.failure = None
    site.settle_down()
    assert (outcome.done, outcome.kept) == (0, 1)
    assert site.groups() == {("rejected", "queue/a"): 1}
    assert site.texts("queue/a") == []
    assert site.texts(DEAD) == ["1"]


def test_step_is_bounded_and_the_next_one_continues(site: DeadLetterSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "STEP_MESSAGES_MAX", 3)
    for number in range(7):
        site.router.publish(Publication(SilentOrigin(), Run(DEAD, "d", 1, b"", [b"%d" % number]), ()))
    site.settle_down()
    step, done = DeadLetterStep(queue=DEAD), []
    while True:
        outcome = site.wait(lambda: site.service.delete(step, "anna"))
        done.append(outcome.done)
        if outcome.next is None:
            break
        step.after = outcome.next
    assert done == [3, 3, 1]


def test_step_ends_at_its_bytes(site: DeadLetterSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "STEP_BYTES_MAX", 10)
    site.kill("queue/a", b"12345678", b"12345678", b"12345678")
    outcome = site.retry()
    assert (outcome.done, outcome.next) == (2, 1)


def test_unknown_queue_is_refused(site: DeadLetterSite) -> None:
    with pytest.raises(RequestRefused) as refused:
        site.wait(lambda: site.service.retry(DeadLetterStep(queue="queue/a"), ""))
    assert refused.value.status == 404
