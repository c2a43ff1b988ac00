"""Check of the problems that a running gateway reports at ``/healthz``."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from edge.appliance.doctor.check import CheckContext, CheckResult, fail, note, ok, warn
from edge.health.problems import HealthProblem, Severity

_RESULTS: Final[Mapping[Severity, Callable[[str, str, str], CheckResult]]] = {
    Severity.ERROR: fail,
    Severity.WARNING: warn,
    Severity.NOTICE: note,
}
"""Result of a check by the severity of the problem that it reports."""


class _Health(msgspec.Struct):
    """Body of ``GET /healthz``."""

    problems: Sequence[HealthProblem]


def health(context: CheckContext) -> Iterator[CheckResult]:
    """Query ``/healthz`` at the configured address."""
    endpoint = context.configuration.endpoint("http")
    if not context.running or endpoint is None or not endpoint.port:
        return
    endpoint = endpoint.from_here
    try:
        problems = _problems(f"http://{endpoint}/healthz", context.timeout_s)
    except (OSError, msgspec.MsgspecError) as error:
        step = "see its log, and check the options it was started with"
        yield warn("health", f"{endpoint} does not answer: {getattr(error, 'reason', error)}", step)
        return
    for problem in problems:
        seen = f"{problem.name}: {problem.what} (since {problem.since})"
        yield _RESULTS[problem.severity]("health", seen, problem.next_step)
    if not problems:
        yield ok("health", "the gateway reports no problem")


def _problems(url: str, timeout_s: float) -> Sequence[HealthProblem]:
    """Return the reported problems. Raises OSError, msgspec.MsgspecError."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - http
            body = answer.read()
    except urllib.error.HTTPError as refused:  # 503 is the answer of a gateway with errors
        with refused:
            body = refused.read()
    return msgspec.json.decode(body, type=_Health).problems
