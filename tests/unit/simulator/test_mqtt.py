"""The MQTT device against a gateway that breaks connections and omits acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from simulator.measuring.device import SimulatedDevice, SimulatorSettings
from simulator.measuring.journal import SimulatorJournal
from simulator.measuring.mqtt import MqttDevice
from simulator.outbox import DeviceOutbox
from tests.support.serving import serving

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # amqtt leaves transports of broken connections


class Gateway:
    """Minimal MQTT 3.1.1 peer: acknowledges every PUBLISH except those that break the connection."""

    def __init__(self, break_after: list[int]) -> None:
        """Start with `break_after`: in each connection in turn, the number of readings before a reset."""
        self._break_after = break_after
        self.received: list[int] = []
        self.connects: list[bytes] = []
        self.status: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._break_after.pop(0) if self._break_after else None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, body = await self._packet(reader)
                match first >> 4:
                    case 1:
                        self.connects.append(body)
                        writer.write(b"\x20\x02\x00\x00")
                    case 3:
                        end = 2 + int.from_bytes(body[:2])
                        if body[2:end].startswith(b"status/"):
                            self.status.append(body[end + 2 :])
                        else:
                            self.received.append(json.loads(body[end + 2 :])["seq"])
                            if left == 0:
                                break
                            left = None if left is None else left - 1
                        writer.write(b"\x40\x02" + body[end : end + 2])
                    case 12:
                        writer.write(b"\xd0\x00")
                    case 14:
                        break
        writer.transport.abort()

    async def _packet(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        first = (await reader.readexactly(1))[0]
        length = shift = 0
        while True:
            digit = (await reader.readexactly(1))[0]
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                return first, await reader.readexactly(length)


def make(url: str, journal: Path, count: int | None) -> tuple[SimulatedDevice, MqttDevice]:
    settings = SimulatorSettings("d1", "plant/d1/load", "load", url, 0.002, count, 4, 10.0)
    kept = SimulatorJournal(journal, device="d1", address=settings.address, protocol="mqtt", kind="load")
    device = SimulatedDevice(settings, lambda now: {"load_1m": 1.0}, DeviceOutbox(1000), kept)
    return device, MqttDevice(device)


def test_every_reading_is_acknowledged_over_broken_connections(tmp_path: Path) -> None:
    gateway = Gateway(break_after=[10, 0, 3])
    journal = tmp_path / "journal.jsonl"

    async def main() -> SimulatedDevice:
        async with asyncio.timeout(30), serving(gateway.serve) as port:
            device, running = make(f"mqtt://127.0.0.1:{port}", journal, 60)
            await running.run()
            return device

    device = asyncio.run(main())
    device.journal.close(device.outbox)
    device.journal.close(device.outbox)
    acked = {r["acked"]: r["sends"] for r in map(json.loads, journal.read_text().splitlines()) if "acked" in r}
    assert sorted(acked) == list(range(60))
    assert set(gateway.received) == set(range(60))
    assert device.outbox.resent == sum(sends - 1 for sends in acked.values()) >= 3
    assert all(gateway.received.count(seq) <= sends for seq, sends in acked.items()), "copies not confessed to"
    assert len(gateway.connects) == 4


def test_device_requests_a_persistent_session_and_a_will(tmp_path: Path) -> None:
    gateway = Gateway([])

    async def main() -> None:
        async with asyncio.timeout(30), serving(gateway.serve) as port:
            await make(f"mqtt://127.0.0.1:{port}", tmp_path / "j", 1)[1].run()

    asyncio.run(main())
    connect = gateway.connects[0]
    flags = connect[7]
    assert not flags & 0x02, "clean session"
    assert flags & 0x2C == 0x2C, "a retained will at QoS 1"
    assert b"status/d1" in connect
    assert gateway.status == [b"online"]


def test_stop_ends_measuring_and_delivers_the_rest(tmp_path: Path) -> None:
    gateway = Gateway([])

    async def main() -> SimulatedDevice:
        async with asyncio.timeout(30), serving(gateway.serve) as port:
            device, running = make(f"mqtt://127.0.0.1:{port}", tmp_path / "j", None)
            task = asyncio.create_task(running.run())
            while device.outbox.acknowledged < 5:
                await asyncio.sleep(0.005)
            running.stop()
            await task
            return device

    device = asyncio.run(main())
    device.journal.close(device.outbox)
    assert device.outbox.published == device.outbox.acknowledged == len(set(gateway.received))


def test_readings_are_kept_and_the_drain_ends_without_a_gateway(tmp_path: Path) -> None:
    async def main() -> SimulatedDevice:
        async with asyncio.timeout(30):
            async with serving(Gateway([]).serve) as port:
                pass
            settings = SimulatorSettings("d1", "a", "load", f"mqtt://127.0.0.1:{port}", 0.001, 5, 4, 0.3)
            kept = SimulatorJournal(None, device="d1", address="a", protocol="mqtt", kind="load")
            device = SimulatedDevice(settings, lambda now: {}, DeviceOutbox(10), kept)
            await MqttDevice(device).run()
            return device

    device = asyncio.run(main())
    device.journal.close(device.outbox)
    assert len(device.outbox) == 5
    assert device.outbox.dropped == 0
