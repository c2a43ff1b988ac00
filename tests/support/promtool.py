"""Prometheus' tool for rules and metrics."""

from __future__ import annotations

import shutil

import pytest


def promtool() -> str:
    """Return the place of promtool; skip the test if it is not there."""
    place = shutil.which("promtool")
    if place is None:
        pytest.skip("promtool is not there: Debian's package prometheus has it")
    return place
