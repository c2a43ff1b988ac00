"""Drawings: SVG made by Graphviz from text, in `docs/drawings`.

A drawing is a file ``NAME.dot``, or is made from a table of the code (`STATE_MACHINES`). Its ``NAME.svg`` is checked in
with the digest of its text, so that the site is built without Graphviz, and a test finds pictures that are out of
date. `python -m docs.generate.drawings` draws those again; it needs Graphviz (`apt-get install graphviz`).

A picture has the colours of its page: lines and text are `currentColor`.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from docs.generate.source import ROOT

FOLDER: Final = ROOT / "docs/drawings"
PLACE: Final = re.compile(r"^<!-- drawing: ([\w-]+) -->$", re.MULTILINE)
STYLE: Final = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"
"""Colours of a picture outside the site, as in a README; a page of the site has its own."""
HEAD: Final = (
    'bgcolor="transparent"; node [shape=box, style=rounded, fontname="sans-serif", fontsize=12]; '
    'edge [fontname="sans-serif", fontsize=11];'
)


class Edge(NamedTuple):
    """A transition of a state machine."""

    before: str
    after: str
    label: str


def mqtt_connection() -> Iterator[Edge]:
    """Yield the transitions of an MQTT connection at the broker: by packets, and by the broker's own steps."""
    phase = importlib.import_module("edge.broker.mqtt.phase")
    for table in (phase.PACKETS, phase.STEPS):
        for before, row in table.items():
            by_target: dict[str, list[str]] = {}
            for event, after in row.items():
                if type(after) is type(before):
                    by_target.setdefault(after.name, []).append(event.name)
            for after, events in by_target.items():
                yield Edge(before.name, after, "\\n".join(events) if len(events) < 4 else _lines(events))


def mqtt_authentication() -> Iterator[Edge]:
    """Yield the transitions of enhanced authentication: by the reason code of the client's AUTH."""
    found = importlib.import_module("edge.broker.mqtt.authentication")
    for (before, reason), after in found.FOLLOWS.items():
        yield Edge(before.name, after.name, reason.name)


def _lines(words: list[str]) -> str:
    return "\\n".join(", ".join(words[index : index + 3]) for index in range(0, len(words), 3))


STATE_MACHINES: Final[Mapping[str, Callable[[], Iterator[Edge]]]] = {
    "mqtt-connection": mqtt_connection,
    "mqtt-authentication": mqtt_authentication,
}
"""Transitions by the name of the drawing."""


def texts() -> dict[str, str]:
    """Return the text of every drawing by name."""
    found = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.dot"))}
    return {**found, **{name: _machine(name, edges()) for name, edges in STATE_MACHINES.items()}}


def _machine(name: str, edges: Iterator[Edge]) -> str:
    lines = [f'  {each.before} -> {each.after} [label="{each.label}"];' for each in edges]
    return "\n".join([f'digraph "{name}" {{', f"  {HEAD}", *lines, "}", ""])


def digest(text: str) -> str:
    """Return the digest that a picture carries of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_current(name: str, text: str) -> bool:
    """Return True when the picture was drawn from this text."""
    path = FOLDER / f"{name}.svg"
    return path.exists() and f"<!-- text {digest(text)} -->" in path.read_text()


def draw(name: str, text: str) -> None:
    """Draw a picture. Raises CalledProcessError for a text that Graphviz does not read."""
    made = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True).stdout  # noqa: S607
    svg = made[made.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace('stroke="black"', 'stroke="currentColor"').replace('fill="black"', 'fill="currentColor"')
    svg = re.sub(r"<text ", '<text fill="currentColor" ', svg)
    svg = re.sub(r' xmlns:xlink="[^"]*"', "", svg)
    opening, _, rest = svg.partition(">")
    opening = re.sub(r'width="\d+pt" height="\d+pt"', _size(opening), opening)
    (FOLDER / f"{name}.svg").write_text(f'{opening} role="img">\n<!-- text {digest(text)} -->\n{STYLE}{rest}')


def _size(opening: str) -> str:
    """Return width and height in pixels, so that text has the size of the page's."""
    found = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', opening)
    width, height = (float(each) for each in found.groups()) if found is not None else (0.0, 0.0)
    return f'width="{width:.0f}" height="{height:.0f}"'


def embed(page: str) -> str:
    """Return a page with its drawings in place of their names, in the page's own colours."""
    return PLACE.sub(lambda place: _inline(place[1]), page)


def _inline(name: str) -> str:
    svg = (FOLDER / f"{name}.svg").read_text().replace(STYLE, "")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return f'```{{raw}} html\n<div class="drawing">{svg}</div>\n```'


def main() -> None:
    """Draw every picture that is out of date."""
    for name, text in texts().items():
        if not is_current(name, text):
            draw(name, text)


if __name__ == "__main__":
    main()
