"""Retained messages that a peer sends again for a new subscription."""

from __future__ import annotations

from bridge.limits import INBOX_NAMES_MAX
from bridge.message import RETAIN, Run
from edge.broker.router.retained_repeats import RetainedRepeats


def message(address: str, body: bytes) -> Run:
    return Run(address, "dev", RETAIN, b"", [body])


def test_repeated_message_of_each_address_is_dropped_once() -> None:
    here = {"a": message("a", b"1"), "b": message("b", b"1")}
    repeats = RetainedRepeats(here.get)
    assert repeats.is_repeat(message("a", b"1"))
    assert not repeats.is_repeat(message("a", b"1")), "a live one that says the same is a new reading"
    assert not repeats.is_repeat(message("b", b"2")), "its value has changed"
    here["b"] = message("b", b"2")
    assert repeats.is_repeat(message("b", b"2")), "it waited in the session, and is retained as well"
    assert not repeats.is_repeat(message("c", b"1"))
    repeats.begin()
    assert repeats.is_repeat(message("a", b"1"))


def test_remembered_addresses_are_bounded() -> None:
    repeats = RetainedRepeats(lambda address: message(address, b"1"))
    assert all(repeats.is_repeat(message(f"a/{i}", b"1")) for i in range(INBOX_NAMES_MAX))
    assert not repeats.is_repeat(message("beyond", b"1")), "beyond it a repeat is a new reading"
    assert not repeats.is_repeat(message("a/7", b"1"))
