"""A running server as a target, and the command that runs the corpus against it.

python -m tests.conformance.mqtt.socket_target HOST:PORT

Prints a line for each scenario, and the exercised statements; exits 1 when something failed. The server must accept any
client.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time

import msgspec

from edge.broker.mqtt import packets as p
from tests.conformance.mqtt.broker_corpus import BROKER_SCENARIOS
from tests.conformance.mqtt.corpus import SCENARIOS
from tests.conformance.mqtt.runner import Failure, Run

PATIENCE_S = 5.0
QUIET_S = 0.3


class SocketLink:
    """The client's end of one TCP connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.closed = False
        self._socket = socket.create_connection(address, PATIENCE_S)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self, *, quiet: bool) -> bytes:
        self._socket.settimeout(QUIET_S if quiet else PATIENCE_S)
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            return b""
        except OSError:
            data = b""
        self.closed = not data
        return data

    def drop(self) -> None:
        self.closed = True
        self._socket.close()


class SocketTarget:
    """Server at (host, port). A clean connect ends the sessions of one scenario before the next."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def open(self) -> SocketLink:
        return SocketLink(self._address)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)  # the test needs the server's own clock

    def reset(self) -> None:
        for client_id in ("a", "b", "c"):
            link = self.open()
            link.send(p.Connect(client_id, 4).encode() + p.Disconnect().encode(4))
            while not link.closed and link.receive(quiet=False):
                pass
            link.drop()


class Report(msgspec.Struct):
    """Outcome of a corpus run: failures by scenario, statements exercised by level."""

    passed: int
    failures: list[str]
    statements: dict[int, set[str]]


def run_corpus(target: SocketTarget, pattern: str = "") -> Report:
    """Run every scenario with a name that the pattern matches, at every level that it has."""
    report = Report(0, [], {4: set(), 5: set()})
    for scenario in [*SCENARIOS, *BROKER_SCENARIOS]:
        for version, statements in scenario.statements.items():
            if not re.search(pattern, scenario.name):
                continue
            try:
                Run(target, version).play(scenario)
            except Failure as failure:
                report.failures.append(str(failure))
            else:
                report.passed += 1
                report.statements[version].update(statements.split())
    return report


def main(arguments: list[str]) -> int:
    """Run the command."""
    host, _, port = arguments[0].rpartition(":")
    report = run_corpus(SocketTarget(host, int(port)), *arguments[1:2])
    for failure in report.failures:
        print("FAILED", failure)
    for version, statements in report.statements.items():
        print(f"level {version}: {len(statements)} statements exercised")
    print(f"{report.passed} passed, {len(report.failures)} failed")
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
