"""Prometheus metrics of a gateway, a hub and a proof, from the code that produces them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cloud.proof.metrics import METRICS
from docs.generate import markdown, source

COLLECTORS: Final = {"Gateway": "edge/appliance/console/metrics.py", "Hub": "cloud/hub/metrics.py"}
KINDS: Final = {
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "InfoMetricFamily": "info",
    "Histogram": "histogram",
}
"""Type of a metric by the class that makes it."""
SUFFIXES: Final = {"counter": "_total", "info": "_info"}
"""Suffix that the exposition adds to a family's name."""


class MetricFamily(NamedTuple):
    """A metric as it is scraped."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str

    def matches(self, name: str) -> bool:
        """Return True when a scraped family has this name; a placeholder matches any word."""
        pattern = re.sub(rf"{source.LEFT}[^{source.RIGHT}]*{source.RIGHT}", r"\\w+", self.name)
        return re.fullmatch(pattern, name) is not None


def metrics(path: str) -> list[MetricFamily]:
    """Return the metrics of a collector, by name."""
    found: dict[str, MetricFamily] = {}
    for each in _metrics(path):
        found.setdefault(each.name, each)
    return sorted(found.values())


def _metrics(path: str) -> Iterator[MetricFamily]:
    for call in source.calls(path, *KINDS):
        kind = KINDS[call.node.func.id] if isinstance(call.node.func, ast.Name) else ""
        suffix = SUFFIXES.get(kind, "")
        labels = _labels(call)
        for name, about in _named(path, call):
            full = name if name.endswith(suffix) else name + suffix
            yield MetricFamily(full, kind, labels, about)


def _named(path: str, call: source.Call) -> Iterator[tuple[str, str]]:
    """Yield (name, help) of a call; of one in a loop over a table of names, for each of its rows."""
    first, second = call.node.args[0], call.node.args[1]
    [name], abouts = source.texts(first, call.names), source.texts(second, call.names)
    if not name.startswith(source.LEFT):
        yield name, " / ".join(abouts)
        return
    for table in _tables(path):
        if table.lineno <= call.node.lineno <= table.loop_end:
            yield from _rows(table.value)


class _Table(NamedTuple):
    """A table that a loop goes through, and where the loop is."""

    value: ast.expr
    lineno: int
    loop_end: int


def _tables(path: str) -> Iterator[_Table]:
    """Yield the tables of names that loops of a module go through."""
    module = {each.name: each.value for each in source.constants(path)}
    for node in ast.walk(source.tree(path)):
        if not isinstance(node, ast.FunctionDef):
            continue
        local = {**module, **dict(source.assigned(node))}
        for loop in ast.walk(node):
            if isinstance(loop, ast.For):
                table = _table(loop.iter, local)
                if table is not None:
                    yield _Table(table, loop.lineno, loop.end_lineno or loop.lineno)


def _table(node: ast.expr, names: source.Names) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")) | ast.Name(id=name):
            return names.get(name)
        case ast.Tuple():
            return node
    return None


def _rows(table: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield (name, help) of the rows of a table: in tuples, or in a mapping as keys or values."""
    match table:
        case ast.Tuple(elts=rows):
            for row in rows:
                yield from _row(row.elts if isinstance(row, ast.Tuple) else [])
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                yield from _row([*([key] if key is not None else []), *_elements(value)])


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _row(cells: list[ast.expr]) -> Iterator[tuple[str, str]]:
    words = [cell.value for cell in cells if isinstance(cell, ast.Constant) and isinstance(cell.value, str)]
    for index, word in enumerate(words):
        if word.startswith("waypost_") and index + 1 < len(words):
            yield word, words[index + 1]


def _labels(call: source.Call) -> tuple[str, ...]:
    for each in call.node.keywords:
        if each.arg == "labels":
            value = call.names.get(each.value.id, each.value) if isinstance(each.value, ast.Name) else each.value
            return tuple(source.texts(item, {})[0] for item in value.elts) if isinstance(value, ast.List) else ()
    return ()


def page() -> str:
    """Return the reference of metrics."""
    parts = []
    for title, path in COLLECTORS.items():
        parts.append(markdown.heading(2, title, markdown.anchor(f"metrics {title}")))
        rows = [
            (
                markdown.code(each.name),
                each.kind,
                ", ".join(map(markdown.code, each.labels)),
                markdown.prose(each.about),
            )
            for each in metrics(path)
        ]
        parts.append(markdown.table(("metric", "type", "labels", "meaning"), rows))
    parts.append(markdown.heading(2, "Proof", markdown.anchor("metrics Proof")))
    parts.append("Gauges without labels, from `waypost prove --metrics FILE`.\n")
    proof = [(markdown.code(name), markdown.prose(about)) for name, about in METRICS.items()]
    parts.append(markdown.table(("metric", "meaning"), proof))
    return "\n".join(parts)
