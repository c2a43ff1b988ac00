"""The tables of the lake as Spark types: landed tables, which the hub writes, and derived tables, which jobs write.

The landed tables are repeated here although the hub has a contract file of its own, so that Spark depends on no code or
file of the hub. A contract test compares the two. All timestamps are UTC microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import deltalake
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


@dataclass(frozen=True)
class TableSchema:
    """A table of the lake: its columns in order and its partition columns.

    `keys`: its grain; no two rows have the same values in them. Empty: no promise.
    `split_by`: a key that rises with time. Large files end between two values of it, so that later rows rewrite few
    files.
    """

    name: str
    columns: StructType
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    split_by: str | None = None

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the columns as an Arrow schema."""
        # Spark's JSON form of a schema is the Delta protocol's own form of it.
        return pa.schema(deltalake.Schema.from_json(self.columns.json()).to_arrow())


_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "bigint[]": ArrayType(LongType(), containsNull=False),
    "timestamp": TimestampType(),
    "date": DateType(),
}


def _table(
    name: str, partition_by: tuple[str, ...], columns: str, keys: tuple[str, ...] = (), split_by: str | None = None
) -> TableSchema:
    """Return a table. `columns`: one `name type` per line; a type that ends in `?` may be null."""
    fields = []
    for line in filter(None, map(str.strip, columns.splitlines())):
        column, kind = line.split()
        fields.append(StructField(column, _TYPES[kind.rstrip("?")], nullable=kind.endswith("?")))
    return TableSchema(name, StructType(fields), partition_by, keys, split_by)


TELEMETRY = _table(
    "telemetry",
    ("ingest_date",),
    """
    tenant        string
    gateway       string
    epoch         string
    address       string
    sequence      bigint
    device        string
    event_time    timestamp
    received_at   timestamp
    ingested_at   timestamp
    clock_quality string
    lane          string
    content_type  string?
    properties    string?
    body          binary
    ingest_date   date
    client_id     string?
    origin_gateway     string?
    origin_epoch       string?
    origin_address     string?
    origin_sequence    bigint?
    origin_received_at timestamp?
    relayed_by         string?
    """,
)
LEDGER = _table(
    "ledger",
    ("ingest_date",),
    """
    tenant         string
    gateway        string
    epoch          string
    address        string
    first_sequence bigint
    last_sequence  bigint
    bytes          bigint
    reason         string
    decided_at     timestamp
    ingested_at    timestamp
    ingest_date    date
    """,
)
MANIFESTS = _table(
    "manifests",
    ("ingest_date",),
    """
    tenant         string
    gateway        string
    epoch          string
    address        string
    hour           timestamp
    first_sequence bigint
    last_sequence  bigint
    count          bigint
    digest         string
    signature      string?
    ingested_at    timestamp
    ingest_date    date
    until          timestamp?
    given_up       string?
    clock_quality  string?
    store_epoch    string?
    closing        bigint?
    statements     bigint?
    previous       string?
    public_key     string?
    """,
)
CLOCK_OFFSETS = _table(
    "clock_offsets",
    ("ingest_date",),
    """
    tenant         string
    gateway        string
    boot           string
    stretch        bigint
    began          timestamp
    known          string
    offset_low_us  bigint?
    offset_high_us bigint?
    reason         string?
    whole          boolean
    epoch          string?
    address        string?
    first_sequence bigint?
    last_sequence  bigint?
    stamped_after  timestamp?
    stamped_until  timestamp?
    told_at        timestamp
    heard_at       timestamp
    ingested_at    timestamp
    ingest_date    date
    """,
)
GATEWAY_STATUS = _table(
    "gateway_status",
    ("ingest_date",),
    """
    tenant            string
    gateway           string
    epoch             string?
    reported_at       timestamp
    state             string
    version           string?
    backlog_messages  bigint?
    backlog_bytes     bigint?
    backlog_oldest_at timestamp?
    devices_connected bigint?
    messages_accepted bigint?
    clock_quality     string?
    ingested_at       timestamp
    ingest_date       date
    """,
)
QUARANTINE = _table(
    "quarantine",
    ("ingest_date",),
    """
    tenant      string
    gateway     string
    link        string
    delivery    bigint?
    reason      string
    digest      string
    content     binary
    received_at timestamp
    ingested_at timestamp
    ingest_date date
    """,
)

