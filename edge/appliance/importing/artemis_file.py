"""Read broker.xml of ActiveMQ Artemis: elements with their lines, and properties files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers import expat

from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.appliance.importing.text_file import ImportFileError, find_file, read_text

DEPTH_MAX: Final = 64
"""Levels of elements; a broker.xml has eight."""
INCLUDES_MAX: Final = 100
"""Included files (XInclude) in all: a file that includes itself ends."""
UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
"""Bytes of the units of a size; a `b` may follow them."""
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmg]?)b?", re.IGNORECASE)


class XmlElement:
    """Element of the file, with those inside it."""

    def __init__(self, place: str, name: str, attributes: dict[str, str]) -> None:
        """`place`: ``file:line``. `name`: without a namespace."""
        self.place = place
        self.name = name
        self.attributes = attributes
        self.inner: list[XmlElement] = []
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """Text of the element, without white space around it."""
        return "".join(self.pieces).strip()

    @property
    def shown(self) -> str:
        """Name of the element for a report: with its own name, or the addresses that it is for."""
        own = self.attributes.get("name") or self.attributes.get("match") or self.attributes.get("type")
        return f"{self.name} {own}" if own else self.name

    def note(self, outcome: ImportOutcome, words: str = "", setting: str = "") -> ImportNote:
        """Return the result for this element. `setting`: a part of it."""
        return ImportNote(self.place, f"{self.shown} {setting}".strip(), outcome, words)

    def of(self, *names: str) -> list[XmlElement]:
        """Return the elements directly inside that have one of these names."""
        return [each for each in self.inner if each.name in names]

    def first(self, name: str) -> XmlElement | None:
        """Return the first element inside with a name; None without any."""
        return next(iter(self.of(name)), None)


class PropertyLine(NamedTuple):
    """Line of a properties file."""

    place: str
    """``file:line``."""
    name: str
    value: str


def read_artemis(path: Path) -> XmlElement:
    """Return the element `core` of a broker.xml. Raises ImportFileError."""
    root = _read(path, [INCLUDES_MAX])
    core = root if root.name == "core" else root.first("core")
    if core is None:
        raise ImportFileError(f"{path} has no element `core`: it is not a broker.xml of ActiveMQ Artemis")
    return core


def read_properties(path: Path) -> Iterator[PropertyLine]:
    """Yield the lines of a properties file. Raises ImportFileError."""
    for number, text in enumerate(read_text(path).splitlines(), 1):
        line = text.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            yield PropertyLine(f"{path.name}:{number}", name.strip(), value.strip())


def size_of(text: str) -> int | None:
    """Return the bytes of a size such as ``10M``; None for another text. Units are powers of 1024."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found[1]) * UNITS[found[2].lower()]


# --- inside -----------------------------------------------------------------------------------------------------------


def _read(path: Path, left: list[int]) -> XmlElement:
    """Return the root of a file, with included files at their place. `left`: files that may follow."""
    root = _ElementReader(path).read(read_text(path))
    _include(root, path, left)
    return root


def _include(element: XmlElement, path: Path, left: list[int]) -> None:
    for i, inner in enumerate(element.inner):
        if inner.name != "include":
            _include(inner, path, left)
            continue
        left[0] -= 1
        if left[0] < 0:
            raise ImportFileError(f"{inner.place}: more than {INCLUDES_MAX} included files")
        element.inner[i] = _read(find_file(inner.attributes.get("href", ""), path), left)


class _ElementReader:
    """Parser of one file. It refuses what a configuration never has and an attack needs: entities of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[XmlElement] = []
        self._root: XmlElement | None = None
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._parser.EntityDeclHandler = self._refuse

    def read(self, text: str) -> XmlElement:
        """Return the root. Raises ImportFileError."""
        try:
            self._parser.Parse(text.encode(), True)
        except expat.ExpatError as why:
            raise ImportFileError(f"{self._path.name}:{why.lineno}: {expat.errors.messages[why.code]}") from None
        assert self._root is not None  # noqa: S101 - a document without a root is an error above
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        plain = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        element = XmlElement(f"{self._path.name}:{self._parser.CurrentLineNumber}", name.rpartition(" ")[2], plain)
        if len(self._open) >= DEPTH_MAX:
            raise ImportFileError(f"{element.place}: more than {DEPTH_MAX} levels of elements")
        if self._open:
            self._open[-1].inner.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _add(self, text: str) -> None:
        if self._open:
            self._open[-1].pieces.append(text)

    def _refuse(self, *_declaration: Any) -> None:
        raise ImportFileError(f"{self._path.name}:{self._parser.CurrentLineNumber}: entities are not read")
