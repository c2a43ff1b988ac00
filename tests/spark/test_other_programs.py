"""Statements for other programs in spark/query/README.md give the results of `waypost lake query`."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from click.testing import CliRunner

from spark.cli import analytics
from tests.conftest import ROOT
from tests.spark import gold, lakes
from tests.spark.lakes import message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "spark" / "query" / "README.md").read_text()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    lakes.write(tmp_path, "telemetry", [message(0)])
    gold.put(tmp_path, "rollup_1h", *(gold.window(minute, 1.0, 2.0 + minute) for minute in (0, 60, 1440)))
    rows = [gold.address(gateway=f"gw{n % 2}", missing=n, explained=n > 2) for n in range(1, 5)]
    gold.put(tmp_path, "gaps", *rows)
    gold.put(tmp_path, "gateway_freshness", gold.fresh(None), gold.fresh("dev1"))
    return tmp_path


def run(title: str, lake: Path, **given: Any) -> dict[str, Any]:
    """Run the Python block below a heading."""
    section = re.split(r"^## ", PAGE.partition(f"## {title}")[2], flags=re.MULTILINE)[0]
    (block,) = re.findall(r"^ *```python\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    names = dict(given)
    exec(compile(textwrap.dedent(block).replace("DATA/lake", str(lake)), title, "exec"), names)
    return names


def ask(lake: Path, sql: str) -> list[tuple[Any, ...]]:
    found = CliRunner().invoke(analytics, ["query", "--lake", str(lake), "--json", sql])
    assert found.exit_code == 0, found.output
    return [tuple(json.loads(line).values()) for line in found.stdout.splitlines()]


def test_duckdb(lake: Path) -> None:
    days = run("DuckDB, in Python", lake)["by_day"].fetchall()
    asked = "SELECT window_start::DATE AS day, sum(sum) / sum(count) AS mean FROM rollup_1h GROUP BY day ORDER BY day"
    assert [(str(day), mean) for day, mean in days] == ask(lake, asked)
    assert len(days) == 2


def test_polars(lake: Path) -> None:
    asked = "SELECT gateway, explained, sum(missing) AS n FROM gaps GROUP BY ALL ORDER BY ALL"
    assert run("polars", lake)["missing"].rows() == ask(lake, asked)


@pytest.mark.spark
def test_spark(lake: Path, spark: SparkSession) -> None:
    found = run("Spark", lake, spark=spark)["missing"].collect()
    asked = "SELECT gateway, sum(missing) AS missing FROM gaps GROUP BY gateway ORDER BY gateway"
    assert [tuple(row) for row in found] == ask(lake, asked)


def test_power_bi(lake: Path) -> None:
    tables = run("Power BI", lake)
    assert len(tables["freshness"]) == 2
    assert tables["gaps"]["missing"].sum() == 10


def test_tables_are_of_the_first_reader_version(lake: Path) -> None:
    for table in lake.iterdir():
        assert deltalake.DeltaTable(table).protocol().min_reader_version == 1
