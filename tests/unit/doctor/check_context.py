"""A machine of files, for checks that read /proc and /sys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge.appliance.doctor.check import Check, CheckContext, CheckResult, Level

NOW = 1_795_000_000.0
"""2026-11-18, UTC seconds."""


def machine(root: Path, files: dict[str, str] | None = None, **fields: object) -> CheckContext:
    """Return a CheckContext with these system files and a good clock at `NOW`."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    values: dict[str, object] = {"root": root, "now": lambda: NOW, "synchronized": lambda: True, **fields}
    return CheckContext(**values)  # type: ignore[arg-type]


def found(check: Check, around: CheckContext) -> dict[str, CheckResult]:
    """Return the results by name."""
    return {result.name: result for result in check(around)}


def levels(results: Iterable[CheckResult]) -> list[tuple[str, str]]:
    return [(result.name, result.level.value) for result in results]


def bad(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return the results that are not OK; each has a next step."""
    wrong = [result for result in results if result.level is not Level.OK]
    assert all(result.next_step for result in wrong)
    return wrong