READINGS = _table(
    "readings",
    ("event_date",),
    """
    tenant        string
    gateway       string
    epoch         string
    address       string
    sequence      bigint
    device        string
    metric        string
    event_time    timestamp
    received_at   timestamp
    ingested_at   timestamp
    clock_quality string
    suspect       boolean
    time_source   string
    lane          string
    value         double?
    text          string?
    unit          string?
    replay        bigint?
    event_date    date
    """,
)
"""`replay`: the version of `reject` from which a repeated decoding took the row; null: decoded when it landed."""
REJECT = _table(
    "reject",
    ("ingest_date",),
    """
    tenant        string
    gateway       string
    epoch         string
    address       string
    sequence      bigint
    device        string
    metric        string
    event_time    timestamp
    ingested_at   timestamp
    reason        string
    content_type  string?
    body          binary
    ingest_date   date
    """,
)

"""`metric`: empty if the whole message could not be read. Job `readings` removes such rows once they can be read."""
SPARKPLUG_BIRTHS = _table(
    "sparkplug_births",
    (),
    """
    tenant      string
    gateway     string
    device      string
    epoch       string
    address     string
    sequence    bigint
    metric      string
    alias       bigint?
    datatype    int?
    unit        string?
    received_at timestamp
    ingested_at timestamp
    """,
)
"""Metrics in the births of nodes and devices: one row per metric and message."""
SPARKPLUG_LAST_BIRTHS = _table(
    "sparkplug_last_births",
    (),
    """
    tenant      string
    gateway     string
    device      string
    metric      string
    alias       bigint?
    datatype    int?
    unit        string?
    received_at timestamp
    ingested_at timestamp
    """,
)
"""Metrics in the last birth of each node or device: one row per metric.

If the gateway's clock was ahead at that time, the births since the last one with a correct clock are included.
"""


ANOMALIES = _table(
    "anomalies",
    ("event_date",),
    """
    tenant      string
    gateway     string
    device      string
    address     string
    metric      string
    event_time  timestamp
    sequence    bigint
    value       double
    score       double
    rule        string?
    expected    double?
    ingested_at timestamp
    event_date  date
    """,
)
"""One row per value with a score of 0.5 or more. `rule`: the family of measures that found it; `expected`: the value
that it expected, in the unit of the metric.
"""
DETECTOR_STATES = _table(
    "detector_states",
    (),
    """
    tenant  string
    gateway string
    device  string
    address string
    metric  string
    state   binary
    last_at timestamp
    judged  bigint
    late    bigint
    """,
    keys=("tenant", "gateway", "device", "address", "metric"),
)
"""State of the detector of each series, after the value of `last_at`.

`judged` and `late` count values. Values that arrive after a later one are not judged, because a detector only goes
forward; nor are readings that are only sequence numbers.
"""


def _rollup(name: str, *partition_by: str) -> TableSchema:
    finer = "event_hour   int" if "event_hour" in partition_by else ""
    return _table(
        name,
        partition_by,
        f"""
        tenant        string
        gateway       string
        device        string
        address       string
        metric        string
        window_start  timestamp
        count         bigint
        min           double
        max           double
        sum           double
        mean          double
        last          double
        last_at       timestamp
        last_sequence bigint
        unit          string?
        p50           double
        p95           double
        suspect       bigint
        revised_at    timestamp
        sketch        binary
        event_date    date
        {finer}
        """,
        keys=("tenant", "gateway", "device", "address", "metric", "window_start"),
        split_by="window_start",
    )


