"""JSON documents about the hub and its gateways. Times are milliseconds since 1970, UTC; null for never."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from edge.health.problems import HealthProblem


class HubHealthDocument(TypedDict):
    """Health of a hub."""

    ok: bool
    problems: NotRequired[list[HealthProblem]]
    """Shown to clients on the machine itself, and to users with the right to view the whole fleet."""


class GatewayCounts(TypedDict):
    """Numbers of gateways."""

    known: int
    connected: int


class TenantTotals(TypedDict):
    """Totals of a tenant since the hub started."""

    rows: int


class LandingFault(TypedDict):
    """Reason why landing fails."""

    since: int
    reason: str


class HeldGateway(LandingFault):
    """Gateway with data that cannot land now."""

    tenant: str
    gateway: str


class LandingStatus(TypedDict):
    """State of landing."""

    failing: bool
    fault: LandingFault | None
    oldest_ms: float | None
    """Age of the oldest message that waits."""
    held: list[HeldGateway]
    pending_bytes: int
    pending_messages: int
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    latencies_ms: list[float | None]
    """Durations of the last landings."""


class HubLoopStatus(TypedDict):
    """Delays of the event loop, in seconds."""

    lag_s: float
    lag_s_max: float


class HubLogStatus(TypedDict):
    """Counters of the log since the start."""

    dropped: int
    repeated: int
    stuck_s: float


class HubStatusHead(TypedDict):
    """Common part of the status of a hub and of a tenant."""

    version: str
    dev: bool
    now: int
    started_at: int
    tenant: str | None
    """Null: the status of the whole hub."""


class TenantStatus(HubStatusHead):
    """Status of a tenant's part of the hub."""

    gateways: GatewayCounts
    totals: TenantTotals
    rate: list[int]
    """Rows landed in each of the last seconds, the oldest first."""


class HubStatusDocument(HubStatusHead):
    """Status of a hub."""

    gateways: GatewayCounts
    totals: dict[str, int]
    """Counts since the hub started: `rows`, `landings` and so on."""
    rate: list[int]
    landing: LandingStatus
    tables: dict[str, int]
    """Versions of the tables of the lake."""
    loop: HubLoopStatus
    log: HubLogStatus
    problems: list[HealthProblem]
    alerts: dict[str, int]
    """Number of alerts by state."""


class LikelyCause(TypedDict):
    """Gateways with the same trouble since about the same time, and a label in common."""

    key: str
    kind: str
    what: str
    tenant: str
    selector: str
    count: int
    since: int
    room_hours: float | None


class SiteRow(TypedDict):
    """Gateways of a site by condition."""

    label: str
    value: str
    total: int
    states: dict[str, int]


class FleetVersion(TypedDict):
    """Gateways with one version of their program."""

    version: str | None
    """Null: not reported."""
    count: int


class FleetDocument(TypedDict):
    """A fleet in numbers."""

    total: int
    states: dict[str, int]
    causes: list[LikelyCause]
    sites: list[SiteRow]
    versions: list[FleetVersion]
    """Gateways that have connected, by version, the newest first: the 50 most frequent ones."""


class FleetGateway(TypedDict):
    """A gateway as the hub knows it."""

    tenant: str
    name: str
    labels: dict[str, str]
    state: str
    """`refusing`, `offline`, `behind` or `well`."""
    why: str | None
    next_step: str | None
    since: int | None
    """Begin of the trouble."""
    room_hours: float | None
    """Hours until its card is full."""
    connected: bool
    """Connected to any hub of the registry."""
    connected_since: int | None
    hub: str | None
    """Name of the hub that it is connected to."""
    remote: str | None
    first_seen: int
    last_seen: int | None
    landed: int
    newest_received_at: int | None
    """Time of its newest message in the lake."""
    lag_ms: int | None
    waiting_messages: int | None
    waiting_bytes: int | None
    status: dict[str, Any] | None
    """Its last report."""


class FleetPage(TypedDict):
    """Page of gateways."""

    gateways: list[FleetGateway]
    next: str | None
    total: int
    """Gateways of the query. With a search (any parameter but `state`, `connected` and `sort`), 10 000 of those that
    have connected are counted at most."""


class GatewayMark(TypedDict):
    """Progress of landing of one address."""

    epoch: str
    address: str
    mark: int
    contiguous: int
    missing: int
    """Messages below the mark that have not landed."""


class FleetGatewayDetail(FleetGateway):
    """A gateway with its marks."""

    rate: list[int]
    """Rows landed in each of the last seconds."""
    marks: list[GatewayMark]
    marks_total: int


class SavedViewDocument(TypedDict):
    """Filter and order of a list, saved by a user."""

    name: str
    page: str
    query: str
    etag: str
    """Its state, for `If-Match`."""


class SavedViewList(TypedDict):
    """Saved views of the user."""

    views: list[SavedViewDocument]


class DeletedName(TypedDict):
    """Name of a deleted object."""

    deleted: str


class GatewayRevocation(TypedDict):
    """Certificates of a gateway that were revoked."""

    tenant: str
    gateway: str
    certificates: int


class ForgottenGateway(TypedDict):
    """A gateway that was forgotten."""

    tenant: str
    gateway: str
    forgotten_at: int


class RemovedHubUser(TypedDict):
    """Name of a user that was removed."""

    name: str


class EndedSessions(TypedDict):
    """Sessions of a user that have ended."""

    name: str
    sessions: int
