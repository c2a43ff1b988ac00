"""The tests of the C extension pass under a compiler that checks each memory access."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.sanitizers import find_runtime

pytestmark = pytest.mark.skipif(not find_runtime(), reason="no compiler with AddressSanitizer")
SHARE = 8
"""Divisor of the number of examples in every run of the tests."""


def check(share: int) -> None:
    """Run the tests of the extension in their own process, with a part of the examples."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WAYPOST_EXAMPLES_SHARE": str(share)}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitizers"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_c_extension_passes_under_sanitizers() -> None:
    check(SHARE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c_extension_passes_all_examples_under_sanitizers() -> None:
    check(1)
