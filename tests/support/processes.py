"""Real gateways and hubs for tests: started through the command line, awaited, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.demo.ports import free_ports
from tests.support.command import PROGRAM

READY_S = 60.0
"""Longest start on a machine that runs other tests at the same time."""


def free_port() -> int:
    """Return a free TCP port that no outgoing connection takes while its server is down."""
    return free_ports(1)[0]


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str, every_s: float = 0.05) -> None:
    """Wait until `condition` holds; AssertionError naming `what` if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def peak_mib(pid: int) -> float:
    """Return the largest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Suspend a child process while the body runs: its files are as after a power cut."""
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitpid(pid, os.WUNTRACED)  # all of its threads have stopped
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Waypost:
    """One `waypost` process that prints a `ready` line; may be restarted with the same arguments."""

    def __init__(self, log: Path, *arguments: str, program: Sequence[str] = PROGRAM) -> None:
        self.arguments = [*program, *arguments]
        self.log = log
        self.endpoints: dict[str, tuple[str, int]] = {}
        self.environment: dict[str, str] | None = None
        """Environment of the process; None for that of this process."""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start and wait for `ready`; AssertionError with the log if it ends before."""
        with self.log.open("a") as stderr:
            self.process = subprocess.Popen(
                self.arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, env=self.environment
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            self.process.kill()
            self._gone()
            raise AssertionError(f"{self.arguments}: {line!r}\n{self.log.read_text()}")
        self._set_endpoints(line)
        return self

    def _set_endpoints(self, ready: str) -> None:
        """Store the listeners' addresses of a ``ready`` line."""
        for part in ready.split()[1:]:
            name, _, endpoint = part.partition("=")
            host, _, port = endpoint.rpartition(":")
            self.endpoints[name] = (host, int(port))

    @property
    def data(self) -> Path:
        """Return the data directory."""
        return Path(self.arguments[self.arguments.index("--data") + 1])

    def port(self, name: str) -> int:
        return self.endpoints[name][1]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self._gone()

    def stop(self) -> int:
        """Send SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self._gone()

    def ends(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._gone()

    def _gone(self) -> int:
        assert self.process is not None
        code = self.process.wait(READY_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def edge(folder: Path, name: str, *arguments: str) -> Waypost:
    """Return a development gateway on free ports; later arguments win."""
    defaults = [f"--{protocol}=127.0.0.1:0" for protocol in ("mqtt", "amqp", "http")]
    return Waypost(folder / f"{name}.log", "run", "--data", str(folder / name), "--dev", *defaults, *arguments)


def gateway_at(data: Path) -> Waypost:
    """Return the gateway of a data directory, with the configuration applied there; its log is next to it."""
    return Waypost(data.parent / f"{data.name}.log", "run", "--data", str(data))


def landing_soon(folder: Path) -> tuple[str, str]:
    """Return options of a hub that gathers messages for a tenth of a second only, so that tests wait less for it."""
    file = folder / "landing-soon.yaml"
    file.write_text("{apiVersion: waypost/v1, kind: Hub, spec: {gatherMilliseconds: 100}}\n")
    return "--config", str(file)


def hub(folder: Path, *arguments: str) -> Waypost:
    """Return a development hub on free ports; later arguments win."""
    defaults = ["--amqp=127.0.0.1:0", "--http=127.0.0.1:0"]
    return Waypost(folder / "hub.log", "hub", "run", "--data", str(folder / "hub"), "--dev", *defaults, *arguments)


def processes_of(folder: Path) -> list[str]:
    """Return command lines that contain the folder of a program: its children, even orphaned ones."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.pid != os.getpid():
            found.append(line)
    return found
