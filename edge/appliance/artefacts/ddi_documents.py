"""Documents of hawkBit's Direct Device Integration API, with the names that hawkBit documents."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge.artefacts.report import UpdateState
from edge.appliance.artefacts.limits import REASON_CHARACTERS_MAX
from edge.appliance.artefacts.reports import KnownReport, UpdateReport
from edge.broker.http.refusal import RequestRefused

CANCELED = "canceled"
"""Reason of the report about an update that a device has cancelled."""


class DdiProgress(msgspec.Struct, frozen=True):
    """Progress of a client, which is not used."""

    cnt: int | float | None = None
    of: int | float | None = None


class DdiResult(msgspec.Struct, frozen=True):
    """Result in a feedback."""

    finished: str = "none"
    """``success``, ``failure`` or ``none``."""
    progress: DdiProgress | None = None


class DdiStatus(msgspec.Struct, frozen=True):
    """Status in a feedback."""

    execution: str
    """``download``, ``downloaded``, ``proceeding``, ``scheduled``, ``resumed``, ``rejected``, ``canceled`` or
    ``closed``."""
    result: DdiResult = DdiResult()
    code: int | None = None
    details: list[str] | None = None
    """Lines for people: the reason of a failure."""

    @property
    def reason(self) -> str:
        """Details in one line."""
        return "; ".join(self.details or ())[:REASON_CHARACTERS_MAX]

    @property
    def kind(self) -> tuple[str, str]:
        """Execution and result, in lower case."""
        return self.execution.lower(), self.result.finished.lower()


class DdiFeedback(msgspec.Struct, frozen=True):
    """Feedback of a client about an update, or about its cancellation."""

    status: DdiStatus
    id: str | int | None = None
    """Number of the action, as in the path."""
    time: str | None = None
    timestamp: int | None = None

    @property
    def report(self) -> UpdateReport:
        """The feedback as a report. Raises RequestRefused."""
        reason = self.status.reason
        match self.status.kind:
            case "closed", "success" | "none":
                return UpdateReport(state=UpdateState.INSTALLED, reason=reason)
            case "closed", _:
                return UpdateReport(state=UpdateState.ROLLED_BACK, reason=reason or "closed")
            case "canceled", _:
                return UpdateReport(state=UpdateState.ROLLED_BACK, reason=reason or CANCELED)
            case "downloaded", _:
                return UpdateReport(state=UpdateState.VERIFIED, reason=reason)
            case (("proceeding" | "scheduled" | "resumed" | "download" | "rejected"), _):
                return UpdateReport(state=UpdateState.DOWNLOADING, reason=reason)
        raise self._unknown()

    @property
    def cancels(self) -> bool | None:
        """True if the client has cancelled its update, False if it goes on with it, None if that is not decided. Raises
        RequestRefused."""
        match self.status.kind:
            case ("closed", "success" | "none") | ("canceled", _):
                return True
            case ("closed", _) | ("rejected", _):
                return False
            case (("proceeding" | "scheduled" | "resumed" | "download" | "downloaded"), _):
                return None
        raise self._unknown()

    def _unknown(self) -> RequestRefused:
        return RequestRefused(400, f"execution {self.status.execution[:40]!r} is not one of DDI's")


class DdiAttributes(msgspec.Struct, frozen=True):
    """Attributes of a client; only `board` and `version` are used."""

    data: dict[str, Any] = {}
    mode: str = "merge"
    """``merge``, ``replace`` or ``remove``."""

    def merged(self, board: str, version: str) -> tuple[str, str]:
        """Return board and version after this change; empty: unknown. Raises RequestRefused."""
        board_said, version_said = (
            found if isinstance(found := self.data.get(name), str) else "" for name in ("board", "version")
        )
        match self.mode.lower():
            case "merge":
                return board_said or board, version_said or version
            case "replace":
                return board_said, version_said
            case "remove":
                return "" if "board" in self.data else board, "" if "version" in self.data else version
        raise RequestRefused(400, f"mode {self.mode[:40]!r} is not one of DDI's")


class DdiLink(msgspec.Struct, frozen=True):
    """Link to a resource."""

    href: str


class DdiPolling(msgspec.Struct, frozen=True):
    """Interval of polls."""

    sleep: str
    """``HH:MM:SS``."""


class DdiConfig(msgspec.Struct, frozen=True):
    """Configuration for a client."""

    polling: DdiPolling


class DdiLinks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Links to what there is to do for a client."""

    deployment_base: DdiLink | None = None
    cancel_action: DdiLink | None = None
    installed_base: DdiLink | None = None
    config_data: DdiLink | None = None


class DdiRoot(msgspec.Struct, frozen=True):
    """Answer to a poll."""

    config: DdiConfig
    links: DdiLinks = msgspec.field(name="_links")


class DdiHashes(msgspec.Struct, frozen=True):
    """Checksums of a file, hexadecimal."""

    sha1: str
    md5: str
    sha256: str


class DdiFile(msgspec.Struct, frozen=True):
    """File of an update."""

    filename: str
    hashes: DdiHashes
    size: int
    links: dict[str, DdiLink] = msgspec.field(name="_links")


class DdiChunk(msgspec.Struct, frozen=True):
    """Part of an update."""

    part: str
    version: str
    name: str
    artifacts: list[DdiFile]


class DdiDeployment(msgspec.Struct, frozen=True):
    """Files of an update, and when to install them."""

    chunks: list[DdiChunk]
    download: str = "forced"
    update: str = "forced"


class DdiHistory(msgspec.Struct, frozen=True):
    """Earlier feedback of a client about an action."""

    status: str
    messages: list[str]
    """The newest first."""


class DdiAction(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Update that is offered or installed."""

    id: str
    deployment: DdiDeployment
    action_history: DdiHistory | None = None


class DdiStop(msgspec.Struct, frozen=True, rename="camel"):
    """Update to cancel."""

    stop_id: str


class DdiCancellation(msgspec.Struct, frozen=True, rename="camel"):
    """Cancellation of an update."""

    id: str
    cancel_action: DdiStop


def history_of(report: KnownReport | None, wanted: str | None) -> DdiHistory | None:
    """Return the history of an update. `wanted`: parameter `actionHistory`, the number of messages; negative: all; none
    or 0: no history. Raises RequestRefused."""
    try:
        count = int(wanted or 0)
    except ValueError:
        raise RequestRefused(400, "actionHistory is a number of messages") from None
    if count == 0:
        return None
    messages = report.history.splitlines() if report is not None else []
    status = _STATUS[report.state] if report is not None else "RETRIEVED"
    return DdiHistory(status, messages if count < 0 else messages[:count])


_STATUS = {
    UpdateState.DOWNLOADING: "RUNNING",
    UpdateState.VERIFIED: "DOWNLOADED",
    UpdateState.INSTALLED: "FINISHED",
    UpdateState.HEALTHY: "FINISHED",
    UpdateState.ROLLED_BACK: "ERROR",
}
