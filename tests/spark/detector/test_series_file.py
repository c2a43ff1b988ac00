"""`waypost lake detect`: files in, scores out, and errors for invalid files."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark.cli import analytics
from spark.detector.series_file import SeriesError, judge_file, parse_seconds


def written(path: Path, rows: list[tuple[str, str]], header: str = "timestamp,value") -> Path:
    """Write `rows` to a CSV file."""
    path.write_text("\n".join([header, *(f"{time},{value}" for time, value in rows)]) + "\n")
    return path


def series(path: Path, count: int = 600) -> Path:
    """Write a file with a spike in its 501st row."""
    rows = [
        (f"2026-01-{1 + i // 288:02d} {i // 12 % 24:02d}:{i % 12 * 5:02d}:00", f"{math.sin(i / 46):.4f}")
        for i in range(count)
    ]
    rows[500] = (rows[500][0], "25.0")
    return written(path, rows)


def test_every_row_comes_back_with_a_score(tmp_path: Path) -> None:
    source, target = series(tmp_path / "in.csv"), tmp_path / "out.csv"
    result = CliRunner().invoke(analytics, ["detect", str(source), str(target)])
    assert result.exit_code == 0, result.output
    with source.open() as one, target.open() as other:
        before, after = list(csv.DictReader(one)), list(csv.DictReader(other))
    assert list(after[0]) == ["timestamp", "value", "anomaly_score"]
    assert [(row["timestamp"], row["value"]) for row in after] == [(row["timestamp"], row["value"]) for row in before]
    scores = [float(row["anomaly_score"]) for row in after]
    assert max(scores) == scores[500] >= 0.5
    assert all(0 <= score <= 1 for score in scores)


def test_it_explains_and_counts(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    result = CliRunner().invoke(
        analytics, ["detect", str(series(tmp_path / "in.csv")), str(target), "--explain", "--json"]
    )
    counts = json.loads(result.stdout)
    assert (counts["rows"], counts["without_value"]) == (600, 0)
    assert counts["anomalies"] >= 1
    with target.open() as file:
        row = list(csv.DictReader(file))[500]
    assert row["rule"] in {"spike", "unusual value"}
    assert float(row["expected"]) == pytest.approx(0, abs=1.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02 03:04:05", 1_767_323_045.0),
        ("2026-01-02T03:04:05Z", 1_767_323_045.0),
        ("2026-01-02T04:04:05.5+01:00", 1_767_323_045.5),
        ("1767323045", 1_767_323_045.0),
        ("1767323045.25", 1_767_323_045.25),
        ("1767323045000", 1_767_323_045.0),
        ("1767323045000000", 1_767_323_045.0),
        ("1767323045000000000", 1_767_323_045.0),
        ("0", 0.0),
        ("-86400", -86_400.0),
    ],
)
def test_timestamps_in_the_usual_forms(text: str, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1: no column `timestamp`"),
        (b"time,value\n1,2\n", "line 1: no column `timestamp`"),
        (b"timestamp,reading\n1,2\n", "line 1: no column `value`"),
        (b"timestamp,value\nyesterday,2\n", "line 2: timestamp 'yesterday'"),
        (b"timestamp,value\nnan,2\n", "line 2: timestamp 'nan'"),
        (b"timestamp,value\n1,2\n2,warm\n", "line 3: value 'warm' is not a number"),
        (b"timestamp,value\n1\n", "line 2: 1 columns"),
        (b"timestamp,value\n1,2\n2,21,5\n", "line 3: 3 columns"),
        (b"timestamp,value\n1,\xff\n", "line 2: this is not UTF-8 text"),
        (b'timestamp,value\n1,"' + b"9" * 200_000 + b'"\n', "line 2: field larger than field limit"),
    ],
)
def test_what_is_no_series_is_said_by_its_line_and_nothing_is_written(
    tmp_path: Path, content: bytes, said: str
) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(content)
    target.write_text("what was there before\n")
    with pytest.raises(SeriesError) as error:
        judge_file(source, target, explain=False)
    assert said in str(error.value)
    assert target.read_text() == "what was there before\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    result = CliRunner().invoke(analytics, ["detect", str(source), str(target)])
    assert result.exit_code == 2
    assert "nothing was written" in result.output


def test_missing_values_and_blank_lines_are_no_readings(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("\ufefftimestamp,value\n1,2\n\n2,\n3,NaN\n4,5\n")
    judged = judge_file(source, tmp_path / "out.csv", explain=False)
    assert (judged.rows, judged.without_value) == (4, 2)
    assert "2,,0.000000" in (tmp_path / "out.csv").read_text()


def test_other_columns_and_orders_are_read(tmp_path: Path) -> None:
    source = written(tmp_path / "in.csv", [("21.5,a", "1767323045")], header="Value,place,Timestamp")
    judge_file(source, tmp_path / "out.csv", explain=False)
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == "1767323045,21.5,0.000000"


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    source = series(tmp_path / "in.csv", 501)
    result = CliRunner().invoke(analytics, ["detect", str(source), str(tmp_path / "nowhere" / "out.csv")])
    assert result.exit_code == 1
    assert "No such file" in result.output
    assert "Traceback" not in result.output


def test_memory_does_not_depend_on_the_length(tmp_path: Path) -> None:
    """Twenty thousand more rows must not need memory for twenty thousand rows."""
    source = tmp_path / "in.csv"
    with source.open("w") as file:
        file.write("timestamp,value\n")
        file.writelines(f"{i},{i % 7}\n" for i in range(25_000))
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom spark.detector.series_file import judge_file\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nseen = []\n"
        "judge_file(Path(sys.argv[1]), Path(sys.argv[2]), explain=False, tell=lambda _bytes: seen.append(peak()))\n"
        "print(seen[0], seen[-1])\n"
    )
    command = [sys.executable, "-P", "-c", program, str(source), str(tmp_path / "out.csv")]
    first, last = map(
        int, subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout.split()
    )
    assert last - first < 2 * 1024, "KiB"
