"""Reports of devices about artefacts, read from the batches of gateways in every encoding; others are ignored."""

from __future__ import annotations

import pytest

from bridge.batch import Batch
from bridge.message import AMQP, CLOCK_GOOD, Run
from bridge.publisher import publisher_name
from cloud.hub.batch_news import hear_all
from cloud.hub.device_updates.limits import REASON_CHARACTERS_MAX, REPORT_BYTES_MAX
from cloud.hub.device_updates.reading import has_reports, read_reports
from cloud.hub.registry.device_updates import DeviceUpdate
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import amqp_from_run
from tests.support.artefact_reports import ADDRESS, batch, body, event, run


def reports(*runs: Run, tenant: str = "acme", gateway: str = "hall", now_us: int = 9) -> list[DeviceUpdate]:
    return read_reports(tenant, gateway, batch(*runs), now_us)


def test_report_is_read_over_mqtt_and_amqp() -> None:
    (found,) = reports(run())
    assert found[:6] == ("acme", "blinker", "1.2.0", "pump-1", "installed", "")
    assert (found.gateway, found.sequence, found.reported_at, found.changed_at) == ("hall", 1, 5, 9)
    message = amqp_from_run(run(), 0)
    assert reports(Run(ADDRESS, "pump-1", AMQP | CLOCK_GOOD | 1, b"", [message], 5_000)) == [found]
    assert has_reports(batch(run()))


def test_event_of_a_hono_device_is_read_with_its_tenant() -> None:
    assert [each.device for each in reports(event())] == ["pump-1@ACME"]
    assert [each.device for each in reports(event("acme"))] == ["pump-1"]
    assert reports(event(kind="application/json")) == [], "another event with such a text"
    assert reports(event(content=body("pump-2"))) == [], "another device"
    assert has_reports(batch(event()))


@pytest.mark.parametrize(
    ("publisher", "name"),
    [("pump-1@acme", "pump-1"), ("pump-1@other", "pump-1@other"), ("pump-1@acme@acme", "pump-1@acme"), ("@acme", None)],
)
def test_device_of_the_own_tenant_has_its_id(publisher: str, name: str | None) -> None:
    """Over MQTT, devices of a device API have their tenant in their names."""
    found = reports(run(f"plant/{publisher}/artefact-report", device=publisher, content=body(publisher)))
    assert [each.device for each in found] == ([] if name is None else [name])


@pytest.mark.parametrize(
    "other",
    [
        run("plant/pump-2/artefact-report"),
        run("plant/evil/pump-1/artefact-report", device="evil"),
        run(device="evil"),
        run(device=publisher_name("evil", "pump-1")),
        run(device=publisher_name("hall-2", "hall-2", relay=True)),
        run("artefact-report"),
        run("plant/pump-1/artefact-report/x"),
        run(content=b"{"),
        run(content=b"[" * 100_000),
        run(content=b"\xff"),
        run(content=b'{"device":"pump-1"}'),
        run(content=body().replace(b"installed", b"exploded")),
        run(content=body(artefact="x" * 65)),
        run(content=body(version="")),
        run(content=body(version="1\x00")),
        run(content=body(reason="x" * REPORT_BYTES_MAX)),
        Run(ADDRESS, "pump-1", AMQP | CLOCK_GOOD | 1, b"", [b"\x00\x53"], 5),
    ],
)
def test_other_messages_are_ignored(other: Run) -> None:
    assert reports(other) == []


def test_client_of_the_device_and_relayed_report() -> None:
    """A relay names the device in the origin of each message."""
    assert len(reports(run(device=publisher_name("pump-1", "client-7")))) == 1
    names = (("x-opt-waypost-gateway", "mill"), ("x-opt-waypost-epoch", "f"), ("x-opt-waypost-address", ADDRESS))
    for device, count in (("pump-1", 1), ("evil", 0)):
        origin = (*names, ("x-opt-waypost-sequence", "7"), ("x-opt-waypost-device", device))
        relayed = run(device=publisher_name("mill", "mill", relay=True))
        relayed.properties = encode_run(Properties(user_property=origin))
        assert len(reports(relayed)) == count


def test_newest_report_of_a_stream_is_enough() -> None:
    some = [run(content=body(reason=str(number))) for number in range(50)]
    (found,) = reports(*some)
    assert (found.reason, found.sequence) == ("49", 50)


def test_newest_failure_of_a_stream_is_kept_beside_the_newest_report() -> None:
    states = ("downloading", "rolled-back", "rolled-back", "downloading", "installed")
    found = reports(*(run(content=body(state=each)) for each in states))
    assert [(each.state, each.sequence) for each in found] == [("rolled-back", 3), ("installed", 5)]
    found = reports(*(run(content=body(state=each)) for each in (*states, "rolled-back")))
    assert [(each.state, each.sequence) for each in found] == [("installed", 5), ("rolled-back", 6)]


def test_reason_is_one_line_of_limited_length() -> None:
    (found,) = reports(run(content=body(reason="a\n\x00" + "b" * 600)))
    assert found.reason.startswith("a\\n\\x00b")
    assert len(found.reason) == REASON_CHARACTERS_MAX


def test_clock_that_is_ahead_or_unknown_counts_as_now() -> None:
    for at in (9_000_000, 0):
        assert [each.reported_at for each in reports(run(at=at), now_us=20)] == [20]


def test_time_of_a_gateway_without_a_clock_is_that_of_the_registry() -> None:
    """It may be in 1970, or at its last shutdown: its failures would be of before each offer."""
    for at in (1_000, 5_000):
        known = run(at=at)
        some = Run(known.address, known.device, 1, known.properties, known.bodies, known.received_at)
        assert [each.reported_at for each in reports(some, now_us=20)] == [20]


def test_streams_differ_by_gateway_store_and_address() -> None:
    (first,) = reports(run())
    others = [
        *reports(run(), gateway="roof"),
        *reports(run("site/pump-1/artefact-report")),
        *read_reports("acme", "hall", batch(run(), epoch="f" * 32), 9),
    ]
    assert len({each.stream for each in (first, *others)}) == 4


def test_a_batch_waits_for_all_parts_that_have_news() -> None:
    waiting: list[object] = []
    answers: list[bool] = []

    def part(tenant: str, gateway: str, found: Batch, kept: object) -> bool:
        waiting.append(kept)
        return True

    def other(*_: object) -> bool:
        return False

    def at_once(*given: object) -> bool:
        given[3](True)  # type: ignore[operator]
        return True

    assert not hear_all(other, other)("acme", "hall", batch(run()), answers.append)
    assert hear_all(part, other, part, at_once)("acme", "hall", batch(run()), answers.append)
    waiting[0](True)  # type: ignore[operator]
    assert answers == []
    waiting[1](False)  # type: ignore[operator]
    assert answers == [False]
