"""Head of the report: the worst finding of all sections, current ages, and unknown figures of jobs that never ran."""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark import schemas
from spark.report import facts, formatting, limits, missing_tables, notices, page, queries
from spark.report.findings import ReportFinding
from tests.spark import gold, lakes
from tests.spark.gold import address, anomaly, bucket, device, fresh, put, slo
from tests.spark.lakes import START, message

NOW = START + timedelta(minutes=2)
DEAD = START + timedelta(days=58, minutes=1)
"""A time 58 days after the last message."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Lake of two gateways and three devices without findings."""
    root = tmp_path / "lake"
    lakes.write(root, "telemetry", [message(0, ingested_at=START)])
    for name in (*missing_tables.MADE_BY, "gaps"):
        put(root, name, made_of=0)
    put(root, "gateway_freshness", fresh(None, rows=1), fresh(None, gateway="gw2", rows=1), made_of=0)
    put(root, "completeness", address(rows=1), address(rows=1, gateway="gw2"), made_of=0)
    put(root, "throughput", bucket(0, 1, 1), made_of=0)
    put(root, "device_health", device("a"), device("b"), device("c", gateway="gw2"), made_of=0)
    put(root, "delivery_slo", slo(86_400), slo(86_400, gateway="gw2"), made_of=0)
    return root


def at(lake: Path, now: datetime = NOW) -> queries.LakeFigures:
    """Return the figures of the lake at that time."""
    return queries.read(lake, now)


def headline(known: queries.LakeFigures, told: facts.Facts | None = None) -> tuple[str, str]:
    """Return colour and text of the headline."""
    content = page.render(known, told or facts.Facts()).decode()
    found = re.search(r'class="verdict (\w+)" role="status">(.*?)</div>', content)
    assert found is not None
    words = re.sub(r"<[^>]*>", "", found[2]).replace(formatting.THIN_SPACE, " ")
    return found[1], " ".join(words[1:].split())


def tiles(known: queries.LakeFigures) -> dict[str, tuple[str, str]]:
    """Return value and mark of the tiles at the head of the page, by name."""
    content = page.render(known, facts.Facts()).decode()
    head = content.partition('<div class="tiles">')[2].partition("<section")[0].partition("<h2>")[0]
    found = re.findall(r'class="tile (\w*)"[^>]*><b>(.*?)</b><span>(.*?)</span>', head)
    return {re.sub("<[^>]*>", "`", name): (value, mark) for mark, value, name in found}


def first(known: queries.LakeFigures) -> list[ReportFinding]:
    """Return the findings in the order of the page."""
    return page.list_problems(known, facts.Facts())


