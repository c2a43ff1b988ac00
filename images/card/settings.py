"""Settings of gateways by name, as arguments (``wifi.ssid=plant``) and as columns of a CSV have them.

A name is the way to the value in the file: what is called ``hub.url`` is the `url` in the mapping `hub` of `spec`. The
gateway's own name is ``name``.
"""

from __future__ import annotations

import copy
import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.resources.errors import ConfigurationError, ConfigurationRejected, Origin
from bridge.resources.resource import Resource
from bridge.resources.schema import build
from edge.card.resource import FILE_BYTES_MAX, KINDS, Card, Plain, of, read
from edge.card.text import document, text_of
from images.errors import USAGE, ImageError

NAME: Final = "name"
LISTS: Final = {"cable.dns": None, "hub.failover": None, "hub.forward": None, "timeServers": None, "sshKeys": "\n"}
"""Those with several values, and what is between them (None: spaces)."""
NAMES: Final = (
    NAME, "hostname", "cable.address", "cable.gateway", "cable.dns", "wifi.ssid", "wifi.password", "wifi.country",
    "lte.apn", "lte.user", "lte.password", "lte.pin", "sshKeys", "hub.url", "hub.failover", "hub.proxy.host",
    "hub.proxy.port", "hub.proxy.username", "hub.proxy.password", "hub.token", "hub.forward", "timeServers",
    "data.keepFree",
)  # fmt: skip
CARDS_MAX: Final = 10_000
"""Rows of one CSV: a fleet's."""


class Written(NamedTuple):
    """A card that is right, and its file."""

    card: Card
    document: Plain


def rejected(errors: Sequence[ConfigurationError]) -> ImageError:
    """What is wrong, a line each."""
    count = f"{len(errors)} {'problem' if len(errors) == 1 else 'problems'}"
    step = "a fresh file says what each setting is for: waypost image configure fresh.yaml"
    return ImageError("\n".join(map(str, errors)), hint=f"{count}; nothing was written; {step}", code=USAGE)


def of_text(text: bytes, source: str) -> Written | None:
    """What a file says; None: nothing, as it is to be filled in. Raises ImageError."""
    try:
        card = read(text, source)
    except ConfigurationRejected as error:
        raise rejected(error.errors) from None
    if card is None:
        return None
    import yaml  # noqa: PLC0415 - read well before

    return Written(card, yaml.safe_load(text.removeprefix(b"\xef\xbb\xbf")))


def of_file(path: Path) -> Written | None:
    """The same of a file. Raises ImageError."""
    return of_text(read_small(path), str(path))


def read_small(path: Path) -> bytes:
    """A file that a person wrote. Raises ImageError."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", code=USAGE) from None


def of_arguments(words: Sequence[str], base: Plain | None) -> Written:
    """What ``NAME=VALUE`` say, over a document. ``NAME=@FILE`` takes the file's text. Raises ImageError."""
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ImageError(f"{name}: expected NAME=VALUE, for example hub.url=amqps://hub.example:5671", code=USAGE)
        _require_known(name, "the command line")
        given[name] = read_small(Path(value[1:])).decode("utf-8", "replace").strip() if value[:1] == "@" else value
    return _made(given, base, Origin("the command line", {(): 0}))


def of_csv(path: Path, base: Plain | None) -> list[Written]:
    """A card for each row, over a document. The first row has names. Raises ImageError, for all rows together."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"{path}: {error}", code=USAGE) from None
    reader = csv.reader(io.StringIO(text), delimiter=_delimiter(text))
    names = [cell.strip() for cell in next(reader, [])]
    for name in names:
        _require_known(name, f"{path}, row 1")
    if NAME not in names or len(set(names)) < len(names):
        raise ImageError(f"{path}, row 1: a column {NAME} is wanted, and each column once", code=USAGE)
    made: list[Written] = []
    errors: list[ConfigurationError] = []
    rows: dict[str, int] = {}
    for row, cells in _rows(reader):
        if len(cells) > len(names):
            errors.append(ConfigurationError(str(path), row, "", f"{len(cells)} cells under {len(names)} columns"))
            continue
        given = {name: cell.strip() for name, cell in zip(names, cells, strict=False) if cell.strip()}
        try:
            one = _made(given, base, Origin(str(path), {(): row}))
        except _Wrong as wrong:
            errors += wrong.errors
            continue
        first = rows.setdefault(one.card.name, row)
        if first != row:
            errors.append(ConfigurationError(str(path), row, NAME, f"{one.card.name} is in row {first} already"))
        made.append(one)
    if len(made) > CARDS_MAX:
        errors.append(ConfigurationError(str(path), 0, "", f"{CARDS_MAX} rows at most"))
    if errors:
        raise rejected(errors)
    if not made:
        raise ImageError(f"{path} has no rows", code=USAGE)
    return made


# --- inside ---------------------------------------------------------------------------------------------------------


class _Wrong(ImageError):
    """A row with errors in it."""

    def __init__(self, errors: Sequence[ConfigurationError]) -> None:
        shown = rejected(errors)
        super().__init__(shown.message, hint=shown.hint, code=USAGE)
        self.errors = errors


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """(number of the line it ends in, cells) of rows that have something in them."""
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _delimiter(text: str) -> str:
    """Spreadsheets write what their country has."""
    head = text.split("\n", 1)[0]
    return ";" if head.count(";") > head.count(",") else ","


def _require_known(name: str, place: str) -> None:
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ImageError(
            f'{place}: no setting is called "{name}"{meant}', hint=f"there are {', '.join(NAMES)}", code=USAGE
        )


def _made(given: Mapping[str, str], base: Plain | None, origin: Origin) -> Written:
    """Raises _Wrong, with paths by the names above."""
    plain = copy.deepcopy(base) if base is not None else document("", {})
    spec = plain.setdefault("spec", {})
    for name, value in given.items():
        if name == NAME:
            plain["metadata"]["name"] = value
            continue
        *outer, last = name.split(".")
        place = spec
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value.split(LISTS[name]) if name in LISTS else value
    if not plain["metadata"]["name"]:
        raise _Wrong([ConfigurationError(origin.source, origin.line(()), NAME, "is missing")])
    found = build(KINDS, plain, origin)
    errors = KINDS.validate([found]) if isinstance(found, Resource) else found
    if errors:
        raise _Wrong([_by_name(error) for error in errors])
    assert isinstance(found, Resource)  # noqa: S101 - else there are errors
    return Written(of(found, text_of(plain).encode()), plain)


def _by_name(error: ConfigurationError) -> ConfigurationError:
    """Its path as the column has it."""
    path = error.path.rpartition(": ")[2].removeprefix("spec.").partition("[")[0]
    shown = NAME if path.startswith("metadata") else path
    return ConfigurationError(error.source, error.line, shown, error.message)
