"""Errors of the databases of artefacts."""

from __future__ import annotations


class IndexUnusable(OSError):
    """A database cannot be opened or written; the message says why."""
