"""Problems that a running gateway or hub reports, as an operator reads them."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from tests.support.http_client import ask_port
from tests.support.processes import wait_until

WAIT_S = 30.0


def health(port: int) -> tuple[int, list[dict[str, Any]]]:
    """Return status code and problems of `/healthz`; the code must agree with the problems."""
    answer = ask_port(port, "GET", "/healthz", timeout_s=WAIT_S)
    code, body = answer.status, answer.document
    errors = [one for one in body["problems"] if one["severity"] == "error"]
    assert code == (503 if errors else 200), body
    assert body["ok"] is not bool(errors), body
    return code, body["problems"]


def find_problem(port: int, name: str, words: str = "") -> dict[str, Any] | None:
    """Return the problem with this name and a text that contains these words."""
    return next((one for one in health(port)[1] if one["name"] == name and words in one["what"]), None)


def await_problem(
    port: int, name: str, words: str = "", *, severity: str = "error", timeout_s: float = WAIT_S
) -> dict[str, Any]:
    """Wait until a problem is in `/healthz`; check that status and metrics have it as well."""
    wait_until(lambda: find_problem(port, name, words) is not None, timeout_s=timeout_s, what=f"{name} is reported")
    problem = find_problem(port, name, words)
    assert problem is not None, "it stays while it lasts"
    assert problem["severity"] == severity
    assert problem["since"]
    assert problem["next_step"]
    status = json.loads(_page(port, "/api/v1/status"))
    assert problem["name"] in [one["name"] for one in status["problems"]]
    assert f'problem="{problem["name"]}"' in _page(port, "/metrics")
    return problem


def await_recovery(port: int, name: str, words: str = "", *, timeout_s: float = WAIT_S) -> None:
    """Wait until the problem has disappeared."""
    wait_until(lambda: find_problem(port, name, words) is None, timeout_s=timeout_s, what=f"{name} is over")


def _page(port: int, path: str) -> str:
    answer = ask_port(port, "GET", path, timeout_s=WAIT_S)
    assert answer.status == HTTPStatus.OK, answer
    return answer.body.decode()
