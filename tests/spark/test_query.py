"""`waypost lake query` on real Delta tables: results in every output format, and refusals."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cloud.place.folder import Folder
from edge.output import document
from edge.output import text as edge_text
from spark import schemas
from spark.cli import analytics
from spark.query import limits, text
from spark.query.database import QueryDatabase, QueryFailed
from spark.query.descriptions import DESCRIPTIONS
from spark.query.scan import DeltaScan
from tests.conftest import ROOT
from tests.spark import gold, lakes
from tests.spark.lakes import START, message
from tests.support.processes import wait_until
from tests.support.s3 import BUCKET, ObjectStore

ESC = "\x1b]0;owned\x07"
"""Escape sequence that sets the title of a terminal."""
HOSTILE = f"=HYPERLINK(1){ESC}\u202e"
AT_ONCE_S = 20.0
"""Seconds that a busy machine may need for a twentieth of a second; interrupted queries take hours."""


def ask(lake: Path | str, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(analytics, ["query", "--lake", str(lake), *arguments], input=stdin)


def rows(lake: Path | str, sql: str) -> list[dict[str, Any]]:
    found = ask(lake, "--json", sql)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def gap(missing: int) -> dict[str, Any]:
    """Build a row of `gaps`."""
    return gold.address(missing=missing, explained=False)


def one_line(result: Result) -> str:
    """Return the error, the only output."""
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lake with messages of three days, windows, a silent gateway of two, and hostile names."""
    root = tmp_path_factory.mktemp("query") / "lake"
    for day in range(3):
        at = START + timedelta(days=day)
        lakes.write(root, "telemetry", [message(n, at=at + timedelta(seconds=n), body=b"%d" % n) for n in range(50)])
    lakes.write(root, "telemetry", [message(1, device=HOSTILE, body=b"\x00\xff" + ESC.encode())])
    windows = [gold.window(minute, 1.0, 3.0, metric="temperature") for minute in (0, 60, 24 * 60)]
    gold.put(root, "rollup_1h", *windows)
    now = datetime.now(UTC)
    gold.put(
        root,
        "gateway_freshness",
        gold.fresh(None, gateway="gw1", last_ingested_at=now - timedelta(hours=5)),
        gold.fresh(None, gateway="gw2", last_ingested_at=now),
        gold.fresh("dev1", gateway="gw3", last_ingested_at=now - timedelta(hours=5)),
    )
    gold.put(root, "gaps", gap(2**62), gap(2**62))
    gold.put(root, "anomalies", gold.anomaly(1, float("nan")), gold.anomaly(2, float("-inf")), gold.anomaly(3, 0.1))
    return root


