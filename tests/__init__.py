"""Tests and their helpers."""

DEFAULT_MARKS = "not slow and not images"
"""Marks that `addopts` in pyproject.toml selects."""
