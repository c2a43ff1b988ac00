"""The device without its protocol: readings, and the journal that records the gateway's acknowledgements."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.measuring.device import SimulatedDevice, SimulatorSettings
from simulator.measuring.journal import SimulatorJournal
from simulator.outbox import DeviceOutbox


def make(path: Path | None, *, count: int | None = None, capacity: int = 10) -> SimulatedDevice:
    settings = SimulatorSettings("d1", "plant/d1/load", "load", "mqtt://gw", 0.1, count, 4, 1.0)
    journal = SimulatorJournal(path, device="d1", address=settings.address, protocol="mqtt", kind="load")
    return SimulatedDevice(settings, lambda now: {"load_1m": 0.123456789}, DeviceOutbox(capacity), journal)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_reading_has_device_metric_value_and_time() -> None:
    device = make(None)
    device.measure()
    reading = device.outbox.send()
    assert reading is not None
    body = json.loads(reading.body)
    assert body.pop("at") == pytest.approx(time.time(), abs=5)
    assert body == {"device": "d1", "seq": 0, "load_1m": 0.1235}


def test_device_measures_at_its_interval_and_ends_when_all_is_acknowledged() -> None:
    device = make(None, count=2)
    device.measure()
    assert device.measuring
    device.measure()
    assert not device.measuring
    assert not device.finished
    for seq in (0, 1):
        device.outbox.send()
        device.acknowledged(seq)
    assert device.finished


def test_stop_keeps_unacknowledged_readings() -> None:
    device = make(None)
    device.measure()
    device.stop()
    assert not device.measuring
    assert not device.finished


def test_journal_records_acknowledgements_sends_and_sums(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    device = make(path)
    device.measure()
    device.measure()
    device.connected()
    device.outbox.send()
    device.outbox.send()
    device.acknowledged(0)
    device.disconnected("cable pulled")
    device.outbox.send()
    device.acknowledged(1)
    device.acknowledged(1)
    device.journal.close(device.outbox)
    device.journal.close(device.outbox)
    found = lines(path)
    assert found[0] == {"device": "d1", "address": "plant/d1/load", "protocol": "mqtt", "kind": "load"}
    assert [line for line in found if "acked" in line] == [{"acked": 0, "sends": 1}, {"acked": 1, "sends": 2}]
    assert [(line["event"], line["detail"]) for line in found if "event" in line] == [
        ("connected", "mqtt://gw"),
        ("disconnected", "cable pulled"),
    ]
    assert found[-1] == {
        "end": {"published": 2, "acknowledged": 2, "unacknowledged": 0, "dropped": 0, "resent": 1},
    }
    assert sum("end" in line for line in found) == 1


def test_full_buffer_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    device = make(path, capacity=1)
    device.measure()
    device.measure()
    device.journal.close(device.outbox)
    assert any(line.get("event") == "dropped" and "reading 0" in line["detail"] for line in lines(path))
    assert lines(path)[-1]["end"]["dropped"] == 1


def test_consecutive_errors_of_one_cause_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    device = make(None)
    for why in ("refused", "refused", "away", "refused"):
        device.record_obstacle(why)
    assert [record.message for record in caplog.records] == ["d1: refused", "d1: away", "d1: refused"]
    assert device.trouble == "refused"


def test_device_refused_from_the_start_ends() -> None:
    device = make(None)
    device.measure()
    device.record_obstacle("the gateway is away")
    assert device.measuring
    device.refused("bad user name or password")
    assert not device.measuring
    assert device.finished
    assert device.trouble == "bad user name or password"


def test_device_refused_later_retries() -> None:
    """A change of rights may refuse a device for a moment."""
    device = make(None)
    device.measure()
    device.outbox.send()
    device.acknowledged(0)
    device.measure()
    device.refused("not authorized")
    assert device.measuring
    assert not device.finished
