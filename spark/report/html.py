"""Elements of a page as a tree: what comes from a lake can only ever become text or an attribute's value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def h(tag: str, /, *children: Child, **attributes: object) -> Element:
    """An element. `class_` is `class`, other underscores are dashes; an attribute of None is left out."""
    node = Element(tag)
    for key, value in attributes.items():
        if value is not None:
            node.set("class" if key == "class_" else key.replace("_", "-"), str(value))
    append(node, *children)
    return node


def append(node: Element, *children: Child) -> None:
    """Add children at the end of `node`; None is nothing."""
    for child in children:
        if child is None:
            continue
        if not isinstance(child, str):
            node.append(child)
        elif len(node):
            node[-1].tail = (node[-1].tail or "") + child
        else:
            node.text = (node.text or "") + child


def name(text: str) -> Iterator[Child]:
    """A name that may break after each `/` and `.` of it, and is copied without the breaks."""
    start = 0
    for index, letter in enumerate(text[:-1], start=1):
        if letter in "/.":
            yield text[start:index]
            yield Element("wbr")
            start = index
    yield text[start:]


def svg(tag: str, /, **attributes: object) -> Element:
    """An SVG element: as `h`, for names whose capitals matter."""
    node = Element(tag)
    for key, value in attributes.items():
        if value is not None:
            node.set("class" if key == "class_" else key, str(value))
    return node


def data(value: Any, **attributes: object) -> Element:
    """`value` as JSON for the page's script; `<` is spelt so that no text can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return h("script", text, type="application/json", **attributes)


def page(root: Element) -> bytes:
    """The document as a file."""
    content: bytes = tostring(root, encoding="utf-8", method="html")
    return b"<!doctype html>\n" + content
