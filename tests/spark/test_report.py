"""The report: the tables that it reads, its number formats, and a page without external files."""

from __future__ import annotations

import json
import re
import shutil
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark import lineage, schemas
from spark.report import facts, flows, formatting, limits, names, notices, page, queries, snapshot, storage, table
from spark.report.tables import ReportTables
from spark.transforms import times
from tests.spark import gold, lakes
from tests.spark.gold import address, anomaly, bucket, device, fresh, outage, put, slo, window
from tests.spark.lakes import START, message
from tests.support.names import HOSTILE

_MORE_TAGS = {"a", "li", "ol", "ul", "i", "h3", "wbr", "nav"}
"""Additional tags of a page with more content than the plain one."""


NOW = START + timedelta(minutes=2)
"""Default clock of the pages: shortly after the messages of the small lake."""
MEASURED_POOLS: list[pa.MemoryPool] = []
"""Memory pools of tests, kept to the end: a thread of Arrow that frees a buffer of a pool that is gone ends the process
with a segmentation fault.
"""


def figures(lake: Path, now: datetime = NOW) -> queries.LakeFigures:
    """Return the figures of a lake at `now`."""
    return queries.read(lake, now)


def reader(lake: Path, now: datetime = NOW) -> queries.ReportReader:
    """Return a reader of a lake for pages at `now`."""
    return queries.ReportReader(lake, now)


def values(count: int) -> list[dict[str, Any]]:
    """Build rows of `readings`."""
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "epoch": "e1", "address": "load/cpu"}
    row |= {"device": "dev1", "metric": "load", "clock_quality": "good", "suspect": False, "lane": "live", "value": 1.0}
    row |= dict.fromkeys(("event_time", "received_at", "ingested_at"), START) | {"event_date": START.date()}
    row["time_source"] = "gateway"
    return [row | {"sequence": sequence} for sequence in range(count)]


def following(root: Path, telemetry: int, readings: int, rejects: int) -> None:
    """Write the output of the jobs `readings` and `rollups` for a version of telemetry."""
    row = values(1)[0] | {"reason": "no values", "body": b"", "ingest_date": START.date()}
    put(root, "reject", *[row] * rejects)
    put(root, "readings", *values(readings), made_of=telemetry, beside="reject")
    put(root, "rollup_1m", window(0, 0.0, float(telemetry)), made_of=telemetry, source="readings")


def whole_pass(root: Path, telemetry: int, rows: int, *, following_too: bool = True) -> None:
    """Land messages, then run every job over all `rows`."""
    there = deltalake.DeltaTable(root / "telemetry").count()
    lakes.write(root, "telemetry", [message(n) for n in range(there, rows)])
    if following_too:
        following(root, telemetry, readings=rows - 1, rejects=1)
    put(root, "gateway_freshness", fresh(None, rows=rows), fresh("dev1", rows=rows), made_of=telemetry)
    put(root, "gaps", made_of=telemetry)
    put(root, "completeness", address(rows=rows, distinct_sequences=rows), made_of=telemetry)
    put(root, "throughput", bucket(0, rows, rows), made_of=telemetry)
    put(root, "outages", outage(30, 31, 50), made_of=telemetry)


@pytest.fixture(scope="module")
def small_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small lake with an outage, as the jobs leave it; copied by `lake`."""
    root = tmp_path_factory.mktemp("small") / "lake"
    lakes.write(root, "telemetry", [message(n) for n in range(4)])
    put(
        root,
        "throughput",
        bucket(0, 2, 2),
        bucket(10, 1, 0),
        bucket(20, 0, 0, lag_max_s=None),
        bucket(30, 1, 1, lag_max_s=21.0, lane="backlog"),
        bucket(40, 0, 1, lane="backlog"),
        made_of=0,
    )
    put(root, "outages", outage(30, 31, 50), made_of=0)
    put(root, "gateway_freshness", fresh(None), fresh("dev1"), made_of=0)
    put(root, "completeness", address(), made_of=0)
    put(root, "gaps", made_of=0)
    put(root, "rollup_1m", window(0, 1.0, 3.0), window(1, 2.0, 2.0), made_of=0)
    for name in ("anomalies", "delivery_slo", "device_health", "readings", "rollup_1h"):
        put(root, name)
    return root


@pytest.fixture
def lake(small_lake: Path, tmp_path: Path) -> Path:
    """Small lake with an outage, as the jobs leave it."""
    return shutil.copytree(small_lake, tmp_path / "lake")


class Reader(HTMLParser):
    """Text, tags, and everything that could make a browser fetch a file."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            f"{tag} {value}" for key, value in attrs if key in {"src", "href", "srcset", "data", "action"}
        ]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(content: bytes) -> tuple[Reader, str]:
    found = Reader()
    found.feed(content.decode())
    return found, " ".join(" ".join(found.text).split()).replace(formatting.THIN_SPACE, " ")


def drawn(content: bytes, title: str) -> list[dict[str, Any]]:
    """Return the data of the charts of a section."""
    (section,) = re.findall(rf'<section id="{title}".*?</section>', content.decode(), re.DOTALL)
    return [json.loads(text) for text in re.findall(r'class="chart">(.*?)</script>', section)]


