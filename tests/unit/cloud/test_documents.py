"""Status and ledger documents, and the configuration file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.errors import ConfigurationRejected
from cloud.hub.configuration import HubSettings, load
from cloud.hub.documents import DocumentError, clock_offset_rows, ledger_ranges, status_row
from cloud.hub.groups import GatewaySession
from cloud.hub.limits import STATEMENTS_MAX
from cloud.lake.landing import LedgerRange
from cloud.lake.rows import record_rows
from cloud.place.data_file import statistics

NOW_US = 1_795_250_665_237_123
SESSION = GatewaySession("default", "gw1", "-")


def test_status_of_a_gateway_becomes_a_row() -> None:
    document = {
        "state": "running",
        "epoch": "e",
        "reported_at": "2026-11-21T08:44:25.237123+00:00",
        "backlog_messages": 5,
        "backlog_oldest_at": 1_795_250_000_000_000_000,
        "something_newer": [1],
    }
    row = status_row(SESSION, document, 1)
    assert row["reported_at"] == 1_795_250_665_237_123
    assert row["backlog_oldest_at"] == 1_795_250_000_000_000
    assert (row["gateway"], row["state"], row["backlog_messages"], row["version"]) == ("gw1", "running", 5, None)
    assert status_row(SESSION, {}, NOW_US)["reported_at"] == NOW_US


@pytest.mark.parametrize(
    "document",
    [{"state": 5}, {"backlog_messages": -1}, {"backlog_messages": 1 << 63}, {"epoch": "e" * 256}],
)
def test_status_with_wrong_types_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(DocumentError, match=r"\$"):
        status_row(SESSION, document, NOW_US)


RANGE = {"epoch": "e", "address": "a", "first_sequence": 3, "last_sequence": 9, "reason": "expired", "bytes": 70}


def test_ledger_document_has_one_or_several_ranges() -> None:
    expected = LedgerRange("default", "gw1", "e", "a", 3, 9, 70, "expired", NOW_US)
    assert list(ledger_ranges(SESSION, RANGE, NOW_US)) == [expected]
    assert list(ledger_ranges(SESSION, {"ranges": [RANGE, RANGE]}, NOW_US)) == [expected, expected]


@pytest.mark.parametrize(
    "time",
    [
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59-12:00",
        "0001-01-01T00:00:00+12:00",
        "1969-12-31T23:59:59Z",
        1 << 64,
        -1,
    ],
)
def test_time_at_an_end_of_the_calendar_is_dropped(time: object) -> None:
    """A row with such a time could not be landed, nor other rows of the same landing."""
    document = msgspec.json.decode(msgspec.json.encode({**RANGE, "decided_at": time}))
    [entry] = ledger_ranges(SESSION, document, NOW_US)
    status = status_row(SESSION, {"reported_at": time, "backlog_oldest_at": time}, NOW_US)
    assert (entry.decided_at, status["reported_at"], status["backlog_oldest_at"]) == (NOW_US, NOW_US, NOW_US)


def test_latest_representable_time_lands() -> None:
    """The last time is in 2262, the limit of nanoseconds."""
    row = status_row(SESSION, {"reported_at": (1 << 63) - 1}, NOW_US)
    latest = statistics(record_rows("gateway_status", [row], NOW_US))["maxValues"]
    assert latest["reported_at"] == "2262-04-11T23:47:16.855Z"


@pytest.mark.parametrize(
    "change",
    [
        {"last_sequence": 2},
        {"first_sequence": -1},
        {"last_sequence": (1 << 63) - 1},
        {"reason": None},
        {"epoch": 1},
    ],
)
def test_implausible_ledger_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        ledger_ranges(SESSION, {**RANGE, **change}, NOW_US)


STRETCH = {"boot": "b", "number": 2, "began": 5_000_000, "known": "measured", "low": 7_000, "high": 7_000}
CLOCK = {"told_at": 9_000, "stretches": [{**STRETCH, "messages": [["e", "a", 3, 9, None, 4_000]]}, STRETCH]}


def test_clock_document_has_a_row_for_each_range_and_for_a_period_without_ranges() -> None:
    ranged, bare = clock_offset_rows(SESSION, CLOCK, NOW_US)
    assert (ranged["gateway"], ranged["boot"], ranged["stretch"], ranged["began"]) == ("gw1", "b", 2, 5_000)
    assert (ranged["known"], ranged["offset_low_us"], ranged["offset_high_us"]) == ("measured", 7, 7)
    assert (ranged["epoch"], ranged["address"], ranged["first_sequence"], ranged["last_sequence"]) == ("e", "a", 3, 9)
    assert (ranged["stamped_after"], ranged["stamped_until"], ranged["whole"]) == (None, 4, False)
    assert (bare["told_at"], bare["heard_at"]) == (9, NOW_US)
    assert record_rows("clock_offsets", [ranged, bare], NOW_US).num_rows == 2


@pytest.mark.parametrize(
    "change",
    [
        {"known": "perhaps"},
        {"low": None},
        {"high": 8_000},
        {"began": 1 << 63},
        {"number": -1},
        {"boot": "b" * 256},
        {"messages": [["e", "a", 9, 3]]},
        {"messages": [["e", "a", -1, 3]]},
    ],
)
def test_implausible_clock_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        clock_offset_rows(SESSION, {"told_at": 0, "stretches": [{**STRETCH, **change}]}, NOW_US)


def test_clock_document_is_bounded() -> None:
    many = {**STRETCH, "messages": [["e", "a", 0, 0]] * (STATEMENTS_MAX + 1)}
    with pytest.raises(DocumentError, match="more than"):
        clock_offset_rows(SESSION, {"told_at": 0, "stretches": [many]}, NOW_US)


def test_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n  amqp: 127.0.0.1:0\n  gatherMilliseconds: 50\n")
    assert load(file) == HubSettings(amqp=ListenEndpoint("127.0.0.1", 0), gather_milliseconds=50)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "apiVersion: waypost/v1\nkind: Hub\nspec:\n  ampq: x\n",
            ':4: spec.ampq: unknown field "ampq"; did you mean',
        ),
        ("apiVersion: waypost/v1\nkind: Hub\nspec:\n  gatherMilliseconds: 9000\n", ":4: spec.gatherMilliseconds: "),
        ("apiVersion: waypost/v1\nkind: Hub\nspec:\n  amqp: 5673\n", ":4: spec.amqp: expected text, not a number"),
        ("apiVersion: waypost/v1\nkind: hub\nspec: {}\n", ':2: kind: unknown kind "hub"; did you mean "Hub"?'),
        ("apiVersion: waypost/v2\nkind: Hub\nspec: {}\n", ":1: apiVersion: "),
        ("apiVersion: waypost/v1\nkind: Hub\n", ':1: "spec" is missing'),
        ("kind: [\n", ":2: "),
        ("", ": expected one resource of kind Hub, found none"),
        ("kind: Hub\nspec: {}\nkind: Hub\n", ':3: kind: duplicate key "kind"; first in line 1'),
        ("kind: &kind Hub\nspec: *kind\n", ":1: spec: YAML aliases"),
    ],
)
def test_invalid_configuration_is_reported_with_file_line_and_path(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationRejected) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}{place}")
    assert "\n" not in str(caught.value)
