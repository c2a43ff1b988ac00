"""Retained messages by filter, against the plain definition of matching."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.message import Run
from edge.broker.retained import RetainedMessages
from edge.broker.store.memory import MemoryStore
from edge.broker.topics import matches

LEVELS = st.sampled_from(("", "a", "b", "$x"))
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(st.lists(LEVELS | st.just("+"), max_size=4), st.booleans()).map(
    lambda made: "/".join([*made[0], *(["#"] if made[1] or not made[0] else [])])
)


def run(address: str, body: bytes) -> Run:
    return Run(address, "d", 1, b"", [body])


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=20), st.lists(FILTERS, min_size=1, max_size=5))
def test_matching(changes: list[tuple[str, bool]], filters: list[str]) -> None:
    store = MemoryStore(post=lambda call: call())
    retained = RetainedMessages(store)
    model: dict[str, bytes] = {}
    for i, (address, keep) in enumerate(changes):
        body = b"%d" % i if keep else b""
        changed = retained.put(run(address, body))
        assert changed is (keep or address in model)
        if keep:
            model[address] = body
        else:
            model.pop(address, None)
    store.flush()
    for each in (retained, RetainedMessages(store)):
        assert len(each) == len(model)
        for pattern in filters:
            found = {kept.address: kept.bodies[0] for kept in each.matching(pattern)}
            assert found == {name: body for name, body in model.items() if matches(pattern, name)}
    for address in model:
        retained.discard(address)
    assert len(retained) == 0
    assert not retained._root.levels, "no branch is left"


def test_a_wildcard_looks_at_its_own_branch_only() -> None:
    retained = RetainedMessages(MemoryStore(post=lambda call: call()))
    for i in range(20_000):
        retained.put(run(f"plant/{i}/temperature", b"1"))
    visited = 0
    collect = retained._collect

    def counting(*arguments: object) -> None:
        nonlocal visited
        visited += 1
        collect(*arguments)  # type: ignore[arg-type]

    retained._collect = counting  # type: ignore[method-assign]
    assert [each.address for each in retained.matching("plant/77/+")] == ["plant/77/temperature"]
    assert visited <= 4
