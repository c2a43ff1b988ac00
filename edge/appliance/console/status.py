"""The shape of what a gateway tells about itself: the JSON of `GET /api/v1/status`.

Every key may be missing (a gateway without an uplink has none to describe); readers must cope. Counters never fall
while the process lives. Times are ISO 8601, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, cast


class Clients(TypedDict, total=False):
    """Connections open now."""

    mqtt: int
    amqp: int
    http: int


class Messages(TypedDict, total=False):
    """Counters of messages since the process started.

    `delivered`     handed to clients, one for each client that gets it
    `stored`        put on disk by a commit
    `unrouted`      to topics without a subscriber: neither stored nor delivered
    `acknowledged`  answered with success; MQTT with QoS 0 and AMQP settled by its sender get no answer
    `refused`       answered with an error
    """

    received: int
    stored: int
    unrouted: int
    acknowledged: int
    refused: int
    delivered: int


class AddressStatus(TypedDict, total=False):
    """One address, or one filter of addresses; `stored` waits for at least one consumer or the uplink.

    `subscription`  name of a durable subscription: several may have one filter
    `received`      messages ever committed to a queue; filters share logs and have no such count
    """

    address: str
    subscription: str
    type: str
    received: int
    stored: int
    subscribers: int


class CommitDurations(TypedDict):
    """How long the store's commits took since the start; `buckets`: (at most so many seconds, how many), cumulative."""

    total: int
    seconds: float
    buckets: Sequence[tuple[float, int]]


class RoomStatus(TypedDict, total=False):
    """What one `Address` resource keeps and may keep, bytes of bodies; `refused` messages had no room."""

    address: str
    used: int
    quota: int | None
    reserve: int
    when_full: str
    priority: int
    refused: int


class WearStatus(TypedDict, total=False):
    """What the card has had to bear: `edge.appliance.wear.Outlook`. Totals are since the store was made."""

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


class StoreStatus(TypedDict, total=False):
    """`room`: in the order in which addresses give way when there is none; `quota`: of the whole space;
    `at_floor`: the medium has as little free space as messages must leave."""

    messages: int
    bytes: int
    file_bytes: int
    memory_bytes: int
    """Bytes of bodies that are in memory only (``durability: memory``): what is lost with the process."""
    quota: int | None
    at_floor: bool
    room: Sequence[RoomStatus]
    wear: WearStatus
    commits: CommitDurations


class PoolStatus(TypedDict):
    """What the connections of one pool hold, and may; bytes."""

    held: int
    held_max: int
    connections: int


class MemoryStatus(TypedDict):
    """What the process takes, and may; bytes. `pools` by name. Connections `shed` held most (`shed_bytes`) when there
    was no room; `displaced` ones had not said who they are; `refused` ones were of users and addresses with many."""

    resident: int
    resident_max: int
    pools: Mapping[str, PoolStatus]
    shed: int
    shed_bytes: int
    displaced: int
    refused: int


class UplinkStatus(TypedDict, total=False):
    """`paused`: by hand; `off`: none configured. `sent` and `acked` count messages."""

    state: Literal["connected", "connecting", "paused", "off"]
    endpoint: str
    backlog_messages: int
    backlog_bytes: int
    oldest_unsent_at: str | None
    sent: int
    acked: int
    last_error: str | None
    since: str
    """When `connected` became what it is."""
    progress: dict[str, Any]
    """`edge.broker.router.connector_uplink.UplinkProgress`."""


class ConnectorSummary(TypedDict, total=False):
    """`edge.appliance.crossing.documents.ConnectorStatus`, as far as metrics have it."""

    name: str
    state: str
    backlog_messages: int
    backlog_bytes: int
    backlog_oldest_at: float | None
    accepted: int
    manifest_waiting: int


class BridgeSummary(TypedDict, total=False):
    """`edge.appliance.crossing.documents.BridgeStatus`."""

    room_bytes: int | None
    autonomy_hours: float | None
    connectors: Sequence[ConnectorSummary]


class ProblemStatus(TypedDict):
    """`edge.health.problems.HealthProblem`."""

    name: str
    what: str
    since: str
    next_step: str
    severity: Literal["error", "warning", "notice"]


class LoopStatus(TypedDict):
    """How much later than asked for the event loop's timers came: the most of the last minute, and since the start."""

    lag_s: float
    lag_s_max: float


class LogStatus(TypedDict):
    """`edge.output.logs.LogCounters`."""

    dropped: int
    repeated: int
    stuck_s: float


class GatewayStatus(TypedDict, total=False):
    """All of it. `problems`: what is wrong; `/healthz` fails while there are errors among them. `configuration`: how it
    is with the hub's (`bridge.desired.DesiredReport`)."""

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
    """Addresses that are not among them, because there are more than a status names."""
    logins_refused: Mapping[str, int]
    """Count by reason: wrong credentials, or too many attempts at once."""
    store: StoreStatus
    memory: MemoryStatus
    uplink: UplinkStatus
    bridge: BridgeSummary
    clock: Literal["good", "unknown"]
    loop: LoopStatus
    log: LogStatus
    ledger: Mapping[str, int]
    """How often messages were given up since the start, by reason."""
    problems: Sequence[ProblemStatus]
    first_boot: Mapping[str, object]
    """What a card has set up (`edge.appliance.first_boot.journal.FirstBootState`); empty where none has."""
    configuration: Mapping[str, Any]


StatusSource = Callable[[], Mapping[str, object]]


class UplinkControl(Protocol):
    """What the console may do to the uplink."""

    def pause(self) -> None:
        """Close the uplink and keep it closed; what arrives is stored."""
        ...

    def resume(self) -> None:
        """Take the uplink up again."""
        ...


def status_of(source: StatusSource) -> GatewayStatus:
    """What the source says, by the names above."""
    return cast(GatewayStatus, source())
