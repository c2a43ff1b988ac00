"""The load generators: compiles them once a run, starts them, and reads their line of figures."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.packages import BrokerMissing, install, program

TOOLS = Path(__file__).parent / "tools"
LIBRARIES = {
    "mqttload": ["-lssl", "-lcrypto"],
    "amqpload": ["-lqpid-proton", "-l:libqpid-proton-proactor.so.1"],
    "wsrelay": ["-pthread"],
}
NEEDS = {
    "mqttload": ["gcc", "libc6-dev", "libssl-dev"],
    "amqpload": ["gcc", "libc6-dev", "libqpid-proton11-dev"],
    "wsrelay": ["gcc", "libc6-dev"],
}


class LoadFailed(Exception):
    """The load failed, or a peer did not start; the message comes from the generator or the peer."""


class LoadGenerators:
    """Load generators, compiled into a given folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: dict[str, Path] = {}

    def run(self, name: str, port: int, *arguments: str) -> dict[str, float]:
        """Run one generator to its end. Raises LoadFailed, or BrokerMissing when it cannot be compiled."""
        command = [str(self._program(name)), "-p", str(port), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LoadFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return {key: float(value) for key, _, value in (pair.partition("=") for pair in done.stdout.split())}

    @contextmanager
    def over_websocket(self, port: int) -> Iterator[int]:
        """Yield a port that translates AMQP over TCP to AMQP over WebSocket at `port`. Raises BrokerMissing,
        LoadFailed.
        """
        command = [str(self._program("wsrelay")), "-p", str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
            try:
                said = relay.stdout.readline() if relay.stdout is not None else ""
                if not said.startswith("port="):
                    raise LoadFailed("wsrelay does not listen")
                yield int(said.removeprefix("port="))
            finally:
                relay.kill()

    @staticmethod
    def _compile(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _program(self, name: str) -> Path:
        if name not in self._programs:
            made = self._folder / name
            command = [str(program("cc", *NEEDS[name])), "-O2", "-o", str(made), str(TOOLS / f"{name}.c")]
            done = self._compile(command + LIBRARIES[name])
            if done.returncode:  # a header is missing
                install(name, *NEEDS[name])
                done = self._compile(command + LIBRARIES[name])
            if done.returncode:
                raise BrokerMissing(f"{name} does not compile:\n{done.stderr[:400]}")
            self._programs[name] = made
        return self._programs[name]
