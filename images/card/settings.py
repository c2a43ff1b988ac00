"""Settings of gateways by name, as arguments (``wifi.ssid=plant``) and as columns of a CSV have them.

A name is the way to the value in the file: what is called ``hub.url`` is the `url` in the mapping `hub` of `spec`. The
gateway's own name is ``name``.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from bridge.resources.document import Document, documents
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, ResourceOrigin
from bridge.resources.resource import Resource
from bridge.resources.schema import build
from edge.card.resource import FILE_BYTES_MAX, KIND, KINDS, Card, Plain, card_of, plain_of, read
from edge.card.text import document, text_of
from images import table
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
AS_WRITTEN: Final = ("wifi.ssid", "wifi.password", "hub.proxy.password")
"""Those in which a space may be meant at either end."""
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
    return Written(card, plain_of(text, source))


def draft(text: bytes, source: str) -> Document | None:
    """What a file says, whether its settings are right or not; None: nothing. Raises ImageError where it is no YAML of
    one document."""
    found = list(documents(text.removeprefix(b"\xef\xbb\xbf"), source))
    errors = [each for each in found if isinstance(each, ConfigurationError)]
    drafts = [each for each in found if isinstance(each, Document) and isinstance(each.value, dict)]
    if errors:
        raise rejected(errors)
    if len(drafts) < len(found) or len(drafts) > 1:
        raise rejected([ConfigurationError(source, 0, "", f"a file of settings is one resource of kind {KIND}")])
    return drafts[0] if drafts else None


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


def of_arguments(words: Sequence[str], base: Document | None) -> Written:
    """What ``NAME=VALUE`` say, over a file of which what they name may be wrong. ``NAME=@FILE`` takes the file's text.

    Raises ImageError.
    """
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ImageError(f"{name}: expected NAME=VALUE, for example hub.url=amqps://hub.example:5671", code=USAGE)
        _require_known(name, "the command line")
        _require_text(name, value)
        if name in given:
            several = "several are one value: sshKeys=@keys, a line each" if name == "sshKeys" else "give it once"
            if name in LISTS and LISTS[name] is None:
                several = f"several are one value, with spaces between: {name}='A B'"
            raise ImageError(f"{name} is given twice", hint=several, code=USAGE)
        given[name] = _text_of(name, Path(value[1:])) if value[:1] == "@" else value
    origin = ResourceOrigin("the command line", {(): 0})
    if base is None:
        return _made(given, None, origin)
    try:
        return _made(given, base.value, base.origin)
    except _Wrong as wrong:  # what was not given is as it is in the file
        raise rejected([_at(origin, each) if each.path in given else each for each in wrong.errors]) from None


def _text_of(name: str, path: Path) -> str:
    """What ``NAME=@FILE`` takes. Raises ImageError."""
    try:
        content = read_small(path)
    except ImageError as error:
        hint = "the file the hub's `waypost fleet token create` was printed into" if name == "hub.token" else ""
        raise ImageError(f"{name}=@{error.message}", hint=hint, code=USAGE) from None
    if len(content) > FILE_BYTES_MAX:
        raise ImageError(f"{name}=@{path}: larger than {FILE_BYTES_MAX} bytes: this is no setting", code=USAGE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ImageError(f"{name}=@{path} is not in UTF-8", hint="save it as UTF-8", code=USAGE) from None
    text = text.rstrip("\r\n") if name in AS_WRITTEN else text.strip()
    if "PRIVATE KEY" in text:  # else each of its lines would be said to be no key
        hint = "give the public one, from the file that ends in .pub"
        raise ImageError(f"{name}=@{path}: this is a private key", hint=hint, code=USAGE)
    return text


def of_csv(path: Path, base: Plain | None) -> list[Written]:
    """A card for each row, over a document. The first row has names. Raises ImageError, for all rows together."""
    rows = table.rows(path)
    row, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    called = [name for name in names if name]
    for name in called:
        _require_known(name, f"{path}, row {row}")
    if NAME not in called or len(set(called)) < len(called):
        raise ImageError(f"{path}, row {row}: a column {NAME} is wanted, and each column once", code=USAGE)
    made: list[Written] = []
    errors: list[ConfigurationError] = []
    names_seen, tokens_seen = dict[str, int](), dict[str, int]()
    for row, cells in rows:
        if any(cell.strip() and not name for name, cell in zip_longest(names, cells, fillvalue="")):
            errors.append(ConfigurationError(str(path), row, "", "a cell is in a column that has no name"))
            continue
        spaced = [name for name, cell in zip(names, cells, strict=False) if name in AS_WRITTEN and cell != cell.strip()]
        if spaced:
            errors += [ConfigurationError(str(path), row, name, _SPACED) for name in spaced]
            continue
        given = {name: cell.strip() for name, cell in zip(names, cells, strict=False) if cell.strip()}
        try:  # a row is a gateway of its own, whatever the one is called that the document was written for
            one = _made({NAME: "", **given}, base, ResourceOrigin(str(path), {(): row}))
        except _Wrong as wrong:
            errors += wrong.errors
            continue
        first = names_seen.setdefault(one.card.name, row)
        if first != row:
            errors.append(ConfigurationError(str(path), row, NAME, f"{one.card.name} is in row {first} already"))
        token = one.card.spec.hub.token if one.card.spec.hub is not None else ""
        first = tokens_seen.setdefault(token, row) if token else row
        if first != row:
            words = f"is that of row {first}, and a token lets one gateway in: waypost fleet token create --count 2"
            errors.append(ConfigurationError(str(path), row, "hub.token", words))
        made.append(one)
    if len(made) > CARDS_MAX:
        errors.append(ConfigurationError(str(path), 0, "", f"{CARDS_MAX} rows at most"))
    if errors:
        raise rejected(errors)
    if not made:
        raise ImageError(f"{path} has no rows", code=USAGE)
    return made


# --- inside ---------------------------------------------------------------------------------------------------------


_SPACED: Final = (
    "begins or ends with a space: take it out; or, if it belongs to it, write it into the file of this gateway"
)


class _Wrong(ImageError):
    """A row with errors in it."""

    def __init__(self, errors: Sequence[ConfigurationError]) -> None:
        shown = rejected(errors)
        super().__init__(shown.message, hint=shown.hint, code=USAGE)
        self.errors = errors


def _require_text(name: str, value: str) -> None:
    """A terminal in another encoding than this program's gives what is no text. Raises ImageError."""
    try:
        value.encode()
    except UnicodeEncodeError:
        hint = f"write it into a file in UTF-8: {name}=@FILE"
        raise ImageError(f"{name}: this is not in UTF-8, as the terminal gave it", hint=hint, code=USAGE) from None


