"""Tap of a hub: starts its process again when it ends, and reads its state from the registry.

The state in the registry is that of all hubs: one of them passes messages on, and every hub shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.registry.taps import RegistryTaps, TapName, TapRecord
from cloud.hub.tap.job import LENGTH_BYTES, TapJob
from cloud.hub.tap.limits import END_S, LATE_S, LOOK_S, RESTART_S, SILENT_S
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

_ROOT: Final = Path(__file__).parents[3]
"""Folder of the packages: a checkout, or site-packages."""


class TapFigures(NamedTuple):
    """State of the tap, as health, metrics and API show it."""

    topic: str
    hub: str | None
    """Writer id of the hub that passes messages on; None if no hub does."""
    version: int
    """Last version of the table that was passed on."""
    versions_behind: int
    records: int
    lag_s: float
    """Age of the first message that was not passed on."""
    trouble: str


class HubTap:
    """Tap of one hub. `start`, later `stop`."""

    def __init__(self, job: TapJob | None, lake: str, registry: sa.URL, now_us: Callable[[], int]) -> None:
        """`job`: None if no topic is configured; `lake`: identity of the lake; `now_us`: UTC microseconds."""
        self._job = job
        self._lake = lake
        self._url = registry
        self._now_us = now_us
        self._record: TapRecord | None = None
        self._unread: str | None = None
        """Why the state cannot be read; None if it can."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tap")
        self._tasks: list[asyncio.Task[None]] = []
        self._started_us = now_us()

    def start(self) -> None:
        """Start the process, and follow its state."""
        if (job := self._job) is None:
            return
        loop, name = asyncio.get_running_loop(), TapName(self._lake, job.table, job.topic.topic)
        keeping = loop.create_task(self._keep(msgspec.msgpack.encode(job)), name="tap")
        self._tasks = [keeping, loop.create_task(self._follow(name), name="tap: state")]

    async def stop(self) -> None:
        """End the process. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._executor.shutdown()

    @property
    def figures(self) -> TapFigures | None:
        """Return the state of the tap; None without a topic."""
        if self._job is None:
            return None
        record, topic = self._record, self._job.topic.topic
        if record is None:
            return TapFigures(topic, None, 0, 0, 0, 0.0, self._unread or "")
        late_us = self._now_us() - record.waiting_since if record.waiting_since is not None else 0
        silent_us = self._silent_us(record)
        if silent_us > SILENT_S * 1e6:  # messages that landed since wait too
            late_us = max(late_us, silent_us)
        behind = max(0, record.newest - record.version)
        trouble = self._unread or record.trouble
        lag_s = max(0, late_us) / 1e6
        return TapFigures(topic, record.holder, record.version, behind, record.records, lag_s, trouble)

    @property
    def problem(self) -> str | None:
        """Return what is wrong; None while messages reach the topic within `LATE_S`."""
        record, figures = self._record, self.figures
        if figures is None:
            return None
        if record is None:
            since_us = self._now_us() - self._started_us
            return self._unread or ("no hub passes messages on yet" if since_us > LATE_S * 1e6 else None)
        if self._silent_us(record) > max(LATE_S, SILENT_S) * 1e6:
            return f"no hub has passed messages on for {self._silent_us(record) // 1_000_000} s: {figures.trouble}"
        if figures.lag_s > LATE_S:
            return f"messages wait for {figures.lag_s:.0f} s: {figures.trouble or 'more land than are passed on'}"
        return None

    def _silent_us(self, record: TapRecord) -> int:
        return self._now_us() - record.seen_at

    # --- the process ------------------------------------------------------------------------------------------------

    async def _keep(self, job: bytes) -> None:
        while True:
            try:
                code = await self._run_process(job)
                log.warning("the process that passes messages on has ended with %d; it is started again", code)
            except OSError as error:
                log.warning("no process can be started to pass messages on: %s", error)
            await asyncio.sleep(RESTART_S)

    async def _run_process(self, job: bytes) -> int:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "cloud.hub.tap.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for the hub; the process ends with its input
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            if process.stdin is not None:
                process.stdin.write(len(job).to_bytes(LENGTH_BYTES, "big") + job)
                with contextlib.suppress(OSError):  # it has ended already, and its code says so
                    await process.stdin.drain()
            return await process.wait()
        finally:
            await _end(process)

    # --- its state --------------------------------------------------------------------------------------------------

    async def _follow(self, name: TapName) -> None:
        loop = asyncio.get_running_loop()
        taps: RegistryTaps | None = None
        try:
            while True:
                try:
                    if taps is None:
                        taps = await loop.run_in_executor(self._executor, RegistryTaps, self._url)
                    self._record = await loop.run_in_executor(self._executor, partial(taps.read, name))
                    self._unread = None
                except RegistryError as error:
                    self._unread = f"the state of the tap cannot be read: {error}"
                except Exception as error:  # an internal error must not end the task silently
                    log.exception("the state of the tap cannot be read: internal error")
                    self._unread = f"the state of the tap cannot be read: internal error {type(error).__name__}"
                await asyncio.sleep(LOOK_S)
        finally:
            if taps is not None:
                self._executor.submit(taps.close)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the process leave the tap to other hubs; kill it if that takes long."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
