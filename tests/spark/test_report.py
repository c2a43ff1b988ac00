"""The report: what it reads, how it writes numbers, and that the page stands on its own."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark import provenance, schemas
from spark.report import axis, facts, formatting, html, notices, page, queries, table
from tests.spark import lakes
from tests.spark.lakes import START, message

NOW = datetime(2026, 3, 15, tzinfo=UTC)


def put(
    root: Path,
    name: str,
    *rows: dict[str, Any],
    made_of: int | None = None,
    beside: str | None = None,
    source: str | None = None,
) -> None:
    """Write a derived table without Spark, made of version `made_of` of telemetry.

    `beside`, `source`: tables whose newest version it names as written with it, or as what it was made of.
    """
    table = schemas.DERIVED[name]
    columns = pa.schema(deltalake.Schema.from_json(table.columns.json()).to_arrow())
    names = table.columns.names
    data = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema=columns)
    told: dict[str, str] = {}
    if made_of is not None:
        telemetry = provenance.State("t", made_of, START + timedelta(minutes=made_of))
        sources, others = {"telemetry": telemetry}, {}
        if source is not None:
            sources[source] = provenance.state_of(deltalake.DeltaTable(root / source))
        if beside is not None:
            others[beside] = provenance.state_of(deltalake.DeltaTable(root / beside))
        told["userMetadata"] = provenance.Provenance(sources, others).text()
    deltalake.write_deltalake(
        root / name,
        data,
        mode="overwrite",
        partition_by=list(table.partition_by),
        commit_properties=deltalake.CommitProperties(custom_metadata=told),
    )


def bucket(second: int, received: int, ingested: int, **override: Any) -> dict[str, Any]:
    at = START + timedelta(seconds=second)
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "lane": "live", "bucket": at, "bucket_s": 10}
    row["event_date"] = at.date()
    return row | {"received": received, "ingested": ingested, "lag_max_s": 1.0} | override


def window(minute: int, low: float, high: float, **override: Any) -> dict[str, Any]:
    at = START + timedelta(minutes=minute)
    row: dict[str, Any] = {
        "tenant": "default",
        "gateway": "gw1",
        "device": "dev1",
        "address": "load/cpu",
        "metric": "load",
    }
    row |= {"window_start": at, "count": 2, "min": low, "max": high, "sum": low + high, "mean": (low + high) / 2}
    row |= {"last": high, "last_at": at, "last_sequence": 1, "p50": low, "p95": high, "sketch": b""}
    row |= {"suspect": 0, "revised_at": at, "event_date": at.date(), "event_hour": at.hour}
    return row | override


def fresh(device: str | None, **override: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tenant": "default",
        "gateway": "gw1",
        "device": device,
        "rows": 4,
        "late_rows": 0,
        "late_share": 0.0,
    }
    row |= dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), START)
    return row | {"suspect_rows": 0, "lag_p50_s": 1.0, "lag_p95_s": 2.0, "lag_max_s": 3.0} | override


def address(**override: Any) -> dict[str, Any]:
    row = dict.fromkeys(("missing", "explained", "unexplained", "duplicates"), 0)
    names = {"tenant": "default", "gateway": "gw1", "epoch": "e1", "address": "load/cpu"}
    return names | {"first_sequence": 0, "last_sequence": 3, "rows": 4, "distinct_sequences": 4} | row | override


def values(count: int) -> list[dict[str, Any]]:
    """Rows of `readings`."""
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "epoch": "e1", "address": "load/cpu"}
    row |= {"device": "dev1", "metric": "load", "clock_quality": "good", "suspect": False, "lane": "live", "value": 1.0}
    row |= dict.fromkeys(("event_time", "received_at", "ingested_at"), START) | {"event_date": START.date()}
    row["time_source"] = "gateway"
    return [row | {"sequence": sequence} for sequence in range(count)]


def following(root: Path, telemetry: int, readings: int, rejects: int) -> None:
    """What the jobs `readings` and `rollups` leave of a version of telemetry."""
    row = values(1)[0] | {"reason": "no values", "body": b"", "ingest_date": START.date()}
    put(root, "reject", *[row] * rejects)
    put(root, "readings", *values(readings), made_of=telemetry, beside="reject")
    put(root, "rollup_1m", window(0, 0.0, float(telemetry)), made_of=telemetry, source="readings")


def whole_pass(root: Path, telemetry: int, rows: int, *, following_too: bool = True) -> None:
    """Messages land, and every job runs over the `rows` there are then."""
    there = deltalake.DeltaTable(root / "telemetry").count()
    lakes.write(root, "telemetry", [message(n) for n in range(there, rows)])
    if following_too:
        following(root, telemetry, readings=rows - 1, rejects=1)
    put(root, "gateway_freshness", fresh(None, rows=rows), fresh("dev1", rows=rows), made_of=telemetry)
    put(root, "gaps", made_of=telemetry)
    put(root, "completeness", address(rows=rows, distinct_sequences=rows), made_of=telemetry)
    put(root, "throughput", bucket(0, rows, rows), made_of=telemetry)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A small lake as the jobs leave it, with an outage in it."""
    root = tmp_path / "lake"
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
    put(root, "gateway_freshness", fresh(None), fresh("dev1"), made_of=0)
    put(root, "completeness", address(), made_of=0)
    put(root, "gaps", made_of=0)
    put(root, "rollup_1m", window(0, 1.0, 3.0), window(1, 2.0, 2.0), made_of=0)
    return root


