"""Command lines of the program, each in its own process, without a start of Python for each.

A server imports the program once and forks for every line. The child process has its own arguments, environment,
standard streams and exit code, and runs the program's `main`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from edge.appliance.commands import COMMANDS

SECONDS_MAX: Final = 60.0
_IMPORTED: Final = (
    "edge.appliance.main",
    "edge.appliance.first_boot.attesting",
    "edge.appliance.first_boot.enrolling",
    "edge.appliance.first_boot.settings",
    "edge.appliance.gateway",
    "edge.appliance.initial.creation",
    "tests.support.forked",
    *(command.place.partition(":")[0] for command in COMMANDS.values()),
)
"""Modules that the server imports once: shared by commands, and without threads."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(list(_IMPORTED))


def waypost(
    *words: str, stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run one command line. AssertionError when it does not end within `timeout_s`."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.write_text(stdin if stream.name == "stdin" else "")
        process = _server.Process(target=_run, args=(words, streams, dict(environment or os.environ)))
        process.start()
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(f"{words} did not end within {timeout_s:g} s: {streams[2].read_text()}")
        out, err = (stream.read_text() for stream in streams[1:])
        return subprocess.CompletedProcess(words, process.exitcode or 0, out, err)


def cut_off(*words: str, after_s: float) -> bool:
    """Run one command line and kill it (SIGKILL) after this time; return False if it had ended before."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.touch()
        process = _server.Process(target=_run, args=(words, streams, dict(os.environ)))
        process.start()
        process.join(after_s)
        alive: bool = process.is_alive()
        process.kill()
        process.join(SECONDS_MAX)
        return alive


def _run(words: Sequence[str], streams: Sequence[Path], environment: Mapping[str, str]) -> None:
    """Run the command line in the forked process."""
    from edge.appliance.main import main  # noqa: PLC0415 - the tests' own process does not need it

    for number, stream in enumerate(streams):
        descriptor = os.open(stream, os.O_RDWR | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put /dev/null in its place
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["waypost-test", *words]
    main()
