"""Forwarders that would feed one another are refused, and others are not."""

from __future__ import annotations

import pytest

from tests.unit.configuration.documents import address, errors_of, space

PEERS = space(
    "{connectors: [{name: one, type: amqp, endpointHosts: [{host: a}, {host: b}]},"
    " {name: again, type: amqp, endpointHosts: [{host: b}]},"
    " {name: other, type: amqp, endpointHosts: [{host: c}]}]}"
)


def forwarders(name: str, *each: tuple[str, str]) -> str:
    """Return an address with forwarders (direction, remote address)."""
    parts = [f"{{name: {way}{i}, direction: {way}, remoteAddress: '{remote}'}}" for i, (way, remote) in enumerate(each)]
    return address(
        f"address: {name}, type: topic, forwarders: [{', '.join(parts)}]", name.replace("/", "-").strip("#+-")
    )


@pytest.mark.parametrize(
    "text",
    [
        forwarders("x/#", ("out", "one/y"), ("in", "one/y")),
        forwarders("x/#", ("out", "one/x/#"), ("in", "one/x/#")),
        forwarders("x/#", ("out", "one/a/#"), ("in", "one/a/b")),
        forwarders("x/#", ("out", "one/{device}/y"), ("in", "one/d/y")),
        forwarders("x/#", ("out", "one/y"), ("in", "again/y")),
        forwarders("x/#", ("out", "one/y")) + forwarders("x/1", ("in", "one/y")),
        forwarders("x/1", ("out", "one/y"), ("in", "other/z")) + forwarders("v", ("in", "one/y"), ("out", "other/z")),
    ],
)
def test_ring_is_refused_once(text: str) -> None:
    found = errors_of(PEERS + text)
    assert len(found) == 1
    assert "forwarding loop: its messages come back through" in str(found[0])


@pytest.mark.parametrize(
    "text",
    [
        forwarders("x/#", ("out", "one/y"), ("in", "one/z")),
        forwarders("x/#", ("out", "one/y"), ("in", "other/y")),
        forwarders("x/#", ("out", "one/y")) + forwarders("z", ("in", "one/y")),
        forwarders("x", ("out", "one/y"), ("out", "again/y"), ("out", "other/y")),
        forwarders("x/1", ("out", "one/y")) + forwarders("v", ("in", "one/y"), ("out", "other/z")),
    ],
)
def test_other_forwarders_are_accepted(text: str) -> None:
    assert errors_of(PEERS + text) == []


def test_error_names_the_path_of_the_ring() -> None:
    text = forwarders("x/1", ("out", "one/y"), ("in", "other/z")) + forwarders("v", ("in", "one/y"), ("out", "other/z"))
    (found,) = errors_of(PEERS + text)
    assert 'its messages come back through "in0" (in), then "out1" (out), then "in1" (in)' in str(found)
