"""Checks of the doctor: functions from a context to results, each with the observation and the next step."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import read_whole
from bridge.resources.resource import Resource
from edge.appliance.clock import kernel_synchronized
from edge.appliance.program import as_called
from edge.broker.configuration import BrokerConfiguration
from edge.configuration.effective import build_configuration, exposure, notices
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository


class Level(enum.Enum):
    """Severity of a result."""

    OK = "ok"
    WARN = "warn"
    """Works now, but may fail later, or is worse than it could be."""
    FAIL = "fail"
    """Does not work, or can lose acknowledged messages."""


class CheckResult(msgspec.Struct, frozen=True):
    """Result of one check."""

    name: str
    level: Level
    seen: str
    next_step: str = ""
    """Recommended action; empty when none is needed."""


def ok(name: str, seen: str) -> CheckResult:
    """Return a good result."""
    return CheckResult(name, Level.OK, seen)


def note(name: str, seen: str, next_step: str) -> CheckResult:
    """Return a result that needs no action, with what can be done about it."""
    return CheckResult(name, Level.OK, f"{seen}; {next_step}")


def warn(name: str, seen: str, next_step: str) -> CheckResult:
    """Return a warning: it works, and something should be done."""
    return CheckResult(name, Level.WARN, seen, next_step)


def fail(name: str, seen: str, next_step: str) -> CheckResult:
    """Return a failure: it does not work, or can lose acknowledged messages."""
    return CheckResult(name, Level.FAIL, seen, next_step)


class CheckContext(msgspec.Struct, kw_only=True):
    """Data directory, configuration and machine that checks examine. Tests replace the clock, /proc and /sys."""

    data: Path | None = None
    running: bool = False
    """True when a gateway holds the data directory."""
    configuration: BrokerConfiguration = BrokerConfiguration()
    resources: list[Resource] = []
    errors: list[str] = []
    """Errors of the applied configuration."""
    notices: list[str] = []
    exposure: list[str] = []
    """Notices about who can connect from which network."""
    root: Path = Path("/")
    """Folder of ``proc``, ``sys`` and ``dev``."""
    now: Callable[[], float] = time.time
    """UTC seconds."""
    synchronized: Callable[[], bool] = kernel_synchronized
    environment: dict[str, str] = {}
    timeout_s: float = 5.0
    """Time limit of each step of a connection."""
    uid: int = msgspec.field(default_factory=os.geteuid)

    def text(self, *parts: str) -> str | None:
        """Return the content of a system file, stripped; None when it cannot be read."""
        try:
            return self.root.joinpath(*parts).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


Check = Callable[[CheckContext], Iterable[CheckResult]]


def context_of(
    data: Path | None, *, running: bool, environment: dict[str, str], timeout_s: float, config: Path | None = None
) -> CheckContext:
    """Return the context of this machine and of a data directory, with its applied resources or those of `config`."""
    found = CheckContext(data=data, running=running, environment=environment, timeout_s=timeout_s)
    if data is None or not data.is_dir():
        return found
    try:
        applied = Repository(data).load().resources if config is None else read_whole(KINDS, [str(config)])
        found.resources = list(applied)
        found.notices = notices(found.resources)
        found.exposure = exposure(found.resources)
        found.configuration = build_configuration(found.resources)
    except ConfigurationRejected as rejected:
        found.errors = [str(error) for error in rejected.errors]
    except RepositoryError as error:
        found.errors = [str(error)]
    return found


def examine(checks: Sequence[tuple[str, Check]], context: CheckContext) -> Iterator[CheckResult]:
    """Run each check. An exception of a check becomes a warning, so that the others run."""
    for name, check in checks:
        try:
            for result in check(context):
                step = as_called(result.next_step)
                yield msgspec.structs.replace(result, seen=as_called(result.seen), next_step=step)
        except PermissionError as error:
            yield warn(name, f"{error.filename}: {error.strerror}", "run the doctor as the gateway's user")
        except Exception as error:  # the other checks still have to run
            yield warn(name, f"could not be examined: {type(error).__name__}: {error}", "report this")
