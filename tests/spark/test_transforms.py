"""Each transform on a few rows, against results computed by hand or in plain Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from spark import schemas
from spark.decoding.schema import PayloadSchema
from spark.transforms import readings, rollups, throughput
from spark.transforms.freshness import freshness
from spark.transforms.throughput import bucket_seconds
from tests.spark.gold import bucket
from tests.spark.lakes import START, message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Make

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def utc(at: datetime) -> datetime:
    """Return a naive timestamp of this process's time zone with its zone."""
    return at.astimezone(UTC)


class TestReadings:
    def test_each_value_is_a_row_and_each_failure_is_kept(self, frame: Make) -> None:
        decoded = readings.decode_messages(
            frame(
                "telemetry",
                message(0, body=b'{"t": 20.5, "air": {"hum": 40}}'),
                message(1, address="plant/7/level", body=b"12"),
                message(2, body=b"\xff"),
                message(3, body=b'{"state": "on"}'),
                message(4, address="plant/7/level/", body=b"13"),
                message(5, address="//", body=b"14"),
                message(6, address="plant/\u05d7\u05d3\u05e8\nb", body=b"15"),
            )
        )
        good = readings.readings(decoded)
        assert good.schema.names == schemas.READINGS.columns.names
        found = {(row["sequence"], row["metric"]): (row["value"], row["text"]) for row in rows(good)}
        assert found == {
            (0, "t"): (20.5, None),
            (0, "air.hum"): (40.0, None),
            (1, "level"): (12.0, None),
            (3, "state"): (None, "on"),
            (4, "level"): (13.0, None),
            (5, "//"): (14.0, None),
            (6, "\u05d7\u05d3\u05e8\nb"): (15.0, None),
        }
        bad = rows(readings.rejects(decoded))
        assert [(row["sequence"], row["reason"], bytes(row["body"])) for row in bad] == [(2, "not UTF-8 text", b"\xff")]

    def test_times_ahead_are_clamped_and_wrong_clocks_flagged(self, frame: Make) -> None:
        landed = START + timedelta(seconds=1)
        decoded = readings.decode_messages(
            frame(
                "telemetry",
                message(0, event_time=START, ingested_at=landed),
                message(1, event_time=START + timedelta(days=400), ingested_at=landed),
                message(2, event_time=datetime(2019, 12, 31, 23, 59, tzinfo=UTC), ingested_at=landed),
            )
        )
        found = {row["sequence"]: row for row in rows(readings.readings(decoded))}
        assert [found[n]["suspect"] for n in range(3)] == [False, True, True]
        assert utc(found[1]["event_time"]) == landed + timedelta(minutes=5)
        assert found[2]["event_date"].isoformat() == "1970-01-01"

    def test_whose_clock_a_reading_goes_by(self, frame: Make) -> None:
        """A plausible time of the device wins, else that of the message or the gateway; the unit is kept."""
        landed = START + timedelta(seconds=10)
        measured = START - timedelta(hours=3)
        schema = PayloadSchema("load/+", "json", units={"t": "Cel"})
        decoded = readings.decode_messages(
            frame(
                "telemetry",
                message(0, body=b'{"ts": "%s", "t": 1}' % measured.isoformat().encode(), ingested_at=landed),
                message(1, body=b'{"ts": "1970-01-01T00:00:12Z", "t": 2}', ingested_at=landed),
                message(2, body=b'{"ts": "2038-01-19T03:14:08Z", "t": 3}', ingested_at=landed),
                message(3, body=b'{"t": 4}', ingested_at=landed, event_time=START),
                message(4, address="spBv1.0/g/DDEATH/n/d", body=b"", ingested_at=landed),
            ),
            (schema,),
        )
        found = {row["sequence"]: row for row in rows(readings.readings(decoded))}
        assert {key: (row["value"], row["unit"], row["time_source"], row["suspect"]) for key, row in found.items()} == {
            0: (1.0, "Cel", "device", False),
            1: (2.0, "Cel", "gateway", True),
            2: (3.0, "Cel", "gateway", True),
            3: (4.0, "Cel", "message", False),
            4: (0.0, None, "gateway", False),
        }
        assert [utc(found[key]["event_time"]) for key in (0, 1, 3)] == [measured, START + timedelta(seconds=1), START]
        assert (found[4]["device"], found[4]["metric"], found[4]["text"]) == ("g/n/d", "online", "false")


