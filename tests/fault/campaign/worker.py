"""`python -m tests.fault.campaign.worker`: devices of a run in one process.

It reads their plans from the first line of its input, and prints a line of counts each second. It ends with its input:
then it writes to a file what has happened to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from simulator.device import FleetDevice, SimulationPace
from simulator.tally import DeviceTally
from tests.fault.campaign.plans import CampaignPlan, device_plan

REPORT_S: Final = 1.0


class WaitsTally(DeviceTally):
    """Counts of one device, with each time until PUBACK."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[float, float]] = []
        """Monotonic time of each send of a reading, and seconds until its PUBACK."""

    def record_wait(self, started_s: float, wait_s: float) -> None:
        self.waits.append((started_s, wait_s))


class CampaignDevice(NamedTuple):
    """A device with its counts."""

    device: FleetDevice
    tally: WaitsTally

    @classmethod
    def of(cls, plan: CampaignPlan) -> CampaignDevice:
        tally = WaitsTally()
        return cls(FleetDevice(device_plan(plan), tally, SimulationPace()), tally)

    @property
    def ended(self) -> bool:
        return self.device.updater is not None and self.device.updater.ended


async def main(plans: list[list[Any]], result: Path) -> None:
    """Let devices live until the input ends."""
    devices = {plan.name: CampaignDevice.of(plan) for plan in (CampaignPlan(*each) for each in plans)}
    running = [asyncio.create_task(each.device.run(), name=name) for name, each in devices.items()]
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ended = asyncio.create_task(reader.read())
    while not ended.done():
        await asyncio.wait((ended, *(each for each in running if each.done())), timeout=REPORT_S)
        for each in running:
            if each.done():
                each.result()  # a fault of the device ends the run
        print(json.dumps(counts(list(devices.values()))), flush=True)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    result.write_text(json.dumps({name: outcome(each) for name, each in devices.items()}))


def counts(devices: list[CampaignDevice]) -> dict[str, int]:
    """Return what the devices have done so far."""
    states: Counter[str] = sum((each.tally.states for each in devices), Counter())
    return {
        "connected": sum(bool(each.tally.waits) for each in devices),
        "ended": sum(each.ended for each in devices),
        "readings": sum(each.tally.acknowledged for each in devices),
        "resets": sum(each.tally.resets for each in devices),
        "lost": sum(each.tally.errors.total() for each in devices),
        **states,
    }


def outcome(device: CampaignDevice) -> dict[str, Any]:
    """Return what has happened to one device."""
    tally, updater = device.tally, device.device.updater
    assert updater is not None
    return {
        "runs": updater.version,
        "acked": tally.acknowledged,
        "waits": tally.waits,
        "resets": tally.resets,
        "lost": tally.errors.total(),
        "states": list(tally.states),
        "repeated": tally.repeated,
    }


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(given["plans"], Path(given["result"])))
