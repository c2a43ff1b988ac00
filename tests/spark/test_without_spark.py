"""Examples with DuckDB and polars in spark's README and notebook work, and agree with the report."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark.report import limits, queries
from tests.conftest import ROOT
from tests.spark import gold
from tests.spark.lakes import START

README = (ROOT / "docs" / "how-to" / "query-the-lake.md").read_text()
NOTEBOOK = ROOT / "spark" / "notebooks" / "fleet.ipynb"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    gold.fleet(root, 60)
    return root


def run(cells: list[str]) -> dict[str, Any]:
    """Run the cells in order as a reader would; evaluate a last line without an assignment."""
    names: dict[str, Any] = {}
    for text in cells:
        exec(compile(text, "cell", "exec"), names)
    return names


def test_the_readmes_lines(lake: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names = run([block.replace("DATA/lake", str(lake)) for block in blocks])
    known = queries.read(lake, START + timedelta(hours=gold.HOURS, minutes=1))
    balance = known.accounts.balance
    assert names["well"].height == len(known.members)
    assert names["well"]["gateway"][0] == "gw00000", "the silent one"
    given_up = sum(balance.given_up.values())
    assert names["complete"].row(0) == (
        balance.accepted,
        balance.landed,
        given_up,
        balance.waiting,
        balance.unexplained,
    )
    assert len(names["changed"].fetchall()) == known.anomalies.count
    ((_, share, _),) = names["known"].fetchall()
    assert share == known.delivery.share


def test_the_notebook(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYPOST_LAKE", str(lake))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells), "it is kept without what it said"
    names = run(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])
    known = queries.read(lake, START + timedelta(hours=gold.HOURS, minutes=1))
    assert names["balance"]["unexplained"][0] == known.accounts.balance.unexplained
    missed = [row for row in known.health.worst if (row["missed"] or 0) > limits.MISSED_MAX]
    assert names["silent"].collect().height == len(missed), "which their gateway heard others without"
    assert names["unusual"].height == known.anomalies.count
    assert names["windows"].collect().height == gold.HOURS
