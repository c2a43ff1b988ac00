"""The analytics report's elements: what comes from a lake is text, wherever it stands."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from spark.report import html
from tests.support.names import HOSTILE


class Seen(HTMLParser):
    """Elements, their attributes, and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_no_element_and_no_attribute(name: str) -> None:
    root = html.h("p", name, html.h("b", *html.name(name), title=name), html.data({name: name}))
    seen = Seen()
    seen.feed(html.page(root).decode())
    assert set(seen.tags) <= {"p", "b", "wbr", "script"}
    assert seen.tags.count("script") == 1, "the page's own data"
    assert set(seen.attributes) <= {"title", "type"}
