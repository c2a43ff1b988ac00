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
from typing import Any, Final

import uvloop

from tests.fault.campaign.device import FleetDevice, FleetDevicePlan

REPORT_S: Final = 1.0


async def main(plans: list[list[Any]], result: Path) -> None:
    """Let devices live until the input ends."""
    devices = [FleetDevice(FleetDevicePlan(*each)) for each in plans]
    running = [asyncio.create_task(each.run(), name=each.plan.name) for each in devices]
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ended = asyncio.create_task(reader.read())
    while not ended.done():
        await asyncio.wait((ended, *(each for each in running if each.done())), timeout=REPORT_S)
        for each in running:
            if each.done():
                each.result()  # a fault of the device ends the run
        print(json.dumps(counts(devices)), flush=True)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    result.write_text(json.dumps({each.plan.name: outcome(each) for each in devices}))


def counts(devices: list[FleetDevice]) -> dict[str, int]:
    """Return what the devices have done so far."""
    states = Counter(state for each in devices for state in each.record.states)
    return {
        "connected": sum(bool(each.record.waits) for each in devices),
        "ended": sum(each.ended for each in devices),
        "readings": sum(each.record.acked for each in devices),
        "resets": sum(each.record.resets for each in devices),
        "lost": sum(each.record.lost for each in devices),
        **states,
    }


def outcome(device: FleetDevice) -> dict[str, Any]:
    """Return what has happened to one device."""
    record = device.record
    return {
        "runs": device.runs,
        "acked": record.acked,
        "waits": record.waits,
        "resets": record.resets,
        "lost": record.lost,
        "verified": record.verified,
        "states": record.states,
        "repeated": record.repeated,
    }


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(given["plans"], Path(given["result"])))