class TestRollups:
    def test_windows(self, frame: Make) -> None:
        def reading(sequence: int, second: int, value: float | None, **override: Any) -> dict[str, Any]:
            row = message(sequence, at=START + timedelta(seconds=second))
            event_date = row["event_time"].date()
            row |= {"metric": "t", "value": value, "suspect": False, "time_source": "gateway", "event_date": event_date}
            return row | override

        rolled = frame(
            "readings",
            reading(0, 0, 4.0),
            reading(1, 59, 1.0, suspect=True),
            reading(2_000_000_000, 59, 3.0),
            reading(3, 60, 9.0),
            reading(4, 61, None, text="on"),
            reading(5, 3600, 5.0),
            reading(6, 0, 7.0, device="dev2"),
        )
        minutes = rollups.by_minute(rolled)
        assert minutes.schema.names == schemas.ROLLUP_1M.columns.names
        found = {(row["device"], utc(row["window_start"])): row for row in rows(minutes)}
        assert len(found) == 4
        first = found["dev1", START]
        assert (first["count"], first["min"], first["max"], first["sum"]) == (3, 1.0, 4.0, 8.0)
        assert first["mean"] == pytest.approx(8 / 3)
        assert first["last"] == 3.0  # two readings at :59; the higher sequence is the later
        assert first["suspect"] == 1
        assert utc(first["revised_at"]) == START + timedelta(seconds=60)
        hours = {(row["device"], utc(row["window_start"]).hour): row for row in rows(rollups.by_hour(rolled))}
        nine = hours["dev1", 9]
        assert (nine["count"], nine["min"], nine["max"], nine["sum"], nine["last"]) == (4, 1.0, 9.0, 17.0, 9.0)
        assert hours["dev1", 10]["count"] == 1


class TestFreshness:
    def test_lag_of_gateway_and_device(self, frame: Make) -> None:
        def landed(sequence: int, lag: float, **override: Any) -> dict[str, Any]:
            at = START + timedelta(seconds=sequence)
            return message(sequence, at=at, ingested_at=at + timedelta(seconds=lag), **override)

        telemetry = frame(
            "telemetry",
            *(landed(n, 1.0) for n in range(8)),
            landed(8, 20.0, lane="backlog"),
            landed(9, 90.0, device="dev2"),
            landed(10, 2.0, device="dev2", event_time=datetime(1970, 1, 1, tzinfo=UTC)),
        )
        found = {row["device"]: row for row in rows(freshness(telemetry))}
        assert set(found) == {None, "dev1", "dev2"}
        whole = found[None]
        assert (whole["rows"], whole["late_rows"], whole["suspect_rows"]) == (11, 2, 1)
        assert whole["late_share"] == pytest.approx(2 / 11)
        assert (whole["lag_p50_s"], whole["lag_max_s"]) == (1.0, 90.0)
        assert found["dev1"]["lag_max_s"] == 20.0
        assert utc(found["dev2"]["last_event_time"]) == START + timedelta(seconds=9)
        assert utc(whole["last_ingested_at"]) == START + timedelta(seconds=99)

    def test_a_gateway_with_a_wrong_clock_only_has_no_lag(self, frame: Make) -> None:
        telemetry = frame("telemetry", message(0, event_time=datetime(1970, 1, 2, tzinfo=UTC)))
        assert {row["lag_p95_s"] for row in rows(freshness(telemetry))} == {None}


class TestThroughput:
    def test_both_roles_of_a_row(self, frame: Make) -> None:
        def landed(sequence: int, received: float, ingested: float, lane: str = "live") -> dict[str, Any]:
            at, upto = START + timedelta(seconds=received), START + timedelta(seconds=ingested)
            return message(sequence, at=at, ingested_at=upto, lane=lane)

        telemetry = frame(
            "telemetry", landed(0, 0, 1), landed(1, 3, 9), landed(2, 12, 31, "backlog"), landed(3, 13, 14)
        )
        assert throughput.find_reach(telemetry, frame("throughput")) == (31.0, None, 1)
        there = frame("throughput", bucket(1, 1, 10, bucket=START - timedelta(seconds=9), bucket_s=2))
        assert throughput.find_reach(telemetry, there) == (40.0, 2, 1)
        assert throughput.find_reach(telemetry.limit(0), there) == (0.0, 2, 0)
        found = {
            (row["lane"], int((utc(row["bucket"]) - START).total_seconds())): (row["received"], row["ingested"])
            for row in rows(throughput.throughput(telemetry, 10))
        }
        assert found == {("live", 0): (2, 2), ("live", 10): (1, 1), ("backlog", 10): (1, 0), ("backlog", 30): (0, 1)}

    @pytest.mark.parametrize(("span", "width"), [(0, 1), (1200, 1), (1201, 2), (86_400, 300), (10**9, 604_800)])
    def test_bucket_width(self, span: float, width: int) -> None:
        assert bucket_seconds(span) == width

    @pytest.mark.parametrize("years", [0.1, 1, 3, 10, 22])
    def test_a_gateway_has_no_more_rows_however_old_the_lake_is(self, years: float) -> None:
        span = years * 365.25 * 86_400
        assert span / bucket_seconds(span) <= throughput.BUCKETS_MAX

    def test_buckets_of_an_hour_become_those_of_six(self, frame: Make) -> None:
        began = START.replace(hour=6, minute=0)
        hours = [
            bucket(0, number, 1, bucket=began + timedelta(hours=number), bucket_s=3600, lag_max_s=float(number))
            for number in range(7)
        ]
        found = rows(throughput.widen(frame("throughput", *hours), 21_600))
        summed = {utc(row["bucket"]): (row["received"], row["ingested"], row["lag_max_s"]) for row in found}
        assert summed == {began: (15, 6, 5.0), began + timedelta(hours=6): (6, 1, 6.0)}
