"""Expected rows of every derived table from messages with known values: SQL of DuckDB, without code of `spark/`.

The rules are those of `docs/explanation/analytics.md` and of the columns in `spark/schemas.py`. Each table is computed
from everything that has landed, so the number of passes of a job does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import duckdb
import pyarrow as pa

from cloud.place.place import LakeLocation, place_of
from spark import schemas
from tests.spark.comparison import Table, compared
from tests.spark.mixed import Landing, Message

Row = dict[str, Any]

_EXACT_UP_TO: Final = 200
"""Most values of a window for which a sketch is exact; above it a quantile may be off by a share `_RANK` of them."""
_RANK: Final = 0.03


def _quantile(column: str, share: float, name: str) -> str:
    low, high = max(0.0, share - _RANK), min(1.0, share + _RANK)
    exact = f"quantile_disc({column}, {share})"
    few = f"count({column}) <= {_EXACT_UP_TO}"
    return (
        f"CASE WHEN {few} THEN {exact} ELSE quantile_disc({column}, {low}) END AS {name}_low, "
        f"CASE WHEN {few} THEN {exact} ELSE quantile_disc({column}, {high}) END AS {name}_high"
    )


_RULES: Final = """
CREATE MACRO earliest() AS TIMESTAMPTZ '2020-01-01 00:00:00+00';
CREATE MACRO latest(landed) AS landed + INTERVAL 5 MINUTE;
CREATE MACRO believable(moment, landed) AS coalesce(moment >= earliest() AND moment <= latest(landed), false);
CREATE MACRO day_of(moment) AS CASE WHEN moment < earliest() THEN DATE '1970-01-01' ELSE CAST(moment AS DATE) END;
CREATE MACRO hour_of(moment) AS CASE WHEN moment < earliest() THEN 0 ELSE hour(moment) END;
CREATE MACRO seconds(earlier, later) AS greatest(epoch_us(later) - epoch_us(earlier), 0) / 1e6;

-- Every value, and every reason for one that could not be read, with its time.
CREATE TABLE placed AS
WITH known_times AS (
    SELECT *, believable(measured_at, ingested_at) AS of_device, believable(event_time, ingested_at) AS of_message
    FROM (SELECT * RENAME (device AS sender) FROM message) JOIN known USING (n)
), sources AS (
    SELECT *,
        CASE WHEN of_device THEN 'device' WHEN event_time = received_at THEN 'gateway' ELSE 'message' END AS time_source
    FROM known_times
)
SELECT * REPLACE (CASE WHEN of_device THEN measured_at ELSE least(event_time, latest(ingested_at)) END AS event_time,
        coalesce(device, sender) AS device),
    CASE WHEN measured_at IS NULL THEN NOT of_message ELSE NOT of_device END
        OR (clock_quality = 'bounded' AND time_source = 'gateway') AS suspect
FROM sources;

CREATE TABLE reading AS SELECT *, day_of(event_time) AS event_date FROM placed WHERE reason IS NULL;

-- Messages as delivery is measured: where the time of reception is unknown, it is that of landing.
CREATE TABLE delivered AS
SELECT n, tenant, gateway, device, lane, ingested_at,
    believable(delivered_at, ingested_at) AS is_timed,
    CASE WHEN is_timed THEN delivered_at ELSE ingested_at END AS received_at,
    CASE WHEN is_timed THEN seconds(delivered_at, ingested_at) END AS lag_s,
    believable(delivered_event, ingested_at) AS is_aged,
    CASE WHEN delivered_event IS NULL THEN ingested_at ELSE least(delivered_event, latest(ingested_at)) END
        AS event_time,
    CASE WHEN is_aged THEN seconds(delivered_event, ingested_at) END AS age_s
