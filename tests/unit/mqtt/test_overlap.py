"""Overlapping subscriptions of one client beyond their bounds: a copy may come twice, and none is lost."""

from __future__ import annotations

import pytest

from bridge.message import Run, Stored
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.clock import MessageClock
from edge.broker.model.interfaces import MessageCounts
from edge.broker.mqtt import overlap
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.mqtt.session import MqttSession, SessionContext, Subscriber


def client() -> MqttSession:
    lifetime = Lifetime(MessageClock(lambda: 0, lambda: True, lambda: 0.0))
    return MqttSession("c", SessionContext(MqttTranslator(), lifetime, MessageCounts(), lambda _client: None))


def subscribe(one: MqttSession, pattern: str, qos: int = 1, **options: bool) -> Subscriber:
    made = Subscriber(one, SubscriptionRequest(pattern, qos, **options), len(one.subscribers) + 1, kept=True)
    one.subscribers[pattern] = made
    one.overlaps.changed(pattern)
    return made


def stored(first: int, count: int) -> Stored:
    return Stored(first, first, Run("t/a", "d", 1, b"", [b"%d" % (first + i) for i in range(count)]))


def parts(one: MqttSession, first: int, count: int) -> list[tuple[int, int, bool]]:
    return [(p.position, len(p.run.bodies), sent) for p, sent in one.overlaps.split_sent(7, stored(first, count))]


def test_only_overlapping_filters_are_marked() -> None:
    one = client()
    made = [subscribe(one, pattern) for pattern in ("t/a", "t/b", "u/+", "t/+")]
    assert [each.overlaps for each in made] == [True, True, False, True]


def test_many_subscriptions_are_all_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "OVERLAP_CHECKED_MAX", 3)
    one = client()
    made = [subscribe(one, pattern) for pattern in ("a", "b", "c")]
    assert not any(each.overlaps for each in made)
    made.append(subscribe(one, "d"))
    assert all(each.overlaps for each in made)


def test_partly_sent_runs_are_distinguished() -> None:
    one = client()
    assert parts(one, 10, 5) == [(10, 5, False)]
    assert parts(one, 8, 10) == [(8, 2, False), (10, 5, True), (15, 3, False)]
    assert parts(one, 8, 10) == [(8, 10, True)]


def test_remembered_ranges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "OVERLAP_RANGES_MAX", 3)
    one = client()
    for i in range(5):
        parts(one, 10 * i, 1)
    assert parts(one, 0, 1) == [(0, 1, False)], "forgotten: it comes once more"
    assert parts(one, 40, 1) == [(40, 1, True)]


def test_options_are_combined_and_no_local_applies_to_own_messages() -> None:
    one = client()
    subscribe(one, "t/+", 1, no_local=True)
    subscribe(one, "t/#", 0, retain_as_published=True)
    subscribe(one, "u/#", 2)
    other = one.overlaps.combined(Run("t/a", "d", 1, b"", [b""]))
    own = one.overlaps.combined(Run("t/a", "c", 1, b"", [b""]))
    assert other == overlap.MergedOptions(1, (1, 2), retain_as_published=True)
    assert own == overlap.MergedOptions(0, (2,), retain_as_published=True)