class Reader(HTMLParser):
    """Text, and whatever could make a browser fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [f"{tag} {key}" for key, _ in attrs if key in {"src", "href", "srcset", "data", "action"}]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(content: bytes) -> tuple[Reader, str]:
    reader = Reader()
    reader.feed(content.decode())
    return reader, " ".join(" ".join(reader.text).split()).replace(formatting.THIN_SPACE, " ")


class TestPage:
    def test_it_says_what_the_lake_says_and_needs_nothing_else(self, lake: Path, tmp_path: Path) -> None:
        out = tmp_path / "deep" / "report.html"
        size = page.write(queries.read(lake), out, now=NOW)
        content = out.read_bytes()
        assert size == len(content) < 200_000
        reader, text = read(content)
        assert "4 messages in the lake, 0 duplicates, 0 unexplained gaps" in text
        for heading in ("Throughput", "Backlog and drain", "Freshness", "Completeness", "Devices"):
            assert heading in text
        assert "2026-03-14 09:26:00 to 09:26:50 UTC (50 s)" in text
        assert reader.addresses == []
        assert not re.search(rb"https?://|url\(|@import", content)
        assert not {"link", "iframe", "img"} & set(reader.tags)

    def test_losses_and_duplicates_fail_it(self, lake: Path) -> None:
        known = queries.read(lake)
        known.completeness = [address(unexplained=2, missing=3, explained=1, duplicates=5)]
        known.gaps = [
            address(missing=2, explained=False, reason=None),
            address(missing=1, explained=True, reason="expired"),
        ]
        _, text = read(page.render(known, facts.Facts(verdict="ok"), NOW))
        assert "\u2717 4 messages in the lake, 5 duplicates, 2 unexplained gaps" in text
        assert "explained: expired" in text

    def test_names_from_devices_stay_text(self, lake: Path) -> None:
        known = queries.read(lake)
        evil = "</script><script>alert(1)</script><b onclick=x>&amp;"
        known.flows[0].gateway = ("default", evil)
        known.completeness[0]["address"] = evil
        for track in known.tracks:
            track.metric = track.device = evil
        event = facts.Event(at=START, label=evil)
        content = page.render(known, facts.Facts(title=evil, notes=(evil,), events=(event,)), NOW)
        reader, text = read(content)
        assert b"<script>alert" not in content
        assert "b onclick" not in " ".join(reader.tags)
        assert evil in text

    def test_the_numbers_under_the_crosshair_are_those_of_the_lake(self, lake: Path) -> None:
        content = page.render(queries.read(lake), facts.Facts(), NOW).decode()
        blocks = [json.loads(block) for block in re.findall(r'class="numbers">(.*?)</script>', content)]
        rates = {series["name"]: series["values"] for series in blocks[0]["series"]}
        assert rates["received"] == [0.2, 0.1, 0, 0.1, 0]
        assert rates["landed, live lane"] == [0.2, 0, 0, 0, 0]
        assert rates["landed, backlog lane"] == [0, 0, 0, 0.1, 0.1]
        held = blocks[1]["series"][0]["values"]
        assert held == [0, 1, 1, 1, 0]

    def test_events_are_marked(self, lake: Path) -> None:
        cut = facts.Event(at=START + timedelta(seconds=10), until=START + timedelta(seconds=30), label="uplink cut")
        kill = facts.Event(at=START + timedelta(seconds=5), label="killed")
        content = page.render(queries.read(lake), facts.Facts(events=(cut, kill)), NOW)
        _, text = read(content)
        assert "1 09:26:05 killed" in text
        assert "2 09:26:10\u201309:26:30 uplink cut" in text
        assert content.count(b'class="band"') == content.count(b'class="moment"') == content.count(b"<figure")

    def test_an_empty_lake_and_one_without_jobs_say_so(self, tmp_path: Path) -> None:
        page.write(queries.read(tmp_path), tmp_path / "r.html", now=NOW)
        _, text = read((tmp_path / "r.html").read_bytes())
        assert "Nothing has landed in this lake yet" in text
        lakes.write(tmp_path, "telemetry", [message(0)])
        for name in ("throughput", "gaps", "completeness", "gateway_freshness", "readings", "reject", "rollup_1m"):
            put(tmp_path, name)
        page.write(queries.read(tmp_path), tmp_path / "r.html", now=NOW)
        _, text = read((tmp_path / "r.html").read_bytes())
        assert "1 messages landed; the jobs have not run yet" in text

    def test_after_a_run_of_single_jobs_it_says_which_is_missing(self, lake: Path) -> None:
        for name in ("gaps", "completeness", "throughput"):
            shutil.rmtree(lake / name)
        known = queries.read(lake)
        (notice,) = notices.notices(known)
        assert "the job gaps has not run" in notice
        put(lake, "throughput", bucket(0, 4, 4), made_of=0)
        _, text = read(page.render(queries.read(lake), facts.Facts(), NOW))
        assert "4 messages landed; duplicates and gaps are not known yet" in text
        assert "Completeness" not in text

    def test_a_large_fleet_is_summed_and_its_worst_drawn(self, lake: Path) -> None:
        known = queries.read(lake)
        first = known.flows[0]
        known.flows = [
            queries.Flow(("t", f"gw{n}"), first.start, first.width, [n, 0, 0], [0, 0, n], [0, 0, 0], [None, None, 2.0])
            for n in range(40)
        ]
        _, text = read(page.render(known, facts.Facts(), NOW))
        assert "all 40 gateways" in text
        assert "t / gw39" in text
        assert "t / gw3 " not in text


class TestOneState:
    """One gateway had three totals on one page: in throughput, in freshness and in completeness."""

    @staticmethod
    def totals(known: queries.LakeFigures) -> set[int]:
        (of_gateway,) = (row["rows"] for row in known.freshness if row["device"] is None)
        (flow,) = known.flows
        landed = round(sum(flow.landed_live) + sum(flow.landed_backlog))
        rows = queries.total(known.completeness, "rows")
        return {known.landed, round(sum(flow.received)), landed, of_gateway, rows}

    def test_in_the_middle_of_a_pass_the_state_before_it_is_drawn(self, lake: Path) -> None:
        lakes.write(lake, "telemetry", [message(n) for n in range(4, 7)])
        put(lake, "gateway_freshness", fresh(None, rows=7), fresh("dev1", rows=7), made_of=1)
        put(lake, "gaps", made_of=1)
        known = queries.read(lake)
        assert self.totals(known) == {4}
        assert (known.landed_since, known.mixed) == (3, False)
        _, text = read(page.render(known, facts.Facts(), NOW))
        assert "As of telemetry version 0, landed by 2026-03-14 09:26:00" in text
        assert "3 messages have landed since" in text
        put(lake, "completeness", address(rows=7, distinct_sequences=7), made_of=1)
        assert self.totals(queries.read(lake)) == {4}
        put(lake, "throughput", bucket(0, 7, 7), made_of=1)
        put(lake, "rollup_1m", window(0, 1.0, 3.0), made_of=1)
        known = queries.read(lake)
        assert self.totals(known) == {7}
        assert notices.notices(known) == []

    def test_gaps_and_completeness_are_of_one_ledger(self, lake: Path) -> None:
        state = provenance.State("t", 0, START)
        told = provenance.Provenance({"telemetry": state, "ledger": provenance.State("l", 0)}).text()
        rows = deltalake.DeltaTable(lake / "completeness").to_pyarrow_table()
        properties = deltalake.CommitProperties(custom_metadata={"userMetadata": told})
        deltalake.write_deltalake(lake / "completeness", rows, mode="overwrite", commit_properties=properties)
        assert queries.read(lake).versions["completeness"] == 0

    @pytest.mark.parametrize("before", range(11))
    def test_data_lands_and_jobs_run_between_the_reads(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch, before: int
    ) -> None:
        """A whole pass over new messages runs before each table is opened in turn, and after the last."""
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
        known = queries.read(lake)
        (total,) = self.totals(known)
        assert known.readings + sum(count for _, count in known.rejects) == total
        assert known.tracks[0].last == {4: 0.0, 7: 1.0}[total]
        assert [text for text in notices.notices(known) if "have landed since" not in text] == []

    def test_what_is_behind_says_as_of_when(self, lake: Path) -> None:
        following(lake, 0, readings=3, rejects=1)
        whole_pass(lake, 1, 7, following_too=False)
        known = queries.read(lake)
        assert (self.totals(known), known.readings) == ({7}, 3)
        (notice,) = notices.notices(known, "RUN")
        said = "Readings, rejected values and plots of devices are as of 2026-03-14 09:26:00: later messages are not"
        assert said in notice
        assert "`RUN` takes them in" in notice
        _, text = read(page.render(known, facts.Facts(), NOW))
        assert "readings as of 2026-03-14 09:26:00" in text
        assert "The number is the last value, as of 2026-03-14 09:26:00." in text
        put(lake, "readings", *values(6), made_of=1, beside="reject")
        (notice,) = notices.notices(queries.read(lake))
        assert notice.startswith("Plots of devices are as of 2026-03-14 09:26:00")

    def test_what_is_only_ahead_says_so(self, lake: Path) -> None:
        put(lake, "reject")
        put(lake, "readings", *values(9), made_of=2, beside="reject")
        put(lake, "rollup_1m", window(0, 1.0, 3.0), made_of=0)
        (notice,) = notices.notices(queries.read(lake))
        assert notice.startswith("Readings, rejected values and plots of devices are as of 2026-03-14 09:28:00, later")

    def test_tables_of_a_waypost_before_this_are_drawn_and_said_to_be(self, lake: Path) -> None:
        put(lake, "reject")
        put(lake, "readings", *values(3))
        known = queries.read(lake)
        assert known.readings == 3
        (notice,) = notices.notices(known)
        assert "Which messages are in the readings, rejected values and plots of devices is not known" in notice

    def test_compacted_and_vacuumed_tables_are_of_what_they_were(self, lake: Path) -> None:
        following(lake, 0, readings=3, rejects=1)
        for name in ("telemetry", "readings", "rollup_1m"):
            kept = deltalake.DeltaTable(lake / name)
            kept.optimize.compact()
            kept.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        known = queries.read(lake)
        assert notices.notices(known) == []
        # Older versions are gone: nothing is left of them to draw.
        whole_pass(lake, 1, 7)
        put(lake, "completeness", address(), made_of=0)
        for name in ("readings", "rollup_1m", "reject"):
            deltalake.DeltaTable(lake / name).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        known = queries.read(lake)
        assert (known.readings, known.tracks[0].last) == (6, 1.0)

    @pytest.mark.parametrize("made_of", [1, None])
    def test_without_a_common_state_it_says_so(self, lake: Path, made_of: int | None) -> None:
        shutil.rmtree(lake / "gateway_freshness")
        put(lake, "gateway_freshness", fresh(None, rows=7), made_of=made_of)
        known = queries.read(lake)
        assert self.totals(known) == {4, 7}
        assert known.mixed
        _, text = read(page.render(known, facts.Facts(), NOW))
        assert "made of different versions of the lake, so their totals may differ" in text

    def test_what_is_written_while_the_page_is_drawn_is_not_on_it(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rejects = queries._rejects

        def lands_meanwhile(tables: queries._Tables) -> list[tuple[str, int]]:
            put(lake, "rollup_1m", window(0, 9.0, 9.0), made_of=1)
            return rejects(tables)

        monkeypatch.setattr(queries, "_rejects", lands_meanwhile)
        assert queries.read(lake).tracks[0].last == 2.0

    def test_what_a_gateway_reported_later_is_not_drawn(self, lake: Path) -> None:
        row = {"tenant": "default", "gateway": "gw1", "state": "running", "ingest_date": START.date()}
        times = [START + timedelta(seconds=second) for second in (-1, 0, 50, 51)]
        reports = [row | {"reported_at": at, "ingested_at": at, "backlog_messages": 1} for at in times]
        lakes.write(lake, "gateway_status", reports)
        seconds = [at - START.timestamp() for at, _ in queries.read(lake).flows[0].reported]
        assert seconds == [0, 50]


class TestTable:
    def test_each_value_carries_its_head_for_where_rows_fold(self) -> None:
        made = table.table("L", ("gateway", "rows", ""), [["g", "4", "x"]], numeric=(1,))
        cells = list(made.iter("td"))
        assert [cell.get("data-head") for cell in cells] == ["gateway", "rows", None]
        assert {made.get("tabindex"), made.get("aria-label")} == {"0", "L"}
        assert {node.get("role") for node in made.iter() if node.tag in ("tr", "td")} == {"row", "cell"}

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("plant/line/p", "plant/<wbr>line/<wbr>p"),
            ("air.t", "air.<wbr>t"),
            ("gw1/", "gw1/"),
            ("", ""),
            ("a<b/c", "a&lt;b/<wbr>c"),
        ],
    )
    def test_names_break_after_their_separators(self, name: str, text: str) -> None:
        content = html.page(html.h("td", *html.name(name)))
        assert content == f"<!doctype html>\n<td>{text}</td>".encode()


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
        assert [track.device for track in queries.read(lake).tracks] == ["dev1", "dev8"]

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
            (21.46, "21.5"),
            (999.6, "1000"),
            (1234.0, "1 234"),
            (52_800, "52.8 k"),
            (2.4e6, "2.4 M"),
        ],
    )
    def test_number(self, value: float, text: str) -> None:
        assert formatting.number(value).replace(formatting.THIN_SPACE, " ") == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(None, "-"), (0.034, "34 ms"), (27.33, "27.3 s"), (152.0, "2 min 32 s"), (7200, "2 h"), (90_061, "1 d 1 h")],
    )
    def test_duration(self, seconds: float | None, text: str) -> None:
        assert formatting.duration(seconds).replace(formatting.THIN_SPACE, " ") == text

    def test_a_share_that_is_not_zero_never_reads_as_zero(self) -> None:
        assert formatting.percent(0.0) == f"0{formatting.THIN_SPACE}%"
        assert "0.1" in formatting.percent(0.00001)

    @given(st.floats(allow_nan=True, allow_infinity=True))
    @settings(max_examples=200, deadline=None)
    def test_every_number_has_words(self, value: float) -> None:
        assert 1 <= len(formatting.number(value)) <= 10


class TestAxis:
    @given(st.floats(0, 1e12), st.integers(2, 8))
    @settings(max_examples=200, deadline=None)
    def test_count_axis_holds_its_values_in_few_ticks(self, highest: float, ticks: int) -> None:
        scale = axis.count_axis(highest, ticks)
        assert scale.high >= highest * (1 - 1e-6)
        assert len(scale.ticks) <= ticks + 2
        assert scale.share(highest) <= 1

    @given(st.floats(1, 2e9), st.floats(0, 1e9))
    @settings(max_examples=200, deadline=None)
    def test_time_axis_has_few_round_ticks_inside(self, first: float, span: float) -> None:
        scale = axis.time_axis(first, first + span)
        assert len(scale.ticks) <= 8
        assert all(scale.low <= at <= scale.high and at == int(at) for at, _ in scale.ticks)

    def test_labels_by_step(self) -> None:
        midnight = datetime(2026, 3, 14, tzinfo=UTC).timestamp()

        def labels(before: float, after: float) -> list[str]:
            return [label for _, label in axis.time_axis(midnight - before, midnight + after).ticks]

        assert labels(3600, 3600) == ["23:00", "23:30", "14 Mar", "00:30", "01:00"]
        assert labels(0, 12) == [f"00:00:{second:02}" for second in range(0, 13, 2)]
        assert labels(0, 3 * 86_400) == ["14 Mar", "12:00", "15 Mar", "12:00", "16 Mar", "12:00", "17 Mar"]
