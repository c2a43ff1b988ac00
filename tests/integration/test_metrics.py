"""Metrics of a real gateway, parsed as Prometheus parses them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from proton import ConnectionException

from edge.appliance.gateway import ADDRESSES_SHOWN_MAX
from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from tests.support.amqp_client import connect_amqp
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, wait_until

KEPT = Properties(session_expiry_interval_s=600)
Series = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with edge(tmp_path, "gw") as running:
        yield running


def series(gateway: Waypost) -> dict[Series, float]:
    """Return every sample; a duplicate series makes the exposition invalid."""
    families = list(text_string_to_metric_families(ask(gateway, "GET", "/metrics").body.decode()))
    found = [((each.name, tuple(sorted(each.labels.items()))), each.value) for one in families for each in one.samples]
    assert [name for name, count in Counter(name for name, _ in found).items() if count > 1] == []
    return dict(found)


def of(found: dict[Series, float], name: str, address: str) -> list[float]:
    return [value for (each, labels), value in found.items() if each == name and ("address", address) in labels]


def publish(gateway: Waypost, *addresses: str) -> None:
    with Raw(gateway, 5).connect("writer") as writer:
        for number, address in enumerate(addresses, 1):
            writer.send(packets.Publish(address, b"x", qos=1, packet_id=number))
            assert isinstance(writer.receive(), packets.PubAck)


def test_metrics_of_each_address(gateway: Waypost) -> None:
    for client in ("one", "two"):
        with Raw(gateway, 5).connect(
            client, clean_start=False, properties=Properties(session_expiry_interval_s=600)
        ) as reader:
            reader.subscribe("plant/#", qos=1)
    publish(gateway, "queue/jobs", "queue/jobs", "queue/jobs", "plant/temp")
    found = series(gateway)
    assert of(found, "waypost_address_received_total", "queue/jobs") == [3]
    assert of(found, "waypost_address_settled_total", "queue/jobs") == [0]
    assert of(found, "waypost_address_messages", "queue/jobs") == [3]
    assert of(found, "waypost_address_consumers", "queue/jobs") == [0]
    assert of(found, "waypost_address_messages", "plant/#") == [1, 1], "one series for each subscription"
    assert found["waypost_addresses_left_out", ()] == 0
    assert ask(gateway, "GET", "/c/queue/jobs?settle=auto&wait=10").status == 200
    deadline = time.monotonic() + 20
    while of(found := series(gateway), "waypost_address_settled_total", "queue/jobs") != [1]:
        assert time.monotonic() < deadline  # a later commit settles it
        time.sleep(0.02)
    assert of(found, "waypost_address_received_total", "queue/jobs") == [3]


def test_addresses_above_the_limit_have_no_metrics(gateway: Waypost) -> None:
    publish(gateway, *(f"queue/{number}" for number in range(ADDRESSES_SHOWN_MAX + 3)))
    found = series(gateway)
    assert sum(name == "waypost_address_messages" for name, _ in found) == ADDRESSES_SHOWN_MAX
    assert found["waypost_addresses_left_out", ()] == 3


RESOURCES = resources(user("joe", "send, recv, view, manage", password="secret"))


def test_logins_refused_over_each_protocol_are_counted_by_reason(tmp_path: Path) -> None:
    with gateway_with(tmp_path, RESOURCES) as guarded:

        def refused() -> dict[str, float]:
            answer = ask(guarded, "GET", "/metrics", headers=basic("joe", "secret"))
            families = list(text_string_to_metric_families(answer.body.decode()))
            samples = [each for family in families for each in family.samples]
            return {each.labels["reason"]: each.value for each in samples if each.name == "waypost_refused_total"}

        def expect(count: int) -> None:
            reasons = {"wrong-password": count} if count else {}
            wait_until(lambda: refused() == reasons, timeout_s=20, what=f"{count} refused logins")

        expect(0)
        with Raw(guarded, 5) as client:
            client.send(packets.Connect("c", 5, username="joe", password=b"wrong"))
            answer = client.receive()
            assert isinstance(answer, packets.ConnAck)
            assert answer.reason
        expect(1)
        with pytest.raises(ConnectionException):
            connect_amqp(guarded, user="joe", password="wrong",
                allowed_mechs="PLAIN", allow_insecure_mechs=True,
            )  # fmt: skip
        expect(2)
        assert ask(guarded, "GET", "/c/queue/a", headers=basic("joe", "wrong")).status == 401
        expect(3)
