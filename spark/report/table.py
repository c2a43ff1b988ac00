"""Tables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from spark.report.html import Child, h


def table(heads: Sequence[str], rows: Sequence[Sequence[Child]], numeric: Sequence[int] = ()) -> Element:
    """A table; a cell that is an element already stands as it is. The columns in `numeric` are set to the right."""
    head = h(
        "tr",
        *(h("th", text, class_="n" if index in numeric else None, scope="col") for index, text in enumerate(heads)),
    )
    body = h("tbody")
    for row in rows:
        cells = [
            cell if isinstance(cell, Element) else h("td", cell, class_="n" if index in numeric else "name")
            for index, cell in enumerate(row)
        ]
        body.append(h("tr", *cells))
    return h("div", h("table", h("thead", head), body), class_="scroll")
