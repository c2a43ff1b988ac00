"""The Pico W example: its packets, its ring, and whole runs over broken connections, on each installed Python."""

from __future__ import annotations

import calendar
import contextlib
import itertools
import json
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.unit.firmware.conftest import Firmware
from tests.unit.firmware.gateway import Gateway

PYTHONS = [
    pytest.param([sys.executable, "-B"], id="cpython"),
    pytest.param(
        ["micropython"],
        id="micropython",
        marks=pytest.mark.skipif(shutil.which("micropython") is None, reason="micropython is not installed"),
    ),
]


class TestPackets:
    def test_connect_has_a_persistent_session_a_will_and_credentials(self, firmware: Firmware) -> None:
        packet = firmware.mqtt_client.connect_packet("d1", 30, ("status/d1", b"offline"), "user", "secret")
        fields = b"\x00\x04MQTT\x04\xec\x00\x1e\x00\x02d1\x00\x09status/d1\x00\x07offline\x00\x04user\x00\x06secret"
        assert packet == bytes([0x10, len(fields)]) + fields

    def test_connect_without_credentials_has_no_flags(self, firmware: Firmware) -> None:
        assert firmware.mqtt_client.connect_packet("d", 30)[9] == 0

    @given(payload=st.binary(max_size=300), packet_id=st.integers(1, 65535), dup=st.booleans(), retain=st.booleans())
    def test_publish_survives_a_round_trip(
        self, firmware: Firmware, payload: bytes, packet_id: int, dup: bool, retain: bool
    ) -> None:
        packet = firmware.mqtt_client.publish_packet("a/b", payload, packet_id, dup, retain)
        [(first, body)] = firmware.mqtt_client.PacketParser().feed(packet)
        assert first == 0x32 | (8 if dup else 0) | (1 if retain else 0)
        assert body == b"\x00\x03a/b" + struct.pack("!H", packet_id) + payload

    @given(payloads=st.lists(st.binary(max_size=200), max_size=5), cuts=st.lists(st.integers(0, 1200), max_size=8))
    def test_stream_may_be_split_anywhere(self, firmware: Firmware, payloads: list[bytes], cuts: list[int]) -> None:
        stream = b"".join(firmware.mqtt_client.publish_packet("a", payload, 1) for payload in payloads)
        edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        parser, found = firmware.mqtt_client.PacketParser(), []
        for start, end in itertools.pairwise(edges):
            found += parser.feed(stream[start:end])
        assert [body[5:] for _, body in found] == payloads

    @pytest.mark.parametrize("stream", [b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\x7f"])
    def test_invalid_packets_break_the_connection(self, firmware: Firmware, stream: bytes) -> None:
        with pytest.raises(OSError, match=r"malformed|too large"):
            firmware.mqtt_client.PacketParser().feed(stream)


def test_ring_keeps_order_and_drops_only_acknowledged_or_overflowed_readings(firmware: Firmware) -> None:
    class RingMachine(RuleBasedStateMachine):
        @initialize(capacity=st.integers(1, 8), window=st.integers(1, 8))
        def begin(self, capacity: int, window: int) -> None:
            self.ring = firmware.main.ReadingRing(capacity)
            self.capacity, self.window = capacity, window
            self.kept: list[int] = []
            self.sent: set[int] = set()
            self.next, self.dropped = 1, 0

        @rule()
        def add(self) -> None:
            if len(self.kept) == self.capacity:
                self.sent.discard(self.kept.pop(0))
                self.dropped += 1
            self.ring.add(self.next, b"%d" % self.next)
            self.kept.append(self.next)
            self.next += 1
            assert len(self.ring) == len(self.kept)
            assert self.ring.dropped == self.dropped

        @rule()
        def send(self) -> None:
            item = self.ring.send(self.window)
            unsent = [packet_id for packet_id in self.kept if packet_id not in self.sent]
            if not unsent or len(self.sent) >= self.window:
                assert item is None
            else:
                assert item[0] == unsent[0]
                self.sent.add(unsent[0])

        @precondition(lambda self: self.next > 1)
        @rule(data=st.data())
        def acknowledge(self, data: st.DataObject) -> None:
            packet_id = data.draw(st.integers(1, self.next))
            item = self.ring.acknowledge(packet_id)
            if packet_id in self.sent:
                assert item[1] == b"%d" % packet_id
                self.kept.remove(packet_id)
                self.sent.remove(packet_id)
            else:
                assert item is None

        @rule()
        def rewind(self) -> None:
            self.ring.rewind()
            self.sent.clear()

    run_state_machine_as_test(RingMachine, settings=settings(max_examples=40, stateful_step_count=30))


def test_settings_of_the_command_line_have_their_types(firmware: Firmware) -> None:
    found = firmware.main.settings_from(["PORT=1884", "DEVICE=d9", "JOURNAL=a=b"])
    assert (found["PORT"], found["DEVICE"], found["JOURNAL"]) == (1884, "d9", "a=b")
    assert found["INTERVAL_MS"] == 1000
    for wrong in ("COLOUR=red", "PORT", "PORT=soon"):
        with pytest.raises(ValueError):  # noqa: PT011 - MicroPython has no other
            firmware.main.settings_from([wrong])


def run(python: list[str], folder: Path, gateway: Gateway, journal: Path, *more: str) -> list[dict[str, Any]]:
    settings = ["GATEWAY=127.0.0.1", f"PORT={gateway.port}", f"JOURNAL={journal}", "INTERVAL_MS=10", "SPOOL=", *more]
    done = subprocess.run([*python, "main.py", *settings], cwd=folder, timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_reading_is_acknowledged_over_broken_connections(
    firmware: Firmware, tmp_path: Path, python: list[str]
) -> None:
    with Gateway(break_after=[5, 0, 2]) as gateway:
        records = run(python, firmware.folder, gateway, tmp_path / "journal", "COUNT=60", "WINDOW=4")
    acked = {record["acked"]: record["sends"] for record in records if "acked" in record}
    assert sorted(acked) == list(range(60))
    assert {one.seq for one in gateway.received} == set(range(60))
    copies = Counter(one.seq for one in gateway.received)
    assert all(copies[seq] <= sends for seq, sends in acked.items())
    first_of: dict[int, int] = {}
    for one in gateway.received:
        assert one.dup or one.seq not in first_of, "a copy is marked as one"
        assert first_of.setdefault(one.seq, one.packet_id) == one.packet_id, "a resend keeps its packet identifier"
    end = records[-1]["end"]
    assert (end["published"], end["acknowledged"], end["unacknowledged"], end["dropped"]) == (60, 60, 0, 0)
    assert end["resent"] == sum(sends - 1 for sends in acked.values()) >= 1
    assert len(gateway.connects) == 4
    assert gateway.disconnected


@pytest.mark.parametrize("python", PYTHONS)
def test_command_stops_it_once_everything_is_delivered(firmware: Firmware, tmp_path: Path, python: list[str]) -> None:
    with Gateway() as gateway:
        records = run(python, firmware.folder, gateway, tmp_path / "journal")
    assert gateway.command_acknowledged
    assert gateway.subscriptions == [b"command/pico-1/#"]
    assert gateway.status == [b"online", b"offline"]
    assert json.loads(gateway.answers[0]) == {"status": 200, "interval_ms": 10}
    assert any(record.get("event") == "command" for record in records)
    end = records[-1]["end"]
    assert end["published"] == end["acknowledged"] == len(gateway.received)


@pytest.mark.parametrize("command", [b"nonsense", b"[1]", b'{"interval_ms": "fast"}', b"\xff"])
def test_invalid_commands_are_ignored(firmware: Firmware, tmp_path: Path, command: bytes) -> None:
    with Gateway(command=command) as gateway:
        records = run([sys.executable, "-B"], firmware.folder, gateway, tmp_path / "journal", "COUNT=20")
    assert gateway.command_acknowledged
    assert json.loads(gateway.answers[0])["status"] == 400
    assert records[-1]["end"]["acknowledged"] == 20


def test_reading_has_device_number_and_time(firmware: Firmware) -> None:
    settings = firmware.main.settings_from(["SPOOL="])
    device = firmware.main.PicoDevice(settings)
    device.measure()
    device.measure()
    packet_id, payload, _ = device.ring.send(8)
    reading = json.loads(payload)
    assert packet_id == 1
    assert reading["device"] == "pico-1"
    assert reading["seq"] == 0
    assert len(reading["boot"]) == 8
    assert reading["load_1m"] >= 0
    assert reading["at"] > 1.7e9


class TestFlashSpool:
    """Readings in flash: what a reset at any byte leaves."""

    @staticmethod
    def opened(firmware: Firmware, folder: Path) -> Any:
        """Return a spool that closes at the end of a block."""
        return contextlib.closing(firmware.spool.FlashSpool(str(folder)))

    def test_readings_wait_over_a_reset(self, firmware: Firmware, tmp_path: Path) -> None:
        with self.opened(firmware, tmp_path) as spool:
            for number in range(40):
                spool.add(b"%d" % number, max(0, number - 20))
        with self.opened(firmware, tmp_path) as again:
            assert (again.next, again.acknowledged) == (40, 19)
            assert again.readings == [(number, b"%d" % number) for number in range(19, 40)]
        assert len(list(tmp_path.iterdir())) == 2, "files of acknowledged readings are removed"

    def test_numbers_continue_when_all_are_acknowledged(self, firmware: Firmware, tmp_path: Path) -> None:
        for start in range(0, 48, 16):
            with self.opened(firmware, tmp_path) as spool:
                assert spool.next == start
                for number in range(start, start + 16):
                    spool.add(b"x", number)

    @pytest.mark.parametrize("cut", range(0, 60, 7))
    def test_torn_reading_was_never_stored(self, firmware: Firmware, tmp_path: Path, cut: int) -> None:
        with self.opened(firmware, tmp_path) as spool:
            for number in range(3):
                spool.add(b"%d" % number, 0)
        [file] = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:cut])
        whole = min(cut // 17, 3)
        with self.opened(firmware, tmp_path) as again:
            assert again.next == whole == len(again.readings)
            again.add(b"new", 0)
        with self.opened(firmware, tmp_path) as last:
            assert last.readings[-1] == (whole, b"new")
            assert len(last.readings) == whole + 1


@pytest.mark.parametrize(("year", "month", "day"), [(1970, 1, 1), (2000, 2, 29), (2024, 12, 31), (2100, 3, 1)])
def test_seconds_of_a_day(firmware: Firmware, year: int, month: int, day: int) -> None:
    assert firmware.mqtt_client._seconds(year, month, day) == calendar.timegm((year, month, day, 0, 0, 0))
