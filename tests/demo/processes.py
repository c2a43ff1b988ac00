"""The demo's child processes: each in a process group of its own, with a log file, and none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.demo.errors import DemoError

LOG_LINES_SHOWN = 15
TERMINATE_S = 10.0
"""After SIGTERM a process has this long to end in order."""


def waypost(*arguments: str) -> list[str]:
    """The product's command line."""
    return [sys.executable, "-m", "edge.appliance.main", *arguments]


def last_lines(log: Path) -> list[str]:
    """The last lines of a log; none when there is no such file."""
    with contextlib.suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return []


class Child:
    """One process: its standard output is read line by line, its standard error goes to the log."""

    def __init__(self, name: str, log: Path, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.log = log
        self.process = process
        self.output: list[str] = []
        self._line = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ready(self, within_s: float) -> dict[str, str]:
        """Wait for the line ``ready name=host:port ...``; its values by name. Raises DemoError."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    for line in self.output:
                        if line.startswith("ready"):
                            return dict(word.partition("=")[::2] for word in line.split()[1:])
                    if self._reading.done():
                        raise self.failure("ended before it was ready")
                    self._line.clear()
                    await self._line.wait()
        except TimeoutError as late:
            raise self.failure(f"was not ready within {within_s:.0f} s") from late

    async def exit_code(self, within_s: float) -> int:
        """Wait for its end. Raises DemoError when it does not end in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._reading
                return await self.process.wait()
        except TimeoutError as late:
            raise self.failure(f"did not end within {within_s:.0f} s") from late

    def signal(self, number: int) -> None:
        """Signal the whole group; nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def failure(self, what: str) -> DemoError:
        """What to raise, with the last lines of its log."""
        code = self.process.returncode
        ending = "" if code is None else f" (exit code {code})"
        return DemoError(f"{self.name} {what}{ending}", "\n".join(self.last_lines()))

    def last_lines(self) -> list[str]:
        return last_lines(self.log)

    async def _read(self) -> None:
        if self.process.stdout is None:
            raise ValueError("a child's standard output must be a pipe")
        async for line in self.process.stdout:
            self.output.append(line.decode(errors="replace").rstrip())
            self._line.set()
        self._line.set()


class Children:
    """All of them. Leaving the context ends every one that still runs."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """SIGKILL to every group, also when we are cancelled: the order is gone, nothing may stay behind."""
        for child in self._children:
            child.signal(signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERMINATE_S):
                    await child.process.wait()

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a process; its log is appended to when the name was used before."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                limit=1 << 24,
            )
        child = Child(name, log, process)
        self._children.append(child)
        return child

    async def end(self, children: Sequence[Child], number: int = signal.SIGTERM, within_s: float = TERMINATE_S) -> None:
        """End these in order, all at once. Raises DemoError when one does not end in time."""
        for child in children:
            child.signal(number)
        await asyncio.gather(*(child.exit_code(within_s) for child in children))
