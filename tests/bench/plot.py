"""The results as one picture: a bar a benchmark, on a scale where 1 is the goal. Self-contained SVG."""

from __future__ import annotations

from html import escape
from typing import Final

from tests.bench.cases import Result

WIDTH: Final = 900
ROW: Final = 46
LEFT: Final = 220
RIGHT: Final = 240
SHOWN_MAX: Final = 3.0
"""Times the goal where bars end; longer ones carry their figure."""


def of_goal(result: Result) -> float | None:
    """How far the goal is exceeded: 1 is met exactly; None where nothing is asked for."""
    words = result.goal.replace(",", " ").split()
    if result.met is None or len(words) < 2:
        return None
    if result.ratio is not None:
        return result.ratio / float(words[1])
    number = float("".join(words[1:]))
    return number / result.value if words[0] == "<=" else result.value / number


def svg(results: list[Result]) -> str:
    """The picture."""
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
    share = of_goal(result)
    peer = "" if result.peer_value is None else f" | {result.peer} {result.peer_value:,.0f}"
    figure = f"{result.value:,.0f} {result.unit}{peer}"
    bar = ""
    if share is not None:
        colour = "#2a7f62" if result.met else "#b3432b"
        width = min(share, SHOWN_MAX) * scale
        bar = f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="18" rx="3" fill="{colour}"/>\n'
    return (
        f'<g><title>{escape(result.about)}</title>\n<text x="16" y="{y + 14}">{escape(result.name)}</text>\n{bar}'
        f'<text x="{WIDTH - RIGHT + 12}" y="{y + 14}" fill="#333">{escape(figure)}</text></g>\n'
    )
