"""The report over time: strips and sparklines of gateways, the last two weeks compared, expected values."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.report import charts, drawings, facts, formatting, glossary, limits, page, queries, strips, weeks
from spark.report.tracks import Anomaly, Track
from tests.spark import lakes
from tests.spark.gold import address, anomaly, fresh, put, slo
from tests.spark.lakes import START, message

HOUR = START.replace(minute=0)
MIDNIGHT = START.replace(hour=0, minute=0)


def hour(number: int, messages: int = 4, **override: Any) -> dict[str, Any]:
    """Build a row of `delivery_slo`, this many hours after the first."""
    counts = {"messages": messages, "timed": messages, "within": messages}
    return slo(3600, HOUR + timedelta(hours=number), **(counts | override))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Lake of one gateway without hours."""
    lakes.write(tmp_path, "telemetry", [message(0, ingested_at=START)])
    put(tmp_path, "gateway_freshness", fresh(None, first_event_time=START - timedelta(days=30)), made_of=0)
    put(tmp_path, "completeness", address(), made_of=0)
    return tmp_path


def at(lake: Path, now: datetime) -> queries.LakeFigures:
    """Return the figures of the lake at that time."""
    return queries.read(lake, now)


def cells(known: queries.LakeFigures, gateway: str = "gw1") -> str:
    """Return the strip of a gateway on the page, from its first hour with messages."""
    content = page.render(known, facts.Facts()).decode()
    (section,) = re.findall(r'<section id="hours".*?</section>', content, re.DOTALL)
    (told,) = re.findall(r'class="rows">(.*?)</script>', section)
    strip: str = {row[0][0]: row[1] for row in json.loads(told)["rows"]}[gateway]
    return strip.lstrip(".")


