"""Conditions on the messages that a forwarder sends: on the address, on properties, on a JSON body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from bridge.amqp_values import DecodeError
from bridge.message import AMQP, Run
from edge.broker.configuration import Only
from edge.broker.message.json_condition import JsonCondition
from edge.broker.message.selectable import selectable_values
from edge.broker.message.selector import MessageSelector
from edge.broker.message.translation import amqp_from_run, payload_of
from edge.broker.model.topics import matches

Wanted = Callable[[Run], Sequence[bool] | None]
"""Returns one value for each message of a run; None: all of them."""


def wanted_by(only: Only | None) -> Wanted:
    """Return the condition as `bridge.forwarders.outbox.ForwardRule` takes it. Raises `SelectorError` or
    `JsonConditionError`."""
    if only is None:
        return everything
    selector = MessageSelector(only.properties) if only.properties is not None else None
    condition = JsonCondition(only.body) if only.body is not None else None
    return ForwarderFilter(only.address, selector, condition)


def everything(_run: Run) -> None:
    """Accept all messages, for a forwarder without a condition."""
    return


class ForwarderFilter:
    """Conjunction of all given conditions."""

    def __init__(self, address: str | None, selector: MessageSelector | None, condition: JsonCondition | None) -> None:
        self._address = address
        self._selector = selector
        self._condition = condition

    def __call__(self, run: Run) -> Sequence[bool] | None:
        if self._address is not None and not matches(self._address, run.address):
            return list(repeat(False, len(run)))
        if self._selector is None and self._condition is None:
            return None
        selected = self._selected(run)
        if self._condition is None:
            return selected
        return [chosen and self._holds(run, body) for chosen, body in zip(selected, run.bodies, strict=True)]

    def _selected(self, run: Run) -> list[bool]:
        selector = self._selector
        if selector is None:
            return list(repeat(True, len(run)))
        if run.flags & AMQP:
            return [_selects(selector, run.properties + body) for body in run.bodies]
        alike = _selects(selector, amqp_from_run(run, 0))  # a run has one set of MQTT properties
        return list(repeat(alike, len(run)))

    def _holds(self, run: Run, body: bytes) -> bool:
        if self._condition is None:
            return True
        if run.flags & AMQP:
            try:
                body = payload_of(body)[2]
            except DecodeError:
                return False
        return self._condition.holds(body)


def _selects(selector: MessageSelector, message: bytes) -> bool:
    try:
        return selector.matches(selectable_values(message))
    except DecodeError:
        return False