FROM message;
"""


def _rollup(name: str, unit: str, *more: str) -> Table:
    order = "ORDER BY event_time DESC, sequence DESC, value DESC, unit DESC NULLS LAST"
    return Table(
        name,
        ("tenant", "gateway", "device", "address", "metric", "window_start"),
        f"""
        SELECT tenant, gateway, device, address, metric, date_trunc('{unit}', event_time) AS window_start,
            count(*) AS count, min(value) AS min, max(value) AS max, fsum(value) AS sum, fsum(value) / count(*) AS mean,
            first(value {order}) AS last, first(event_time {order}) AS last_at,
            first(sequence {order}) AS last_sequence, first(unit {order}) AS unit,
            {_quantile("value", 0.5, "p50")}, {_quantile("value", 0.95, "p95")},
            count(*) FILTER (suspect) AS suspect, max(ingested_at) AS revised_at,
            day_of(date_trunc('{unit}', event_time)) AS event_date
            {"".join(f", {column}" for column in more)}
        FROM reading WHERE value IS NOT NULL
        GROUP BY ALL
        """,
        frozenset(("sum", "mean")),
        frozenset(("sketch",)),
    )


_ADDRESS: Final = ("tenant", "gateway", "epoch", "address")
_FRESHNESS: Final = f"""
    SELECT tenant, gateway, device, min(event_time) AS first_event_time, max(event_time) AS last_event_time,
        max(ingested_at) AS last_ingested_at, count(*) AS rows,
        count(*) FILTER (lane = 'backlog' OR coalesce(age_s, 0) > 60) AS late_rows,
        late_rows / count(*) AS late_share, count(*) FILTER (NOT is_aged) AS suspect_rows,
        {_quantile("age_s", 0.5, "lag_p50_s")}, {_quantile("age_s", 0.95, "lag_p95_s")}, max(age_s) AS lag_max_s
    FROM delivered
    GROUP BY GROUPING SETS ((tenant, gateway), (tenant, gateway, device))