def _require_known(name: str, place: str) -> None:
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ImageError(
            f'{place}: no setting is called "{name}"{meant}', hint=f"there are {', '.join(NAMES)}", code=USAGE
        )


def _made(given: Mapping[str, str], base: Plain | None, origin: ResourceOrigin) -> Written:
    """Raises _Wrong, with paths by the names above."""
    plain = copy.deepcopy(base) if base is not None else document("", {})
    plain["spec"] = plain.get("spec") or {}  # without a value where all below it is a comment
    if not isinstance(plain["spec"], dict):  # what it has instead would be lost
        raise _Wrong([ConfigurationError(origin.source, origin.line(("spec",)), "spec", "a mapping is wanted")])
    for name, value in given.items():
        *outer, last = ("metadata", NAME) if name == NAME else ("spec", *name.split("."))
        place = plain
        for key in outer:
            place = _mapping(place, key)
        place[last] = _several(value, LISTS[name]) if name in LISTS else value
    if not _mapping(plain, "metadata").get(NAME):
        raise _Wrong([ConfigurationError(origin.source, origin.line(()), NAME, "is missing")])
    found = build(KINDS, plain, origin)
    errors = KINDS.validate([found]) if isinstance(found, Resource) else found
    if errors:
        raise _Wrong([_by_name(error) for error in errors])
    assert isinstance(found, Resource)  # noqa: S101 - else there are errors
    return Written(card_of(found, text_of(plain).encode()), plain)


def _several(value: str, between: str | None) -> list[str]:
    """Of lines those that say something: of keys as of a file of them, with comments and whatever ends its lines."""
    parts = value.split(between)
    return parts if between is None else [each.strip() for each in parts if each.strip() and each.lstrip()[0] != "#"]


def _mapping(place: Plain, key: str) -> Plain:
    """The one that is there, or a new one where there is nothing or something else."""
    found = place.get(key)
    if not isinstance(found, dict):
        found = place[key] = {}
    return found


def _at(origin: ResourceOrigin, error: ConfigurationError) -> ConfigurationError:
    """The same there."""
    return ConfigurationError(origin.source, origin.line(()), error.path, error.message)


def _by_name(error: ConfigurationError) -> ConfigurationError:
    """Its path as the column has it."""
    path = error.path.rpartition(": ")[2].removeprefix("spec.").partition("[")[0]
    shown = NAME if path.startswith("metadata") else path
    return ConfigurationError(error.source, error.line, shown, error.message)
