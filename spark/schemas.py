"""The tables of the lake as Spark types: the landed ones, which the hub writes, and the ones the jobs make of them.

The landed tables are spelt out here although the hub has a contract file of its own, so that Spark depends on no code
or file of the hub's; a contract test holds the two equal. All timestamps are UTC microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
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


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake: its columns in order and what its files are partitioned by."""

    name: str
    columns: StructType
    partition_by: tuple[str, ...] = ()


_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "date": DateType(),
}


def _table(name: str, partition_by: tuple[str, ...], columns: str) -> Table:
    """`columns`: one `name type` a line; a type that ends in `?` may be null."""
    fields = []
    for line in columns.strip().splitlines():
        column, kind = line.split()
        fields.append(StructField(column, _TYPES[kind.rstrip("?")], nullable=kind.endswith("?")))
    return Table(name, StructType(fields), partition_by)


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
    event_date    date
    """,
)
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


def _rollup(name: str) -> Table:
    return _table(
        name,
        ("event_date",),
        """
        tenant       string
        gateway      string
        device       string
        address      string
        metric       string
        window_start timestamp
        count        bigint
        min          double
        max          double
        sum          double
        mean         double
        last         double
        last_at      timestamp
        suspect      bigint
        revised_at   timestamp
        event_date   date
        """,
    )


ROLLUP_1M = _rollup("rollup_1m")
ROLLUP_1H = _rollup("rollup_1h")
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
    """,
)
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
COMPLETENESS = _table(
    "completeness",
    (),
    """
    tenant             string
    gateway            string
    epoch              string
    address            string
    first_sequence     bigint
    last_sequence      bigint
    rows               bigint
    distinct_sequences bigint
    missing            bigint
    explained          bigint
    unexplained        bigint
    duplicates         bigint
    """,
)
THROUGHPUT = _table(
    "throughput",
    (),
    """
    tenant    string
    gateway   string
    lane      string
    bucket    timestamp
    bucket_s  int
    received  bigint
    ingested  bigint
    lag_max_s double?
    """,
)

LANDED: dict[str, Table] = {table.name: table for table in (TELEMETRY, LEDGER, MANIFESTS, GATEWAY_STATUS, QUARANTINE)}
"""Written by the hub, only read here."""
DERIVED: dict[str, Table] = {
    table.name: table
    for table in (READINGS, REJECT, ROLLUP_1M, ROLLUP_1H, GATEWAY_FRESHNESS, GAPS, COMPLETENESS, THROUGHPUT)
}
"""Made by the jobs, each from landed tables or from one another; all can be rebuilt from the landed ones."""
