"""Retained messages by filter, against the plain definition of matching."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.message import Run
from edge.broker.limits import RETAINED_JUDGED_AGAIN_S, RETAINED_PURGED_MAX, RETAINED_STALE_MAX, Limits
from edge.broker.model.topics import matches, widen
from edge.broker.retention.names import NameQuotas
from edge.broker.router.retained import KIND, RetainedMessages
from edge.broker.store.errors import StoreError
from edge.broker.store.ticket import Ticket
from tests.support.memory_store import MemoryStore

LEVELS = st.sampled_from(("", "a", "b", "$x"))
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.booleans()).map(
    lambda made: "/".join([*made[0], *(["#"] if made[1] or not made[0] else [])])
)


def run(address: str, body: bytes) -> Run:
    return Run(address, "d", 1, b"", [body])


@given(
    st.lists(st.tuples(NAMES, st.booleans()), max_size=20),
    st.lists(FILTERS | FILTERS.map(widen), min_size=1, max_size=5),
)
def test_matching_equals_the_definition(changes: list[tuple[str, bool]], filters: list[str]) -> None:
    store = MemoryStore(post=lambda call: call())
    retained = RetainedMessages(store.state, NameQuotas(Limits()))
    model: dict[str, bytes] = {}
    deleted: set[str] = set()
    for i, (address, keep) in enumerate(changes):
        body = b"%d" % i if keep else b""
        changed = retained.put(run(address, body), "")
        assert (changed is not None) is (keep or address in model or address in deleted)
        if keep:
            model[address] = body
        elif model.pop(address, None) is not None:
            deleted.add(address)
    store.commits.flush()
    for each in (retained, RetainedMessages(store.state, NameQuotas(Limits()))):
        assert len(each) == len(model)
        for pattern in filters:
            found = {kept.address: kept.bodies[0] for kept in each.matching(pattern)}
            assert found == {name: body for name, body in model.items() if matches(pattern, name)}
            assert len(found) == sum(kept is not None for kept in each.walk(pattern)), "each once"
    for address in model:
        retained.discard(address)
    assert len(retained) == 0
    assert not retained._tree, "no branch is left"


def test_second_deletion_waits_for_the_first() -> None:
    posted: deque[Callable[[], None]] = deque()
    store = MemoryStore(post=posted.append)
    retained = RetainedMessages(store.state, NameQuotas(Limits()))

    def commit(failure: StoreError | None = None) -> None:
        store.failure = failure
        store.commits.flush()
        while posted:
            posted.popleft()()
        store.failure = None

    retained.put(run("a", b"1"), "")
    commit()
    first = retained.put(run("a", b""), "")
    assert first is not None
    assert retained.put(run("a", b""), "") is first
    commit(StoreError("the medium failed"))
    assert first.error is not None
    second = retained.put(run("a", b""), "")
    assert second is not None
    assert second is not first
    commit()
    assert second.error is None
    assert retained.put(run("a", b""), "") is None
    assert len(RetainedMessages(store.state, NameQuotas(Limits()))) == 0


def test_wildcard_scans_only_its_branch() -> None:
    retained = RetainedMessages(MemoryStore(post=lambda call: call()).state, NameQuotas(Limits()))
    for i in range(20_000):
        retained.put(run(f"plant/{i}/temperature", b"1"), "")
    steps = list(retained.walk("plant/77/+"))
    assert [each.address for each in steps if each is not None] == ["plant/77/temperature"]
    assert len(steps) <= 4


@pytest.mark.parametrize(
    "topic",
    [lambda i: f"plant/device-{i:05d}/state", lambda i: f"load/{i // 20}/m{i % 20}"],
    ids=["one a device", "twenty a device"],
)
def test_memory_of_a_topic_above_its_body_is_bounded(topic: Callable[[int], str]) -> None:
    """A retained topic takes at most 300 bytes with its name, as a million of them have to fit a small gateway."""
    count, body = 20_000, bytes(100)
    retained = RetainedMessages(Nowhere(), NameQuotas(Limits()))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for i in range(count):
            retained.put(Run(topic(i), f"client-{i}", 1, b"", [body], 10**18 + i), "")
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (taken - before) / count - len(body) <= 300


class Nowhere:
    """State that is discarded, so that only memory counts."""

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        return Ticket()

    def delete(self, kind: str, key: str) -> Ticket:
        return Ticket()

    def get(self, kind: str, key: str) -> bytes | None:
        return None

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return iter(())


class Shelf:
    """Retained messages with a clock; the body of a message is its lifetime in seconds, ``0``: for ever."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.now_s = 0
        self.judged: set[str] = set()
        self.unknown_age: set[str] = set()
        self.store = store or MemoryStore(post=lambda call: call())
        self.kept = RetainedMessages(
            self.store.state, NameQuotas(Limits()), lambda run: int(run.bodies[0]) * 10**9 or None
        )

    def put(self, address: str, ttl_s: int) -> None:
        self.kept.put(Run(address, "d", 1, b"", [b"%d" % ttl_s], self.now_s * 10**9), "")

    def tick(self, now_s: int) -> None:
        self.now_s = now_s
        self.kept.purge(now_s * 10**9, self._is_over)
        self.store.commits.flush()

    def _is_over(self, run: Run, ttl: int) -> bool:
        self.judged.add(run.address)
        return run.address not in self.unknown_age and self.now_s * 10**9 - run.received_at >= ttl

    @property
    def names(self) -> set[str]:
        return {found.address for found in self.kept.matching("#")}

    @property
    def stored(self) -> set[str]:
        return {address for address, _ in self.store.state.items(KIND)}


