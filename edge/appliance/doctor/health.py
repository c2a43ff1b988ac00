"""What a running gateway itself says is wrong: commits that fail, logs it cannot read, no room, files that are gone."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import msgspec

from edge.appliance.doctor.check import Result, Surroundings, fail, ok, warn
from edge.health.problems import Problem, Severity


class _Health(msgspec.Struct):
    """The body of ``GET /healthz``."""

    problems: Sequence[Problem]


def health(around: Surroundings) -> Iterator[Result]:
    """Ask ``/healthz`` where the configuration says it is."""
    endpoint = around.configuration.endpoint("http")
    if not around.running or endpoint is None or not endpoint.port:
        return
    endpoint = endpoint.from_here
    try:
        problems = _problems(f"http://{endpoint}/healthz", around.timeout_s)
    except (OSError, msgspec.MsgspecError) as error:
        step = "see its log; was it started with other options?"
        yield warn("health", f"{endpoint} does not answer: {getattr(error, 'reason', error)}", step)
        return
    for problem in problems:
        seen = f"{problem.name}: {problem.what} (since {problem.since})"
        said = fail if problem.severity is Severity.ERROR else warn
        yield said("health", seen, problem.next_step)
    if not problems:
        yield ok("health", "the gateway reports no problem")


def _problems(url: str, timeout_s: float) -> Sequence[Problem]:
    """Raises OSError, msgspec.MsgspecError."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - http
            body = answer.read()
    except urllib.error.HTTPError as refused:  # 503 is the answer of one that has problems
        body = refused.read()
    return msgspec.json.decode(body, type=_Health).problems
