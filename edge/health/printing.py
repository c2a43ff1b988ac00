"""Problems of a gateway or hub as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console

from edge.output.terminal import styled

_TITLES: Final = {
    "error": ("problem", "bold red"),
    "warning": ("warning", "bold yellow"),
    "notice": ("notice", "bold cyan"),
}
"""Title and style of a problem by its severity."""


def print_problems(problems: Iterable[Mapping[str, Any]], out: Console) -> None:
    """Print problems of a status document (`HealthProblem`), each with its next step."""
    for problem in problems:
        title, style = _TITLES[problem["severity"]]
        if muted := problem.get("muted"):
            title, style = "muted", "dim"
        out.print(styled(title, style), styled(f"{problem['name']}: {problem['what']}"))
        out.print(styled(f"        since {problem['since']}; {problem['next_step']}"))
        if muted:
            out.print(styled(f"        muted until {muted['until']} by {muted['by'] or '-'}: {muted['reason']}"))
