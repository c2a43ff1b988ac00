"""The results as a self-contained SVG: a bar for each benchmark, scaled so that 1 is the goal."""

from __future__ import annotations

from html import escape
from typing import Final

from tests.bench.result import Result, figure

WIDTH: Final = 900
ROW: Final = 46
LEFT: Final = 220
RIGHT: Final = 240
_SMALL: Final = 'fill="#777" font-size="11"'
SHOWN_MAX: Final = 3.0
"""Largest bar, in goals; longer ones show their figure."""


def svg(results: list[Result]) -> str:
    """Return the picture."""
    height = ROW * len(results) + 80
    scale = (WIDTH - LEFT - RIGHT) / SHOWN_MAX
    rows = [_row(result, 56 + ROW * i, scale) for i, result in enumerate(results)]
    goal = LEFT + scale
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        '<text x="16" y="26" font-size="17" font-weight="600">waypost bench</text>\n'
        f'<text x="{goal}" y="44" text-anchor="middle" fill="#555">goal</text>\n'
        f"{''.join(rows)}"
        f'<line x1="{goal}" y1="50" x2="{goal}" y2="{height - 24}" stroke="#333" stroke-dasharray="4 3"/>\n'
        "</svg>\n"
    )


def _row(result: Result, y: int, scale: float) -> str:
    bar = ""
    if result.goal is not None:
        colour = "#2a7f62" if result.goal.met else "#b3432b"
        width = min(result.goal.share, SHOWN_MAX) * scale
        bar = f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="18" rx="3" fill="{colour}"/>\n'
        if result.goal.share > SHOWN_MAX:
            inside = f"{result.goal.share:.1f} x the goal"
            bar += f'<text x="{LEFT + width - 8:.0f}" y="{y + 14}" text-anchor="end" fill="#fff">{inside}</text>\n'
    goal = "no goal" if result.goal is None else result.goal.words
    peer = "" if result.peer_value is None else f"{result.peer} {figure(result.peer_value)}"
    right = WIDTH - RIGHT + 12
    return (
        f"<g><title>{escape(result.about)}</title>\n"
        f'<text x="16" y="{y + 9}">{escape(result.name)}</text>\n'
        f'<text x="16" y="{y + 23}" {_SMALL}>{escape(goal)}</text>\n{bar}'
        f'<text x="{right}" y="{y + 9}" fill="#333">{escape(f"{figure(result.value)} {result.unit}")}</text>\n'
        f'<text x="{right}" y="{y + 23}" {_SMALL}>{escape(peer)}</text></g>\n'
    )