class TestExpiry:
    def test_expired_message_leaves_memory_and_store(self) -> None:
        shelf = Shelf()
        for i in range(10):
            shelf.put(f"a/{i}", i)  # the first one for ever
        shelf.tick(4)
        assert shelf.names == shelf.stored == {"a/0", *(f"a/{i}" for i in range(5, 10))}
        assert (len(shelf.kept), shelf.kept.expired) == (6, 4)
        assert shelf.judged == {f"a/{i}" for i in range(1, 5)}, "nothing else was looked at"

    def test_expired_message_leaves_after_a_restart(self) -> None:
        shelf = Shelf()
        shelf.put("a", 5)
        shelf.tick(1)
        again = Shelf(shelf.store)
        again.tick(6)
        assert again.names == again.stored == set()

    def test_replaced_message_starts_a_new_lifetime(self) -> None:
        shelf = Shelf()
        shelf.put("a", 5)
        shelf.put("b", 5)
        shelf.tick(4)
        shelf.put("a", 5)
        shelf.put("b", 0)
        shelf.tick(8)
        assert shelf.names == {"a", "b"}
        shelf.tick(9)
        assert shelf.names == {"b"}

    def test_expiry_is_limited_for_each_turn(self) -> None:
        shelf = Shelf()
        for i in range(RETAINED_PURGED_MAX + 20):
            shelf.put(f"a/{i}", 1)
        shelf.tick(5)
        assert len(shelf.kept) == 20
        shelf.tick(5)
        assert len(shelf.kept) == 0

    def test_memory_of_replaced_messages_is_bounded(self) -> None:
        shelf = Shelf()
        for i in range(3 * RETAINED_STALE_MAX):
            shelf.put("a", 1_000_000 + i)
            shelf.tick(1)
            assert len(shelf.kept._due) <= RETAINED_STALE_MAX + 4
        assert shelf.names == {"a"}
        shelf.tick(2_000_000)
        assert shelf.names == set()

    def test_message_of_unknown_age_is_judged_later(self) -> None:
        shelf = Shelf()
        shelf.unknown_age.add("a")
        shelf.put("a", 1)
        shelf.tick(5)
        shelf.unknown_age.clear()
        shelf.tick(6)
        assert shelf.names == {"a"}
        shelf.tick(6 + RETAINED_JUDGED_AGAIN_S)
        assert shelf.names == set()
