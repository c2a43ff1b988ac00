"""Batches as rows."""

from __future__ import annotations

import datetime
import json

from bridge.amqp_values import Symbol, Timestamp, encode
from bridge.batch import decode
from bridge.batch import encode as encode_batch
from bridge.lane import BatchLane
from bridge.message import AMQP, CLOCK_GOOD, Run, Stored
from bridge.publisher import publisher_name
from cloud.lake.landing import LandedSets, plan
from cloud.lake.properties import MALFORMED
from cloud.lake.rows import ReceivedBatch, telemetry_rows
from cloud.lake.sequences import SequenceSet

NOW_US = 1_795_250_665_237_123
RECEIVED_NS = 1_795_250_000_123_456_789
EPOCH = "e" * 32


def received(*stored: Stored, lane: BatchLane = BatchLane.LIVE, gateway: str = "gw1") -> ReceivedBatch:
    return ReceivedBatch("default", gateway, decode(encode_batch(stored, space="default", epoch=EPOCH, lane=lane)))


def rows(*batches: ReceivedBatch, landed: SequenceSet | None = None) -> list[dict[str, object]]:
    slices = plan(batches, LandedSets(lambda place: landed or SequenceSet())).slices
    return telemetry_rows(slices, NOW_US).to_pylist()


def at(microseconds: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)


