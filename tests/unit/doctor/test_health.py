"""The doctor reports the problems of a gateway, and a gateway that does not answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.doctor.check import CheckResult, Level
from edge.appliance.doctor.health import health
from edge.broker.configuration import BrokerConfiguration, Listener, Protocol
from tests.support.processes import free_port
from tests.unit.doctor.check_context import bad, machine


class Answers(http.server.BaseHTTPRequestHandler):
    problems: tuple[dict[str, str], ...] = ()

    def do_GET(self) -> None:
        assert self.path == "/healthz"
        self.send_response(503 if self.problems else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"ok": not self.problems, "problems": self.problems}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Log nothing."""


def problem(what: str) -> dict[str, str]:
    return {"name": "store", "what": what, "since": "2026-11-22T03:00:00+00:00", "next_step": "free space"}


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    handler = type("Handler", (Answers,), {"problems": request.param})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def results(folder: Path, port: int, *, running: bool = True) -> list[CheckResult]:
    configuration = BrokerConfiguration(listeners=(Listener(Protocol.HTTP, ListenEndpoint("0.0.0.0", port)),))
    return list(health(machine(folder, configuration=configuration, running=running)))


@pytest.mark.parametrize("port", [()], indirect=True)
def test_healthy_gateway_has_no_findings(tmp_path: Path, port: int) -> None:
    assert [result.level for result in results(tmp_path, port)] == [Level.OK]


@pytest.mark.parametrize(
    "port", [(problem("positions 3 to 4 are missing"), problem("the medium failed"))], indirect=True
)
def test_each_problem_is_a_finding(tmp_path: Path, port: int) -> None:
    found = bad(results(tmp_path, port))
    assert [(result.level, result.next_step) for result in found] == [(Level.FAIL, "free space")] * 2
    assert "positions 3 to 4 are missing (since 2026-11-22T03:00" in found[0].seen
    assert "the medium failed" in found[1].seen


def test_silent_gateway_is_a_finding(tmp_path: Path) -> None:
    assert [result.level for result in bad(results(tmp_path, free_port()))] == [Level.WARN]
    assert results(tmp_path, free_port(), running=False) == []
