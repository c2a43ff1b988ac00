"""A store in a process of its own, on a failing medium, driven line by line: ``driver DIR``, JSON in and out."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError
from tests.contract.store.rig import Rig, flat
from tests.fault.store.history import Observed
from tests.fault.store.observe import observe, open_store

READ_BYTES = 1 << 24


class Answer(msgspec.Struct):
    """Result of a command."""

    error: str = ""
    """Class of the StoreError, or empty."""
    text: str = ""
    observed: Observed | None = None
    bodies: list[str] = []


class Command(msgspec.Struct):
    do: str
    bodies: list[str] = []
    upto: int = 0
    received_at: int = 1


class Driven:
    """Client of the driver process. A context manager."""

    def __init__(self, directory: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.store.driver", str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self.opened = self._answer()

    def commit(self, *bodies: str, received_at: int = 1) -> str:
        """Append to the queue and commit; return the error's class, or nothing."""
        return self._ask("commit", bodies=list(bodies), received_at=received_at).error

    def acknowledge(self, upto: int) -> str:
        """Acknowledge all positions up to this one, and commit."""
        return self._ask("acknowledge", upto=upto).error

    def observe(self) -> Observed:
        observed = self._ask("observe").observed
        assert observed is not None
        return observed

    def bodies(self) -> list[str]:
        """Return the bodies for a consumer that begins at the front, or nothing after a failed read; see `answered`."""
        return self._ask("read").bodies

    def answered(self) -> list[str]:
        """Return the final result of the last `bodies`, a while later."""
        return self._ask("answered").bodies

    def close(self) -> str:
        return self._ask("close").error

    def log(self) -> str:
        return self._log.read_text()

    def _ask(self, do: str, **arguments: Any) -> Answer:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(Command(do, **arguments)) + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        return msgspec.json.decode(line, type=Answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=20)


class _Driver:
    def __init__(self, directory: Path) -> None:
        self._rig: Rig = open_store(directory)
        self._log = self._rig.store.logs.open("queue jobs")
        self._cursor = self._rig.store.cursors.open("consumer", self._log, 0)
        self._answers: list[Sequence[Stored]] = []

    def do(self, command: Command) -> Answer:
        match command.do:
            case "commit":
                bodies = [body.encode() for body in command.bodies]
                self._rig.store.logs.append(self._log, Run("jobs", "device", 1, b"", bodies, command.received_at))
                return self._commit()
            case "acknowledge":
                self._rig.store.cursors.acknowledge(self._cursor, 0, command.upto)
                return self._commit()
            case "read":
                self._answers.clear()
                self._rig.store.logs.read(self._log, 0, READ_BYTES, self._answers.append)
                while not (self._answers or self._rig.store.logs._reads.failed):
                    self._rig.turn()
                return self._read()
            case "answered":
                while not self._answers:
                    self._rig.now += 10
                    self._rig.store.commits.flush()
                    self._rig.turn()
                return self._read()
            case "close":
                self._rig.store.close()
                return Answer()
        return Answer(observed=observe(self._rig))

    def _read(self) -> Answer:
        return Answer(bodies=[body.decode() for runs in self._answers for *_, body in flat(runs)])

    def _commit(self) -> Answer:
        error = self._rig.commit().error
        return Answer() if error is None else Answer(type(error).__name__, str(error))


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    answers = os.dup(1)

    def answer(what: Answer) -> None:
        os.write(answers, msgspec.json.encode(what) + b"\n")

    try:
        driver = _Driver(Path(sys.argv[1]))
    except StoreError as error:
        answer(Answer(type(error).__name__, str(error)))
        return
    answer(Answer())
    for line in sys.stdin.buffer:
        answer(driver.do(msgspec.json.decode(line, type=Command)))


if __name__ == "__main__":
    main()