class TestHeadline:
    def test_a_lake_of_which_nothing_needs_a_look_is_green(self, lake: Path) -> None:
        known = at(lake)
        assert (first(known), notices.list_notices(known)) == ([], [])
        assert headline(known) == ("ok", "Nothing needs a look")

    @pytest.mark.parametrize(
        ("name", "rows", "colour", "section"),
        [
            ("device_health", [device("a", missed=99), device("b")], "look", "devices"),
            ("device_health", [device("a", battery=1.0, battery_per_day=-1.0)], "look", "devices"),
            ("delivery_slo", [slo(86_400, within=1)], "look", "delivery"),
            ("gateway_freshness", [fresh(None, suspect_rows=3)], "look", "freshness"),
            ("completeness", [address(missing=1, explained=1)], "look", "completeness"),
            ("completeness", [address(missing=1, unexplained=1)], "failed", "completeness"),
            ("completeness", [address(duplicates=1)], "failed", "completeness"),
        ],
    )
    def test_its_colour_is_that_of_the_worst_section(
        self, lake: Path, name: str, rows: list[dict[str, Any]], colour: str, section: str
    ) -> None:
        put(lake, name, *rows, made_of=0)
        known = at(lake)
        (finding,) = first(known)
        assert finding.section == section
        assert headline(known) == (colour, finding.text.replace(formatting.THIN_SPACE, " ").removesuffix("."))
        assert finding.step

    def test_the_worst_comes_first_and_the_rest_is_counted(self, lake: Path) -> None:
        put(lake, "device_health", device("a", missed=99), made_of=0)
        put(lake, "completeness", address(missing=2, unexplained=2), address(gateway="gw2"), made_of=0)
        put(lake, "set_aside", {"source": "telemetry", "path": "p", "job": "j", "reason": "r", "found_at": START})
        put(lake, "delivery_slo", slo(86_400, within=1), made_of=0)
        known = at(lake)
        severities = [one.severity for one in first(known)]
        assert severities == sorted(severities, key=["wrong", "look"].index)
        assert headline(known) == ("failed", "2 messages are missing without an explanation and 3 more")

    def test_a_table_that_cannot_be_read_is_red(self, lake: Path) -> None:
        newest = max((lake / "device_health" / "_delta_log").glob("*.json"))
        newest.write_bytes(b"half an entry")
        colour, text = headline(at(lake))
        assert colour == "failed"
        assert "device_health cannot be read" in text

    def test_a_run_that_failed_is_red_and_one_that_passed_hides_nothing(self, lake: Path) -> None:
        assert headline(at(lake), facts.Facts(verdict="failed"))[0] == "failed"
        put(lake, "device_health", device("a", missed=99), made_of=0)
        assert headline(at(lake), facts.Facts(verdict="ok"))[0] == "look"

    def test_of_one_gateway_it_speaks_of_that_one(self, lake: Path) -> None:
        put(lake, "device_health", device("a"), device("c", gateway="gw2", missed=99), made_of=0)
        reader = queries.ReportReader(lake, NOW)
        assert headline(reader.gateway(("default", "gw1")))[0] == "ok"
        assert headline(reader.gateway(("default", "gw2"))) == ("look", "1 of 1 device is silent")