class TestStrips:
    def test_an_hour_is_a_cell_by_how_many_and_how_late(self, lake: Path) -> None:
        rows = [hour(0, 1), hour(1, 40), hour(2, 21), hour(4, 40, within=39), hour(5, 10)]
        put(lake, "delivery_slo", *rows, made_of=0)
        row = address(hour=HOUR + timedelta(hours=5), accepted=10, landed=9, given_up="{}", waiting=0, unexplained=1)
        put(lake, "completeness_hourly", row | {"settled": False})
        assert cells(at(lake, HOUR + timedelta(hours=6, minutes=30))) == "143.lu."

    def test_hours_without_messages_up_to_now_are_empty(self, lake: Path) -> None:
        put(lake, "delivery_slo", hour(0), made_of=0)
        assert cells(at(lake, HOUR + timedelta(hours=100))) == "4" + "." * 100

    def test_a_strip_is_a_week_and_of_an_old_lake_its_last(self, lake: Path) -> None:
        put(lake, "delivery_slo", hour(-limits.STRIP_HOURS - 5), hour(-1), hour(0), made_of=0)
        for now in (START, START + timedelta(days=58)):
            known = at(lake, now)
            assert (known.strips.hours, known.strips.start) == (24, (HOUR - timedelta(hours=23)).timestamp())
            assert cells(known) == "44"
        put(lake, "delivery_slo", hour(1 - limits.STRIP_HOURS), hour(-limits.STRIP_HOURS), hour(0), made_of=0)
        assert len(cells(at(lake, START))) == limits.STRIP_HOURS

    def test_gateways_of_one_name_are_kept_apart_and_the_worst_are_drawn(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(
            lake,
            "gateway_freshness",
            *(fresh(None, gateway=f"gw{n}", tenant=t) for n in range(4) for t in "ab"),
            made_of=0,
        )
        put(lake, "completeness", address(gateway="gw2", tenant="b", unexplained=1), made_of=0)
        put(lake, "delivery_slo", *(hour(0, 1 + n, gateway=f"gw{n}", tenant=t) for n in range(4) for t in "ab"))
        monkeypatch.setattr(limits, "SPARKS_MAX", 3)
        known = at(lake, START)
        assert set(known.strips.by_gateway) == {member.gateway for member in known.members[:3]}
        assert known.strips.by_gateway[("b", "gw2")].messages == [0] * 23 + [3]
        monkeypatch.setattr(limits, "STRIPS_MAX", 1)
        assert cells(known, "b/gw2") == "4"

    def test_a_wrong_clock_in_the_future_draws_nothing_that_is_not_there(self, lake: Path) -> None:
        put(lake, "delivery_slo", hour(0), made_of=0)
        assert cells(at(lake, HOUR - timedelta(days=3))) == "4"

    def test_a_lake_without_hours_has_none(self, lake: Path) -> None:
        assert at(lake, START).strips == strips.Strips()
        assert b'id="hours"' not in page.render(at(lake, START), facts.Facts())

    def test_a_spark_has_the_last_hours_by_the_largest(self, lake: Path) -> None:
        put(lake, "delivery_slo", hour(0, 1000), hour(1, 1), hour(3, 500), made_of=0)
        content = page.render(at(lake, HOUR + timedelta(hours=3)), facts.Facts()).decode()
        assert '<path d="M0 37V37h20V2h1V36h1V37h1V19h1V37z">' in content

    @pytest.mark.parametrize(
        ("values", "levels"),
        [([], ""), ([0, 0], "00"), ([1], "z"), ([1, 1000], "1z"), ([0, 5, 10], "0iz"), ([10**18, 1], "z1")],
    )
    def test_levels(self, values: list[float], levels: str) -> None:
        assert drawings.levels(values) == levels


class TestWeeks:
    NOW = MIDNIGHT + timedelta(hours=9)

    @staticmethod
    def days(numbers: dict[int, int], **override: Any) -> list[dict[str, Any]]:
        """Build rows of earlier days by their distance from today."""
        return [
            slo(86_400, MIDNIGHT - timedelta(days=back), **({"messages": n, "timed": n, "within": n} | override))
            for back, n in numbers.items()
        ]

    def test_seven_whole_days_against_the_seven_before_them(self, lake: Path) -> None:
        counts = {0: 999, **dict.fromkeys(range(1, 8), 12), **dict.fromkeys(range(8, 15), 10), 15: 777}
        put(lake, "delivery_slo", *self.days(counts), made_of=0)
        row = address(accepted=100, landed=100, given_up="{}", waiting=0, unexplained=0, settled=True)
        stated = [(1, 90), (7, 100), (8, 100), (14, 100), (15, 0), (0, 0)]
        put(lake, "completeness_hourly", *(
            row | {"hour": MIDNIGHT - timedelta(days=back), "landed": landed, "first_sequence": back}
            for back, landed in stated
        ))  # fmt: skip
        put(lake, "anomalies", *(anomaly(-60 * 24 * back, 9.0) for back in (0, 1, 2, 3, 8, 15)), made_of=0)
        found = at(lake, self.NOW).weeks
        assert found == weeks.Weeks(MIDNIGHT.timestamp(), weeks.Week(84, 1.0, 0.95, 3), weeks.Week(70, 1.0, 1.0, 1))
        content = page.render(at(lake, self.NOW), facts.Facts()).decode()
        (section,) = re.findall(r'<section id="changes".*?</section>', content, re.DOTALL)
        tiles = re.findall(r'class="tile (\w*)"[^>]*><b>(.*?)</b><span>(.*?)</span>', section)
        said = {name.split(" last week")[0].rstrip(","): (value, mark) for mark, value, name in tiles}
        thin = formatting.THIN_SPACE
        assert said["messages"] == (f"84 \u25b2 +20{thin}%", "")
        assert said["in the lake within 60 s"] == (f"100{thin}%", "")
        assert said["landed, of what gateways stated"] == (f"95{thin}% \u25bc \u22125 points", "look")
        assert said["anomalies"] == ("3 \u25b2 +200" + thin + "%", "look")

    @pytest.mark.parametrize("counts", [dict.fromkeys(range(1, 14), 1), {14: 1, 8: 1}, {15: 1, 1: 1}, {}])
    def test_a_lake_without_both_weeks_has_no_comparison(self, lake: Path, counts: dict[int, int]) -> None:
        put(lake, "delivery_slo", *self.days(counts), made_of=0)
        assert at(lake, self.NOW).weeks is None

    def test_of_an_old_lake_last_week_was_empty(self, lake: Path) -> None:
        put(lake, "delivery_slo", *self.days(dict.fromkeys(range(1, 20), 1)), made_of=0)
        assert at(lake, self.NOW).weeks is not None
        assert at(lake, self.NOW + timedelta(days=58)).weeks is None

    def test_too_many_statements_are_not_read(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(lake, "delivery_slo", *self.days(dict.fromkeys(range(1, 15), 1)), made_of=0)
        row = address(accepted=1, landed=1, given_up="{}", waiting=0, unexplained=0, settled=True, hour=MIDNIGHT)
        put(lake, "completeness_hourly", *(row | {"first_sequence": n} for n in range(3)))
        monkeypatch.setattr(limits, "WEEK_ROWS_MAX", 2)
        found = at(lake, self.NOW).weeks
        assert found is not None
        assert (found.last.landed, found.before.landed) == (None, None)


class TestExpected:
    @staticmethod
    def lines(*unusual: tuple[float, float | None]) -> list[charts.ChartLine]:
        names = (("default", "gw1"), "dev", "a", "m")
        found = [
            Anomaly(*names, at * 60.0, value, 0.8, "spike", expected) for at, (value, expected) in enumerate(unusual)
        ]
        track = Track(*names, 60.0, windows=[(0.0, 1.0, 2.0, 1.5)], last=1.0, anomalies=found)
        return charts.track(track, (0.0, 600.0), ()).lines

    def test_what_was_expected_is_drawn_beside_what_came(self) -> None:
        *_, expected, marks = self.lines((9.0, 2.0), (8.0, None))
        assert (expected.kind, expected.x, expected.y) == ("ticks", [0.0, 60.0], [2.0, None])
        assert (marks.kind, marks.y) == ("marks", [9.0, 8.0])

    def test_rules_that_expect_no_value_have_no_ticks(self) -> None:
        assert [line.kind for line in self.lines((9.0, None))][-1] == "marks"
        assert "ticks" not in [line.kind for line in self.lines((9.0, None))]


def test_the_words_of_the_page_are_explained_on_it(lake: Path) -> None:
    content = page.render(at(lake, START), facts.Facts()).decode()
    words = re.findall(r"<dt>(.*?)</dt>", content)
    assert words == [word for word, _ in glossary.WORDS]
    assert {"suspect", "late", "waiting", "unexplained", "settled", "given up", "accepted", "landed"} <= set(words)