class TestPage:
    def test_it_says_what_the_lake_says_and_needs_nothing_else(self, lake: Path, tmp_path: Path) -> None:
        out = tmp_path / "deep" / "report.html"
        size = page.write(figures(lake), out)
        content = out.read_bytes()
        assert size == len(content) < 200_000
        parsed, text = read(content)
        assert "4 messages in the lake, 0 duplicates, 0 unexplained gaps" in text
        for heading in ("Fleet", "Completeness", "Throughput", "Backlog and drain", "Freshness", "Outages", "Metrics"):
            assert heading in text
        assert "2026-03-14 09:26:00 to 09:26:50 UTC (50 s)" in text
        assert {each for each in parsed.addresses if not each.startswith("a #")} == set()
        assert not re.search(rb"url\(|@import|sourceMappingURL", content)
        assert not {"link", "iframe", "img", "object"} & set(parsed.tags)

    def test_its_policy_names_each_script_and_style_that_is_in_it(self, lake: Path) -> None:
        content = page.render(figures(lake), facts.Facts()).decode()
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', content)
        policy = policy.replace("&#39;", "'")
        texts = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", content, re.DOTALL)
        hashes = {b64encode(sha256(text.encode()).digest()).decode() for text in texts}
        assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
        assert len(hashes) == len(texts) > 4
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy

    def test_losses_and_duplicates_fail_it(self, lake: Path) -> None:
        put(lake, "completeness", address(unexplained=2, missing=3, explained=1, duplicates=5), made_of=0)
        gaps = (address(missing=2, explained=False, reason=None), address(missing=1, explained=True, reason="expired"))
        put(lake, "gaps", *gaps, made_of=0)
        _, text = read(page.render(figures(lake), facts.Facts(verdict="ok")))
        assert "\u2717 2 messages are missing without an explanation and 2 more" in text
        assert "4 messages in the lake, 5 duplicates, 2 unexplained gaps" in text
        assert "given up: expired" in text

    def test_names_from_devices_stay_text(self, lake: Path) -> None:
        plain, _ = read(page.render(figures(lake), facts.Facts()))
        names = [*HOSTILE, "</script><script>alert(1)</script><b onclick=x>&amp;{{ 7 * 7 }}"]
        rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for evil in names:
            mine = {"gateway": evil}
            series = mine | {"device": evil, "metric": evil, "address": evil}
            rows["gateway_freshness"] += fresh(None, **mine), fresh(evil, **mine)
            rows["completeness"] += (address(address=evil, unexplained=1, **mine),)
            rows["gaps"] += (address(address=evil, missing=1, explained=True, reason=evil, **mine),)
            rows["throughput"] += bucket(0, 2, 2, **mine), bucket(30, 1, 1, lane="backlog", **mine)
            rows["outages"] += (outage(30, 31, 50, **mine),)
            rows["rollup_1m"] += (window(0, 1.0, 3.0, **series),)
            rows["anomalies"] += (anomaly(0, 9.0, rule=evil, **series),)
            rows["device_health"] += (device(evil, missed=99, **mine),)
            texts = dict.fromkeys(("source", "path", "job", "gateway_first", "gateway_last", "reason"), evil)
            rows["set_aside"] += (texts | {"found_at": START},)
        for name, made in rows.items():
            put(lake, name, *made, made_of=None if name in {"anomalies", "device_health", "set_aside"} else 0)
        reader_of = reader(lake)
        files = {("default", evil): page.file_name(("default", evil)) for evil in names}
        for evil in names:
            event = facts.Event(at=START, label=evil)
            told = facts.Facts(title=evil, notes=(evil,), events=(event,), facts=(facts.Fact(evil, evil, evil),))
            for known in (reader_of.fleet(), reader_of.gateway(("default", evil))):
                content = page.render(known, told, files)
                parsed, _ = read(content)
                assert set(parsed.tags) <= {*plain.tags, *_MORE_TAGS}
                assert parsed.handlers == []
                assert content.count(b"<script") == len(page.SCRIPTS) + content.count(
                    b'<script type="application/json"'
                )
                assert " ".join(evil.split()) in " ".join("".join(parsed.text).split())

    def test_the_numbers_of_the_charts_are_those_of_the_lake(self, lake: Path) -> None:
        content = page.render(figures(lake), facts.Facts())
        (rates,) = drawn(content, "throughput")
        lines = {line["label"]: (line["x"], line["y"]) for line in rates["lines"]}
        times = [0, 10, 20, 30, 40, 50]
        assert lines["received"] == (times, [0.2, 0.1, 0, 0.1, 0, 0])
        assert lines["landed, live lane"] == (times, [0.2, 0, 0, 0, 0, 0])
        assert lines["landed, backlog lane"] == (times, [0, 0, 0, 0.1, 0.1, 0.1])
        (held,) = drawn(content, "backlog")
        assert held["lines"][0]["y"] == [0, 1, 1, 1, 0, 0]

    def test_events_are_marked(self, lake: Path) -> None:
        cut = facts.Event(at=START + timedelta(seconds=10), until=START + timedelta(seconds=30), label="uplink cut")
        kill = facts.Event(at=START + timedelta(seconds=5), label="killed")
        content = page.render(figures(lake), facts.Facts(events=(cut, kill)))
        _, text = read(content)
        assert "1 09:26:05 killed" in text
        assert "2 09:26:10\u201309:26:30 uplink cut" in text
        for section in ("throughput", "backlog", "freshness", "metrics"):
            for chart in drawn(content, section):
                assert [(band["number"], band["label"]) for band in chart["bands"]] == [
                    (1, "killed"),
                    (2, "uplink cut"),
                ]

    def test_an_empty_lake_and_one_without_jobs_say_so(self, tmp_path: Path) -> None:
        page.write(figures(tmp_path), tmp_path / "r.html")
        _, text = read((tmp_path / "r.html").read_bytes())
        assert "Nothing has landed in this lake yet" in text
        lakes.write(tmp_path, "telemetry", [message(0)])
        for name in schemas.DERIVED:
            put(tmp_path, name)
        page.write(figures(tmp_path), tmp_path / "r.html")
        _, text = read((tmp_path / "r.html").read_bytes())
        assert "1 message landed; the jobs have not run yet" in text

    def test_after_a_run_of_single_jobs_it_says_which_is_missing(self, lake: Path) -> None:
        for name in ("gaps", "completeness", "throughput"):
            shutil.rmtree(lake / name)
        known = figures(lake)
        (notice,) = notices.list_notices(known)
        assert "the jobs gaps, messages have not run" in notice
        put(lake, "throughput", bucket(0, 4, 4), made_of=0)
        (notice,) = notices.list_notices(figures(lake))
        assert "Duplicates and gaps are unknown: the job gaps has not run" in notice
        _, text = read(page.render(figures(lake), facts.Facts()))
        assert "4 messages landed; duplicates and gaps are not known yet" in text
        assert "Completeness" not in text

    def test_the_library_is_the_one_that_was_published(self) -> None:
        folder = Path(page.__file__).parent / "assets" / "uplot"
        package = json.loads((folder / "package.json").read_text())
        found = {name: sha256((folder / name).read_bytes()).hexdigest() for name in package["sha256"]}
        assert found == package["sha256"]
        assert f"(v{package['version']})" in (folder / "uPlot.iife.min.js").read_text()[:80]
        assert "MIT" in (folder / "LICENSE").read_text()
        assert {each.name for each in folder.iterdir()} == {*found, "package.json"}


