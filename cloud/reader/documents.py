"""JSON documents about the lake. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class GoldTableRow(TypedDict):
    """A table that analytics make."""

    table: str
    about: str
    version: int | None
    """Null: no job has made it."""
    written_at: int | None
    time: str | None
    """Column of time."""


class GoldTableList(TypedDict):
    """Tables that analytics make."""

    tables: list[GoldTableRow]
    make: str
    """Command that makes them."""


class MissingTable(TypedDict):
    """Answer about a table that no job has made."""

    version: None
    written_at: None
    columns: dict[str, list[Any]]
    total: int
    next: None
    missing: str
    """Name of the table, with the command that makes it."""


class GoldPage(TypedDict):
    """Rows of a table, by column."""

    table: str
    version: int
    written_at: int | None
    step_s: int | None
    """Seconds of a row of a rollup."""
    total: int
    next: str | None
    newest: int | None
    """Time of the newest row."""
    columns: dict[str, list[Any]]


class SeriesRow(TypedDict):
    """A series of values."""

    tenant: str
    gateway: str
    device: str | None
    address: str
    metric: str | None
    unit: str | None
    last_at: int | None


class SeriesPage(TypedDict):
    """Page of series."""

    series: list[SeriesRow]
    total: int
    next: str | None
    written_at: int | None


class BalanceDay(TypedDict):
    """Balance of a tenant and day."""

    tenant: str
    day: str
    accepted: int
    landed: int
    waiting: int
    unexplained: int
    given_up: int


class BalanceDays(TypedDict):
    """Balance of each tenant and day, the latest first."""

    days: list[BalanceDay]
    version: int
    written_at: int | None


class OpenBalance(TypedDict):
    """Balance of messages."""

    accepted: int
    landed: int
    waiting: int
    unexplained: int
    given_up: int
    reasons: dict[str, int]
    """Discarded messages by reason."""


class BalanceHour(OpenBalance):
    """Balance of an hour."""

    hour: int
    state: str
    """`proven`, `open` or `unexplained`."""


class StatementFinding(TypedDict):
    """A statement that is missing or forged."""

    kind: str
    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int
    words: str


class GatewayBalance(TypedDict):
    """Balance of each hour of a gateway."""

    hours: list[BalanceHour]
    open: OpenBalance | None
    """Messages that no statement covers yet."""
    statements: int
    faults: list[StatementFinding]
    """Statements that are missing or forged."""
    faults_left_out: int


class StatementFaultList(TypedDict):
    """Statements that are missing or forged."""

    faults: list[StatementFinding]
    faults_left_out: int
    statements: int
    gateways: int
    parts: int
    """Parts of a large fleet, of which one is checked in each hour."""


class GatewayProofDocument(TypedDict):
    """Proof of a gateway, as `waypost prove --json --hours` prints it."""

    gateway: str
    tenant: str
    since: str | None
    complete: bool
    statements: int
    bytes_read: int
    streams: list[Any]
    hours: list[Any]
    findings: list[Any]
    findings_left_out: int
    keys: list[Any]
    notes: list[str]


class LakeTableRow(TypedDict):
    """A table of the lake; one that cannot be read has only `table` and `error`."""

    table: str
    error: NotRequired[str]
    version: NotRequired[int]
    rows: NotRequired[int]
    files: NotRequired[int]
    bytes: NotRequired[int]
    small_files: NotRequired[int]
    written_at: NotRequired[int | None]
    oldest_day: NotRequired[str | None]
    newest_day: NotRequired[str | None]
    optimized_at: NotRequired[int | None]
    vacuumed_at: NotRequired[int | None]


class LakeTableList(TypedDict):
    """Tables of the lake."""

    tables: list[LakeTableRow]
    place: str


class QuarantinedDelivery(TypedDict):
    """A delivery that no program could read."""

    tenant: str
    gateway: str
    link: str | None
    reason: str
    received_at: int | None
    bytes: int
    head: str
    """First bytes, hexadecimal."""


class QuarantineReason(TypedDict):
    """Number of deliveries in quarantine for a reason."""

    reason: str
    count: int


class QuarantineList(TypedDict):
    """Newest deliveries in quarantine."""

    rows: list[QuarantinedDelivery]
    reasons: list[QuarantineReason]
    total: int
