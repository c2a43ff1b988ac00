"""Messages between the hub and a reading process: msgpack, each after its length (4 bytes, big endian)."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from cloud.reader.limits import POINTS_MAX

LENGTH_BYTES: Final = 4
ROLLUPS: Final = {"rollup_1m": 60, "rollup_1h": 3_600, "rollup_1d": 86_400}
"""Tables of values over time, with the seconds of a row."""


class TableList(msgspec.Struct, frozen=True, tag=True):
    """Tables of the lake that pages show, with version and age."""


class GoldRows(msgspec.Struct, frozen=True, tag=True):
    """Rows of one gold table. Times are UTC milliseconds."""

    table: str
    tenant: str | None = None
    """Only this tenant; None: all."""
    equal: dict[str, str] = {}
    """Wanted values by column; empty text: null."""
    begin: int | None = None
    end: int | None = None
    sort: str = ""
    """Column, with ``-`` before it for the reverse order; empty: the table's own order."""
    text: str = ""
    """Part of any name, case ignored."""
    offset: int = 0
    limit: int = 0
    csv: bool = False


class SeriesList(msgspec.Struct, frozen=True, tag=True):
    """Series that have values: gateway, device, address and metric."""

    since: int
    """First day, UTC milliseconds."""
    tenant: str | None = None
    gateway: str = ""
    text: str = ""
    offset: int = 0
    limit: int = 0


class CompletenessDays(msgspec.Struct, frozen=True, tag=True):
    """Balance of each tenant and day."""

    begin: int
    tenant: str | None = None


class StatementFaults(msgspec.Struct, frozen=True, tag=True):
    """Missing and forged statements of gateways."""

    since: int
    tenant: str | None = None
    gateway: str | None = None


class LandedSpans(msgspec.Struct, frozen=True):
    """Landed sequences of one address, as the hub's registry has them."""

    epoch: str
    address: str
    spans: list[tuple[int, int]]


class GatewayHours(msgspec.Struct, frozen=True, tag=True):
    """Balance of each hour of a gateway, from its statements and the hub's own marks."""

    tenant: str
    gateway: str
    since: int
    landed: list[LandedSpans]
    backlog: int | None
    """Messages that wait at the gateway, as it reported; None: not known."""
    reported_at: int | None


class GatewayProof(msgspec.Struct, frozen=True, tag=True):
    """Proof of one gateway, as ``waypost prove`` makes it."""

    gateway: str
    tenant: str
    since: int | None = None


class LakeTables(msgspec.Struct, frozen=True, tag=True):
    """Size, age and maintenance of every table of the lake."""


class QuarantineSample(msgspec.Struct, frozen=True, tag=True):
    """Newest deliveries in quarantine."""

    tenant: str | None = None


LakeRead: TypeAlias = (
    TableList
    | GoldRows
    | SeriesList
    | CompletenessDays
    | StatementFaults
    | GatewayHours
    | GatewayProof
    | LakeTables
    | QuarantineSample
)


class LakeRequest(msgspec.Struct, frozen=True):
    """One read. `known`: state of the tables that the hub has an answer of."""

    read: LakeRead
    known: str | None = None


class LakeAnswer(msgspec.Struct, frozen=True):
    """Answer to a read."""

    state: str = ""
    """Versions of the tables that were read; empty: do not keep the answer."""
    body: bytes | None = None
    """JSON, or CSV; None: the tables are those of `LakeRequest.known`."""
    refused: str = ""
    """Reason for a missing answer, with the next step; empty if there is an answer."""
    missing: bool = False
    """The table does not exist yet: no job has run."""
    unreadable: bool = False
    """The table cannot be read: the question was right."""


def choose_rollup(begin: int, end: int, points: int = POINTS_MAX) -> str:
    """Return the finest rollup with at most `points` rows of a series in a span of UTC milliseconds."""
    seconds = (end - begin) / 1_000
    return next((name for name, width in ROLLUPS.items() if seconds / width <= points), "rollup_1d")
