"""Choice of the first endpoint in a round of attempts, after any connections and failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.endpoint_order import EndpointOrder
from bridge.limits import PREFERRED_ENDPOINT_AGAIN_S

NAMES = ("first", "second", "third")


def tried(order: EndpointOrder[str], answering: str, now: float) -> list[str]:
    """Run one round of a dialer; return the endpoints that it tried until one of `answering` connected."""
    rounds = []
    for endpoint in order.order(now):
        rounds.append(endpoint)
        if endpoint in answering.split():
            order.connected(endpoint)
            break
        order.failed(endpoint, now)
    return rounds


ROUNDS = st.lists(
    st.tuples(st.sets(st.sampled_from(NAMES)), st.sampled_from([0.0, 1.0, 60.0, PREFERRED_ENDPOINT_AGAIN_S / 2, 2e3])),
    max_size=20,
)


@given(ROUNDS)
def test_every_endpoint_is_in_each_round_once_and_the_preferred_one_is_kept(
    rounds: list[tuple[set[str], float]],
) -> None:
    order, now, preferred_at, last = EndpointOrder(NAMES), 0.0, 0.0, "first"
    for answering, passed_s in rounds:
        now += passed_s
        wanted = order.order(now)
        assert sorted(wanted) == sorted(NAMES)
        due = now - preferred_at >= PREFERRED_ENDPOINT_AGAIN_S
        assert wanted[0] == ("first" if due else last)
        assert [name for name in wanted if name != wanted[0]] == [name for name in NAMES if name != wanted[0]]
        done = tried(order, " ".join(answering), now)
        if "first" in done:
            preferred_at = now
        last = done[-1] if answering else "first"


def test_endpoint_that_failed_at_a_reconnect_is_no_longer_first() -> None:
    order = EndpointOrder(NAMES)
    assert tried(order, "second", 0.0) == ["first", "second"]
    assert tried(order, "second", 1.0) == ["second"]
    assert tried(order, "third", 2.0) == ["second", "first", "third"]
    assert tried(order, "first third", 3.0) == ["third"]
    assert tried(order, "", 4.0) == ["third", "first", "second"], "all fail"
    assert tried(order, "first second third", 5.0) == ["first"], "and the next round is as configured"
    assert tried(order, "second", 6.0) == ["first", "second"]


def test_preferred_endpoint_is_first_again_after_a_while() -> None:
    order = EndpointOrder(NAMES)
    tried(order, "second", 100.0)
    assert tried(order, "first second", 99.0 + PREFERRED_ENDPOINT_AGAIN_S) == ["second"]
    again = 100.0 + PREFERRED_ENDPOINT_AGAIN_S
    assert tried(order, "second", again) == ["first", "second"], "in vain"
    assert tried(order, "second", again + 1.0) == ["second"], "the time begins anew"
    assert tried(order, "first second", again + PREFERRED_ENDPOINT_AGAIN_S) == ["first"]
    assert order.order(again + PREFERRED_ENDPOINT_AGAIN_S) == list(NAMES)


def test_requested_attempt_starts_with_the_preferred_endpoint() -> None:
    order = EndpointOrder(NAMES)
    tried(order, "third", 0.0)
    order.reset()
    assert order.order(1.0) == list(NAMES)


def test_one_endpoint_is_accepted_and_none_is_refused() -> None:
    assert tried(EndpointOrder(["only"]), "", 0.0) == ["only"]
    with pytest.raises(ValueError, match="needs an endpoint"):
        EndpointOrder([])
