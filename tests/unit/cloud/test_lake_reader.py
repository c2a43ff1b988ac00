"""Reads of the lake for pages: which rows, from which files, within which limits, and in which process."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud.place.folder import Folder
from cloud.reader import client, tables
from cloud.reader.client import LakeReader, ReadBusy, ReadFailed, ReadTableMissing
from cloud.reader.requests import (
    CompletenessDays,
    GatewayHours,
    GatewayProof,
    GoldRows,
    LakeRead,
    LakeRequest,
    LakeTables,
    LandedSpans,
    QuarantineSample,
    SeriesList,
    StatementFaults,
    TableList,
    choose_rollup,
)
from cloud.reader.tables import milliseconds
from cloud.reader.worker import answer
from tests.spark import gold
from tests.spark.lakes import START
from tests.support.stated_lake import HOUR_US, START_US, StatedLake

START_MS = milliseconds(START)
assert START_MS is not None
DAY_MS = 86_400_000


def read(lake: Path, what: LakeRead) -> Any:
    """Return the document of a read that has an answer."""
    found = answer(Folder(lake), LakeRequest(what))
    assert found.body is not None, found.refused
    return json.loads(found.body)


def refusal(lake: Path, what: LakeRead) -> str:
    found = answer(Folder(lake), LakeRequest(what))
    assert found.body is None
    return found.refused


class TestRollup:
    @pytest.mark.parametrize(
        ("hours", "table"),
        [(24, "rollup_1m"), (33, "rollup_1m"), (34, "rollup_1h"), (24 * 83, "rollup_1h"), (24 * 90, "rollup_1d")],
    )
    def test_table_has_at_most_the_points_of_a_chart(self, hours: int, table: str) -> None:
        assert choose_rollup(0, hours * 3_600_000) == table

    def test_rows_are_those_of_one_series_in_a_span_in_order(self, tmp_path: Path) -> None:
        others = [gold.window(minute, 0, 1, device="dev2") for minute in range(5)]
        rows = [gold.window(minute, minute, minute + 2) for minute in (3, 1, 2, 0, 900)]
        gold.put(tmp_path, "rollup_1m", *others, *rows)
        begin = START_MS + 60_000
        found = read(tmp_path, GoldRows("rollup_1m", equal={"device": "dev1"}, begin=begin, end=START_MS + 180_000))
        assert found["columns"]["window_start"] == [START_MS + minute * 60_000 for minute in (1, 2, 3)]
        assert found["columns"]["mean"] == [2.0, 3.0, 4.0]
        assert found["step_s"] == 60
        assert found["newest"] == START_MS + 900 * 60_000
        assert not {"sketch", "event_date", "event_hour"} & set(found["columns"])

    def test_files_outside_the_span_are_not_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for day in range(4):
            at = START + timedelta(days=day)
            gold.put(
                tmp_path / str(day), "rollup_1h", gold.window(day * 1440, 0, 1, window_start=at, event_date=at.date())
            )
        rows = [gold.window(day * 1440, 0, 1) for day in range(4)]
        gold.put(tmp_path, "rollup_1h", *rows)
        opened: list[str] = []
        real = tables.OpenTable._of_file

        def note(table: tables.OpenTable, path: str, *more: Any) -> Any:
            opened.append(path)
            return real(table, path, *more)

        monkeypatch.setattr(tables.OpenTable, "_of_file", note)
        begin = START_MS + 2 * DAY_MS
        found = read(tmp_path, GoldRows("rollup_1h", begin=begin, end=begin + 3_600_000))
        assert found["total"] == 1
        assert len(opened) == 1

    def test_values_that_are_no_numbers_are_null(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "rollup_1d", gold.window(0, math.nan, math.inf))
        found = read(tmp_path, GoldRows("rollup_1d"))
        assert found["columns"]["min"] == [None]
        assert found["columns"]["max"] == [None]


class TestPages:
    def test_pages_have_each_row_once(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "device_health", *(gold.device(f"d{n:02}", silent_s=float(n)) for n in range(7)))
        seen: list[str] = []
        offset: str | None = "0"
        while offset is not None:
            page = read(tmp_path, GoldRows("device_health", offset=int(offset), limit=3))
            seen += page["columns"]["device"]
            offset = page["next"]
        assert seen == [f"d{n:02}" for n in reversed(range(7))]
        assert page["total"] == 7

    def test_search_sort_and_null_choose_rows(self, tmp_path: Path) -> None:
        rows = [gold.fresh(None), gold.fresh("Pump"), gold.fresh("fan", lag_p95_s=9.0)]
        gold.put(tmp_path, "gateway_freshness", *rows)
        names = lambda **how: read(tmp_path, GoldRows("gateway_freshness", **how))["columns"]["device"]  # noqa: E731
        assert names(text="pUM") == ["Pump"]
        assert names(equal={"device": ""}) == [None]
        assert names(sort="-lag_p95_s")[0] == "fan"

    def test_another_tenant_is_never_read(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "outages", gold.outage(0, 1, 2), gold.outage(0, 1, 2, tenant="other", gateway="secret"))
        mine = GoldRows("outages", tenant="default")
        assert read(tmp_path, mine)["columns"]["gateway"] == ["gw1"]
        # A value for the column `tenant` does not replace the user's tenant.
        forced = GoldRows("outages", tenant="default", equal={"tenant": "other"})
        assert read(tmp_path, forced)["columns"]["gateway"] == ["gw1"]

    def test_csv_quotes_and_has_no_formula(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "device_health", gold.device('=cmd|"x",1'))
        found = answer(Folder(tmp_path), LakeRequest(GoldRows("device_health", csv=True)))
        assert found.body is not None
        [row] = csv.DictReader(io.StringIO(found.body.decode()))
        assert row["device"] == '\'=cmd|"x",1'
        assert row["messages"] == "100"

    def test_unknown_names_are_refused_with_the_known_ones(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "outages", gold.outage(0, 1, 2))
        assert "rollup_1m" in refusal(tmp_path, GoldRows("telemetry"))
        assert "gateway" in refusal(tmp_path, GoldRows("outages", equal={"colour": "red"}))
        assert "colour" in refusal(tmp_path, GoldRows("outages", sort="colour"))
        assert "number" in refusal(tmp_path, GoldRows("outages", equal={"messages": "many"}))

    def test_missing_table_names_the_command(self, tmp_path: Path) -> None:
        found = answer(Folder(tmp_path), LakeRequest(GoldRows("outages")))
        assert found.missing
        assert f"waypost lake run --lake {tmp_path}" in found.refused

    @pytest.mark.parametrize("damage", ["log", "rows"])
    def test_damaged_table_is_told_from_a_wrong_question(self, tmp_path: Path, damage: str) -> None:
        gold.put(tmp_path, "outages", gold.outage(0, 1, 2))
        pattern = {"log": "*.json", "rows": "*.parquet"}[damage]
        for path in (tmp_path / "outages").rglob(pattern):
            path.write_bytes(b"damaged")
        found = answer(Folder(tmp_path), LakeRequest(GoldRows("outages")))
        assert found.unreadable
        assert "table outages cannot be read" in found.refused
        assert not answer(Folder(tmp_path), LakeRequest(GoldRows("telemetry"))).unreadable

    def test_rows_above_the_memory_limit_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gold.put(tmp_path, "device_health", *(gold.device(f"d{n}") for n in range(100)))
        monkeypatch.setattr(tables.ReadBudget.__init__, "__defaults__", (1_000, 0))
        assert "shorter span" in refusal(tmp_path, GoldRows("device_health"))


def test_series_are_listed_once_with_their_unit(tmp_path: Path) -> None:
    rows = [gold.window(minute, 0, 1, unit="°C") for minute in range(3)]
    gold.put(tmp_path, "rollup_1d", *rows, gold.window(0, 0, 1, device="dev2", metric="speed"))
    found = read(tmp_path, SeriesList(START_MS - DAY_MS))
    assert [(each["device"], each["metric"], each["unit"]) for each in found["series"]] == [
        ("dev1", "load", "°C"),
        ("dev2", "speed", None),
    ]
    assert read(tmp_path, SeriesList(START_MS - DAY_MS, text="SPEED"))["total"] == 1


def test_list_of_tables_has_those_that_no_job_has_made(tmp_path: Path) -> None:
    gold.put(tmp_path, "outages", gold.outage(0, 1, 2))
    found = read(tmp_path, TableList())
    made = {each["table"]: each["version"] for each in found["tables"]}
    assert made["outages"] == 0
    assert made["rollup_1m"] is None
    assert found["make"].endswith(str(tmp_path))


class TestCompleteness:
    def test_days_are_sums_of_hours(self, tmp_path: Path) -> None:
        def hour(number: int, **more: Any) -> Mapping[str, Any]:
            row = {"tenant": "default", "gateway": "gw1", "epoch": "e", "address": "a", "first_sequence": number}
            counts = {
                "last_sequence": 0,
                "accepted": 10,
                "landed": 10,
                "given_up": "{}",
                "waiting": 0,
                "unexplained": 0,
            }
            return {**row, **counts, "hour": START + timedelta(hours=number), "settled": True, **more}

        rows = [hour(0), hour(1, landed=7, unexplained=1), hour(24), hour(25, landed=4, waiting=6, settled=False)]
        gold.put(tmp_path, "completeness_hourly", *rows, hour(2, hour=None, settled=False))
        found = read(tmp_path, CompletenessDays(START_MS - DAY_MS))["days"]
        assert [(day["day"], day["accepted"], day["landed"], day["given_up"]) for day in found] == [
            ("2026-03-15", 20, 14, 0),
            ("2026-03-14", 20, 17, 2),
        ]
        assert found[0]["waiting"] == 6
        assert found[1]["unexplained"] == 1

    @pytest.fixture
    def stated(self, tmp_path: Path) -> StatedLake:
        """Three hours of two gateways: the second hour of gw1 has one message in the ledger."""
        lake = StatedLake(tmp_path / "lake")
        for name in ("gw1", "gw2"):
            gateway = lake.gateway(name, f"e-{name}")
            for hour in range(3):
                sequences = gateway.accept("plant/1", 10)
                gone = name == "gw1" and hour == 1
                gateway.land("plant/1", sequences[1:] if gone else sequences, hour=hour)
                if gone:
                    gateway.give_up("plant/1", sequences[0], sequences[0], hour=hour)
                gateway.state(hour)
        return lake

    def hours(self, lake: StatedLake, *spans: tuple[int, int], backlog: int | None = 0) -> Any:
        landed = [LandedSpans("e-gw1", "plant/1", list(spans))]
        since, told = START_US // 1_000 - DAY_MS, (START_US + 9 * HOUR_US) // 1_000
        return read(lake.path, GatewayHours("default", "gw1", since, landed, backlog, told))

    def test_hours_are_proven_open_or_unexplained(self, stated: StatedLake) -> None:
        proven = self.hours(stated, (0, 9), (11, 29))
        assert [each["state"] for each in proven["hours"]] == ["proven"] * 3
        assert proven["hours"][1]["reasons"] == {"evicted": 1}
        assert proven["faults"] == []
        unexplained = self.hours(stated, (0, 4), (6, 9), (11, 29))
        assert [each["state"] for each in unexplained["hours"]] == ["unexplained", "proven", "proven"]
        assert unexplained["hours"][0]["unexplained"] == 1
        waiting = self.hours(stated, (0, 4), (6, 9), (11, 29), backlog=3)
        assert [each["state"] for each in waiting["hours"]] == ["open", "proven", "proven"]

    def test_forged_and_missing_statements_are_named(self, stated: StatedLake) -> None:
        since = START_US // 1_000
        assert read(stated.path, StatementFaults(since))["faults"] == []
        assert read(stated.path, StatementFaults(since))["gateways"] == 2
        stated.change("manifests", "gateway = 'gw1' AND first_sequence = 0", count="99")
        stated.remove("manifests", "gateway = 'gw2' AND first_sequence = 10")
        found = read(stated.path, StatementFaults(since))["faults"]
        assert {(each["gateway"], each["kind"]) for each in found} >= {
            ("gw1", "statement forged"),
            ("gw2", "statement missing"),
        }
        assert {each["gateway"] for each in read(stated.path, StatementFaults(since, gateway="gw2"))["faults"]} == {
            "gw2"
        }
        assert read(stated.path, StatementFaults(since, tenant="other"))["statements"] == 0

    def test_proof_is_that_of_the_command_for_one_tenant(self, stated: StatedLake) -> None:
        found = read(stated.path, GatewayProof("gw1", "default"))
        assert found["complete"]
        assert found["statements"] == 3
        assert [hour["accepted"] for hour in found["hours"]] == [10, 10, 10]
        assert read(stated.path, GatewayProof("gw1", "other"))["streams"] == []


def test_state_of_the_lake_counts_files_and_rows(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path)
    lake.gateway().land("plant/1", range(5))
    rows = {each["table"]: each for each in read(tmp_path, LakeTables())["tables"]}
    assert rows["telemetry"]["rows"] == 5
    assert rows["telemetry"]["small_files"] == rows["telemetry"]["files"] == 1
    assert rows["telemetry"]["optimized_at"] is None
    assert rows["quarantine"]["rows"] == 0


def test_quarantine_shows_the_newest_with_their_head(tmp_path: Path) -> None:
    lake = StatedLake(tmp_path)
    for number in range(30):
        row = {"tenant": "default", "gateway": f"gw{number}", "link": "l", "reason": "not AMQP", "digest": "d"}
        lake.append("quarantine", [{**row, "content": b"\xff" * 1_000, "received_at": START_US}], START_US + number)
    found = read(tmp_path, QuarantineSample())
    assert found["total"] == 30
    assert found["rows"][0]["gateway"] == "gw29"
    assert found["rows"][0]["bytes"] == 1_000
    assert len(found["rows"]) == 20
    assert len(bytes.fromhex(found["rows"][0]["head"])) == 256
    assert read(tmp_path, QuarantineSample("other"))["total"] == 0


class TestProcess:
    def test_answers_are_kept_until_the_table_changes(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "outages", gold.outage(0, 1, 2))

        async def ask() -> list[int]:
            reader, what = LakeReader(str(tmp_path)), GoldRows("outages")
            totals = [json.loads(await reader.ask(what))["total"] for _ in range(2)]
            gold.put(tmp_path, "outages", gold.outage(0, 1, 2), gold.outage(5, 6, 7))
            totals.append(json.loads(await reader.ask(what))["total"])
            with pytest.raises(ReadTableMissing):
                await reader.ask(GoldRows("gaps"))
            with pytest.raises(ReadFailed, match="telemetry"):
                await reader.ask(GoldRows("telemetry"))
            await reader.stop()
            return totals

        assert asyncio.run(ask()) == [1, 1, 2]

    def test_read_that_takes_too_long_is_killed_and_the_next_one_works(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "outages", gold.outage(0, 1, 2))

        async def ask() -> int:
            reader = LakeReader(str(tmp_path))
            with pytest.raises(ReadBusy, match="shorter span"):
                await reader.ask(GoldRows("outages"), seconds=0.01)
            total: int = json.loads(await reader.ask(GoldRows("outages"), seconds=30.0))["total"]
            await reader.stop()
            return total

        assert asyncio.run(ask()) == 1

    def test_reads_above_the_limit_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "READS_WAITING_MAX", 0)

        async def ask() -> None:
            with pytest.raises(ReadBusy, match="too many"):
                await LakeReader(str(tmp_path)).ask(TableList())

        asyncio.run(ask())

    def test_process_ends_when_it_is_idle(self, tmp_path: Path) -> None:
        async def ask() -> int | None:
            reader = LakeReader(str(tmp_path), idle_s=0.05)
            await reader.ask(TableList(), seconds=30.0)
            [process] = reader._idle
            return await asyncio.wait_for(process.process.wait(), 20)

        assert asyncio.run(ask()) is not None
