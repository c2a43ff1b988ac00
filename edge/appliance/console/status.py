"""Types of a gateway's status: the JSON of `GET /api/v1/status`.

Readers must accept that a key is missing, such as the uplink of a gateway that has none. Counters never decrease while
the process runs. Times are ISO 8601, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypedDict, cast

if TYPE_CHECKING:
    from edge.broker.model.interfaces import MessageCounts


class Clients(TypedDict, total=False):
    """Connections open now."""

    mqtt: int
    amqp: int
    http: int


class Messages(TypedDict, total=False):
    """Counters of messages since the process started.

    `delivered`     sent to clients, counted once for each client
    `stored`        written to disk by a commit
    `unrouted`      to topics without a subscriber: neither stored nor delivered
    `acknowledged`  answered with success; MQTT QoS 0 and pre-settled AMQP messages get no answer
    `refused`       answered with an error
    """

    received: int
    stored: int
    unrouted: int
    acknowledged: int
    refused: int
    delivered: int


def show_counts(figures: MessageCounts) -> Messages:
    """Return the counters of one router."""
    return {
        "received": figures.received,
        "delivered": figures.sent,
        "stored": figures.stored,
        "unrouted": figures.unrouted,
        "acknowledged": figures.acknowledged,
        "refused": figures.refused,
    }


class SpaceStatus(TypedDict):
    """A further address space. `backlog`: messages for its peers; `connected`: state of its connectors, by name."""

    hosts: Sequence[str]
    clients: Clients
    messages: Messages
    stored_messages: int
    stored_bytes: int
    quota: int | None
    epoch: str
    backlog: int
    connected: Mapping[str, bool]


class AddressStatus(TypedDict, total=False):
    """One address or topic filter. `stored` messages wait for at least one consumer or the uplink.

    `subscription`  name of a durable subscription; several may share one filter
    `received`      messages ever committed to a queue; subscriptions share logs and have no such count
    """

    address: str
    subscription: str
    type: str
    received: int
    stored: int
    subscribers: int


class FlowStatus(TypedDict):
    """Counts of one rule since the start, for the names that it applies to. `received`: messages from publishers, also
    refused ones. `delivered`: copies for live subscribers."""

    address: str
    type: str
    received: int
    delivered: int


class CommitDurations(TypedDict):
    """Durations of the store's commits since the start. `buckets`: (upper limit in seconds, count), cumulative."""

    total: int
    seconds: float
    buckets: Sequence[tuple[float, int]]


class RoomStatus(TypedDict, total=False):
    """Use and quota of one `Address` resource, in bytes of bodies; `refused`: messages refused when it was full."""

    address: str
    used: int
    quota: int | None
    reserve: int
    when_full: str
    priority: int
    refused: int


class WearStatus(TypedDict, total=False):
    """Wear of the card: `edge.appliance.wear.Outlook`. Totals are since the store was created."""

    device: str | None
    running_s: float
    payload_bytes: int
    process_bytes: int | None
    device_bytes: int | None
    written_per_payload_byte: float | None
    bytes_per_day: Mapping[str, float]
    own_bytes_per_day: Mapping[str, float]
    endurance_bytes: float | None
    used: float | None
    days_left: float | None


class ScheduledStatus(TypedDict):
    """Messages that wait for their delivery time; `refused` ones are due, and their address refuses them."""

    messages: int
    bytes: int
    refused: int


class StoreStatus(TypedDict, total=False):
    """Store of the gateway. `room`: addresses in the order in which they drop messages when the store is full.
    `quota`: of the whole address space. `at_floor`: the medium's free space is at the configured minimum."""

    messages: int
    bytes: int
    file_bytes: int
    memory_bytes: int
    """Bytes of bodies that are in memory only (``durability: memory``), and lost when the process ends."""
    quota: int | None
    at_floor: bool
    room: Sequence[RoomStatus]
    wear: WearStatus
    commits: CommitDurations
    scheduled: ScheduledStatus


class PoolStatus(TypedDict):
    """Memory of the connections of one pool and its limit, in bytes."""

    held: int
    held_max: int
    connections: int


class MemoryStatus(TypedDict):
    """Memory of the process and its limit, in bytes; `pools` by name.

    Counts of connections: `shed` held the most memory (`shed_bytes`) when it was short; `displaced` were not
    authenticated; `refused` exceeded the limit of a user or a remote address.
    """

    resident: int
    resident_max: int
    pools: Mapping[str, PoolStatus]
    shed: int
    shed_bytes: int
    displaced: int
    refused: int


