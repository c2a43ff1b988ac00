"""Answers arrive in any order and are settled from the front, once each."""

from __future__ import annotations

import itertools

import pytest

from bridge.connectors.ticket_answers import ACCEPTED, AnswerCollector, MessageAnswer, TicketAnswers
from bridge.forwarders.outcome import ForwardOutcome

REJECTED = MessageAnswer(ForwardOutcome.REJECTED, "too large")


class Settled:
    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str, int | None]] = []

    def __call__(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        self.calls.append((ticket, outcome.value, why, count))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order_settles_each_message_once_and_in_order(order: tuple[int, ...]) -> None:
    settled, answers = Settled(), TicketAnswers(7, 4)
    collector = AnswerCollector(settled)
    answered: set[int] = set()
    for place in order:
        collector.record(answers, place, REJECTED if place == 2 else ACCEPTED)
        collector.flush()
        answered.add(place)
        front = next(i for i in range(5) if i not in answered)
        assert sum(count or 0 for *_, count in settled.calls) == front
    said = [outcome for _, outcome, _, count in settled.calls for _ in range(count or 0)]
    assert said == ["accepted", "accepted", "rejected", "accepted"]
    assert answers.complete


def test_messages_with_one_answer_are_settled_in_one_call() -> None:
    settled, answers = Settled(), TicketAnswers(1, 5)
    collector = AnswerCollector(settled)
    for place, answer in enumerate([ACCEPTED, ACCEPTED, REJECTED, ACCEPTED, ACCEPTED]):
        collector.record(answers, place, answer)
    collector.flush()
    assert settled.calls == [(1, "accepted", "", 2), (1, "rejected", "too large", 1), (1, "accepted", "", 2)]
    collector.flush()
    assert len(settled.calls) == 3


def test_first_answer_counts() -> None:
    settled, answers = Settled(), TicketAnswers(1, 2)
    collector = AnswerCollector(settled)
    collector.record(answers, 0, ACCEPTED)
    collector.record(answers, 0, REJECTED)
    collector.flush()
    collector.record(answers, 0, REJECTED)
    collector.flush()
    assert settled.calls == [(1, "accepted", "", 1)]
    assert not answers.complete