class TestValues:
    """Results equal those of another program."""

    def test_every_row_and_column(self, lake: Path) -> None:
        expected = deltalake.DeltaTable(lake / "telemetry").to_pyarrow_table().to_pylist()
        found = rows(lake, "SELECT * FROM telemetry")
        assert len(found) == len(expected) == 151

        def key(row: dict[str, Any]) -> str:
            return json.dumps(row, sort_keys=True)

        assert sorted(map(key, found)) == sorted(key(json.loads(text.json_text(row))) for row in expected)

    def test_partitions_choose_the_files(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[int] = []
        fragments = DeltaScan.get_fragments

        def get(scan: DeltaScan, chosen: Any = None) -> Iterator[Any]:
            found = list(fragments(scan, chosen))
            opened.append(len(found))
            return iter(found)

        monkeypatch.setattr(DeltaScan, "get_fragments", get)
        day = (START + timedelta(days=1)).date()
        (counted,) = rows(lake, f"SELECT count(*) AS n FROM telemetry WHERE ingest_date = DATE '{day}'")
        assert (counted["n"], opened.pop()) == (50, 1)

    @pytest.mark.parametrize(
        "where",
        [
            "value > 1",
            "value = 'nan'::DOUBLE",
            "value >= 'inf'::DOUBLE",
            "value IS NULL",
            "value IS NOT NULL AND value <> 0",
            "value IN (1, 2, 'nan'::DOUBLE)",
            "NOT (value < 1)",
            "text = 'é'",
            "text > 'a' OR text IS NULL",
            "text LIKE 'a%'",
            "text IN ('a', '')",
            "suspect",
            "NOT suspect AND value < 3",
            "sequence BETWEEN 2 AND 5",
            "sequence = 9007199254740993",
            "event_time >= TIMESTAMPTZ '2026-03-15 09:26:00+00'",
            "event_time = TIMESTAMPTZ '2026-03-14 10:26:00+01'",
            "event_date = DATE '2026-03-15'",
            "event_date <> DATE '2026-03-15' AND text IS NOT NULL",
            "event_date IS NULL",
            "sequence = (SELECT max(sequence) FROM readings)",
        ],
    )
    def test_comparisons_mean_the_same_in_the_files_as_in_duckdb(self, tmp_path: Path, where: str) -> None:
        values = (None, 0.0, -0.0, 1.0, 2.5, float("nan"), float("inf"), float("-inf"), 3.0, 1e300)
        texts = (None, "", "a", "ab", "é", "b", "A", "\x00", "a", "z")
        for day in range(2):
            at = START + timedelta(days=day)
            names = {"tenant": "t", "gateway": "g", "epoch": "e", "address": "a", "device": "d", "metric": "m"}
            names |= {"clock_quality": "good", "time_source": "device", "lane": "live", "received_at": at}
            made = [
                names
                | {"sequence": 2**53 + 1 if n == 9 else n, "value": value, "text": text, "suspect": n % 3 == 0}
                | {"event_time": at, "ingested_at": at, "event_date": at.date()}
                for n, (value, text) in enumerate(zip(values, texts, strict=True))
            ]
            data = gold.table("readings", made)
            deltalake.write_deltalake(tmp_path / "readings", data, mode="append", partition_by=["event_date"])
        lakes.write(tmp_path, "telemetry", [message(0)])
        asked = f"SELECT event_date, sequence, value, text, suspect FROM readings WHERE {where} ORDER BY ALL"
        with duckdb.connect() as copy:
            copy.execute("SET TimeZone = 'UTC'")
            whole = deltalake.DeltaTable(tmp_path / "readings").to_pyarrow_table()
            copy.register("whole", whole)
            copy.execute("CREATE TABLE readings AS FROM whole")  # DuckDB's own columns, without Arrow
            expected = copy.execute(asked).fetchall()
        database = QueryDatabase(Folder(tmp_path))
        try:
            found = [row for part in database.run(asked).parts for row in part]
        finally:
            database.close()
        assert repr(found) == repr(expected), "repr, as NaN is not itself"

    def test_numbers(self, lake: Path) -> None:
        (row,) = rows(lake, "SELECT sum(missing) AS huge, 1.50::DECIMAL(4, 2) AS exact, max(missing) AS big FROM gaps")
        assert row == {"huge": 2**63, "exact": 1.5, "big": 2**62}
        assert '"exact":1.50,' in ask(lake, "--json", "SELECT 1.50::DECIMAL(4, 2) AS exact, 1 AS n").stdout

    def test_not_a_number_is_null_in_json_and_spelled_elsewhere(self, lake: Path) -> None:
        asked = "SELECT value FROM anomalies ORDER BY event_time"
        assert [row["value"] for row in rows(lake, asked)] == [None, None, 0.1]
        assert ask(lake, "--csv", asked).stdout.split() == ["value", "nan", "-inf", "0.1"]

    def test_times_are_utc(self, lake: Path) -> None:
        asked = "SELECT min(received_at) AS at, min(ingest_date) AS day, INTERVAL 90 MINUTE AS lasted FROM telemetry"
        assert rows(lake, asked) == [{"at": "2026-03-14T09:26:00Z", "day": "2026-03-14", "lasted": "PT5400S"}]

    def test_bytes(self, lake: Path) -> None:
        asked = (
            f"SELECT body, body::VARCHAR AS text FROM telemetry WHERE sequence = 7 OR device <> 'dev1' {'ORDER BY 2'}"
        )
        found = rows(lake, asked)
        assert {"body": "Nw==", "text": "7"} in found
        assert {"body": "AP8bXTA7b3duZWQH", "text": "\\x00\\xFF\\x1B]0;owned\\x07"} in found

    def test_nested(self, lake: Path) -> None:
        asked = (
            "SELECT [1, NULL] AS l, {'a': 1.5} AS s, MAP {DATE '2026-01-02': 1} AS m, MAP {1.50: 2} AS k, uuid() AS u"
        )
        assert [{**row, "u": ""} for row in rows(lake, asked)] == [
            {"l": [1, None], "s": {"a": 1.5}, "m": {"2026-01-02": 1}, "k": {"1.50": 2}, "u": ""}
        ]

    def test_every_type_of_duckdb_is_printed(self, lake: Path) -> None:
        for form in ("--json", "--csv"):
            assert ask(lake, form, "FROM test_all_types()").exit_code == 0
        assert ask(lake, "FROM test_all_types()").exit_code == 0

    def test_two_columns_of_one_name(self, lake: Path) -> None:
        assert rows(lake, "SELECT 1 AS a, 2 AS a, 3 AS a_2") == [{"a": 1, "a_2": 2, "a_2_2": 3}]

    def test_joins_unions_and_windows_over_tables(self, lake: Path) -> None:
        asked = """
            WITH latest AS (SELECT device, max(sequence) AS last FROM telemetry GROUP BY device)
            SELECT count(*) AS n FROM telemetry t JOIN latest USING (device) WHERE t.sequence = latest.last
            UNION ALL
            SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY device) AS r FROM telemetry) WHERE r = 1
        """
        assert sorted(row["n"] for row in rows(lake, asked)) == [2, 4]

    def test_one_version_for_the_whole_command(self, tmp_path: Path) -> None:
        gold.put(tmp_path, "gaps", gap(1))
        database = QueryDatabase(Folder(tmp_path))
        database.open("gaps")
        gold.put(tmp_path, "gaps", gap(2))
        try:
            (part,) = database.run("SELECT (SELECT sum(missing) FROM gaps), missing FROM gaps").parts
            assert part == [(1, 1)]
        finally:
            database.close()


class TestTables:
    """The list of tables."""

    @pytest.mark.parametrize("word", ["tables", "--tables"])
    def test_as_json(self, lake: Path, word: str) -> None:
        found = ask(lake, word, "--json")
        listed = {table["table"]: table for table in map(json.loads, found.stdout.splitlines())}
        assert set(listed) == {path.name for path in lake.iterdir()}
        telemetry = listed["telemetry"]
        assert (telemetry["rows"], telemetry["version"]) == (151, 3)
        names = [column["name"] for column in telemetry["columns"]]
        assert names == schemas.TELEMETRY.columns.names
        assert {"name": "received_at", "type": "TIMESTAMPTZ"} in telemetry["columns"]
        assert "payload_schemas (`waypost lake schema add" in found.stderr

    def test_as_text(self, lake: Path) -> None:
        assert "telemetry: one row per message" in ask(lake, "tables").stdout

    def test_every_table_is_described(self) -> None:
        assert set(DESCRIPTIONS) == {*schemas.LANDED, *schemas.DERIVED, schemas.PAYLOAD_SCHEMAS.name}

    def test_names_are_in_any_case(self, lake: Path) -> None:
        assert rows(lake, 'SELECT count(*) AS n FROM Telemetry, "GAPS"') == [{"n": 302}]

    def test_one_that_was_not_made_names_the_command(self, lake: Path) -> None:
        found = ask(lake, "SELECT * FROM outages")
        assert found.exit_code == 1
        assert f"`waypost lake run --lake {lake}` makes it" in one_line(found)

    def test_one_that_is_not_known(self, lake: Path) -> None:
        found = ask(lake, "SELECT 1\nFROM gapz")
        assert found.exit_code == 2
        assert one_line(found) == "error: line 2, column 6: table gapz is not known: did you mean gaps?\n"

    def test_an_expression_may_have_the_name_of_a_table_that_is_not_there(self, lake: Path) -> None:
        assert rows(lake, "WITH outages AS (SELECT 1 AS n) FROM outages") == [{"n": 1}]

    def test_describe_and_summarize(self, lake: Path) -> None:
        assert {row["column_name"] for row in rows(lake, "DESCRIBE gaps")} == set(schemas.DERIVED["gaps"].columns.names)
        assert rows(lake, "SUMMARIZE gaps")[0]["count"] == 2


class TestReadOnly:
    """Queries read only the tables and write nothing."""

    @pytest.mark.parametrize(
        "sql",
        [
            "COPY (SELECT 1) TO '{0}/x.csv'",
            "COPY gaps TO '{0}/x.parquet'",
            "EXPORT DATABASE '{0}/x'",
            "ATTACH '{0}/x.db'",
            "CREATE TABLE a AS SELECT 1",
            "CREATE TEMP TABLE a AS SELECT 1",
            "CREATE MACRO f(a) AS a",
            "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')",
            "INSERT INTO gaps SELECT * FROM gaps",
            "UPDATE gaps SET missing = 0",
            "DELETE FROM gaps",
            "DROP TABLE gaps",
            "INSTALL httpfs",
            "LOAD httpfs",
            "LOAD '{0}/x.duckdb_extension'",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "RESET enable_external_access",
            "PRAGMA enable_profiling",
            "PRAGMA database_list",
            "CALL pragma_version()",
            "USE memory",
            "PREPARE a AS SELECT 1",
            "BEGIN",
            "COMMIT",
            "CHECKPOINT",
            "SHOW TABLES",
            "PIVOT gaps ON gateway USING sum(missing)",
            "EXPLAIN ANALYZE CREATE TEMP TABLE a AS SELECT 1",
            "EXPLAIN ANALYZE COPY (SELECT 1) TO '{0}/x'",
            "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{0}/x'",
            "EXPLAIN/**/ANALYZE COPY (SELECT 1) TO '{0}/x'",
            "SELECT 1; SELECT 2",
            "SELECT 1; COPY (SELECT 1) TO '{0}/x.csv'",
            "WITH a AS (INSERT INTO gaps SELECT * FROM gaps RETURNING *) FROM a",
            "SELECT * FROM read_csv('{0}/secret.csv')",
            "SELECT * FROM read_json('{0}/secret.csv')",
            "SELECT * FROM read_text('{0}/secret.csv')",
            "SELECT * FROM read_blob('{0}/secret.csv')",
            "SELECT * FROM read_parquet('{0}/*')",
            "SELECT * FROM parquet_metadata('{0}/secret.csv')",
            "SELECT * FROM sniff_csv('{0}/secret.csv')",
            "SELECT * FROM glob('{0}/*')",
            "SELECT * FROM '{0}/secret.csv'",
            "SELECT * FROM read_csv('https://127.0.0.1:9/x.csv')",
            "SELECT * FROM read_parquet('s3://fleet/x')",
            "SELECT * FROM delta_scan('{0}')",
            "SELECT * FROM query('COPY (SELECT 1) TO ''{0}/x''')",
            "SELECT * FROM query_table('{0}/secret.csv')",
            "SELECT * FROM duckdb_secrets()",
            "SELECT getenv('HOME')",
            "SELECT * FROM arrow_scan(1, 2, 3)",
            "SELECT * FROM python_arrow_scan(1)",
            "SELECT * FROM pandas_scan(1)",
            "SELECT * FROM sys",
            "SELECT * FROM database",
            'SELECT * FROM "../lake/gaps"',
            'SELECT * FROM "../other/gaps"',
            "",
            "/* nothing */",
            "SELECT (",
            "SELECT nope FROM gaps",
            "SELECT " + "(" * 50_000 + "1" + ")" * 50_000,
            "SELECT ?",
            "no sql at all",
        ],
    )
    def test_refused(self, lake: Path, tmp_path: Path, sql: str) -> None:
        (tmp_path / "secret.csv").write_text("a,b\nSECRET,2\n")
        gold.put(lake.parent / "other", "gaps", gap(5))
        before = sorted(tmp_path.iterdir())
        versions = [deltalake.DeltaTable(path).version() for path in lake.iterdir()]
        found = ask(lake, "--json", sql.replace("{0}", str(tmp_path)))
        assert found.exit_code in (1, 2)
        assert "SECRET" not in one_line(found)
        assert sorted(tmp_path.iterdir()) == before
        assert [deltalake.DeltaTable(path).version() for path in lake.iterdir()] == versions

    def test_the_place_counts_letters(self, lake: Path) -> None:
        found = ask(lake, "SELECT 'äöü',\n  'ß', nope\nFROM gaps")
        assert found.exit_code == 2
        assert one_line(found).startswith('error: line 2, column 8: Referenced column "nope" not found')

    @pytest.mark.parametrize("sql", ["SELECT body::VARCHAR::INT FROM telemetry", "SELECT error('over')"])
    def test_a_value_that_ends_it(self, lake: Path, sql: str) -> None:
        found = ask(lake, "--csv", sql)
        assert found.exit_code == 1
        assert found.stderr.startswith("error: ")
        assert found.stderr.count("\n") == 1

    def test_errors_steer_no_terminal(self, lake: Path) -> None:
        assert "\x1b" not in one_line(ask(lake, f'SELECT * FROM "{ESC}"'))


class TestOutput:
    """Texts of peers stay plain text in every format."""

    ASKED = "SELECT device, body FROM telemetry WHERE device <> 'dev1'"

    def test_on_a_terminal(self, lake: Path) -> None:
        shown = ask(lake, self.ASKED.replace(", body", "")).stdout
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert "=HYPERLINK(1)\\x1b]0;owned\\x07\\u202e" in shown

    def test_markup_is_text(self, lake: Path) -> None:
        assert "[red]x[/red]" in ask(lake, "SELECT '[red]x[/red]' AS \"[bold]y\"").stdout

    def test_json_escapes_it(self, lake: Path) -> None:
        shown = ask(lake, "--json", self.ASKED).stdout
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert json.loads(shown)["device"] == HOSTILE

    def test_csv_is_no_formula(self, lake: Path) -> None:
        head, row = csv.reader(io.StringIO(ask(lake, "--csv", self.ASKED).stdout, newline=""))
        assert head == ["device", "body"]
        assert row == [f"'{HOSTILE}", "AP8bXTA7b3duZWQH"]

    def test_csv_as_rfc_4180_has_it(self, lake: Path) -> None:
        shown = ask(
            lake, "--csv", """SELECT 'a"b' AS q, 'c,d' AS c, E'e\\nf' AS n, NULL AS nothing, true AS t, -1.5 AS m"""
        )
        assert shown.stdout_bytes == b'q,c,n,nothing,t,m\r\n"a""b","c,d","e\nf",,true,-1.5\r\n'

    def test_csv_on_a_terminal(self) -> None:
        assert text.csv_lines([(ESC, "e\nf")], terminal=True) == "\\x1b]0;owned\\x07,e\\nf\r\n"

    @pytest.mark.parametrize("given", [HOSTILE, ESC, "plain", "-1.5", "+1", "-x", "a\nb", "\u2028", "\xad", "😀"])
    def test_the_rules_are_those_of_the_other_programs(self, given: str) -> None:
        assert text.spell_line(given) == edge_text.line(given)
        assert text.guard_cell(given) == edge_text.cell(given)
        assert text.json_text({"a": given}) == document.json({"a": given})

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_a_table_fits(self, lake: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = ask(
            lake, "SELECT gateway, metric, count, 'word ' || repeat('long ', 30) AS text FROM rollup_1h"
        ).stdout
        assert max(map(len, narrow.splitlines())) <= columns or narrow.startswith("row 1")

    def test_rows_that_do_not_fit_are_lists(self, lake: Path) -> None:
        shown = ask(lake, "SELECT * FROM gaps").stdout
        assert shown.startswith("row 1\n  tenant")
        assert "\nrow 2\n" in shown

    def test_an_empty_result(self, lake: Path) -> None:
        found = ask(lake, "SELECT gateway FROM gaps WHERE false")
        assert (found.exit_code, found.stdout, found.stderr) == (0, "", "note: no rows; columns: gateway\n")
        assert ask(lake, "--csv", "SELECT gateway FROM gaps WHERE false").stdout == "gateway\n"

    def test_a_plan(self, lake: Path) -> None:
        for explain in ("EXPLAIN", "explain analyze", "EXPLAIN (ANALYZE)"):
            assert "PYTHON_ARROW_SCAN" in ask(lake, f"{explain} SELECT count(*) FROM gaps").stdout


class TestLimits:
    """Each limit is exceeded."""

    def test_rows_shown(self, lake: Path) -> None:
        found = ask(lake, f"FROM range({limits.ROWS_SHOWN + 5})")
        assert f" {limits.ROWS_SHOWN - 1} " in found.stdout
        assert f" {limits.ROWS_SHOWN} " not in found.stdout
        assert found.stderr.startswith("note: 5 more rows: a table shows 100")

    def test_rows_counted(self, lake: Path) -> None:
        found = ask(lake, "FROM range(100_000_000_000)")
        assert found.stderr.startswith("note: more than 1,000,000 more rows")

    def test_characters_of_a_cell(self, lake: Path) -> None:
        shown = ask(lake, f"SELECT repeat('x', {limits.CELL_CHARACTERS_MAX + 1}) AS x").stdout
        assert shown.count("x") == limits.CELL_CHARACTERS_MAX - 1 + 1
        assert "…" in shown

    def test_length_of_a_query(self, lake: Path) -> None:
        spaces = " " * limits.SQL_BYTES_MAX
        found = ask(lake, "-", stdin=f"SELECT 1{spaces}")
        assert found.exit_code == 2
        assert "SQL_BYTES_MAX" in one_line(found)

    def test_memory(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark.query.database.MEMORY_SHARE", 0.01)
        found = ask(lake, "--json", "FROM range(200_000_000) ORDER BY hash(range)")
        assert found.exit_code == 1
        assert one_line(found).startswith("error: no memory is left (the query needs more than")
        assert not list(Path.cwd().glob(".tmp*")), "nothing is spilled"

    def test_threads(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark.query.database.THREADS_MAX", 1)
        assert rows(lake, "SELECT current_setting('threads') AS n") == [{"n": 1}]

    def test_the_configuration_is_locked(self, lake: Path) -> None:
        asked = ("enable_external_access", "lock_configuration", "python_enable_replacements", "temp_directory")
        settings = ", ".join(f"current_setting('{name}') AS {name}" for name in asked)
        assert rows(lake, f"SELECT {settings}") == [dict(zip(asked, (False, True, False, ""), strict=True))]

    def test_results_are_not_held(self, lake: Path) -> None:
        program = (
            "import resource, sys; from spark.cli import analytics\n"
            "analytics(standalone_mode=False)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        asked = "SELECT range AS n, 'gateway ' || range AS gateway, now() AS at FROM range({})"
        peaks = []
        for size in (10_000, 400_000):
            command = [sys.executable, "-c", program, "query", "--lake", str(lake), "--json", asked.format(size)]
            done = subprocess.run(command, capture_output=True, check=True)
            assert done.stdout.count(b"\n") == size
            peaks.append(int(done.stderr))
        assert peaks[1] - peaks[0] < 30_000, "KiB; the rows alone take 120 MB in Python"


class TestDamage:
    """The error names a table that cannot be read."""

    @pytest.fixture
    def hurt(self, tmp_path: Path) -> Path:
        lakes.write(tmp_path, "telemetry", [message(0)])
        gold.put(tmp_path, "gaps", gap(1))
        gold.put(tmp_path, "anomalies", gold.anomaly(1, 1.0))
        return tmp_path

    def test_a_data_file_is_missing(self, hurt: Path) -> None:
        for file in (hurt / "gaps").glob("*.parquet"):
            file.unlink()
        found = ask(hurt, "SELECT * FROM gaps, anomalies")
        assert found.exit_code == 4
        assert "table gaps cannot be read" in one_line(found)
        assert rows(hurt, "SELECT count(*) AS n FROM anomalies") == [{"n": 1}]

    def test_a_data_file_is_torn(self, hurt: Path) -> None:
        for file in (hurt / "gaps").glob("*.parquet"):
            file.write_bytes(file.read_bytes()[:100])
        assert ask(hurt, "SELECT sum(missing) FROM gaps").exit_code == 4

    def test_the_log_is_torn(self, hurt: Path) -> None:
        (hurt / "gaps" / "_delta_log" / f"{0:020}.json").write_text('{"metaD')
        found = ask(hurt, "SELECT * FROM gaps")
        assert found.exit_code == 4
        assert "table gaps cannot be read" in one_line(found)
        listed = ask(hurt, "tables", "--json")
        assert listed.exit_code == 4
        assert {json.loads(line)["table"] for line in listed.stdout.splitlines()} == {"telemetry", "anomalies"}

    @pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "fromTheFuture"])
    def test_a_feature_that_is_not_read(self, hurt: Path, feature: str) -> None:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature]}
        entry = json.dumps({"protocol": {**protocol, "writerFeatures": [feature]}})
        (hurt / "gaps" / "_delta_log" / f"{1:020}.json").write_text(entry)
        found = ask(hurt, "SELECT * FROM gaps")
        assert found.exit_code == 4
        assert feature in one_line(found)

    def test_a_column_that_older_files_lack(self, hurt: Path) -> None:
        older = deltalake.DeltaTable(hurt / "gaps").to_pyarrow_table()
        newer = older.append_column("added", pa.array([7]))
        deltalake.write_deltalake(hurt / "gaps", newer, mode="append", schema_mode="merge")
        assert rows(hurt, "SELECT added, missing FROM gaps ORDER BY added NULLS FIRST") == [
            {"added": None, "missing": 1},
            {"added": 7, "missing": 1},
        ]


class TestCommand:
    """Arguments, input and interruption."""

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--json", "--csv", "SELECT 1"),
            ("tables", "--csv"),
            ("--tables", "SELECT 1"),
            ("--file", "-", "SELECT 1"),
        ],
    )
    def test_wrong_usage(self, lake: Path, arguments: tuple[str, ...]) -> None:
        assert ask(lake, *arguments).exit_code == 2

    def test_no_lake(self, tmp_path: Path) -> None:
        assert ask(tmp_path / "none", "SELECT 1").exit_code == 2

    def test_input(self, lake: Path, tmp_path: Path) -> None:
        (tmp_path / "question.sql").write_text("-- a question\nSELECT 1 AS n;\n")
        for arguments in (("-",), ("--file", "-")):
            assert ask(lake, "--json", *arguments, stdin="SELECT 1 AS n").stdout == '{"n":1}\n'
        assert ask(lake, "--json", "--file", str(tmp_path / "question.sql")).stdout == '{"n":1}\n'

    def test_the_examples_of_the_help(self, lake: Path) -> None:
        told = ask(lake, "--help").stdout
        examples = [
            textwrap.dedent(found) for found in re.findall(r'DATA/lake "\n(.*?)"$', told, re.DOTALL | re.MULTILINE)
        ]
        days, silent, messages = (rows(lake, example) for example in examples)
        assert days == [{"day": "2026-03-14", "mean": 2.0}, {"day": "2026-03-15", "mean": 2.0}]
        assert [row["gateway"] for row in silent] == ["gw1"]
        assert [row["body"] for row in messages] == [str(n) for n in range(49, 29, -1)]

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interruption_ends_it_at_once(self, lake: Path, number: int) -> None:
        endless = "SELECT range AS n FROM range(1_000_000_000_000)"
        command = [sys.executable, "-m", "spark.cli", "query", "--lake", str(lake), "--json", endless]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b'{"n":0}\n'
            running.send_signal(number)
            _, said = running.communicate(timeout=AT_ONCE_S)
        assert (running.returncode, said) == (1, b"interrupted: the result is not complete\n")

    def test_a_reader_that_leaves_ends_it(self, lake: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "spark.cli",
            "query",
            "--lake",
            str(lake),
            "--csv",
            "FROM range(10_000_000_000)",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            running.stdout.readline()
            running.stdout.close()
            assert running.stderr is not None
            assert running.stderr.read() == b""
            wait_until(lambda: running.poll() is not None, timeout_s=AT_ONCE_S, what="the command ends")

    def test_a_bucket(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with ObjectStore(tmp_path / "store.log") as store:
            for name, value in store.environment().items():
                monkeypatch.setenv(name, value)
            self.ask_bucket()

    def ask_bucket(self) -> None:
        place = f"s3://{BUCKET}/query"
        lakes.write(place, "telemetry", [message(n) for n in range(4)])
        assert rows(place, "SELECT count(*) AS n, max(sequence) AS last FROM telemetry") == [{"n": 4, "last": 3}]
        assert ask(place, "FROM gaps").exit_code == 1

    def test_no_jvm_and_no_pyspark(self, lake: Path) -> None:
        program = (
            "import sys; from spark.cli import analytics\n"
            "analytics(standalone_mode=False)\n"
            "assert not {'pyspark', 'py4j'} & set(sys.modules)"
        )
        environment = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
        command = [sys.executable, "-c", program, "query", "--lake", str(lake), "FROM gaps"]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)


def test_a_query_that_fails_leaves_the_database_usable(lake: Path) -> None:
    database = QueryDatabase(Folder(lake))
    try:
        with pytest.raises(QueryFailed):
            list(database.run("SELECT body::VARCHAR::INT FROM telemetry").parts)
        (part,) = database.run("SELECT count(*) FROM telemetry").parts
        assert part == [(151,)]
    finally:
        database.close()


def test_partitions_with_any_text_or_none(tmp_path: Path) -> None:
    lakes.write(tmp_path, "telemetry", [message(0)])
    texts = ["a b", "ä/=%20", "", None, "x=1", "'"]
    data = pa.table({"part": texts, "n": list(range(len(texts)))})
    deltalake.write_deltalake(tmp_path / "parts", data, partition_by=["part"])
    kept = deltalake.DeltaTable(tmp_path / "parts").to_pyarrow_table().sort_by("n").to_pylist()
    assert rows(tmp_path, "SELECT part, n FROM parts ORDER BY n") == kept
    for row in kept:
        chosen = "part IS NULL" if row["part"] is None else f"""part = '{row["part"].replace("'", "''")}'"""
        assert row in rows(tmp_path, f"SELECT part, n FROM parts WHERE {chosen}")


def test_a_table_without_rows(tmp_path: Path) -> None:
    lakes.write(tmp_path, "telemetry", [message(0)])
    deltalake.DeltaTable.create(tmp_path / "gaps", schema=gold.arrow_schema("gaps"))
    assert rows(tmp_path, "SELECT count(*) AS n, sum(missing) AS s FROM gaps") == [{"n": 0, "s": None}]