ROLLUP_1M = _rollup("rollup_1m", "event_date", "event_hour")
"""Also partitioned by hour: new rows rewrite the files of their hours, not of their days.

`unit`: the unit of `last`, if the reading has one.
"""
ROLLUP_1H = _rollup("rollup_1h", "event_date")
ROLLUP_1D = _rollup("rollup_1d", "event_date")
"""`sketch`: a KLL sketch of the values, the source of `p50` and `p95`. Two sketches can be merged."""
GATEWAY_FRESHNESS = _table(
    "gateway_freshness",
    (),
    """
    tenant           string
    gateway          string
    device           string?
    first_event_time timestamp
    last_event_time  timestamp
    last_ingested_at timestamp
    rows             bigint
    late_rows        bigint
    late_share       double
    suspect_rows     bigint
    lag_p50_s        double?
    lag_p95_s        double?
    lag_max_s        double?
    lags             binary?
    """,
    keys=("tenant", "gateway", "device"),
)
"""`lags`: a KLL sketch of all lags, the source of the percentiles. Two sketches can be merged."""
_ADDRESS = """
    tenant         string
    gateway        string
    epoch          string
    address        string
"""
LANDED_RANGES = _table(
    "landed_ranges",
    (),
    f"""{_ADDRESS}
    first_sequence bigint
    last_sequence  bigint
    rows           bigint
    """,
    keys=("tenant", "gateway", "epoch", "address", "first_sequence"),
)
"""`rows`: rows of a range. A sequence that occurs twice within a range also counts for an adjacent range at most 63
away.
"""
GIVEN_UP_RANGES = _table(
    "given_up_ranges",
    (),
    f"""{_ADDRESS}
    reason         string
    first_sequence bigint
    last_sequence  bigint
    """,
    keys=("tenant", "gateway", "epoch", "address", "reason", "first_sequence"),
)
OPEN_STATEMENTS = _table(
    "open_statements",
    (),
    f"""{_ADDRESS}
    first_sequence bigint
    last_sequence  bigint
    hour           timestamp
    until          timestamp?
    ingested_at    timestamp
    """,
)
"""Statements of gateways with messages that have not landed. After a crash of the hub a statement may occur twice."""
SETTLED_RANGES = _table(
    "settled_ranges",
    (),
    f"""{_ADDRESS}
    first_sequence bigint
    last_sequence  bigint
    """,
    keys=("tenant", "gateway", "epoch", "address", "first_sequence"),
)
"""Ranges of the other statements: all of their messages have landed, so they are final."""
GATEWAY_BACKLOG = _table(
    "gateway_backlog",
    (),
    """
    tenant  string
    gateway string
    waiting bigint
    said_at timestamp
    """,
    keys=("tenant", "gateway"),
)
"""The newest status of a gateway with its number of waiting messages. `said_at`: landing of the status."""
GAPS = _table(
    "gaps",
    (),
    """
    tenant         string
    gateway        string
    epoch          string
    address        string
    first_sequence bigint
    last_sequence  bigint
    missing        bigint
    explained      boolean
    reason         string?
    """,
)
COMPLETENESS_HOURLY = _table(
    "completeness_hourly",
    ("settled",),
    f"""{_ADDRESS}
    hour           timestamp?
    first_sequence bigint
    last_sequence  bigint
    accepted       bigint
    landed         bigint
    given_up       string
    waiting        bigint
    unexplained    bigint
    settled        boolean
    """,
    keys=("tenant", "gateway", "epoch", "address", "hour", "first_sequence"),
)
"""Balance of each statement of a gateway: accepted = landed + dropped + waiting + unexplained.

`given_up`: a JSON object, dropped messages by reason. `hour` null: not stated yet. `settled`: all of it has landed,
and the row is final.
"""
COMPLETENESS = _table(
    "completeness",
    (),
    f"""{_ADDRESS}
    first_sequence     bigint
    last_sequence      bigint
    rows               bigint
    distinct_sequences bigint
    accepted           bigint?
    unstated           bigint?
    missing            bigint
    explained          bigint
    waiting            bigint?
    unexplained        bigint
    duplicates         bigint
    """,
    keys=("tenant", "gateway", "epoch", "address"),
)
"""missing = explained + waiting + unexplained, of the `accepted` messages. `unstated`: the part of them that is not
stated yet.
"""
THROUGHPUT = _table(
    "throughput",
    ("event_date",),
    """
    tenant     string
    gateway    string
    lane       string
    bucket     timestamp
    bucket_s   int
    received   bigint
    ingested   bigint
    lag_max_s  double?
    event_date date
    """,
    keys=("tenant", "gateway", "lane", "bucket"),
)
OUTAGES = _table(
    "outages",
    (),
    """
    tenant      string
    gateway     string
    began       timestamp
    until       timestamp
    drain_began timestamp
    drained     timestamp
    messages    bigint
    lag_max_s   double?
    """,
    keys=("tenant", "gateway", "began"),
)
"""Outages, found from messages of the backlog lane: received from `began` to `until`, landed from `drain_began` to
`drained`.

`lag_max_s`: the longest delay; null if no clock says so.
"""
DELIVERY_SLO = _table(
    "delivery_slo",
    ("event_date",),
    """
    tenant       string
    gateway      string
    width_s      int
    window_start timestamp
    messages     bigint
    timed        bigint
    within       bigint
    within_share double?
    p50_s        double?
    p95_s        double?
    p99_s        double?
    max_s        double?
    revised_at   timestamp
    times        binary?
    event_date   date
    """,
    keys=("tenant", "gateway", "width_s", "window_start"),
)
"""`width_s`: 3600 or 86400 seconds of reception at the gateway. `timed`: messages with a known delivery time; `within`:
those that kept the target. `times`: a KLL sketch of the times, the source of the percentiles.
"""
DEVICE_DAYS = _table(
    "device_days",
    ("event_date",),
    """
    tenant         string
    gateway        string
    device         string
    messages       bigint
    first_at       timestamp
    last_at        timestamp
    suspect        bigint
    battery_metric string?
    battery        double?
    battery_at     timestamp?
    battery_n      bigint
    battery_t      double
    battery_v      double
    battery_tt     double
    battery_tv     double
    rssi_n         bigint
    rssi_sum       double
    ahead_s        double?
    boots          bigint[]
    event_date     date
    """,
    keys=("tenant", "gateway", "device", "event_date"),
)
"""Sums per day of reception, the source of `device_health`."""
DEVICE_HEALTH = _table(
    "device_health",
    (),
    """
    tenant          string
    gateway         string
    device          string
    first_at        timestamp
    last_at         timestamp
    messages        bigint
    suspect         bigint
    interval_s      double?
    silent_s        double
    missed          bigint?
    battery_metric  string?
    battery         double?
    battery_per_day double?
    boots           int
    last_boot_at    timestamp?
    clock_ahead_s   double?
    rssi            double?
    """,
    keys=("tenant", "gateway", "device"),
)
"""Health of a device in its last 30 days.

`silent_s`: how long its gateway has received data of other devices but not of this one; `missed`: the same in intervals
of the device. `battery_per_day`: in the battery's own unit. `clock_ahead_s`: of the newest day with times of its own.
"""
SET_ASIDE = _table(
    "set_aside",
    (),
    """
    source         string
    path           string
    job            string
    rows           bigint?
    gateway_first  string?
    gateway_last   string?
    sequence_first bigint?
    sequence_last  bigint?
    reason         string
    found_at       timestamp
    """,
    keys=("source", "path", "job"),
)
"""Damaged files of a table that a job skipped. A rebuild does not restore these rows."""

