"""Process of a tap: its job on the standard input, then it passes messages on until the input ends.

It ends with its input, so it does not outlive the hub. A hub that needs all of its processor time for landings is not
delayed by it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import sqlalchemy as sa

from cloud.hub.registry.taps import RegistryTaps, TapName
from cloud.hub.tap.job import LENGTH_BYTES, TapJob
from cloud.hub.tap.lake_tap import LakeTap
from cloud.hub.tap.landed_log import LandedLog
from cloud.hub.tap.topic import KafkaTopic
from cloud.place.place import parse
from edge.output.logs import unhandled, write_to_stderr

NICE: Final = 5
"""Priority below that of the landing: gateways wait for the acknowledgements of the landing."""


async def serve(job: TapJob, ended: asyncio.Event) -> None:
    """Do the job until the event. Raises `CannotLand` if registry or lake cannot be opened."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(unhandled)
    executor = ThreadPoolExecutor(1, thread_name_prefix="tap")
    try:
        taps = await loop.run_in_executor(executor, RegistryTaps, sa.make_url(job.registry))
        try:
            log = LandedLog(parse(job.lake).at(job.table))
            name = TapName(await loop.run_in_executor(executor, log.identity), job.table, job.topic.topic)
            tap = LakeTap(
                *(name, job.hub, log, taps, KafkaTopic(job.topic, name)),
                bytes_max=job.topic.message_bytes_max,
                executor=executor,
                now_us=lambda: time.time_ns() // 1_000,
            )
            task = loop.create_task(tap.run(), name="tap")
            waiting = loop.create_task(ended.wait(), name="end of the input")
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            for each in (task, waiting):
                each.cancel()
            await asyncio.wait((task, waiting))
            if not task.cancelled():
                task.result()
        finally:
            await loop.run_in_executor(executor, taps.close)
    finally:
        executor.shutdown()


async def main() -> None:
    """Read the job, and do it until the input ends."""
    reader, ended = asyncio.StreamReader(), asyncio.Event()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    job = msgspec.msgpack.decode(await reader.readexactly(length), type=TapJob)

    async def watch() -> None:
        await reader.read()
        ended.set()

    watching = loop.create_task(watch(), name="input")
    try:
        await serve(job, ended)
    finally:
        watching.cancel()


if __name__ == "__main__":
    os.nice(NICE)
    write_to_stderr(logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every attempt; we log errors ourselves
    asyncio.run(main())