def test_run_becomes_rows() -> None:
    run = Run("plant/1/temp", "device-1", 1 | CLOCK_GOOD, b"", [b"20.5", b""], RECEIVED_NS)
    first, second = rows(received(Stored(-1, 7, run), lane=BatchLane.BACKLOG))
    assert first == {
        "tenant": "default",
        "gateway": "gw1",
        "epoch": EPOCH,
        "address": "plant/1/temp",
        "sequence": 7,
        "device": "device-1",
        "event_time": at(RECEIVED_NS // 1_000),
        "received_at": at(RECEIVED_NS // 1_000),
        "ingested_at": at(NOW_US),
        "clock_quality": "good",
        "lane": "backlog",
        "content_type": None,
        "properties": None,
        "body": b"20.5",
        "ingest_date": at(NOW_US).date(),
        "client_id": None,
        "origin_gateway": None,
        "origin_epoch": None,
        "origin_address": None,
        "origin_sequence": None,
        "origin_received_at": None,
        "relayed_by": None,
    }
    assert second == {**first, "sequence": 8, "body": b""}


def test_batches_addresses_and_runs_keep_their_values() -> None:
    stored = [
        Stored(-1, 0, Run("a", "d1", 0, b"", [b"0", b"1"], RECEIVED_NS)),
        Stored(-1, 5, Run("b", "d2", CLOCK_GOOD, b"", [b"5"], RECEIVED_NS + 1_000)),
        Stored(-1, 2, Run("a", "d3", 0, b"", [b"2"], RECEIVED_NS + 2_000)),
    ]
    other = Stored(-1, 0, Run("a", "d4", 0, b"", [b"x"], RECEIVED_NS))
    found = {
        (r["gateway"], r["address"], r["sequence"]): (r["device"], r["clock_quality"], r["received_at"], r["body"])
        for r in rows(received(*stored), received(other, gateway="gw2"))
    }
    base = RECEIVED_NS // 1_000
    assert found == {
        ("gw1", "a", 0): ("d1", "unknown", at(base), b"0"),
        ("gw1", "a", 1): ("d1", "unknown", at(base), b"1"),
        ("gw1", "b", 5): ("d2", "good", at(base + 1), b"5"),
        ("gw1", "a", 2): ("d3", "unknown", at(base + 2), b"2"),
        ("gw2", "a", 0): ("d4", "unknown", at(base), b"x"),
    }


def test_device_and_client_of_a_publisher_have_their_own_columns() -> None:
    one = Stored(-1, 0, Run("a", "pump7\x1fclient-1", 0, b"", [b"x"], RECEIVED_NS))
    other = Stored(-1, 1, Run("a", "pump7", 0, b"", [b"x", b"y"], RECEIVED_NS))
    anonymous = Stored(-1, 9, Run("a", "anonymous\x1fauto-1", 0, b"", [b"x", b"y"], RECEIVED_NS))
    found = rows(received(one, other), received(anonymous, gateway="gw2"))
    assert [(row["device"], row["client_id"]) for row in found] == [
        ("pump7", "client-1"), ("pump7", None), ("pump7", None), ("anonymous", "auto-1"), ("anonymous", "auto-1"),
    ]  # fmt: skip


def test_landed_messages_are_trimmed_at_any_position() -> None:
    run = Run("a", "d", 0, b"", [b"%d" % i for i in range(10)], RECEIVED_NS)
    found = rows(received(Stored(-1, 0, run)), landed=SequenceSet([(0, 1), (4, 6), (9, 12)]))
    assert [(row["sequence"], row["body"]) for row in found] == [(2, b"2"), (3, b"3"), (7, b"7"), (8, b"8")]


def test_gap_is_counted_from_the_base() -> None:
    late = received(Stored(-1, 5, Run("a", "d", 0, b"", [b"5"], RECEIVED_NS)))
    assert plan([late], LandedSets(lambda place: SequenceSet())).landed.gaps == 1
    owed = decode(
        encode_batch([Stored(-1, 5, Run("a", "d", 0, b"", [b"5"], 1))], space="s", epoch=EPOCH, bases={"a": 5})
    )
    assert plan([ReceivedBatch("default", "gw1", owed)], LandedSets(lambda place: SequenceSet())).landed.gaps == 0
    assert plan([late], LandedSets(lambda place: SequenceSet([(0, 4)]))).landed.gaps == 0


def test_mqtt_properties_are_translated() -> None:
    properties = b"\x03\x00\x09text/json\x26\x00\x01k\x00\x01v"
    plain, described = rows(
        received(
            Stored(-1, 0, Run("a", "d", 1, b"", [b"0"], RECEIVED_NS)),
            Stored(-1, 1, Run("a", "d", 1, properties, [b"1"], RECEIVED_NS)),
        )
    )
    assert (plain["content_type"], plain["properties"]) == (None, None)
    assert described["content_type"] == "text/json"
    assert json.loads(str(described["properties"])) == {"user-properties": {"k": "v"}}


def test_amqp_message_is_unwrapped_with_its_own_time() -> None:
    fields = [None, None, None, "subject", None, None, Symbol("text/plain"), None, None, Timestamp(1_795_249_000_000)]
    message = b"\x00\x53\x73" + encode(fields) + b"\x00\x53\x75" + encode(b"payload")
    (row,) = rows(received(Stored(-1, 0, Run("a", "d", AMQP | 1, b"", [message], RECEIVED_NS))))
    assert row["body"] == b"payload"
    assert row["content_type"] == "text/plain"
    assert row["event_time"] == at(1_795_249_000_000_000)
    assert row["received_at"] == at(RECEIVED_NS // 1_000)
    assert json.loads(str(row["properties"]))["subject"] == "subject"


def test_invalid_amqp_message_lands_raw() -> None:
    (row,) = rows(received(Stored(-1, 0, Run("a", "d", AMQP | 1, b"", [b"\x00\x53\xff garbage"], RECEIVED_NS))))
    assert row["body"] == b"\x00\x53\xff garbage"
    assert row["content_type"] is None
    assert MALFORMED in json.loads(str(row["properties"]))


ORIGIN = {
    Symbol("x-opt-waypost-gateway"): "lower",
    Symbol("x-opt-waypost-epoch"): "f" * 32,
    Symbol("x-opt-waypost-address"): "line/7",
    Symbol("x-opt-waypost-sequence"): 41,
    Symbol("x-opt-waypost-device"): "press-1",
    Symbol("x-opt-waypost-received-at"): RECEIVED_NS - 5_000_000_000,
}
RELAY = publisher_name("hall-3", "lower-hall", relay=True)


def relayed(publisher: str, **changed: object) -> dict[str, object]:
    names = ORIGIN | {Symbol(f"x-opt-waypost-{name.replace('_', '-')}"): value for name, value in changed.items()}
    body = b"\x00\x53\x72" + encode(names) + b"\x00\x53\x75" + encode(b"x")
    return rows(received(Stored(-1, 0, Run("plant/7", publisher, 1 | AMQP, b"", [body], RECEIVED_NS))))[0]


def test_origin_is_accepted_only_from_a_relay() -> None:
    row = relayed(RELAY)
    assert (row["gateway"], row["sequence"], row["relayed_by"]) == ("gw1", 0, "hall-3")
    assert (row["origin_gateway"], row["origin_epoch"], row["origin_address"]) == ("lower", "f" * 32, "line/7")
    assert (row["origin_sequence"], row["device"], row["client_id"]) == (41, "press-1", None)
    assert row["event_time"] == row["origin_received_at"] == at(RECEIVED_NS // 1_000 - 5_000_000)
    for publisher in ("hall-3", "hall-3\x1flower-hall"):
        row = relayed(publisher)
        assert (row["device"], row["origin_gateway"], row["origin_sequence"]) == ("hall-3", None, None)
        assert row["event_time"] == row["received_at"]


def test_origin_with_an_invalid_part_is_dropped() -> None:
    for changed in (
        {"sequence": -1},
        {"sequence": True},
        {"sequence": 2**63},
        {"gateway": ""},
        {"epoch": 7},
        {"address": None},
    ):
        row = relayed(RELAY, **changed)
        assert (row["device"], row["client_id"], row["origin_gateway"]) == ("hall-3", "lower-hall", None)
    assert relayed(RELAY, device=None)["device"] == "hall-3"


def test_clock_of_an_origin_is_accepted_within_limits() -> None:
    for at_ns in (0, 86_400_000_000_000, RECEIVED_NS + 1_000_000_000, "then", None):
        row = relayed(RELAY, received_at=at_ns)
        assert row["event_time"] == row["received_at"]


def test_relayed_and_own_messages_of_one_batch_keep_their_values() -> None:
    named = b"\x00\x53\x72" + encode(ORIGIN) + b"\x00\x53\x75" + encode(b"x")
    user = b"".join(
        b"\x26" + len(name).to_bytes(2) + name.encode() + len(value).to_bytes(2) + value.encode()
        for name, value in {str(key): str(value) for key, value in ORIGIN.items()}.items()
    )
    found = rows(
        received(
            Stored(-1, 0, Run("a", "d", 1, b"", [b"0"], RECEIVED_NS)),
            Stored(-1, 1, Run("a", RELAY, 1 | AMQP, b"", [named, b"\x00\x53\x75" + encode(b"y")], RECEIVED_NS)),
            Stored(-1, 3, Run("a", RELAY, 1, user, [b"z"], RECEIVED_NS)),
        )
    )
    assert [(row["body"], row["device"], row["origin_sequence"]) for row in found] == [
        (b"0", "d", None), (b"x", "press-1", 41), (b"y", "hall-3", None), (b"z", "press-1", 41),
    ]  # fmt: skip
