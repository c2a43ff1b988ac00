"""Modules that a hub does not import, tested in a process of its own, as each has one list of modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = """
import sys
from cloud.hub.memory import hide_pandas
hide_pandas()
import pyarrow as pa
print(len({}), "pandas" in sys.modules)
"""


@pytest.mark.parametrize("made", ["pa.table({'a': [1]})", "pa.array([1])", "pa.record_batch({'a': [1]})"])
def test_first_use_of_arrow_does_not_import_pandas(made: str) -> None:
    done = subprocess.run([sys.executable, "-c", FIRST.format(made)], capture_output=True, text=True, check=False)
    assert done.stdout == "1 False\n", done.stderr
