"""Order of gateways in the landing queue."""

from __future__ import annotations

from collections import Counter

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.groups import GatewaySession, QueueEntry
from cloud.hub.limits import LANDED_BYTES_A_SECOND
from cloud.hub.queue import EntryQueue
from cloud.lake.limits import LANDING_BYTES_MAX
from cloud.lake.rows import ReceivedBatch

SIZE = 1 << 20
A_LANDING = LANDING_BYTES_MAX // SIZE - 1
"""Batches of that size that fit into a landing, with their overhead."""


class Rig:
    def __init__(self) -> None:
        self.queue = EntryQueue()
        self.sessions: dict[str, GatewaySession] = {}
        self.put_in = 0

    def put(self, gateway: str, count: int, size: int = SIZE) -> None:
        session = self.sessions.setdefault(gateway, GatewaySession("default", gateway, "-"))
        for _ in range(count):
            stored = Stored(-1, self.put_in, Run("a", "d", 1, b"", [b"x" * size], 1))
            batch = decode(encode([stored], space="s", epoch="e"))
            self.queue.put(QueueEntry(session, ReceivedBatch(*session.key, batch), print, float(self.put_in)))
            self.put_in += 1

    def take(self) -> list[str]:
        taken = self.queue.take(1e9, everything=False)
        assert [entry.at_s for entry in taken if entry.session.gateway == "a"] == sorted(
            entry.at_s for entry in taken if entry.session.gateway == "a"
        )
        return [entry.session.gateway for entry in taken]


def test_two_busy_gateways_share_equally() -> None:
    rig = Rig()
    rig.put("a", 30)
    rig.put("b", 30)
    found = Counter(rig.take())
    assert abs(found["a"] - found["b"]) <= 1
    assert sum(found.values()) >= A_LANDING


def test_gateway_with_little_data_is_first() -> None:
    rig = Rig()
    for gateway in "abc":
        rig.put(gateway, 30)
    rig.take()
    rig.put("small", 1, 10)
    assert "small" in rig.take()[:4]


def test_unused_time_is_not_saved() -> None:
    rig = Rig()
    rig.put("b", 1, 10)
    rig.take()
    rig.put("a", 5 * A_LANDING)
    for _ in range(4):
        rig.take()
    rig.put("b", 30)
    found = Counter(rig.take())
    assert abs(found["a"] - found["b"]) <= 2, "though a alone had all of it before"


def test_gateway_with_expensive_rows_gets_fewer() -> None:
    rig = Rig()
    rig.put("a", 30)
    rig.put("b", 30)
    rig.queue.charge({("default", "a"): 6 * SIZE / LANDED_BYTES_A_SECOND})
    found = Counter(rig.take())
    assert 4 <= found["b"] - found["a"] <= 8


def test_idle_gateways_leave_no_state() -> None:
    rig = Rig()
    for number in range(50):
        rig.put(str(number), 1, 10)
    while rig.queue.fresh:
        rig.take()
    rig.put("a", 100)
    for _ in range(3):
        rig.take()
    assert len(rig.queue._used_s) <= 1


def test_gateway_that_ran_out_of_time_is_first() -> None:
    rig = Rig()
    rig.put("a", 3)
    taken = rig.queue.take(1e9, everything=False)
    rig.put("a", 2)
    rig.queue.put_first(taken[1:])
    assert rig.queue.urgent
    assert [entry.at_s for entry in rig.queue.take(1e9, everything=False)] == [1.0, 2.0, 3.0, 4.0]
    assert (rig.queue.bytes, rig.queue.rows) == (0, 0)