"""
_SLO: Final = " UNION ALL ".join(
    f"""
    SELECT tenant, gateway, {width} AS width_s, date_trunc('{unit}', received_at) AS window_start,
        count(*) AS messages, count(lag_s) AS timed, count(*) FILTER (lag_s <= 60) AS within,
        count(*) FILTER (lag_s <= 60) / nullif(count(lag_s), 0) AS within_share,
        {", ".join(_quantile("lag_s", share, f"p{share * 100:.0f}_s") for share in (0.5, 0.95, 0.99))},
        max(lag_s) AS max_s, max(ingested_at) AS revised_at, day_of(date_trunc('{unit}', received_at)) AS event_date
    FROM delivered GROUP BY ALL
    """
    for unit, width in (("hour", 3_600), ("day", 86_400))
)
_OUTAGES: Final = """
    WITH waited AS (SELECT * FROM delivered WHERE lane = 'backlog'),
    before AS (
        SELECT *, max(ingested_at) OVER (
            PARTITION BY tenant, gateway ORDER BY received_at, ingested_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS drained_before
        FROM waited
    ),
    numbered AS (
        SELECT *, count(*) FILTER (received_at - INTERVAL 60 SECOND > drained_before) OVER (
            PARTITION BY tenant, gateway ORDER BY received_at, ingested_at ROWS UNBOUNDED PRECEDING) AS island
        FROM before
    )
    SELECT tenant, gateway, min(received_at) AS began, max(received_at) AS until, min(ingested_at) AS drain_began,
        max(ingested_at) AS drained, count(*) AS messages, max(lag_s) AS lag_max_s
    FROM numbered GROUP BY tenant, gateway, island
"""
_THROUGHPUT: Final = """
    WITH width AS (SELECT max(bucket_s) AS bucket_s FROM found_throughput),
    roles AS (
        SELECT tenant, gateway, lane, received_at AS moment, 1 AS received, 0 AS ingested, NULL AS lag_s FROM delivered
        UNION ALL
        SELECT tenant, gateway, lane, ingested_at, 0, 1, lag_s FROM delivered
    )
    SELECT tenant, gateway, lane, to_timestamp(floor(epoch(moment) / bucket_s) * bucket_s) AS bucket, bucket_s,
        sum(received) AS received, sum(ingested) AS ingested, max(lag_s) AS lag_max_s,
        day_of(to_timestamp(floor(epoch(moment) / bucket_s) * bucket_s)) AS event_date
    FROM roles, width GROUP BY ALL
"""
"""Throughput; the width of buckets depends on the history of passes, but the content of each bucket must be correct."""


def _islands(rows: str, key: str, more: str = "") -> str:
    """Return runs of consecutive sequences among `rows`, a query with columns `key` and `sequence`, without
    duplicates.
    """
    return f"""
        SELECT {key}, min(sequence) AS first_sequence, max(sequence) AS last_sequence {more}
        FROM (SELECT *, sequence - row_number() OVER (PARTITION BY {key} ORDER BY sequence) AS island FROM ({rows}))
        GROUP BY {key}, island
    """


_KEY: Final = ", ".join(_ADDRESS)
_ACCOUNTS: Final = f"""
CREATE TABLE landed AS SELECT {_KEY}, sequence, count(*) AS rows FROM message GROUP BY ALL;
CREATE TABLE gone AS
    SELECT {_KEY}, reason, unnest(range(first_sequence, last_sequence + 1)) AS sequence FROM ledger;
CREATE TABLE statement AS
    SELECT *, row_number() OVER (PARTITION BY {_KEY} ORDER BY first_sequence, until) AS number FROM (
        SELECT {_KEY}, hour, until, first_sequence, last_sequence, min(ingested_at) AS ingested_at
        FROM manifests GROUP BY ALL
    );
-- What each sequence was first stated in.
CREATE TABLE stated AS
    SELECT {_KEY}, sequence, min(number) AS number FROM (
        SELECT {_KEY}, number, unnest(range(first_sequence, last_sequence + 1)) AS sequence FROM statement)
    GROUP BY ALL;
CREATE TABLE address AS
    SELECT * FROM (SELECT DISTINCT {_KEY} FROM message UNION SELECT DISTINCT {_KEY} FROM ledger
                   UNION SELECT DISTINCT {_KEY} FROM manifests)
    LEFT JOIN (SELECT {_KEY}, max(sequence) AS top FROM (
        SELECT {_KEY}, sequence FROM landed UNION ALL SELECT {_KEY}, sequence FROM gone) GROUP BY ALL) USING ({_KEY})
    LEFT JOIN (SELECT {_KEY}, min(sequence) AS first_stated FROM stated GROUP BY ALL) USING ({_KEY})
    LEFT JOIN (SELECT {_KEY}, min(sequence) AS first_landed FROM landed GROUP BY ALL) USING ({_KEY})
    LEFT JOIN (SELECT tenant, gateway, arg_max(backlog_messages, ingested_at) AS backlog,
                   max(ingested_at) AS said_at
               FROM gateway_status WHERE backlog_messages IS NOT NULL GROUP BY ALL) USING (tenant, gateway)
    LEFT JOIN (SELECT DISTINCT tenant, gateway, true AS has_lane FROM message WHERE lane = 'backlog')
        USING (tenant, gateway);
-- Every sequence that a gateway has accepted, and what became of it.
CREATE TABLE accepted AS
WITH sequences AS (
    SELECT {_KEY}, sequence, number FROM stated
    UNION ALL
    SELECT {_KEY}, sequence, NULL FROM (
        SELECT {_KEY}, unnest(range(coalesce(first_stated, first_landed, 0), top + 1)) AS sequence FROM address)
    ANTI JOIN stated USING ({_KEY}, sequence)
), judged AS (
    SELECT {_KEY}, sequence, number, hour,
        landed.sequence IS NOT NULL AS has_landed,
        (SELECT min(gone.reason) FROM gone WHERE gone.tenant = all_of.tenant AND gone.gateway = all_of.gateway
            AND gone.epoch = all_of.epoch AND gone.address = all_of.address AND gone.sequence = all_of.sequence)
            AS given_up,
        CASE WHEN number IS NULL THEN first_stated IS NULL OR backlog IS NULL OR backlog > 0
            ELSE backlog IS NULL OR backlog > 0 OR said_at <= statement.ingested_at + INTERVAL 10 SECOND
            END AS may_wait,
        coalesce(has_lane, false) OR (number IS NULL AND first_stated IS NULL) AS may_wait_below,
        top
    FROM sequences AS all_of JOIN address USING ({_KEY})
    LEFT JOIN statement USING ({_KEY}, number)
    LEFT JOIN landed USING ({_KEY}, sequence)
)
SELECT *, CASE
    WHEN has_landed THEN 'landed' WHEN given_up IS NOT NULL THEN 'dropped'
    WHEN may_wait AND (may_wait_below OR sequence > coalesce(top, -1)) THEN 'waiting' ELSE 'unexplained' END AS became
FROM judged;
"""
_COMPLETENESS: Final = f"""
    SELECT {_KEY}, first_sequence, last_sequence, coalesce(rows, 0) AS rows, coalesce(singles, 0) AS distinct_sequences,
        count(accepted.sequence) AS accepted, count(*) FILTER (accepted.sequence IS NOT NULL AND number IS NULL)
            AS unstated,
        count(*) FILTER (became <> 'landed') AS missing, count(*) FILTER (became = 'dropped') AS explained,
        count(*) FILTER (became = 'waiting') AS waiting, count(*) FILTER (became = 'unexplained') AS unexplained,
        coalesce(rows, 0) - coalesce(singles, 0) AS duplicates
    FROM address LEFT JOIN accepted USING ({_KEY})
    LEFT JOIN (SELECT {_KEY}, sum(rows)::BIGINT AS rows, count(*) AS singles FROM landed GROUP BY ALL) USING ({_KEY})
    JOIN (SELECT {_KEY}, min(sequence) AS first_sequence, max(sequence) AS last_sequence FROM (
        SELECT {_KEY}, sequence FROM landed UNION ALL SELECT {_KEY}, sequence FROM gone
        UNION ALL SELECT {_KEY}, sequence FROM stated) GROUP BY ALL) USING ({_KEY})
    GROUP BY ALL
"""
_HOURLY: Final = f"""
    WITH lines AS (
        SELECT {_KEY}, hour, number, island, min(sequence) AS first_sequence, max(sequence) AS last_sequence,
            count(*) AS accepted, count(*) FILTER (became = 'landed') AS landed,
            count(*) FILTER (became = 'waiting') AS waiting, count(*) FILTER (became = 'unexplained') AS unexplained
        FROM (SELECT *, sequence - row_number() OVER (PARTITION BY {_KEY}, number ORDER BY sequence) AS island
              FROM accepted)
        GROUP BY ALL
    ), reasons AS (
        SELECT {_KEY}, first_sequence, string_agg(format('"{{}}": {{}}', given_up, messages), ', ' ORDER BY given_up)
            AS given_up
        FROM (SELECT {_KEY}, first_sequence, given_up, count(*) AS messages FROM lines JOIN accepted USING ({_KEY})
              WHERE became = 'dropped' AND sequence BETWEEN first_sequence AND last_sequence GROUP BY ALL)
        GROUP BY ALL
    )
    SELECT {_KEY}, hour, first_sequence, last_sequence, accepted, landed,
        '{{' || coalesce(given_up, '') || '}}' AS given_up, waiting, unexplained,
        number IS NOT NULL AND accepted = landed AS settled
    FROM lines LEFT JOIN reasons USING ({_KEY}, first_sequence)
"""
_GAPS: Final = f"""
    SELECT {_KEY}, min(sequence) AS first_sequence, max(sequence) AS last_sequence, count(*) AS missing,
        given_up IS NOT NULL AS explained, given_up AS reason
    FROM (SELECT *, sequence - row_number() OVER (PARTITION BY {_KEY}, number, given_up ORDER BY sequence) AS island
          FROM accepted WHERE became IN ('dropped', 'unexplained'))
    GROUP BY {_KEY}, number, given_up, island
"""

_BATTERY: Final = r"(?i)(^|[._/:])(v?bat|batt|battery)([._]?(level|voltage|volts?|v|percent(age)?|pct|soc))?$"
_UPTIME_MS: Final = r"(?i)(^|[._/:])uptime[._]?ms$"
_RSSI: Final = r"(?i)(^|[._/:])rssi$"
_MEASURED: Final = f"""
CREATE TABLE measured AS
WITH trusted AS (
    SELECT * REPLACE (CASE WHEN believable(received_at, ingested_at) THEN received_at ELSE ingested_at END
            AS received_at)
    FROM reading
)
SELECT *, CAST(received_at AS DATE) AS day, date_trunc('day', received_at) AS begin,
    CASE WHEN regexp_matches(metric, '{_BATTERY}') THEN value END AS battery,
    CASE WHEN regexp_matches(metric, '{_RSSI}') THEN value END AS rssi,
    CASE WHEN time_source <> 'gateway' THEN (epoch_us(event_time) - epoch_us(received_at)) / 1e6 END AS ahead_s,
    CASE WHEN regexp_matches(metric, '{_UPTIME_MS}') AND value >= 0
            THEN epoch_us(event_time) // 1000000 - round(value / 1e3)::BIGINT
        WHEN metric = 'online' AND value = 1 AND address LIKE 'spBv1.0/%BIRTH/%'
            THEN epoch_us(event_time) // 1000000 END AS boot,
    CASE WHEN abs(epoch_us(event_time) - epoch_us(date_trunc('day', received_at))) <= 30 * 86400e6
        THEN event_time ELSE received_at END AS battery_time
FROM trusted;
CREATE TABLE device_day AS
SELECT tenant, gateway, device, day AS event_date, count(DISTINCT (epoch, address, sequence)) AS messages,
    min(received_at) AS first_at, max(received_at) AS last_at, count(*) FILTER (suspect) AS suspect,
    arg_max(metric, event_time) FILTER (battery IS NOT NULL) AS battery_metric,
    arg_max(battery, event_time) FILTER (battery IS NOT NULL) AS battery,
    max(event_time) FILTER (battery IS NOT NULL) AS battery_at, count(battery) AS battery_n,
    coalesce(fsum(moment) FILTER (battery IS NOT NULL), 0) AS battery_t, coalesce(fsum(battery), 0) AS battery_v,
    coalesce(fsum(moment * moment) FILTER (battery IS NOT NULL), 0) AS battery_tt,
    coalesce(fsum(moment * battery), 0) AS battery_tv,
    count(rssi) AS rssi_n, coalesce(fsum(rssi), 0) AS rssi_sum, max(ahead_s) AS ahead_s,
    coalesce(list_sort(list(DISTINCT boot) FILTER (boot IS NOT NULL)), []) AS boots
FROM (SELECT *, (epoch_us(battery_time) - epoch_us(begin)) / 86400e6 AS moment FROM measured)
GROUP BY ALL;
"""
_HEALTH: Final = """
    WITH gateway_newest AS (
        SELECT tenant, gateway, max(event_date) AS newest, max(last_at) AS gateway_at FROM device_day GROUP BY ALL
    ), recent AS (
        SELECT * FROM device_day JOIN gateway_newest USING (tenant, gateway)
        WHERE event_date > newest - INTERVAL 30 DAY
    ), starts AS (
        SELECT tenant, gateway, device, count(*) AS boots, max(boot) AS last_boot
        FROM (SELECT *, lag(boot) OVER (PARTITION BY tenant, gateway, device ORDER BY boot) AS before
              FROM (SELECT tenant, gateway, device, unnest(boots) AS boot FROM recent))
        WHERE before IS NULL OR boot - before > 120
        GROUP BY ALL
    ), lines AS (
        SELECT tenant, gateway, device, regr_slope(battery, moment) AS slope, var_pop(moment) AS spread
        FROM (SELECT tenant, gateway, device, battery, epoch_us(battery_time) / 86400e6 - 20000 AS moment
              FROM measured JOIN gateway_newest USING (tenant, gateway)
              WHERE battery IS NOT NULL AND day > newest - INTERVAL 30 DAY)
        GROUP BY ALL
    )
    SELECT tenant, gateway, device, min(first_at) AS first_at, max(last_at) AS last_at,
        sum(messages)::BIGINT AS messages, sum(suspect)::BIGINT AS suspect,
        sum(seconds(first_at, last_at)) / nullif(sum(messages - 1), 0) AS interval_s,
        seconds(max(last_at), any_value(gateway_at)) AS silent_s,
        CASE WHEN interval_s > 0 THEN floor(silent_s / interval_s)::BIGINT END AS missed,
        arg_max(battery_metric, battery_at) AS battery_metric, arg_max(battery, battery_at) AS battery,
        any_value(CASE WHEN spread > 1 / 24.0 / 24.0 THEN slope END) AS battery_per_day,
        coalesce(any_value(starts.boots), 0) AS boots, to_timestamp(any_value(last_boot)) AS last_boot_at,
        arg_max(ahead_s, event_date) FILTER (ahead_s IS NOT NULL) AS clock_ahead_s,
        sum(rssi_sum) / nullif(sum(rssi_n), 0) AS rssi
    FROM recent LEFT JOIN starts USING (tenant, gateway, device) LEFT JOIN lines USING (tenant, gateway, device)
    GROUP BY tenant, gateway, device
"""
_READINGS: Final = ", ".join(name for name in schemas.READINGS.columns.names if name != "replay")
_BATTERY_SUMS: Final = frozenset(f"battery_{name}" for name in ("t", "v", "tt", "tv"))

TABLES: Final[Sequence[Table]] = (
    Table(
        "readings",
        (*_ADDRESS, "sequence", "metric", "event_time", "ingested_at"),
        f"SELECT {_READINGS} FROM reading",
        unseen=frozenset(("replay",)),  # depends on whether a birth landed before the pass that read its data
    ),
    Table(
        "reject",
        (*_ADDRESS, "sequence", "metric", "ingested_at"),
        f"""SELECT {_KEY}, sequence, device, metric, event_time, ingested_at, reason, content_type,
            body[1:4096] AS body, ingest_date FROM placed WHERE reason IS NOT NULL""",
    ),
    Table(
        "sparkplug_births",
        (*_ADDRESS, "sequence", "metric", "ingested_at"),
        f"""SELECT {_KEY}, sequence, device, metric, alias, datatype, unit, received_at, ingested_at
            FROM reading WHERE address LIKE 'spBv1.0/%BIRTH/%'""",
    ),
    Table(
        "sparkplug_last_births",
        ("tenant", "gateway", "device", "metric", "ingested_at"),
        """SELECT DISTINCT tenant, gateway, device, metric, alias, datatype, unit, received_at, ingested_at
            FROM reading WHERE address LIKE 'spBv1.0/%BIRTH/%'
            QUALIFY received_at = max(received_at) OVER (PARTITION BY tenant, gateway, device)""",
    ),
    _rollup("rollup_1m", "minute", "hour_of(date_trunc('minute', event_time)) AS event_hour"),
    _rollup("rollup_1h", "hour"),
    _rollup("rollup_1d", "day"),
    Table("gateway_freshness", ("tenant", "gateway", "device"), _FRESHNESS, unseen=frozenset(("lags",))),
    Table("throughput", ("tenant", "gateway", "lane", "bucket"), _THROUGHPUT),
    Table(
        "delivery_slo",
        ("tenant", "gateway", "width_s", "window_start"),
        _SLO,
        unseen=frozenset(("times",)),
    ),
    Table("outages", ("tenant", "gateway", "began"), _OUTAGES),
    Table(
        "landed_ranges",
        (*_ADDRESS, "first_sequence"),
        _islands(f"SELECT {_KEY}, sequence FROM landed", _KEY),
        unseen=frozenset(("rows",)),  # a repeated sequence may count for either range; see `completeness`
    ),
    Table(
        "given_up_ranges",
        (*_ADDRESS, "reason", "first_sequence"),
        _islands(f"SELECT DISTINCT {_KEY}, reason, sequence FROM gone", f"{_KEY}, reason"),
    ),
    Table(
        "gateway_backlog",
        ("tenant", "gateway"),
        "SELECT DISTINCT tenant, gateway, backlog AS waiting, said_at FROM address WHERE backlog IS NOT NULL",
    ),
    Table("gaps", (*_ADDRESS, "first_sequence"), _GAPS),
    Table("completeness", _ADDRESS, _COMPLETENESS),
    Table("completeness_hourly", (*_ADDRESS, "first_sequence"), _HOURLY),
    Table(
        "device_days",
        ("tenant", "gateway", "device", "event_date"),
        "SELECT * FROM device_day",
        _BATTERY_SUMS | {"rssi_sum"},
    ),
    Table(
        "device_health",
        ("tenant", "gateway", "device"),
        _HEALTH,
        frozenset(("interval_s", "battery_per_day", "rssi")),
    ),
)


def differences(
    lake: LakeLocation, landed: Sequence[Landing], wrong: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> list[str]:
    """Return the differences between a lake's tables and its landed messages, one per line.

    `wrong`: columns with known errors, which are not compared.
    """
    found = {table.name: place_of(lake).at(table.name).delta().to_pyarrow_table() for table in TABLES}
    found_wrong: list[str] = []
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("found_throughput", found["throughput"])
        for name, rows in _facts(landed).items():
            connection.register(name, rows)
        for script in (_RULES, _ACCOUNTS, _MEASURED):
            connection.execute(script)
        for table in TABLES:
            expected = connection.sql(table.sql).to_arrow_table()
            known = wrong.get(table.name, frozenset())
            found_wrong += compared(replace(table, unseen=table.unseen | known), expected, found[table.name])
    return found_wrong


def _facts(landed: Sequence[Landing]) -> Mapping[str, pa.Table]:
    """Build the tables `message` and `known`, and those of the other landed rows."""
    messages = [message for landing in landed for message in landing.messages]
    time = pa.timestamp("us", tz="UTC")
    known = [{"n": number, **one._asdict()} for number, message in enumerate(messages) for one in message.body.known]
    columns = [("n", pa.int64()), ("metric", pa.string()), ("value", pa.float64()), ("text", pa.string())]
    columns += [("reason", pa.string()), ("measured_at", time), ("unit", pa.string()), ("device", pa.string())]
    columns += [("alias", pa.int64()), ("datatype", pa.int32())]
    more = [("n", pa.int64()), ("delivered_at", time), ("delivered_event", time)]
    of_message = pa.schema([*schemas.TELEMETRY.arrow, *(pa.field(*column) for column in more)])
    facts = {
        "message": pa.Table.from_pylist([_judged(*one) for one in enumerate(messages)], of_message),
        "known": pa.Table.from_pylist(known, pa.schema(columns)),
    }
    for name in ("ledger", "manifests", "gateway_status"):
        rows = [row for landing in landed for row in landing.others.get(name, ())]
        facts[name] = pa.Table.from_pylist(rows, schemas.LANDED[name].arrow)
    return facts


def _judged(number: int, message: Message) -> Row:
    """Build the row of a message after its gateway's clock was judged."""
    stamp = message.stamp
    return message.row() | {
        "n": number,
        "received_at": stamp.judged,
        "event_time": message.said_at or stamp.judged,
        "clock_quality": stamp.quality,
        "delivered_at": stamp.delivered,
        "delivered_event": message.said_at or stamp.delivered,
    }
