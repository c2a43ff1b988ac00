"""Child processes of the demo: each has its own process group and log file, and none is left behind."""

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
"""Time that a process has to end in order after SIGTERM."""


def waypost(*arguments: str) -> list[str]:
    """Return the command line of a product command."""
    return [sys.executable, "-m", "edge.appliance.main", *arguments]


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, or an empty list without such a file."""
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
        """Wait for the line ``ready name=host:port ...``; return its values by name. Raises DemoError."""
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
        """Signal the whole group; does nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def failure(self, what: str) -> DemoError:
        """Return an error with the last lines of its log."""
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
    """All child processes. Leaving the context ends every running one."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    async def __aenter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send SIGKILL to every group, also after a cancellation, so that no process is left behind."""
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
        """Start a process; a repeated name appends to its log."""
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
        """End these processes, all at the same time. Raises DemoError when one does not end in time."""
        for child in children:
            child.signal(number)
        await asyncio.gather(*(child.exit_code(within_s) for child in children))
