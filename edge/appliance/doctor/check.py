"""What a check is: a function from the surroundings to results, each with what was seen and the next step."""

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
from edge.configuration.effective import effective, exposure, notices
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Works, and will not for ever, or not as well as it could."""
    FAIL = "fail"
    """Does not work, or loses what it promised to keep."""


class CheckResult(msgspec.Struct, frozen=True):
    """What one check found."""

    name: str
    level: Level
    seen: str
    next_step: str = ""
    """What to do; empty when nothing is to be done."""


def ok(name: str, seen: str) -> CheckResult:
    """Nothing to do."""
    return CheckResult(name, Level.OK, seen)


def note(name: str, seen: str, next_step: str) -> CheckResult:
    """Return a result that needs no action, with what can be done about it."""
    return CheckResult(name, Level.OK, f"{seen}; {next_step}")


def warn(name: str, seen: str, next_step: str) -> CheckResult:
    """It works, and something should be done."""
    return CheckResult(name, Level.WARN, seen, next_step)


def fail(name: str, seen: str, next_step: str) -> CheckResult:
    """It does not work, or does not keep its promise."""
    return CheckResult(name, Level.FAIL, seen, next_step)


class CheckContext(msgspec.Struct, kw_only=True):
    """What checks look at. Tests put others in the place of this machine's clock and its /proc and /sys."""

    data: Path | None = None
    running: bool = False
    """A gateway holds the data directory."""
    configuration: BrokerConfiguration = BrokerConfiguration()
    resources: list[Resource] = []
    errors: list[str] = []
    """Why the applied configuration cannot be used."""
    notices: list[str] = []
    exposure: list[str] = []
    """Notices of who may connect from where."""
    root: Path = Path("/")
    """Where ``proc``, ``sys`` and ``dev`` are."""
    now: Callable[[], float] = time.time
    """UTC seconds."""
    synchronized: Callable[[], bool] = kernel_synchronized
    environment: dict[str, str] = {}
    timeout_s: float = 5.0
    """For each step towards a peer."""
    uid: int = msgspec.field(default_factory=os.geteuid)

    def text(self, *parts: str) -> str | None:
        """The content of a file of the system, stripped; None when it is not there or cannot be read."""
        try:
            return self.root.joinpath(*parts).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


Check = Callable[[CheckContext], Iterable[CheckResult]]


def surroundings(
    data: Path | None, *, running: bool, environment: dict[str, str], timeout_s: float, config: Path | None = None
) -> CheckContext:
    """This machine, and the gateway of a data directory with what was applied to it, or what is in `config`."""
    found = CheckContext(data=data, running=running, environment=environment, timeout_s=timeout_s)
    if data is None or not data.is_dir():
        return found
    try:
        applied = Repository(data).load().resources if config is None else read_whole(KINDS, [str(config)])
        found.resources = list(applied)
        found.notices = notices(found.resources)
        found.exposure = exposure(found.resources)
        found.configuration = effective(found.resources)
    except ConfigurationRejected as rejected:
        found.errors = [str(error) for error in rejected.errors]
    except RepositoryError as error:
        found.errors = [str(error)]
    return found


def examine(checks: Sequence[tuple[str, Check]], around: CheckContext) -> Iterator[CheckResult]:
    """Run every check. One that fails itself is a result like others: a doctor does not faint."""
    for name, check in checks:
        try:
            for result in check(around):
                step = as_called(result.next_step)
                yield msgspec.structs.replace(result, seen=as_called(result.seen), next_step=step)
        except PermissionError as error:
            yield warn(name, f"{error.filename}: {error.strerror}", "run the doctor as the gateway's user")
        except Exception as error:  # whatever it is, the other checks still have to be made
            yield warn(name, f"could not be examined: {type(error).__name__}: {error}", "report this")
