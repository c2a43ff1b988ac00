"""Tables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from spark.report.html import Child, h, name


def table(label: str, heads: Sequence[str], rows: Sequence[Sequence[Child]], numeric: Sequence[int] = ()) -> Element:
    """A table; a cell that is an element already stands as it is. The columns in `numeric` are set to the right.

    On a phone each row folds into a card whose values carry their column's head (`data-head`). A table that is laid out
    so is no table to a browser any more, hence the roles.
    """
    head = h(
        "tr",
        *(
            h("th", text, class_="n" if index in numeric else None, scope="col", role="columnheader")
            for index, text in enumerate(heads)
        ),
        role="row",
    )
    body = h("tbody", role="rowgroup")
    for row in rows:
        cells = [_cell(cell, index in numeric) for index, cell in enumerate(row)]
        for text, cell in zip(heads, cells, strict=True):
            cell.set("role", "cell")
            if text:
                cell.set("data-head", text)
        body.append(h("tr", *cells, role="row"))
    columns = h("table", h("thead", head, role="rowgroup"), body, role="table", aria_label=label)
    # It scrolls where it is too wide; with a tab stop, so that the arrow keys reach what is outside.
    return h("div", columns, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(cell: Child, numeric: bool) -> Element:
    if isinstance(cell, Element):
        return cell
    return h("td", cell, class_="n") if numeric else h("td", *name(cell or ""), class_="name")
