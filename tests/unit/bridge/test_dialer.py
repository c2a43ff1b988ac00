"""Endpoints as people write them."""

from __future__ import annotations

import pytest

from bridge.dialer import Endpoint


@pytest.mark.parametrize(
    ("url", "endpoint", "text"),
    [
        ("amqp://hub:5700", Endpoint("hub", 5700), "amqp://hub:5700"),
        ("amqp://hub", Endpoint("hub", 5672), "amqp://hub:5672"),
        ("amqps://hub/", Endpoint("hub", 5671, tls=True), "amqps://hub:5671"),
        ("amqp://[::1]:1", Endpoint("::1", 1), "amqp://[::1]:1"),
    ],
)
def test_endpoint(url: str, endpoint: Endpoint, text: str) -> None:
    assert Endpoint.parse(url) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("url", ["hub:5672", "http://hub", "amqp://", "amqp://hub/queue", "amqp://hub:99999", ""])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(url)