class TestAges:
    def test_a_hub_that_died_two_months_ago_is_no_green_page(self, lake: Path) -> None:
        known = at(lake, DEAD)
        assert headline(known) == (
            "failed",
            "Last data 58 days ago: nothing has landed in this lake since 2026-03-14 09:26:00 UTC and 2 more",
        )
        assert tiles(known)["last data"] == ("58 days ago", "bad")
        assert tiles(known)["gateways that need a look"] == ("2", "look")
        assert tiles(known)["devices that need a look"] == ("3", "look")
        assert [member.silent_s for member in known.members] == [pytest.approx(58 * 86_400 + 60)] * 2
        assert known.health.signs["silent"] == 3

    def test_every_form_of_the_report_says_so(self, lake: Path, tmp_path: Path) -> None:
        reader = queries.ReportReader(lake, DEAD)
        alone = reader.gateway(("default", "gw1"))
        for known in (reader.fleet(), alone):
            assert headline(known)[0] == "failed"
            assert notices.list_notices(known)[0].startswith("Last data 58 days ago")
        assert [one.text for one in alone.findings if not one.section] == [
            "This gateway is silent: its last data landed 58 days ago."
        ]
        page.write_folder(reader, tmp_path / "site")
        for path in (tmp_path / "site").rglob("*.html"):
            assert "Last data 58 days ago" in path.read_text()
        said = json.loads(queries.encode(reader.fleet()))
        assert said["recency"] == {
            "now": DEAD.timestamp(),
            "landed_at": START.timestamp(),
            "tables_at": START.timestamp(),
        }
        assert said["members"][0]["silent_s"] == 58 * 86_400 + 60
        assert {one["severity"] for one in said["findings"]} == {"look"}

    @pytest.mark.parametrize(
        ("silent_s", "colour"),
        [
            (limits.SILENT_S, "ok"),
            (limits.SILENT_S + 1, "look"),
            (limits.LAKE_DEAD_S, "look"),
            (limits.LAKE_DEAD_S + 1, "failed"),
        ],
    )
    def test_how_long_a_lake_may_be_silent(self, lake: Path, silent_s: float, colour: str) -> None:
        assert headline(at(lake, START + timedelta(seconds=silent_s)))[0] == colour

    def test_a_gateway_that_fell_silent_while_others_send(self, lake: Path) -> None:
        rows = (fresh(None, last_ingested_at=START - timedelta(hours=3)), fresh(None, gateway="gw2"))
        put(lake, "gateway_freshness", *rows, made_of=0)
        known = at(lake)
        assert headline(known) == ("look", "1 of 2 gateways is silent: its last data landed 3 hours ago and 1 more")
        assert known.members[0].silent_s == 3 * 3600 + 120
        alone = tiles(queries.ReportReader(lake, NOW).gateway(("default", "gw1")))
        assert alone["last data of this gateway"] == ("3 hours ago", "look")
        assert alone["last data of the lake"] == ("2 minutes ago", "good")
        assert known.health.signs["silent"] == 2, "both devices of it"

    def test_a_device_is_silent_by_its_own_interval(self, lake: Path) -> None:
        rows = [device("hourly", interval_s=3600.0), device("often"), device("once", interval_s=None)]
        put(lake, "device_health", *rows, made_of=0)
        for hours, silent in (
            (0.2, []),
            (1, ["often"]),
            (5.1, ["hourly", "often"]),
            (121, ["hourly", "often", "once"]),
        ):
            found = at(lake, START + timedelta(hours=hours)).health
            assert sorted(row["device"] for row in found.worst) == silent
        assert found.worst[0]["silent_s"] == 121 * 3600

    def test_jobs_that_have_not_run_lately_make_no_gateway_silent(self, lake: Path) -> None:
        """Messages that landed after the last job run may belong to any gateway."""
        late = START + timedelta(hours=2)
        lakes.write(lake, "telemetry", [message(1, at=late, ingested_at=late)])
        known = at(lake, late + timedelta(minutes=1))
        assert [member.state for member in known.members] == ["ok", "ok"]
        (finding,) = first(known)
        assert (finding.severity, finding.text) == (
            "look",
            "Messages landed since these tables were made, which know data until 2 hours ago.",
        )
        known = at(lake, late + timedelta(hours=3))
        assert [member.silent_s for member in known.members] == [3 * 3600] * 2, "this long nothing has landed at all"

    def test_a_lake_in_the_future_says_that_a_clock_is_wrong(self, lake: Path) -> None:
        known = at(lake, START - timedelta(hours=5))
        colour, text = headline(known)
        assert (colour, "5 hours in the future" in text) == ("failed", True)
        assert tiles(known)["last data"] == ("in 5 hours", "bad")
        assert headline(at(lake, START - timedelta(seconds=limits.FUTURE_S)))[0] == "ok"

    def test_what_changed_is_counted_from_now(self, lake: Path) -> None:
        put(lake, "gateway_freshness", fresh(None, first_event_time=START - timedelta(days=9)), made_of=0)
        put(lake, "anomalies", anomaly(0, 9.0), made_of=0)
        for now, count in ((NOW, 1), (DEAD, 0)):
            changed = at(lake, now).changes
            assert changed is not None
            assert (changed.since, changed.anomalies) == (now.timestamp() - limits.CHANGES_S, count)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0 seconds ago"), (1, "1 second ago"), (59.2, "59 seconds ago"), (59.6, "1 minute ago"),
            (119, "1 minute ago"), (3599.9, "1 hour ago"), (7199, "1 hour ago"), (86_399, "1 day ago"),
            (58 * 86_400 + 5, "58 days ago"), (-7200, "in 2 hours"),
        ],
    )  # fmt: skip
    def test_ages_in_words(self, seconds: float, text: str) -> None:
        assert formatting.ago(seconds) == text


