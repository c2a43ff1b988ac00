"""The product's command line, run as an operator runs it.

`run_waypost` forks each command from a server that has imported the program once, so no command waits for the start of
Python. The child process has its own arguments, environment, folder, standard streams and exit code, and runs the
program's `main`. `run_program` starts a new Python, for tests of its start and of variables that the loader reads.
`invoke` calls one command inside the process of the test.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner, Result

from edge.appliance.commands import COMMANDS

PROGRAM: Final = (sys.executable, "-m", "edge.appliance.main")
"""Beginning of a command line that starts Python."""
SECONDS_MAX: Final = 60.0
"""Longest command."""
_IMPORTED: Final = (
    "edge.appliance.main",
    "edge.appliance.first_boot.attesting",
    "edge.appliance.first_boot.enrolling",
    "edge.appliance.first_boot.settings",
    "edge.appliance.gateway",
    "edge.appliance.initial.creation",
    "tests.support.command",
    *(command.place.partition(":")[0] for command in COMMANDS.values()),
)
"""Modules that the server imports once: shared by commands, and without threads."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(list(_IMPORTED))


def run_waypost(
    *words: str, stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run one command line. AssertionError when it does not end within `timeout_s`."""
    with tempfile.TemporaryDirectory() as folder:
        streams = _streams(Path(folder), stdin)
        process = _start(words, streams, environment or os.environ)
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(f"{words} did not end within {timeout_s:g} s: {_read(streams[2])}")
        return subprocess.CompletedProcess(words, process.exitcode or 0, _read(streams[1]), _read(streams[2]))


def output_of(
    *words: str, stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = SECONDS_MAX
) -> str:
    """Run a command line that succeeds; return what it prints."""
    done = run_waypost(*words, stdin=stdin, environment=environment, timeout_s=timeout_s)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def document_of(*words: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> Any:
    """Run a command line with ``--json`` that succeeds; return the only item that it prints."""
    return item_in(output_of(*words, "--json", stdin=stdin, environment=environment))


def items_of(*words: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> list[Any]:
    """Run a command line with ``--json`` that succeeds; return the items that it prints."""
    return items_in(output_of(*words, "--json", stdin=stdin, environment=environment))


def items_in(text: str) -> list[Any]:
    """Return the items of a document that a command printed."""
    document = json.loads(text)
    assert (document["schema"], bool(document["kind"])) == (1, True), text
    return list(document["items"])


def item_in(text: str) -> Any:
    """Return the only item of a document that a command printed."""
    [item] = items_in(text)
    return item


def error_of(*words: str, code: int, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a command line that fails with this exit code; return stderr, which has no traceback."""
    done = run_waypost(*words, stdin=stdin, environment=environment)
    assert (done.returncode, done.stdout) == (code, ""), f"{words}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr


def kill_waypost(*words: str, after_s: float) -> bool:
    """Run one command line and kill it (SIGKILL) after this time; return False if it had ended before."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start(words, _streams(Path(folder), ""), os.environ)
        process.join(after_s)
        alive = process.is_alive()
        process.kill()
        process.join(SECONDS_MAX)
        return alive


def run_program(
    *words: str, stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run one command line in a new Python."""
    return subprocess.run(
        [*PROGRAM, *words], input=stdin, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def invoke(command: click.Command, *words: object, stdin: str | None = None) -> Result:
    """Call one command of the program in this process."""
    return CliRunner().invoke(command, [str(word) for word in words], input=stdin)


def _streams(folder: Path, stdin: str) -> list[Path]:
    """Return the files of stdin, stdout and stderr."""
    streams = [folder / name for name in ("stdin", "stdout", "stderr")]
    for stream, text in zip(streams, (stdin, "", ""), strict=True):
        stream.write_text(text)
    return streams


def _read(stream: Path) -> str:
    return stream.read_text(errors="surrogateescape")


def _start(words: Sequence[str], streams: Sequence[Path], environment: Mapping[str, str]) -> BaseProcess:
    process = _server.Process(target=_run, args=(words, streams, dict(environment)))
    process.start()
    return process


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
