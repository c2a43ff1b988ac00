"""The tests of the C extension pass under a compiler that checks each memory access."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.sanitizers import find_runtime


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.skipif(not find_runtime(), reason="no compiler with AddressSanitizer")
def test_c_extension_passes_under_sanitizers() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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
