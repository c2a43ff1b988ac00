"""The load generators: compiled once a run, started, and their line of figures read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.bench.brokers import BrokerMissing

TOOLS = Path(__file__).parent / "tools"
LIBRARIES = {"mqttload": [], "amqpload": ["-lqpid-proton", "-l:libqpid-proton-proactor.so.1"]}
NEEDS = {"mqttload": "gcc", "amqpload": "gcc libqpid-proton11-dev"}


class LoadFailed(Exception):
    """The load did not come through; the message is the generator's own."""


class LoadGenerators:
    """Compiled into a folder of the caller's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: dict[str, Path] = {}

    def run(self, name: str, port: int, *arguments: str) -> dict[str, float]:
        """Run one generator to its end. Raises LoadFailed, BrokerMissing when it cannot be compiled."""
        command = [str(self._program(name)), "-p", str(port), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LoadFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return {key: float(value) for key, _, value in (pair.partition("=") for pair in done.stdout.split())}

    def _program(self, name: str) -> Path:
        if name not in self._programs:
            compiler = shutil.which("cc")
            if compiler is None:
                raise BrokerMissing(f"no C compiler: apt-get install {NEEDS[name]}")
            program = self._folder / name
            command = [compiler, "-O2", "-o", str(program), str(TOOLS / f"{name}.c"), *LIBRARIES[name]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BrokerMissing(f"{name} does not compile (apt-get install {NEEDS[name]}):\n{done.stderr[:400]}")
            self._programs[name] = program
        return self._programs[name]
