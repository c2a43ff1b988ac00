"""Sessions of absent clients are due in order of time, and none is due too often."""

from __future__ import annotations

from edge.broker.mqtt.due_sessions import DueSessions


def test_sessions_are_due_in_order_of_time() -> None:
    due = DueSessions()
    for client_id, at in (("late", 20.0), ("never", None), ("early", 10.0)):
        due.add(client_id, at)
    assert due.take(9.0) is None
    assert [due.take(30.0), due.take(30.0), due.take(30.0)] == ["early", "late", None]


def test_reconnecting_client_leaves_bounded_entries() -> None:
    due = DueSessions()
    for _ in range(10_000):
        due.add("one", 1e9)
        if due.is_outdated(1):
            due.replace([("one", 1e9)])
    assert len(due) < 1_010
    assert due.take(2e9) == "one"
