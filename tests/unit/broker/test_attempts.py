"""Counts of failed attempts survive a restart while they matter."""

from __future__ import annotations

import pytest

from edge.broker.delivery.attempts import ATTEMPTS, Attempts, unpack
from edge.broker.limits import ATTEMPTS_KEPT_MAX, ATTEMPTS_WRITTEN_S, RETURNED_BY_MAX
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions
from tests.support.router_site import RecordingConsumer, RouterSite, attempts


def kept(site: RouterSite) -> dict[str, dict[int, int]]:
    return {key: unpack(value) for key, value in site.store.state.items(ATTEMPTS)}


def fail(site: RouterSite, consumer: RecordingConsumer, times: int = 1) -> None:
    for _ in range(times):
        consumer.answer(DeliveryOutcome.MODIFIED_FAILED)
        site.settle_down()


def restart(site: RouterSite, address: str = "queue/a") -> RecordingConsumer:
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    site.boot()
    return site.consumer(address)


def test_last_attempt_comes_after_a_restart() -> None:
    site = RouterSite(queue=attempts(4))
    site.send("queue/a", b"poison", b"fine")
    consumer = site.consumer("queue/a")
    assert consumer.last is not None
    for failed in range(1, 4):
        fail(site, consumer)
        consumer = restart(site)
        assert sorted(consumer.got) == [("fine", 0), ("poison", failed)]
        assert list(kept(site).values()) == [{0: failed}]
        consumer.last = (site.router.queues["queue/a"], 0)
    fail(site, consumer)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    assert site.consumer("deadletter/dead").got == [("poison", 0)]
    assert kept(site) == {}, "nothing is kept of what is settled"
    assert site.unacknowledged("queue/a") == 1


def test_attempts_of_a_subscription_count() -> None:
    site = RouterSite(topic=attempts(3))
    options = SubscribeOptions(durable_name="sub")
    site.consumer("topic/a", options=options)
    site.boot()
    consumer = site.consumer("topic/a", options=options)
    site.send("topic/a", b"0")
    fail(site, consumer, 2)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    site.boot()
    consumer = site.consumer("topic/a", options=options)
    assert consumer.got == [("0", 2)]
    fail(site, consumer)
    assert site.consumer("deadletter/dead").got == [("0", 0)]


def test_message_accepted_after_failures_loses_its_count() -> None:
    site = RouterSite(queue=attempts(4))
    site.send("queue/a", b"0", b"1")
    consumer = site.consumer("queue/a")
    fail(site, consumer, 2)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    assert kept(site) != {}
    consumer.last = (site.router.queues["queue/a"], 0)
    consumer.answer(DeliveryOutcome.ACCEPTED, 2)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    assert kept(site) == {}
    assert site.unacknowledged("queue/a") == 0


def test_count_of_an_acknowledged_message_is_dropped() -> None:
    site = RouterSite(queue=attempts(4))
    site.send("queue/a", b"0", b"1", b"2")
    consumer = site.consumer("queue/a")
    fail(site, consumer)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    (key,) = kept(site)
    site.store.cursors.acknowledge(site.router.queues["queue/a"].cursor, 0, 1)
    site.settle_down()
    site.boot()
    assert not site.router.queues["queue/a"].failures.counts
    assert key in kept(site), "it is of no account, and goes with the next change"


def test_deleted_subscription_leaves_no_counts() -> None:
    site = RouterSite(topic=attempts(9))
    consumer = site.consumer("topic/a", options=SubscribeOptions(durable_name="sub"))
    site.send("topic/a", b"0")
    fail(site, consumer)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    assert kept(site) != {}
    assert consumer.joined is not None
    site.router.subscriptions.unsubscribe(consumer, consumer.joined, forget=True)
    site.settle_down()
    assert kept(site) == {}


def test_unlimited_attempts_write_nothing() -> None:
    site = RouterSite()
    site.send("queue/a", b"0")
    consumer = site.consumer("queue/a")
    fail(site, consumer, 5)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    assert kept(site) == {}
    assert consumer.got[-1] == ("0", 5)


def test_counts_are_written_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    site = RouterSite(queue=attempts(1_000))
    written: list[str] = []
    put = site.store.state.put

    def counted(kind: str, key: str, value: bytes) -> None:
        written.append(kind)
        put(kind, key, value)

    monkeypatch.setattr(site.store.state, "put", counted)
    site.send("queue/a", b"0")
    consumer = site.consumer("queue/a")
    written.clear()
    for _ in range(100):
        site.now += 0.05
        fail(site, consumer)
    assert 5 <= written.count(ATTEMPTS) <= 6


def test_unreadable_counts_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    site = RouterSite(queue=attempts(2))
    site.send("queue/a", b"0")
    consumer = site.consumer("queue/a")
    fail(site, consumer)
    site.settle_down(wait_s=ATTEMPTS_WRITTEN_S)
    (key,) = kept(site)
    site.store.state.put(ATTEMPTS, key, b"\xc1")
    site.settle_down()
    site.boot()
    assert site.consumer("queue/a").got == [("0", 0)]
    assert "cannot read the stored counts" in caplog.text


def test_messages_with_most_failures_keep_their_counts() -> None:
    counts = Attempts()
    for position in range(ATTEMPTS_KEPT_MAX + 10):
        counts.failed(position)
    for position in range(0, 20, 2):
        counts.failed(position)
    packed = counts.pack()
    assert packed is not None
    found = unpack(packed)
    assert len(found) == ATTEMPTS_KEPT_MAX
    assert {position for position, count in found.items() if count == 2} == set(range(0, 20, 2))


def test_consumers_skipped_by_a_message_are_bounded() -> None:
    attempts, site = Attempts(), RouterSite()
    consumers = [site.consumer("queue/a", f"{i}") for i in range(RETURNED_BY_MAX + 1)]
    for i, consumer in enumerate(consumers):
        attempts.pass_over(0, consumer, float(i))
        attempts.pass_over(0, consumer, float(i))
        assert attempts.is_passed_over(0, consumer)
        assert len(attempts.excluded_consumers(0) or ()) <= RETURNED_BY_MAX
    assert not attempts.is_passed_over(0, consumers[0]), "the oldest may have it again"


def test_consumers_excluded_from_a_message_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.broker.delivery.attempts.EXCLUDED_MAX", 10)
    monkeypatch.setattr("edge.broker.delivery.attempts.ATTEMPTS_TRACKED_MAX", 30)
    attempts = Attempts()
    here, there = RouterSite().consumer("queue/a", "here"), RouterSite().consumer("queue/a", "there")
    for position in range(50):
        attempts.exclude(position, here)
        attempts.exclude(position, here)
        attempts.exclude(position, there)
        assert sum(len(attempts.excluded_consumers(p) or ()) for p in range(50)) <= 10
        assert len(attempts.counts) <= 30
    assert attempts.excluded_consumers(49) == {here, there}, "the newest are kept"
    attempts.left(here)
    assert attempts.excluded_consumers(49) == {there}
    attempts.forget(0, 49)
    assert attempts.excluded_consumers(49) is None
    assert attempts.is_idle