class TestContent:
    """Each section shows its table, independent of the others."""

    def test_the_balance_is_that_of_the_tables(self, lake: Path) -> None:
        rows = [
            address(accepted=100, missing=30, explained=20, waiting=7, unexplained=3, rows=72, distinct_sequences=70,
                    duplicates=2, unstated=5),
            address(address="b", accepted=10, missing=0, rows=10, distinct_sequences=10),
        ]  # fmt: skip
        put(lake, "completeness", *rows, made_of=0)
        gaps = [address(missing=n, explained=True, reason=reason) for n, reason in ((8, "expired"), (12, "full"))]
        put(lake, "gaps", *gaps, address(missing=3, explained=False), made_of=0)
        balance = figures(lake).accounts.balance
        assert balance.given_up == {"full": 12, "expired": 8}
        said = balance.landed + sum(balance.given_up.values()) + balance.waiting + balance.unexplained
        assert (balance.accepted, said, balance.unstated) == (110, 110, 5)

    def test_the_hours_in_which_something_is_unexplained(self, lake: Path) -> None:
        row = address(hour=START, accepted=4, landed=3, given_up="{}", waiting=0, unexplained=1, settled=False)
        put(lake, "completeness_hourly", row, row | {"first_sequence": 9, "unexplained": 0})
        _, text = read(page.render(figures(lake), facts.Facts()))
        assert "Hours with something unexplained" in text
        assert len(figures(lake).accounts.hours) == 1

    def test_of_a_gateway_with_windows_of_years_the_newest_are_drawn_and_since_when_is_said(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        days = [window(1440 * day + minute, 1.0, 3.0) for day in range(3) for minute in range(2)]
        put(lake, "rollup_1m", *days, window(0, 1.0, 3.0, gateway="gw2"), made_of=0)
        mine, since = ("default", "gw1"), (START + timedelta(days=1)).timestamp()
        for most, windows, begins in ((7, 6, None), (6, 6, since - 86_400), (3, 4, since), (1, 2, since + 86_400)):
            monkeypatch.setattr(limits, "WINDOWS_MAX", most)
            known = reader(lake).gateway(mine)
            (track,) = known.tracks
            assert (len(track.windows), known.tracks_since, known.metrics_total) == (windows, begins, 1)
            _, text = read(page.render(known, facts.Facts()))
            assert ("Drawn since" in text) == (begins is not None)

    def test_what_grows_over_years_is_never_in_memory_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gold.fleet(tmp_path, 8)
        read_whole: set[str] = set()
        whole = ReportTables.read

        def reads(tables: ReportTables, name: str, columns: Any, *where: Any) -> pa.Table:
            read_whole.add(name)
            return whole(tables, name, columns, *where)

        monkeypatch.setattr(ReportTables, "read", reads)
        reader(tmp_path).fleet()
        # Tables that grow with the fleet, and further ones with their own limits.
        of_fleet = {"completeness", "gateway_freshness", "gateway_backlog", "device_health"}
        assert read_whole == of_fleet | {"throughput", "rollup_1m", "delivery_slo"}
        reader(tmp_path).gateway(("default", "gw00001"))
        assert read_whole == of_fleet | {"throughput", "rollup_1m", "delivery_slo"}

    def test_more_rows_than_a_table_holds_are_said_to_be_left_out(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "ROWS_MAX", 2)
        row = address(hour=START, accepted=4, landed=3, given_up="{}", waiting=0, settled=False)
        hours = [row | {"first_sequence": n, "unexplained": n} for n in range(1, 4)]
        put(lake, "completeness_hourly", *hours)
        aside = {"source": "telemetry", "path": "p", "rows": 1, "gateway_first": "gw1", "gateway_last": "gw1"}
        put(lake, "set_aside", *(aside | {"job": job, "reason": "missing", "found_at": START} for job in "abc"))
        known = figures(lake)
        assert ([row["unexplained"] for row in known.accounts.hours], known.accounts.hours_total) == ([3, 2], 3)
        assert (len(known.storage.set_aside), known.storage.set_aside_total) == (2, 3)
        _, text = read(page.render(known, facts.Facts()))
        assert text.count("1 more, none of them worse, are in the lake.") == 2

    def test_hours_of_years_are_not_read(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Charts use only days: ten years of 10 000 gateways are 876 M rows of hours."""
        days = [START.replace(hour=0, minute=0) + timedelta(days=n) for n in range(16)]
        asked: list[Any] = []
        found = ReportTables.parts

        def parts(tables: ReportTables, name: str, columns: Any, *where: Any) -> Iterator[pa.Table]:
            asked.extend(where if name == "delivery_slo" else ())
            return found(tables, name, columns, *where)

        monkeypatch.setattr(ReportTables, "parts", parts)
        put(lake, "delivery_slo", *(slo(width, day) for day in days[:15] for width in (3600, 86_400)))
        assert figures(lake).delivery.width_s == 3600
        assert ("width_s", "=", 3600) in asked
        asked.clear()
        put(lake, "delivery_slo", *(slo(width, day) for day in days for width in (3600, 86_400)))
        assert figures(lake).delivery.width_s == 86_400
        assert ("width_s", "=", 3600) not in asked

    def test_delivery_is_summed_over_gateways(self, lake: Path) -> None:
        hours = [START + timedelta(hours=n) for n in range(3)]
        of_hours = [slo(3600, hour, gateway=name, within=within, p95_s=within * 1.0)
                    for hour in hours for name, within in (("gw1", 4), ("gw2", 2))]  # fmt: skip
        days = [slo(86_400, gateway=name, messages=12, timed=12, within=w) for name, w in (("gw1", 12), ("gw2", 6))]
        put(lake, "delivery_slo", *of_hours, *days)
        known = figures(lake)
        assert (known.delivery.timed, known.delivery.within, known.delivery.share) == (24, 18, 0.75)
        assert [(each.timed, each.within, each.p95_s) for each in known.delivery.windows] == [(8, 6, 4.0)] * 3
        share, times = drawn(page.render(known, facts.Facts()), "delivery")
        assert share["lines"][0]["y"][:2] == [0.75, 0.75]
        assert [line["label"] for line in times["lines"]] == ["p95, worst gateway", "p99, worst gateway"]
        alone = reader(lake).gateway(("default", "gw1")).delivery
        assert (alone.share, alone.windows[0].p50_s) == (1.0, 1.0)

    def test_devices_that_are_not_well_are_named(self, lake: Path) -> None:
        rows = [
            device("well", battery=80.0, battery_per_day=-0.1),
            device("silent", missed=limits.MISSED_MAX + 1),
            device("empty", battery=10.0, battery_per_day=-11.0 / limits.BATTERY_DAYS),
            device("lasts", battery=10.0, battery_per_day=-9.0 / limits.BATTERY_DAYS, missed=limits.MISSED_MAX),
            device("restarts", boots=limits.BOOTS_MAX + 1),
            device("two", boots=limits.BOOTS_MAX + 1, clock_ahead_s=limits.CLOCK_AHEAD_S + 1),
            device("calm", boots=limits.BOOTS_MAX, clock_ahead_s=limits.CLOCK_AHEAD_S),
        ]
        put(lake, "device_health", *rows)
        found = figures(lake).health
        assert [(row["device"], row["signs"]) for row in found.worst] == [
            ("two", ["reboots", "clock"]), ("silent", ["silent"]), ("empty", ["battery"]), ("restarts", ["reboots"]),
        ]  # fmt: skip
        assert found.signs == {"silent": 1, "battery": 1, "reboots": 2, "clock": 1}
        everyone = reader(lake).gateway(("default", "gw1")).health.worst
        assert len(everyone) == len(rows)

    def test_what_changed_is_of_the_last_day(self, lake: Path) -> None:
        assert figures(lake).changes is None, "all of a young lake is new"
        lost = datetime(1970, 1, 1, tzinfo=UTC)
        put(lake, "gateway_freshness", fresh(None), fresh(None, gateway="gw2", first_event_time=lost), made_of=0)
        assert figures(lake).changes is None, "a clock that said 1970 makes it no older"
        assert times.PLAUSIBLE_FROM.timestamp() == limits.PLAUSIBLE_FROM_S
        days = [START - timedelta(days=n) for n in (3, 2, 1, 0)]
        put(
            lake,
            "gateway_freshness",
            fresh(None, first_event_time=days[0]),
            fresh(None, gateway="new"),
            fresh(None, gateway="quiet", first_event_time=days[0], last_ingested_at=START - timedelta(hours=3)),
            fresh(None, gateway="long quiet", first_event_time=days[0], last_ingested_at=days[1]),
            made_of=0,
        )
        put(lake, "anomalies", anomaly(0, 9.0), anomaly(-60 * 50, 9.0))
        put(
            lake,
            "device_health",
            device("d", missed=99, last_boot_at=START),
            device("e", missed=99, last_boot_at=days[0]),
        )
        found = figures(lake).changes
        assert found is not None
        assert (found.new_gateways, found.silent_gateways, found.outages) == (1, 1, 1)
        assert (found.anomalies, found.restarts) == (1, 1)

    def test_anomalies_are_marked_where_they_are(self, lake: Path) -> None:
        put(lake, "anomalies", anomaly(0, 9.0), anomaly(1, 1.0, rule=None, expected=None))
        content = page.render(figures(lake), facts.Facts())
        (chart,) = drawn(content, "metrics")
        marks = chart["lines"][-1]
        assert (marks["kind"], marks["x"], marks["y"]) == ("marks", [0, 60], [9.0, 1.0])
        assert marks["notes"] == ["spike 0.80, expected 2", "several rules 0.80"]

    def test_how_far_an_anomaly_is_from_what_was_expected(self, lake: Path) -> None:
        """With three digits, 24.2 G and expected 24.2 G looked equal."""
        put(lake, "anomalies", anomaly(0, 24_240_000_000.0, expected=24_160_000_000.0), anomaly(1, 3.0, expected=None))
        content = page.render(figures(lake), facts.Facts())
        section = content.decode().partition('id="anomalies"')[2].partition("</section>")[0]
        told = dict(re.findall(r'data-head="(value|expected|off by)">(24[^<]*|80[^<]*)<', section))
        shown = {name: value.replace(formatting.THIN_SPACE, " ") for name, value in told.items()}
        assert shown == {"value": "24.2 G", "expected": "24.2 G", "off by": "80 M"}
        notes = [note for line in drawn(content, "metrics")[0]["lines"] for note in line.get("notes", ())]
        assert notes == ["spike 0.80, expected 24.2\u202fG, off by 80\u202fM", "spike 0.80"]
        assert "Anomalies" in read(content)[1]

    def test_the_lake_itself(self, lake: Path) -> None:
        aside = {"source": "telemetry", "path": "part-1.parquet", "job": "readings", "rows": 9, "gateway_first": "gw1",
                 "gateway_last": "gw3", "reason": "truncated", "found_at": START}  # fmt: skip
        put(lake, "set_aside", aside, aside | {"job": "gaps", "gateway_first": "x1", "gateway_last": "x2"})
        known = figures(lake)
        (rollups,) = (held for held in known.storage.tables if held.name == "rollup_1m")
        assert (rollups.files, rollups.rows) == (1, 2)
        assert rollups.size == sum(path.stat().st_size for path in (lake / "rollup_1m").rglob("*.parquet"))
        assert len(known.storage.set_aside) == 2
        _, text = read(page.render(known, facts.Facts()))
        assert "gw1 to gw3" in text
        of_gateway = reader(lake).gateway(("default", "gw1")).storage
        assert [row["job"] for row in of_gateway.set_aside] == ["readings"]

    def test_many_small_files_are_said_to_be(self) -> None:
        files = limits.SMALL_FILES
        small, few, large = (
            storage.TableSize("t", 1, count, size * count, 1)
            for count, size in ((files, limits.SMALL_FILE_BYTES - 1), (files - 1, 1), (files, limits.SMALL_FILE_BYTES))
        )
        assert [each.small for each in (small, few, large)] == [True, False, False]


class TestOutages:
    def test_the_longest_delay_comes_first(self, lake: Path) -> None:
        rows = (outage(0, 10, 20), outage(100, 200, 300, messages=7), outage(400, 400, 400, lag_max_s=None))
        put(lake, "outages", *rows, made_of=0)
        found = figures(lake).outages
        seen = [(one.lag_max_s, one.messages, one.drain_s) for one in found]
        assert seen == [(200, 7, 100), (20, 1, 10), (None, 1, 0)]
        assert [one.began - START.timestamp() for one in found] == [100, 0, 400]
        assert "Outages and drains" in read(page.render(figures(lake), facts.Facts()))[1]

    def test_more_than_are_held_are_counted_and_said_to_be_left_out(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Years of outages may be millions of rows; the page counts those beyond its limit."""
        days = [START - timedelta(days=n) for n in range(3)]
        ended = [outage(0, 10, 20 + n) | {"drained": day} for n, day in enumerate((*days, days[0]))]
        put(lake, "outages", *ended, outage(0, 10, 90) | {"gateway": "gw2", "drained": days[0]}, made_of=0)
        put(lake, "gateway_freshness", fresh(None, first_event_time=days[2]), fresh(None, gateway="gw2"), made_of=0)
        _, text = read(page.render(figures(lake, START), facts.Facts()))
        assert "Marked in the charts" not in text
        monkeypatch.setattr(limits, "OUTAGES_MAX", 2)
        known = figures(lake, START)
        assert [one.lag_max_s for one in known.outages] == [90, 23]
        assert known.outages_total == 5
        assert {member.gateway[1]: member.outages for member in known.members} == {"gw1": 4, "gw2": 1}
        assert known.changes is not None
        assert known.changes.outages == 4, "but for one of two days before"
        _, text = read(page.render(known, facts.Facts()))
        assert "Marked in the charts: those with the 2 longest delays." in text

    def test_those_of_a_lake_whose_job_has_not_run(self, lake: Path) -> None:
        shutil.rmtree(lake / "outages")
        assert figures(lake).outages == []


class TestFleet:
    def test_those_that_need_a_look_come_first_and_say_why(self, lake: Path) -> None:
        late = START + timedelta(seconds=limits.SILENT_S + 1)
        names = ("fine", "twice", "lost", "quiet")
        rows = [fresh(None, gateway=name, last_ingested_at=START if name == "quiet" else late) for name in names]
        put(lake, "gateway_freshness", *rows, made_of=0)
        lost = address(gateway="lost", unexplained=9, missing=9)
        put(lake, "completeness", address(gateway="twice", duplicates=2), lost, address(gateway="fine"), made_of=0)
        found = [(member.gateway[1], member.state, member.why) for member in figures(lake, late).members]
        silent = f"silent {formatting.duration(limits.SILENT_S + 1)}"
        assert found == [
            ("lost", "wrong", ["9 unexplained"]),
            ("twice", "wrong", ["2 twice"]),
            ("quiet", "look", [silent]),
            ("fine", "ok", []),
        ]

    def test_a_large_fleet_is_summed_and_its_worst_drawn(self, lake: Path) -> None:
        put(lake, "throughput", *(bucket(0, n, 0, gateway=f"gw{n}", tenant="t") for n in range(40)), made_of=0)
        known = figures(lake)
        assert [sum(flow.received) for flow in known.flows if flow.gateway is None] == [sum(range(40))]
        _, text = read(page.render(known, facts.Facts()))
        assert "all 40 gateways" in text
        assert "t/ gw39" in text
        assert "t/ gw3 " not in text
        assert len(known.flows) == limits.FLOWS_MAX

    def test_of_a_fleet_in_many_files_and_tenants_the_same_is_drawn(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def held(number: int) -> list[dict[str, Any]]:
            name = {"tenant": f"t{number % 20}", "gateway": f"gw{number % 4}"}
            late = bucket(60, 0, 2 * number, lane="backlog", lag_max_s=9.0, **name)
            return [bucket(0, number + 3, 3, **name), bucket(30, number, 0, **name), late]

        rows = [row for number in range(20) for row in held(number)]
        put(lake, "throughput", *rows, made_of=0)
        flows_of = [figures(lake).flows]
        monkeypatch.setattr(limits, "HELD_CELLS_MAX", 25)  # buckets are merged six at a time
        flows_of.append(figures(lake).flows)
        put(lake, "throughput", *rows[:31], made_of=0)
        told = deltalake.DeltaTable(lake / "throughput").history(1)[0]["userMetadata"]
        properties = deltalake.CommitProperties(custom_metadata={"userMetadata": told})
        further = gold.table("throughput", rows[31:])
        deltalake.write_deltalake(lake / "throughput", further, mode="append", commit_properties=properties)
        flows_of.append(figures(lake).flows)
        whole, *alone = flows_of[0]
        assert (whole.gateway, sum(whole.received), sum(whole.landed_backlog)) == (None, 440, 380)
        assert (whole.landed_live[0], whole.landed_backlog[6], whole.lag_max[6], whole.lag_max[5]) == (60, 380, 9, None)
        assert [flow.gateway for flow in alone] == [(f"t{n}", f"gw{n % 4}") for n in range(15, 20)]
        assert [flow.backlog[3] for flow in alone] == [2 * number for number in range(15, 20)]
        assert flows_of[0] == flows_of[1] == flows_of[2]

    def test_what_is_kept_of_a_large_fleet_at_once_is_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten thousand gateways with 1 200 buckets each once took 2.3 GB, with several copies of all rows."""
        gateways = [f"gw{number:03}" for number in range(500)]
        for number in range(60):
            rows = gold.table("throughput", [bucket(number, 1, 1, gateway=gateway) for gateway in gateways])
            deltalake.write_deltalake(tmp_path / "throughput", pa.concat_tables([rows] * 20), mode="append")
        before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        MEASURED_POOLS.append(pool)
        monkeypatch.setattr(limits, "HELD_CELLS_MAX", 2_000)
        pa.set_memory_pool(pool)
        try:
            found, total = flows.read(ReportTables(snapshot.take_snapshot(tmp_path)))
        finally:
            pa.set_memory_pool(before)
        assert (total, sum(found[0].received)) == (500, 600_000)
        assert pool.max_memory() < 5_000_000, "of 600 000 rows, which take 42 MB"

    def test_one_gateway_has_a_page_of_its_own(self, lake: Path) -> None:
        put(lake, "gateway_freshness", fresh(None), fresh(None, gateway="gw2"), fresh(None, tenant="t"), made_of=0)
        reader_of = reader(lake)
        assert reader_of.named("gw2") == ("default", "gw2")
        assert reader_of.named("t/gw1") == ("t", "gw1")
        with pytest.raises(names.NoGateway, match="default/gw1 and t/gw1"):
            reader_of.named("gw1")
        with pytest.raises(names.NoGateway, match=r"'gw9'.*gw"):
            reader_of.named("gw9")
        known = reader_of.gateway(("t", "gw1"))
        assert [member.gateway for member in known.members] == [("t", "gw1")]
        assert (known.flows, known.tracks) == ([], [])
        assert "Gateway t/gw1" in read(page.render(known, facts.Facts()))[1]

    def test_a_gateway_of_which_nothing_has_landed_has_a_page(self, lake: Path) -> None:
        lost = address(gateway="lost", rows=0, distinct_sequences=0, missing=9, unexplained=9)
        put(lake, "completeness", address(), lost, made_of=0)
        reader_of = reader(lake)
        assert ("default", "lost") in [member.gateway for member in reader_of.fleet().members]
        assert reader_of.named("lost") == ("default", "lost")

    def test_a_folder_links_its_pages(self, lake: Path, tmp_path: Path) -> None:
        known, pages = page.write_folder(reader(lake), tmp_path / "site")
        assert (len(known.members), pages) == (1, 2)
        parsed, _ = read((tmp_path / "site" / "index.html").read_bytes())
        links = {each.removeprefix("a ") for each in parsed.addresses if not each.startswith("a #")}
        (link,) = links
        of_gateway, text = read((tmp_path / "site" / link).read_bytes())
        assert "Gateway gw1" in text
        assert "a ../index.html" in of_gateway.addresses

    @given(st.text(min_size=1), st.text(min_size=1))
    @settings(max_examples=100, deadline=None)
    def test_names_of_pages_are_plain_and_apart(self, one: str, other: str) -> None:
        names = [page.file_name(("default", each)) for each in (one, other)]
        assert (names[0] == names[1]) == (one == other)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,70}\.html", name) for name in names)

    def test_ten_thousand_gateways(self, tmp_path: Path) -> None:
        gold.fleet(tmp_path, 10_000)
        begun = time.process_time()
        known = figures(tmp_path)
        content = page.render(known, facts.Facts())
        assert time.process_time() - begun < 20
        assert len(content) < 3_000_000
        assert (len(known.members), known.flows_total, len(known.outages)) == (10_000, 10_000, 1_000)
        assert known.members[0].gateway == ("default", "gw00001")
        assert known.metrics_total == gold.SERIES
        _, text = read(content)
        assert "all 10,000 gateways" in text
        alone = page.render(reader(tmp_path).gateway(("default", "gw00003")), facts.Facts())
        assert len(alone) < 300_000
        assert len(drawn(alone, "throughput")) == 1
        assert [band["label"] for band in drawn(alone, "throughput")[0]["bands"]] == ["outage"]

    def test_more_gateways_than_a_table_holds(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "GATEWAYS_MAX", 3)
        put(lake, "gateway_freshness", *(fresh(None, gateway=f"gw{n}") for n in range(5)), made_of=0)
        assert "2 more, none of them worse" in read(page.render(figures(lake), facts.Facts()))[1]

    def test_more_windows_than_are_looked_at(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "WINDOWS_MAX", 1)
        assert figures(lake).tracks == []
        put(lake, "anomalies", anomaly(0, 9.0))
        put(lake, "rollup_1m", window(0, 1.0, 3.0), window(0, 1.0, 3.0, device="dev2"), made_of=0)
        assert [track.device for track in figures(lake).tracks] == ["dev1"]
        alone = reader(lake).gateway(("default", "gw1"))
        assert [track.device for track in alone.tracks] == ["dev1", "dev2"]

    def test_json_is_what_the_page_says(self, lake: Path) -> None:
        put(lake, "anomalies", anomaly(0, 9.0))
        known = figures(lake)
        said = json.loads(queries.encode(known))
        assert said["accounts"]["balance"]["landed"] == known.accounts.balance.landed == 4
        assert said["accounts"]["by_gateway"]["default/gw1"]["rows"] == 4
        assert said["members"][0]["gateway"] == ["default", "gw1"]
        assert said["anomalies"]["newest"][0]["rule"] == "spike"


class TestOneState:
    """One page shows one total: throughput, freshness and completeness once differed."""

    @staticmethod
    def totals(known: queries.LakeFigures) -> set[int]:
        (of_gateway,) = (member.rows for member in known.members)
        (flow,) = known.flows
        landed = round(sum(flow.landed_live) + sum(flow.landed_backlog))
        rows = known.accounts.balance.rows
        return {known.landed, round(sum(flow.received)), landed, of_gateway, rows}

    def test_in_the_middle_of_a_pass_the_state_before_it_is_drawn(self, lake: Path) -> None:
        lakes.write(lake, "telemetry", [message(n) for n in range(4, 7)])
        put(lake, "gateway_freshness", fresh(None, rows=7), fresh("dev1", rows=7), made_of=1)
        put(lake, "gaps", made_of=1)
        known = figures(lake)
        assert self.totals(known) == {4}
        assert (known.landed_since, known.mixed) == (3, False)
        _, text = read(page.render(known, facts.Facts()))
        assert "As of telemetry version 0, landed by 2026-03-14 09:26:00" in text
        assert "3 messages landed since" in text
        put(lake, "completeness", address(rows=7, distinct_sequences=7), made_of=1)
        assert self.totals(figures(lake)) == {4}
        put(lake, "throughput", bucket(0, 7, 7), made_of=1)
        put(lake, "outages", made_of=1)
        put(lake, "rollup_1m", window(0, 1.0, 3.0), made_of=1)
        known = figures(lake)
        assert self.totals(known) == {7}
        assert notices.list_notices(known) == []

    def test_gaps_and_completeness_are_of_one_ledger(self, lake: Path) -> None:
        state = lineage.TableState("t", 0, START)
        told = lineage.TableLineage({"telemetry": state, "ledger": lineage.TableState("l", 0)}).text()
        rows = deltalake.DeltaTable(lake / "completeness").to_pyarrow_table()
        properties = deltalake.CommitProperties(custom_metadata={"userMetadata": told})
        deltalake.write_deltalake(lake / "completeness", rows, mode="overwrite", commit_properties=properties)
        assert figures(lake).versions["completeness"] == 0

    @pytest.mark.parametrize("before", range(12))
    def test_data_lands_and_jobs_run_between_the_reads(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        """A whole pass over new messages runs before each table is opened in turn, and after the last one."""
        following(lake, 0, readings=3, rejects=1)
        opened, opening = 0, deltalake.DeltaTable

        def opens(*arguments: Any, **options: Any) -> deltalake.DeltaTable:
            nonlocal opened
            opened += 1
            if opened == before:
                monkeypatch.setattr(deltalake, "DeltaTable", opening)
                whole_pass(lake, 1, 7)
            return opening(*arguments, **options)

        opens.is_deltatable = opening.is_deltatable  # type: ignore[attr-defined]
        monkeypatch.setattr(deltalake, "DeltaTable", opens)
        known = figures(lake)
        (total,) = self.totals(known)
        assert known.readings + queries.count_rejected(known) == total
        assert known.tracks[0].last == {4: 0.0, 7: 1.0}[total]
        assert [text for text in notices.list_notices(known) if "landed since" not in text] == []

    def test_what_is_behind_says_as_of_when(self, lake: Path) -> None:
        following(lake, 0, readings=3, rejects=1)
        whole_pass(lake, 1, 7, following_too=False)
        known = figures(lake)
        assert (self.totals(known), known.readings) == ({7}, 3)
        (notice,) = notices.list_notices(known, "RUN")
        said = "Readings, rejected values and plots of devices are as of 2026-03-14 09:26:00. Run"
        assert said in notice
        assert "Run `RUN` to include" in notice
        _, text = read(page.render(known, facts.Facts()))
        assert "readings as of 2026-03-14 09:26:00" in text
        assert "The number is the last value, as of 2026-03-14 09:26:00." in text
        put(lake, "readings", *values(6), made_of=1, beside="reject")
        (notice,) = notices.list_notices(figures(lake))
        assert notice.startswith("Plots of devices are as of 2026-03-14 09:26:00")

    def test_what_is_only_ahead_says_so(self, lake: Path) -> None:
        put(lake, "reject")
        put(lake, "readings", *values(9), made_of=2, beside="reject")
        put(lake, "rollup_1m", window(0, 1.0, 3.0), made_of=0)
        (notice,) = notices.list_notices(figures(lake))
        assert notice.startswith("Readings, rejected values and plots of devices are as of 2026-03-14 09:28:00, later")

    def test_tables_of_a_waypost_before_this_are_drawn_and_said_to_be(self, lake: Path) -> None:
        put(lake, "reject")
        put(lake, "readings", *values(3))
        known = figures(lake)
        assert known.readings == 3
        (notice,) = notices.list_notices(known)
        assert "It is unknown which messages are in the readings, rejected values and plots of devices" in notice

    def test_compacted_and_vacuumed_tables_are_of_what_they_were(self, lake: Path) -> None:
        following(lake, 0, readings=3, rejects=1)
        for name in ("telemetry", "readings", "rollup_1m"):
            kept = deltalake.DeltaTable(lake / name)
            kept.optimize.compact()
            kept.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        known = figures(lake)
        assert notices.list_notices(known) == []
        # Older versions are deleted, so the page cannot draw them.
        whole_pass(lake, 1, 7)
        put(lake, "completeness", address(), made_of=0)
        for name in ("readings", "rollup_1m", "reject"):
            deltalake.DeltaTable(lake / name).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        known = figures(lake)
        assert (known.readings, known.tracks[0].last) == (6, 1.0)

    @pytest.mark.parametrize("made_of", [1, None])
    def test_without_a_common_state_it_says_so(self, lake: Path, made_of: int | None) -> None:
        shutil.rmtree(lake / "gateway_freshness")
        put(lake, "gateway_freshness", fresh(None, rows=7), made_of=made_of)
        known = figures(lake)
        assert self.totals(known) == {4, 7}
        assert known.mixed
        _, text = read(page.render(known, facts.Facts()))
        assert "derive from different versions of the lake, so their totals may differ" in text

    def test_what_is_written_while_the_page_is_drawn_is_not_on_it(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = storage.read

        def lands_meanwhile(taken: snapshot.ReportSnapshot, tables: ReportTables) -> storage.Storage:
            put(lake, "rollup_1m", window(0, 9.0, 9.0), made_of=1)
            return found(taken, tables)

        monkeypatch.setattr(storage, "read", lands_meanwhile)
        assert figures(lake).tracks[0].last == 2.0

    def test_of_what_a_gateway_reported_each_bucket_has_the_last(self, lake: Path) -> None:
        """Each bucket has the last report: a report every five seconds is half a million points a month."""
        row = {"tenant": "default", "gateway": "gw1", "state": "running", "ingest_date": START.date()}
        for second in (3, 1, 9, 2, 12, 11):
            at = START + timedelta(seconds=second)
            lakes.write(
                lake, "gateway_status", [row | {"reported_at": at, "ingested_at": at, "backlog_messages": second}]
            )
        lakes.write(lake, "gateway_status", [row | {"reported_at": START, "ingested_at": START}])
        reported = figures(lake).flows[0].reported
        assert reported == [(START.timestamp() + second, float(second)) for second in (9, 12)]

    def test_what_a_gateway_reported_later_is_not_drawn(self, lake: Path) -> None:
        row = {"tenant": "default", "gateway": "gw1", "state": "running", "ingest_date": START.date()}
        times = [START + timedelta(seconds=second) for second in (-1, 0, 50, 51)]
        reports = [row | {"reported_at": at, "ingested_at": at, "backlog_messages": 1} for at in times]
        lakes.write(lake, "gateway_status", reports)
        seconds = [at - START.timestamp() for at, _ in figures(lake).flows[0].reported]
        assert seconds == [0, 50]


def test_of_an_old_lake_a_chart_begins_with_the_windows_it_draws(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two months of hours once filled only the last sixth of a one-year axis."""
    put(lake, "rollup_1m", *(window(minute, 1.0, 3.0) for minute in range(5)), made_of=0)
    for most, begins in ((5, 0), (4, 60), (3, 120)):
        monkeypatch.setattr(limits, "WINDOWS_DRAWN", most)
        (chart,) = drawn(page.render(figures(lake), facts.Facts()), "metrics")
        assert chart["from"] - START.timestamp() == begins
    monkeypatch.setattr(limits, "WINDOWS_DRAWN", 6)
    put(lake, "rollup_1m", *(window(minute, 1.0, 3.0) for minute in range(2, 5)), made_of=0)
    (chart,) = drawn(page.render(figures(lake), facts.Facts()), "metrics")
    assert chart["from"] == START.timestamp(), "of the lake, where all are drawn"


class TestUnits:
    """Units of readings in the charts of their metrics."""

    @staticmethod
    def chart(lake: Path) -> tuple[str, str, dict[str, Any]]:
        """Return the caption, the text and the data of the only metric's chart."""
        content = page.render(figures(lake), facts.Facts())
        (section,) = re.findall(r'<section id="metrics".*?</section>', content.decode(), re.DOTALL)
        caption = re.search(r'<span class="note">(.*?)</span>', section)
        label = re.search(r'aria-label="(.*?)"', section.partition('class="canvas"')[2])
        assert caption is not None
        assert label is not None
        return caption[1], label[1], drawn(content, "metrics")[0]

    def test_one_unit_stands_beside_the_number(self, lake: Path) -> None:
        put(lake, "rollup_1m", window(0, 1.0, 3.0, unit="Cel"), window(1, 2.0, 2.0), made_of=0)
        caption, label, data = self.chart(lake)
        assert caption == f"2{formatting.THIN_SPACE}Cel"
        assert label.endswith(f"last 2{formatting.THIN_SPACE}Cel")
        assert (data["unit"], data["measured"]) == ("", f"{formatting.THIN_SPACE}Cel")
        assert json.loads(queries.encode(figures(lake)))["tracks"][0]["unit"] == "Cel"

    @pytest.mark.parametrize(
        ("units", "shown"),
        [
            ((None,), None),
            (("",), None),
            (("Cel", "K"), None),
            (("s",), "s"),
            (("<b>",), "&lt;b&gt;"),
            (("kilowatt hours a year",), "kilowatt hours \u2026"),
        ],
    )
    def test_what_is_shown_of_others(self, lake: Path, units: tuple[str | None, ...], shown: str | None) -> None:
        put(lake, "rollup_1m", *(window(n, 2.0, 2.0, unit=unit) for n, unit in enumerate(units)), made_of=0)
        caption, _, _ = self.chart(lake)
        assert caption == ("2" if shown is None else f"2{formatting.THIN_SPACE}{shown}")

    def test_windows_of_an_older_version_have_none(self, lake: Path) -> None:
        there = deltalake.DeltaTable(lake / "rollup_1m").to_pyarrow_table()
        shutil.rmtree(lake / "rollup_1m")
        deltalake.write_deltalake(
            lake / "rollup_1m", there.drop_columns("unit"), partition_by=["event_date", "event_hour"]
        )
        (track,) = figures(lake).tracks
        assert (track.unit, len(track.windows)) == (None, 2)


class TestTable:
    def test_each_value_carries_its_head_for_where_rows_fold(self, lake: Path) -> None:
        content = page.render(figures(lake), facts.Facts()).decode()
        (section,) = re.findall(r'<section id="freshness".*?</section>', content, re.DOTALL)
        assert re.findall(r'<td role="cell" class="(\w+)" data-head="(\w+)', section)[:2] == [
            ("name", "gateway"),
            ("n", "lag"),
        ]
        assert 'tabindex="0" role="region" aria-label="Freshness by gateway"' in section

    @pytest.mark.parametrize(
        ("name", "parts"),
        [("plant/line/p", ["plant/", "line/", "p"]), ("air.t", ["air.", "t"]), ("gw1/", ["gw1/"]), ("", [""])],
    )
    def test_names_break_after_their_separators(self, name: str, parts: list[str]) -> None:
        assert table.breakable(name) == parts

    def test_what_is_unknown_is_empty(self) -> None:
        kinds = ("name", "text", "count", "seconds", "share", "number", "bytes", "time", "state", "gateway")
        assert [table.cell(kind, None) for kind in kinds] == [""] * len(kinds)  # type: ignore[arg-type]


class TestFacts:
    def test_all_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "facts.json"
        path.write_text(
            '{"title": "T", "verdict": "failed", "facts": [{"name": "n", "value": 1, "expected": 2, "ok": false}],'
            '"notes": ["a"], "events": [{"at": "2026-03-14T09:26:40Z", "label": "cut", "until": null}]}'
        )
        loaded = facts.load(path)
        assert (loaded.verdict, loaded.facts[0].ok, loaded.events[0].until) == ("failed", False, None)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "truncated"),
            ('{"verdict": "perhaps"}', "verdict"),
            ('{"fact": []}', "fact"),
            ('{"events": [{"at": "2026-03-14T09:26:40", "label": "x"}]}', "without a zone"),
            (
                '{"events": [{"at": "2026-03-14T09:26:40Z", "until": "2026-03-14T09:26:39Z", "label": "x"}]}',
                "before it",
            ),
        ],
    )
    def test_mistakes_name_file_and_place(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "facts.json"
        path.write_text(text)
        with pytest.raises(facts.BadFacts, match=f"(?s)facts.json.*{says}"):
            facts.load(path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(facts.BadFacts, match="No such file"):
            facts.load(tmp_path / "none.json")


class TestQueries:
    def test_a_window_only_a_wrong_clock_filled_is_not_drawn(self, lake: Path) -> None:
        put(lake, "rollup_1h")
        rows = [window(0, 1.0, 2.0, suspect=2, device="dev9"), window(0, 1.0, 2.0, suspect=1, device="dev8")]
        put(lake, "rollup_1m", window(0, 1.0, 3.0), *rows, made_of=0)
        assert [track.device for track in figures(lake).tracks] == ["dev1", "dev8"]

    def test_a_synthetic_outage_is_seen(self, tmp_path: Path) -> None:
        plan = lakes.Plan(gateways=1, devices=2, seconds=40, outages={"gw1": (10.0, 20.0)})
        assert lakes.fleet(tmp_path, plan) == 160
        rows = deltalake.DeltaTable(tmp_path / "telemetry").to_pyarrow_table().to_pylist()
        late = [row for row in rows if row["lane"] == "backlog"]
        assert {(row["received_at"] - START).total_seconds() // 10 for row in late} == {1}
        assert min(row["ingested_at"] for row in late) > START + timedelta(seconds=20)


class TestWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0"),
            (0.25, "0.25"),
            (0.0123, "0.0123"),
            (0.005, "0.005"),
            (-0.123456, "\u22120.123"),
            (21.46, "21.5"),
            (999.6, "1000"),
            (1234.0, "1,234"),
            (52_800, "52.8 k"),
            (2.4e6, "2.4 M"),
        ],
    )
    def test_number(self, value: float, text: str) -> None:
        assert formatting.number(value).replace(formatting.THIN_SPACE, " ") == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (None, "-"),
            (0, "0 s"),
            (-0.034, "\u221234 ms"),
            (-7200, "\u22122 h"),
            (0.034, "34 ms"),
            (27.33, "27.3 s"),
            (152.0, "2 min 32 s"),
            (7200, "2 h"),
            (90_061, "1 d 1 h"),
        ],
    )
    def test_duration(self, seconds: float | None, text: str) -> None:
        assert formatting.duration(seconds).replace(formatting.THIN_SPACE, " ") == text

    def test_a_share_that_is_not_zero_never_reads_as_zero(self) -> None:
        assert formatting.percent(0.0) == f"0{formatting.THIN_SPACE}%"
        assert "0.1" in formatting.percent(0.00001)

    def test_a_share_that_is_not_all_never_reads_as_all(self) -> None:
        said = [
            formatting.percent(share).replace(formatting.THIN_SPACE, " ") for share in (0.9994, 0.9995, 0.999999, 1)
        ]
        assert said == ["99.9 %", "> 99.9 %", "> 99.9 %", "100 %"]

    @given(st.floats(allow_nan=True, allow_infinity=True))
    @settings(max_examples=200, deadline=None)
    def test_every_number_has_words(self, value: float) -> None:
        assert 1 <= len(formatting.number(value)) <= 10
