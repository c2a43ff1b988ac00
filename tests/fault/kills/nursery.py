"""Gateways that start in a tenth of the time: forked from a process that has imported everything already.

Python's imports dominate the time of a thousand restarts. A fork runs the same program with the same arguments in a
process of its own, and SIGKILL ends it the same way. Some starts are full ones nevertheless (`FULL_EVERY`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.support.processes import READY_S, Waypost

FULL_EVERY: Final = 25


class Nursery(Waypost):
    """`Waypost` with forked starts; a context manager like it."""

    def __init__(self, log: Path, *arguments: str) -> None:
        super().__init__(log, *arguments)
        self._starts = 0
        self._forked: int | None = None
        with log.open("a") as stderr:
            self._mother = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.kills.nursery", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def start(self) -> Self:
        self._starts += 1
        if self._starts % FULL_EVERY == 0:
            return super().start()
        assert self._mother.stdin is not None
        self._mother.stdin.write("start\n")
        self._mother.stdin.flush()
        self._forked = int(self._line())
        line = self._line()
        assert line.startswith("ready"), f"{line!r}\n{self.log.read_text()}"
        self._set_endpoints(line)
        return self

    def kill(self) -> None:
        if self._forked is None:
            super().kill()
        else:
            self._end(signal.SIGKILL)

    def stop(self) -> int:
        return super().stop() if self._forked is None else self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self._forked is not None
        os.kill(self._forked, how)
        self._forked = None
        return int(self._line())

    def _line(self) -> str:
        assert self._mother.stdout is not None
        line = self._mother.stdout.readline()
        assert line, self.log.read_text()
        return line

    def __exit__(self, *_: object) -> None:
        if self._forked is not None:
            self.kill()
        super().__exit__()
        with contextlib.suppress(BrokenPipeError):
            self._mother.communicate(timeout=READY_S)


def main() -> None:
    """Fork a gateway for every line of the input; print its process id, and how it ended."""
    import edge.appliance.gateway  # noqa: F401, PLC0415 - what a start would import
    from edge.appliance.main import main as program  # noqa: PLC0415

    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            print(os.getpid(), flush=True)
            program()  # ends the process
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
