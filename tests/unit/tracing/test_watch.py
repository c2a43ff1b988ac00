"""Selection by client and address, and the bound of events that wait."""

from __future__ import annotations

import pytest

from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_EVENTS_WAITING_MAX
from edge.broker.tracing.watch import TraceFilter, TraceNames, TraceWatch

METER = TraceNames("meter7", "alice", "meter7.example", "10.0.0.17:40000")


@pytest.mark.parametrize("client", ["", "meter7", "alice", "meter7.example", "10.0.0.17", "10.0.0.17:40000"])
def test_client_is_selected_by_each_of_its_names(client: str) -> None:
    assert TraceFilter(client).is_about(METER)


@pytest.mark.parametrize("client", ["meter", "meter70", "bob", "10.0.0.1", "10.0.0.17:4000"])
def test_other_clients_are_not_selected(client: str) -> None:
    assert not TraceFilter(client).is_about(METER)


@pytest.mark.parametrize(
    ("wanted", "addresses", "shown"),
    [
        ("", (), True),
        ("plant/#", ("plant/7",), True),
        ("plant/#", ("other",), False),
        ("plant/7", ("plant/+",), True),
        ("plant/7", ("other/#", "plant/#"), True),
        ("plant/7", (), False),
    ],
)
def test_event_is_selected_by_its_addresses(wanted: str, addresses: tuple[str, ...], shown: bool) -> None:
    about = TraceFilter("", wanted)
    assert about.shows(addresses, always=False) is shown
    assert about.shows(addresses, always=True)


def test_dropped_events_are_counted_and_reported() -> None:
    arrived: list[None] = []
    watch = TraceWatch(TraceFilter(), lambda: arrived.append(None))
    for number in range(TRACE_EVENTS_WAITING_MAX + 5):
        watch.offer(TraceEvent(kind="packet", name="PUBLISH", id=number))
    assert not watch.has_room
    *kept, dropped = watch.take()
    assert [event.id for event in kept] == list(range(TRACE_EVENTS_WAITING_MAX))
    assert (dropped.kind, dropped.count) == ("dropped", 5)
    assert watch.take() == []
    assert len(arrived) == 1
    watch.offer(TraceEvent(kind="packet", name="PUBLISH"))
    assert len(watch.take()) == 1


def test_payload_is_shown_only_where_the_trace_may_show_it() -> None:
    readable = TraceWatch(TraceFilter(), lambda: None, lambda address: address == "plant/7")
    plain = TraceWatch(TraceFilter(), lambda: None)
    for address in ("plant/7", "secret"):
        event = TraceEvent(kind="packet", name="PUBLISH", address=address, payload="21.5")
        readable.offer(event)
        plain.offer(event)
    assert [event.payload for event in readable.take()] == ["21.5", ""]
    assert [event.payload for event in plain.take()] == ["", ""]


@pytest.mark.parametrize("address", ["", "$cbs", "$management"])
def test_payload_without_an_address_that_can_be_judged_is_never_shown(address: str) -> None:
    watch = TraceWatch(TraceFilter(), lambda: None, lambda _address: True)
    watch.offer(TraceEvent(kind="packet", name="transfer", address=address, payload="token"))
    assert [event.payload for event in watch.take()] == [""]
