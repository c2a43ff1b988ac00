"""When sessions of clients that are away are looked at: in order of time, and not one too often."""

from __future__ import annotations

from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.clock import Clock
from edge.broker.model.interfaces import Figures
from edge.broker.mqtt.due_sessions import DueSessions
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.mqtt.session import Common, Session

LIFETIME = Lifetime(Clock(lambda: 0, lambda: True, lambda: 0.0))


def session(name: str, expires_at: float | None) -> Session:
    made = Session(name, Common(MqttTranslator(), LIFETIME, Figures(), lambda _: None))
    made.expires_at = expires_at
    return made


def test_in_order_of_time() -> None:
    due = DueSessions()
    late, early, never = session("late", 20.0), session("early", 10.0), session("never", None)
    for each in (late, never, early):
        due.add(each)
    assert due.take(9.0) is None
    assert [due.take(30.0), due.take(30.0), due.take(30.0)] == ["early", "late", None]


def test_who_comes_and_goes_leaves_a_bounded_trace() -> None:
    due = DueSessions()
    one = session("one", 1e9)
    for _ in range(10_000):
        due.add(one)
        due.tidy([one], 1)
    assert len(due) < 1_010
    assert due.take(2e9) == "one"
