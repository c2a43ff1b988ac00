"""The security pages are correct: every test they name exists, and every listener is in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edge.broker.configuration import Protocol

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "SECURITY.md", *sorted((ROOT / "docs/security").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")


def names_in(path: Path) -> set[str]:
    """Return ``test``, ``Class`` and ``Class::test`` of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name"))}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_every_named_test_exists() -> None:
    named = NAMED.findall(TEXT)
    missing = [
        path + name
        for path, name in named
        if not (ROOT / path).is_file() or (name and name.removeprefix("::") not in names_in(ROOT / path))
    ]
    assert not missing
    assert len(named) > 40


def test_every_promise_in_a_table_has_a_test() -> None:
    promising = False
    without = []
    for line in TEXT.splitlines():
        if line.startswith("|") and "---" not in line:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[-1] == "test":
                promising = True
            elif promising and not NAMED.search(cells[-1]):
                without.append(line)
        elif not line.startswith("|"):
            promising = False
    assert not without


def test_every_protocol_and_page_is_covered() -> None:
    for name in (*(protocol.value for protocol in Protocol), "/healthz", "/metrics", "operator.token"):
        assert f"`{name}`" in TEXT or f"/{name.lstrip('/')}`" in TEXT, name
