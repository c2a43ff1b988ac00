"""Answers arrive in any order and are settled from the front, once each."""

from __future__ import annotations

import itertools

import pytest

from bridge.connectors.flights import ACCEPTED, Flight, Flights, MessageAnswer
from bridge.forwarders.outcome import ForwardOutcome

REJECTED = MessageAnswer(ForwardOutcome.REJECTED, "too large")


class Settled:
    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str, int | None]] = []

    def __call__(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        self.calls.append((ticket, outcome.value, why, count))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order_settles_each_message_once_and_in_order(order: tuple[int, ...]) -> None:
    settled, flight = Settled(), Flight(7, 4)
    flights = Flights(settled)
    answered: set[int] = set()
    for place in order:
        flights.answered(flight, place, REJECTED if place == 2 else ACCEPTED)
        flights.flush()
        answered.add(place)
        front = next(i for i in range(5) if i not in answered)
        assert sum(count or 0 for *_, count in settled.calls) == front
    said = [outcome for _, outcome, _, count in settled.calls for _ in range(count or 0)]
    assert said == ["accepted", "accepted", "rejected", "accepted"]
    assert flight.over


def test_what_has_one_answer_is_one_call() -> None:
    settled, flight = Settled(), Flight(1, 5)
    flights = Flights(settled)
    for place, answer in enumerate([ACCEPTED, ACCEPTED, REJECTED, ACCEPTED, ACCEPTED]):
        flights.answered(flight, place, answer)
    flights.flush()
    assert settled.calls == [(1, "accepted", "", 2), (1, "rejected", "too large", 1), (1, "accepted", "", 2)]
    flights.flush()
    assert len(settled.calls) == 3


def test_the_first_answer_counts() -> None:
    settled, flight = Settled(), Flight(1, 2)
    flights = Flights(settled)
    flights.answered(flight, 0, ACCEPTED)
    flights.answered(flight, 0, REJECTED)
    flights.flush()
    flights.answered(flight, 0, REJECTED)
    flights.flush()
    assert settled.calls == [(1, "accepted", "", 1)]
    assert not flight.over