PAYLOAD_SCHEMAS = _table(
    "payload_schemas",
    (),
    """
    pattern       string
    tenant        string?
    document      string?
    registered_at timestamp
    """,
)
"""Registered schemas of addresses (`spark.registry`), in the order of their commits.

The newest row of a tenant and pattern is valid; a row without a document ends it. No job rebuilds this table.
"""

LANDED: dict[str, TableSchema] = {
    table.name: table for table in (TELEMETRY, LEDGER, MANIFESTS, CLOCK_OFFSETS, GATEWAY_STATUS, QUARANTINE)
}
"""Tables that the hub writes; only read here."""
DERIVED: dict[str, TableSchema] = {
    table.name: table
    for table in (
        READINGS,
        REJECT,
        SPARKPLUG_BIRTHS,
        SPARKPLUG_LAST_BIRTHS,
        ROLLUP_1M,
        ROLLUP_1H,
        ROLLUP_1D,
        ANOMALIES,
        DETECTOR_STATES,
        GATEWAY_FRESHNESS,
        LANDED_RANGES,
        GIVEN_UP_RANGES,
        OPEN_STATEMENTS,
        SETTLED_RANGES,
        GATEWAY_BACKLOG,
        GAPS,
        COMPLETENESS,
        COMPLETENESS_HOURLY,
        THROUGHPUT,
        OUTAGES,
        DELIVERY_SLO,
        DEVICE_DAYS,
        DEVICE_HEALTH,
        SET_ASIDE,
    )
}
"""Tables that jobs make from landed tables or from one another. All can be rebuilt from the landed ones."""
