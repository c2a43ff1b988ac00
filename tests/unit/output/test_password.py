"""Passwords and tokens are read from a pipe, or from a terminal without echo."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PROGRAM = "from edge.output.password import read_password; print('got', repr(read_password()))"
COMMAND = (sys.executable, "-P", "-c", PROGRAM)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_pipe_gives_one_line() -> None:
    for given, read in ((b"secret\r\nmore\n", "secret"), (b"", "")):
        done = subprocess.run(COMMAND, env=ENVIRONMENT, input=given, capture_output=True, timeout=60, check=True)
        assert done.stdout.decode() == f"got {read!r}\n"
        assert done.stderr == b"", "no prompt"


TOKEN_PROGRAM = "from edge.appliance.identity.commands import token_of; print('got', repr(token_of(None, sys.stdin)))"
"""Program that reads `--token-file -`."""


@pytest.mark.parametrize(("name", "program"), [(b"password: ", PROGRAM), (b"token: ", TOKEN_PROGRAM)])
def test_terminal_is_asked_without_echo(tmp_path: Path, name: bytes, program: str) -> None:
    result = tmp_path / "result"
    program = f"import sys; sys.stdout = open({str(result)!r}, 'w'); {program}"
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, (sys.executable, "-P", "-c", program), ENVIRONMENT)
    shown = b""
    while name not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"secret\n")
    try:
        while piece := os.read(terminal, 1024):
            shown += piece
    except OSError:
        pass  # Linux: the other end of the terminal is closed
    finally:
        os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    assert result.read_text() == "got 'secret'\n"
    assert b"secret" not in shown