class UplinkStatus(TypedDict, total=False):
    """Uplink to the hub. `paused`: by an operator; `off`: not configured. `sent` and `acked` count messages."""

    state: Literal["connected", "connecting", "paused", "off"]
    endpoint: str
    backlog_messages: int
    backlog_bytes: int
    oldest_unsent_at: str | None
    sent: int
    acked: int
    last_error: str | None
    since: str
    """Time of the last change between connected and not connected."""
    progress: dict[str, Any]
    """`edge.broker.router.connector_uplink.UplinkProgress`."""


class ConnectorSummary(TypedDict, total=False):
    """Part of `edge.appliance.crossing.documents.ConnectorStatus` that metrics use."""

    name: str
    state: str
    backlog_messages: int
    backlog_bytes: int
    backlog_oldest_at: float | None
    accepted: int
    manifest_waiting: int


class BridgeSummary(TypedDict, total=False):
    """Part of `edge.appliance.crossing.documents.BridgeStatus` that metrics use."""

    room_bytes: int | None
    autonomy_hours: float | None
    connectors: Sequence[ConnectorSummary]


class NetworkStatus(TypedDict):
    """Router network of the gateway. Messages are counted since the start, over all neighbours.

    `routers`      cost of the path to each other router that can be reached
    `outcomes`     answers of neighbours to messages sent: accepted, rejected, released, modified, path_lost
    `passed`       messages on their way from one neighbour to another
    `unannounced`  addresses with consumers here that no other router knows of
    """

    router: str
    routers: Mapping[str, int]
    neighbours: int
    links: int
    waiting_links: int
    sent: int
    received: int
    outcomes: Mapping[str, int]
    passed: int
    looped: int
    dropped: int
    announced: int
    unannounced: int


class MuteStatus(TypedDict):
    """JSON of `edge.health.problems.ProblemMute`."""

    until: str
    by: str
    reason: str


class ProblemStatus(TypedDict):
    """JSON of `edge.health.problems.HealthProblem`."""

    name: str
    what: str
    since: str
    next_step: str
    severity: Literal["error", "warning", "notice"]
    muted: NotRequired[MuteStatus | None]


class LoopStatus(TypedDict):
    """Largest delay of the event loop's timers in the last minute, and since the start."""

    lag_s: float
    lag_s_max: float


class LogStatus(TypedDict):
    """JSON of `edge.output.logs.LogCounters`."""

    dropped: int
    repeated: int
    stuck_s: float


class GatewayStatus(TypedDict, total=False):
    """Complete status. `/healthz` fails while `problems` has an error. `configuration`: state of the hub's
    configuration (`bridge.desired.DesiredReport`)."""

    gateway: str
    dev: bool
    """Started with `--dev`: no credentials, loopback only."""
    epoch: str
    version: str
    uptime_s: float
    clients: Clients
    messages: Messages
    addresses: Sequence[AddressStatus]
    addresses_left_out: int
    """Number of addresses that are not listed, as a status lists a limited number."""
    flows: Sequence[FlowStatus]
    """Counts by rule, of which there are as many as Address resources; a limited number."""
    refused: Mapping[str, int]
    """Refused connections, logins and operations of clients, by reason (`edge.broker.model.refusals.RefusalCause`)."""
    store: StoreStatus
    memory: MemoryStatus
    uplink: UplinkStatus
    bridge: BridgeSummary
    network: NetworkStatus | None
    """None: the gateway has had no neighbour."""
    clock: Literal["good", "unknown"]
    loop: LoopStatus
    log: LogStatus
    ledger: Mapping[str, int]
    """Entries of the loss ledger since the start, by reason."""
    receipts: Mapping[str, int]
    """Messages with landing receipts since the start: `requested`, `refused` (no room, or no hub), `landed`, `dropped`,
    `abandoned` (too old); and `waiting` now. Empty while no message requested one."""
    spaces: Mapping[str, SpaceStatus]
    """Further address spaces, by name; all other figures are of the gateway's own space, except memory and loop."""
    problems: Sequence[ProblemStatus]
    first_boot: Mapping[str, Any]
    """Settings applied from a card (`edge.appliance.first_boot.journal.FirstBootState`); empty without a card."""
    configuration: Mapping[str, Any]


class HealthDocument(TypedDict):
    """Health of a gateway."""

    ok: bool
    problems: NotRequired[Sequence[ProblemStatus]]
    """Shown to clients on the machine itself, and to users with the right to view."""


StatusSource = Callable[[], Mapping[str, object]]


class UplinkControl(Protocol):
    """Control of the uplink by the console."""

    def pause(self) -> None:
        """Close the uplink until `resume`; new messages are stored."""
        ...

    def resume(self) -> None:
        """Connect the uplink again."""
        ...


def status_of(source: StatusSource) -> GatewayStatus:
    """Return the status of a source, with its type."""
    return cast(GatewayStatus, source())
