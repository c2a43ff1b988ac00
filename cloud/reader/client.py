"""Reads the lake from the hub's event loop: hands each read to a process, and keeps answers until a table changes.

A read in the hub itself would hold the interpreter's lock and the memory of the landing. A process can be killed when a
read takes too long, and its memory ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from cloud.reader.limits import (
    CACHED_BYTES_MAX,
    CACHED_MAX,
    READ_S_MAX,
    READER_IDLE_S,
    READERS_MAX,
    READS_WAITING_MAX,
)
from cloud.reader.requests import LENGTH_BYTES, LakeAnswer, LakeRead, LakeRequest

log = logging.getLogger(__name__)

_ROOT: Final = Path(__file__).parents[2]
"""Folder of the packages: a checkout, or site-packages."""


class ReadFailed(Exception):
    """The read has no answer; the message says why and what to do."""


class ReadTableMissing(ReadFailed):
    """The table has not been made yet: no job has run."""


class ReadUnreadable(ReadFailed):
    """The table cannot be read."""


class ReadBusy(ReadFailed):
    """The read was not done, or not in time."""


class _ReaderProcess:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """`process`: started with pipes."""
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process has no pipes")
        self.process = process
        self._requests, self._answers = process.stdin, process.stdout

    async def ask(self, request: bytes) -> LakeAnswer:
        """Send a request and wait for its answer. Raises `EOFError`, `OSError` if the process ends."""
        self._requests.write(len(request).to_bytes(LENGTH_BYTES, "big") + request)
        await self._requests.drain()
        length = int.from_bytes(await self._answers.readexactly(LENGTH_BYTES), "big")
        return msgspec.msgpack.decode(await self._answers.readexactly(length), type=LakeAnswer)

    async def end(self) -> None:
        """Kill the process and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class LakeReader:
    """Reads of one lake, at most `READERS_MAX` at a time."""

    def __init__(self, lake: str, *, read_s_max: float = READ_S_MAX, idle_s: float = READER_IDLE_S) -> None:
        """`lake`: path or URI. `read_s_max`, `idle_s`: see `cloud.reader.limits`."""
        self._lake = lake
        self._read_s_max = read_s_max
        self._idle_s = idle_s
        self._slots = asyncio.Semaphore(READERS_MAX)
        self._waiting = 0
        self._idle: list[_ReaderProcess] = []
        self._ending: asyncio.TimerHandle | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._kept: OrderedDict[bytes, LakeAnswer] = OrderedDict()
        self._stopped = False

    async def ask(self, read: LakeRead, *, seconds: float | None = None) -> bytes:
        """Return the answer to a read. Raises `ReadFailed`. `seconds`: longest time; by default `READ_S_MAX`."""
        key = msgspec.msgpack.encode(read)
        kept = self._kept.get(key)
        request = msgspec.msgpack.encode(LakeRequest(read, kept.state if kept is not None else None))
        answer = await self._answer(request, self._read_s_max if seconds is None else seconds)
        if answer.missing:
            raise ReadTableMissing(answer.refused)
        if answer.unreadable:
            raise ReadUnreadable(answer.refused)
        if answer.refused:
            raise ReadFailed(answer.refused)
        if answer.body is None:
            if kept is None or kept.body is None:  # cannot be: only a kept answer has a state to compare
                raise ReadFailed("the answer is not kept any longer: try again")
            return kept.body
        self._keep(key, answer)
        return answer.body

    async def stop(self) -> None:
        """End the processes."""
        self._stopped = True
        if self._ending is not None:
            self._ending.cancel()
        self._end_idle()
        if self._ends:
            await asyncio.wait(self._ends)

    async def _answer(self, request: bytes, seconds: float) -> LakeAnswer:
        if self._waiting >= READS_WAITING_MAX:
            raise ReadBusy("too many pages read the lake at the moment: try again in some seconds")
        self._waiting += 1
        try:
            turn = asyncio.timeout(seconds + self._read_s_max)
            async with turn, self._slots, self._process() as process, asyncio.timeout(seconds):
                return await process.ask(request)
        except TimeoutError:
            raise ReadBusy(f"it took longer than {seconds:g} s: choose a shorter span, or one gateway") from None
        except (EOFError, OSError) as error:
            log.warning("a process that reads the lake has ended: %s", error)
            raise ReadBusy("the reading process has ended: look at the hub's log") from error
        finally:
            self._waiting -= 1

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[_ReaderProcess]:
        """Lend an idle process, or a new one. One that was interrupted is killed."""
        process = self._idle.pop() if self._idle else await self._start()
        try:
            yield process
        except BaseException:
            self._end(process)
            raise
        self._idle.append(process)
        if self._stopped:
            self._end_idle()
            return
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    async def _start(self) -> _ReaderProcess:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        return _ReaderProcess(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cloud.reader.worker", self._lake),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # an interrupt at the terminal is for the hub; the process ends with its input
                env={**os.environ, "PYTHONPATH": path},
            )
        )

    def _end_idle(self) -> None:
        idle, self._idle = self._idle, []
        for process in idle:
            self._end(process)

    def _end(self, process: _ReaderProcess) -> None:
        ending = asyncio.get_running_loop().create_task(process.end(), name="end of a reader of the lake")
        self._ends.add(ending)
        ending.add_done_callback(self._ends.discard)

    def _keep(self, key: bytes, answer: LakeAnswer) -> None:
        """Keep an answer, unless it is large or its tables are not known. The oldest make room."""
        self._kept.pop(key, None)
        if answer.body is None or not answer.state or len(answer.body) > CACHED_BYTES_MAX // 4:
            return
        self._kept[key] = answer
        while (
            len(self._kept) > CACHED_MAX or sum(len(one.body or b"") for one in self._kept.values()) > CACHED_BYTES_MAX
        ):
            self._kept.popitem(last=False)
