"""Start of the cluster's processes: each ends with the demo, however that ends."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tests.demo.cluster.programs import Programs
from tests.demo.errors import DemoError
from tests.demo.processes import Child, Children
from tests.demo.stage import PYTHONPATH

ANSWERS_S: Final = 120.0
"""Longest start of a server on a busy machine."""
ASKED_EVERY_S: Final = 0.2
"""Interval of asking a server whether it serves."""


class Launcher:
    """Starts processes that the kernel ends when the demo is killed."""

    def __init__(self, children: Children, programs: Programs) -> None:
        self.programs: Final = programs
        self._children = children

    async def start(
        self,
        name: str,
        command: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        folder: Path | None = None,
        last_signal: str = "KILL",
    ) -> Child:
        """Start a process, as another user if one is given. The kernel sends `last_signal` when the demo is killed."""
        path = os.pathsep.join(filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH", "")]))
        setpriv = str(self.programs.setpriv)
        words = [setpriv, "--pdeathsig", last_signal, *command]
        if user is not None:
            words = [setpriv, f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", *words]
        settings = {"PYTHONPATH": path, **(environment or {})}
        return await self._children.start(name, words, folder=folder, environment=settings)

    async def run(
        self,
        name: str,
        command: list[str],
        *,
        user: str | None = None,
        folder: Path | None = None,
        within_s: float = ANSWERS_S,
    ) -> None:
        """Run a command to its end. Raises DemoError when it fails."""
        child = await self.start(name, command, user=user, folder=folder)
        if await child.exit_code(within_s):
            raise child.failure("failed")

    async def end(self, child: Child, number: int, within_s: float) -> None:
        """End a process with a signal, and wait for its end. Raises DemoError when it does not end in time."""
        await self._children.end([child], number, within_s)


async def until(child: Child, serves: Callable[[], Awaitable[bool]], within_s: float = ANSWERS_S) -> None:
    """Wait until a server serves. Raises DemoError when it ends before, or does not serve in time."""
    try:
        async with asyncio.timeout(within_s):
            while not await serves():
                if not child.alive:
                    raise child.failure("ended before it served")
                await asyncio.sleep(ASKED_EVERY_S)
    except TimeoutError as late:
        raise child.failure(f"did not serve within {within_s:.0f} s") from late


def check(child: Child) -> None:
    """Raise DemoError when a process has ended."""
    if not child.alive:
        raise DemoError(f"{child.name} ended unexpectedly", "\n".join(child.last_lines()))