HEAD = {
    "completeness": ("gaps", "unexplained gaps", "duplicates"),
    "device_health": ("health", "devices that need a look"),
    "delivery_slo": ("messages", "in the lake within 60 s"),
    "outages": ("messages", "outages"),
    "anomalies": ("anomalies", "anomalies"),
    "readings": ("readings", "readings"),
    "gateway_freshness": ("messages", "gateways"),
}
"""Job and figures at the head of the page, by table."""


class TestUnmade:
    @pytest.mark.parametrize("name", HEAD)
    def test_a_table_that_was_never_made_is_unknown_and_not_zero(self, lake: Path, name: str) -> None:
        shutil.rmtree(lake / name)
        known = at(lake)
        job, *figures = HEAD[name]
        found = tiles(known)
        for figure in figures:
            assert found[f"{figure}: `{job}` has not run"] == ("\u2013", "")
            assert figure not in found
        assert known.never_made == {name: job}
        assert headline(known)[0] == "look"
        assert any(f"the job {job} has not run" in text for text in notices.list_notices(known))

    def test_an_empty_table_of_gaps_is_unknown_too(self, lake: Path) -> None:
        put(lake, "completeness", made_of=0)
        assert tiles(at(lake))["unexplained gaps: `gaps` has not run"] == ("\u2013", "")
        member = at(lake).members[0]
        assert (member.unexplained, member.duplicates, member.given_up) == (None, None, None)

    def test_a_table_that_was_made_and_is_empty_is_zero(self, lake: Path) -> None:
        assert tiles(at(lake))["anomalies"] == ("0", "")

    def test_a_table_that_cannot_be_read_is_unknown_and_was_made(self, lake: Path) -> None:
        max((lake / "outages" / "_delta_log").glob("*.json")).write_bytes(b"half")
        known = at(lake)
        assert known.never_made == {}
        assert tiles(known)["outages: `outages` cannot be read"] == ("\u2013", "")

    def test_before_the_first_run_nothing_is_green(self, tmp_path: Path) -> None:
        lakes.write(tmp_path, "telemetry", [message(0)])
        known = at(tmp_path)
        assert headline(known)[0] == "idle"
        assert set(tiles(known)) == {"messages landed"}

    def test_the_tables_are_those_of_the_lake(self) -> None:
        assert set(missing_tables.MADE_BY) == set(missing_tables.KNOWN_FROM) <= set(schemas.DERIVED)


def test_the_fleet_of_the_pages_figures_needs_a_look(tmp_path: Path) -> None:
    gold.fleet(tmp_path, 20)
    colour, text = headline(queries.read(tmp_path, START + timedelta(hours=24, minutes=1)))
    assert (colour, text.split(" and ")[0]) == ("failed", "7 messages are missing without an explanation")


class TestSections:
    @staticmethod
    def ages(known: queries.LakeFigures) -> dict[str, str]:
        content = page.render(known, facts.Facts()).decode()
        found = re.findall(r'<section id="(\w+)".*?</summary>', content, re.DOTALL)
        summaries = re.findall(r"<summary><h2.*?</summary>", content, re.DOTALL)
        return {
            section: re.sub(r"<[^>]*>", "", age.partition("</h2>")[2])
            for section, age in zip(found, summaries, strict=True)
        }

    def test_each_says_as_of_when_it_is_and_how_old(self, lake: Path) -> None:
        put(lake, "throughput", bucket(0, 1, 1), made_of=0)
        put(lake, "anomalies", anomaly(0, 9.0), made_of=1)
        ages = self.ages(at(lake, DEAD))
        assert ages["fleet"] == "as of 2026-03-14 09:26:00, 58 days ago"
        assert ages["anomalies"] == "as of 2026-03-14 09:26:00, 58 days ago", "no later than the newest row"
        assert ages["lake"].endswith("0 seconds ago"), "files are looked at now"
        assert self.ages(at(lake))["fleet"] == "as of 2026-03-14 09:26:00, 2 minutes ago"

    def test_one_whose_table_does_not_say_has_none(self, lake: Path) -> None:
        put(lake, "delivery_slo", slo(86_400))
        assert self.ages(at(lake))["delivery"] == ""
