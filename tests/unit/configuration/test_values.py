"""Durations, sizes, endpoints and URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.resources import values
from bridge.resources.endpoint import ListenEndpoint, valid_port
from edge.broker.model.address_policy import Durability, DurabilityMode


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0.0), (1500, 1.5), (0.5, 0.0005), ("250ms", 0.25), ("90s", 90.0), ("1.5h", 5400.0), (" 7 d ", 604800.0)],
)
def test_durations_are_read_and_printed(value: str | float, seconds: float) -> None:
    assert values.duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "bytes_"), [(10, 10), ("10", 10), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 1610612736), ("2 T", 2 * 10**12)]
)
def test_sizes_are_read_and_printed(value: str | int, bytes_: int) -> None:
    assert values.size(value) == bytes_


@pytest.mark.parametrize(
    ("value", "expected", "loopback"),
    [
        ("127.0.0.1:0", ListenEndpoint("127.0.0.1", 0), True),
        ("localhost:1", ListenEndpoint("localhost", 1), True),
        ("0.0.0.0:1", ListenEndpoint("0.0.0.0", 1), False),
        ("gateway.local:1883", ListenEndpoint("gateway.local", 1883), False),
        ("[::1]:5672", ListenEndpoint("::1", 5672), True),
    ],
)
def test_endpoints_survive_a_round_trip(value: str, expected: ListenEndpoint, loopback: bool) -> None:
    assert ListenEndpoint.parse(value) == expected
    assert expected.loopback is loopback
    assert str(expected) == value


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://hub", (False, ListenEndpoint("hub", 5672), None)),
        ("amqps://hub/", (True, ListenEndpoint("hub", 5671), None)),
        ("amqp://hub:7000", (False, ListenEndpoint("hub", 7000), None)),
        ("amqps://[2001:db8::1]", (True, ListenEndpoint("2001:db8::1", 5671), None)),
        ("amqp://[::1]:1", (False, ListenEndpoint("::1", 1), None)),
        ("wss://hub", (True, ListenEndpoint("hub", 443), "/")),
        ("wss://hub:8443/a/b?c", (True, ListenEndpoint("hub", 8443), "/a/b?c")),
        ("ws://[::1]/", (False, ListenEndpoint("::1", 80), "/")),
    ],
)
def test_urls_of_hubs_are_read(url: str, expected: tuple[bool, ListenEndpoint, str | None]) -> None:
    assert values.HubUrl.parse(url) == expected


def test_durabilities_are_read() -> None:
    assert Durability.parse("fsync") == Durability()
    assert Durability.parse("memory") == Durability(DurabilityMode.MEMORY)
    assert Durability.parse("batch:20") == Durability(DurabilityMode.BATCH, 0.02)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (values.duration, "7 days"),
        (values.duration, "-1s"),
        (values.duration, ""),
        (values.duration, float("nan")),
        (values.duration, float("inf")),
        (values.duration, "9999999999999w"),
        (values.size, "1kb"),
        (values.size, -1),
        (values.size, "99999999999T"),
        (ListenEndpoint.parse, ""),
        (ListenEndpoint.parse, "1883"),
        (ListenEndpoint.parse, ":1883"),
        (ListenEndpoint.parse, "::1:1883"),
        (ListenEndpoint.parse, "host:65536"),
        (ListenEndpoint.parse, "host:-1"),
        (ListenEndpoint.parse, "host:\uff11"),
        (ListenEndpoint.parse, "[]:1"),
        (ListenEndpoint.parse, "a b:1"),
        (valid_port, 70000),
        (Durability.parse, "batch:0"),
        (Durability.parse, "batch:60001"),
        (Durability.parse, "fsync:"),
        (values.HubUrl.parse, "mqtt://hub"),
        (values.HubUrl.parse, "hub:5672"),
        (values.HubUrl.parse, "amqp://"),
        (values.HubUrl.parse, "amqp://user:word@hub:1"),
        (values.HubUrl.parse, "amqp://hub:1/path"),
        (values.HubUrl.parse, "https://hub"),
        (values.HubUrl.parse, "wss:///path"),
        (values.HubUrl.parse, "wss://hub/a path"),
    ],
)
def test_invalid_value_is_named_in_the_error(read: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(ValueError, match=r"no|range") as caught:
        read(value)
    assert str(value) in str(caught.value) or "host" in str(caught.value) or "port" in str(caught.value)
