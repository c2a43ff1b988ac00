"""Settings of gateways by name, from arguments (``wifi.ssid=plant``) and from the columns of a CSV.

A name is the path of a value in the file: ``hub.url`` is `url` in the mapping `hub` of `spec`. The gateway's own name
is ``name``.
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
"""Settings with several values, and their separator (None: spaces)."""
NAMES: Final = (
    NAME, "hostname", "cable.address", "cable.gateway", "cable.dns", "wifi.ssid", "wifi.password", "wifi.country",
    "wifi.login.user", "wifi.login.password", "wifi.login.certificate", "wifi.login.key", "wifi.login.authority",
    "wifi.login.server", "lte.apn", "lte.user", "lte.password", "lte.pin", "sshKeys", "hub.url", "hub.failover",
    "hub.proxy.host", "hub.proxy.port", "hub.proxy.username", "hub.proxy.password", "hub.token", "hub.forward",
    "timeServers", "data.disk", "data.keepFree",
)  # fmt: skip
AS_WRITTEN: Final = ("wifi.ssid", "wifi.password", "wifi.login.password", "hub.proxy.password")
"""Settings in which a leading or trailing space may be intended."""
PRIVATE_KEY: Final = "wifi.login.key"
"""The only setting that is a private key."""
CARDS_MAX: Final = 10_000
"""Rows of one CSV."""


class CardSettings(NamedTuple):
    """Valid settings of a card, and the document they come from."""

    card: Card
    document: Plain


def make_rejection(errors: Sequence[ConfigurationError]) -> ImageError:
    """Return the error that lists all problems, one a line."""
    count = f"{len(errors)} {'problem' if len(errors) == 1 else 'problems'}"
    step = "a new file explains each setting: waypost image configure fresh.yaml"
    return ImageError("\n".join(map(str, errors)), hint=f"{count}; nothing was written; {step}", code=USAGE)


def parse_settings(text: bytes, source: str) -> CardSettings | None:
    """Parse the content of a settings file; None if every line is a comment. Raises ImageError."""
    try:
        card = read(text, source)
    except ConfigurationRejected as error:
        raise make_rejection(error.errors) from None
    if card is None:
        return None
    return CardSettings(card, plain_of(text, source))


def parse_draft(text: bytes, source: str) -> Document | None:
    """Parse a settings file without checking its values; None if every line is a comment.

    Raises ImageError unless it is YAML with one document.
    """
    found = list(documents(text.removeprefix(b"\xef\xbb\xbf"), source))
    errors = [each for each in found if isinstance(each, ConfigurationError)]
    drafts = [each for each in found if isinstance(each, Document) and isinstance(each.value, dict)]
    if errors:
        raise make_rejection(errors)
    if len(drafts) < len(found) or len(drafts) > 1:
        raise make_rejection([ConfigurationError(source, 0, "", f"a file of settings is one resource of kind {KIND}")])
    return drafts[0] if drafts else None


def load_settings(path: Path) -> CardSettings | None:
    """Load a settings file; None if every line is a comment. Raises ImageError."""
    return parse_settings(read_settings_file(path), str(path))


def read_settings_file(path: Path) -> bytes:
    """Return the content of a file, bounded in size. Raises ImageError."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", code=USAGE) from None


def apply_arguments(words: Sequence[str], base: Document | None) -> CardSettings:
    """Apply ``NAME=VALUE`` arguments to a draft; values that they replace may be invalid in it.

    ``NAME=@FILE`` takes the text of the file. Raises ImageError.
    """
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ImageError(f"{name}: expected NAME=VALUE, for example hub.url=amqps://hub.example:5671", code=USAGE)
        _require_known(name, "the command line")
        _require_text(name, value)
        if name in given:
            several = "put several into one value: sshKeys=@keys, one per line" if name == "sshKeys" else "give it once"
            if name in LISTS and LISTS[name] is None:
                several = f"put several into one value, separated by spaces: {name}='A B'"
            raise ImageError(f"{name} is given twice", hint=several, code=USAGE)
        given[name] = _read_value(name, Path(value[1:])) if value[:1] == "@" else value
    origin = ResourceOrigin("the command line", {(): 0})
    if base is None:
        return _build_settings(given, None, origin)
    try:
        return _build_settings(given, base.value, base.origin)
    except _InvalidSettings as wrong:  # other values come from the file
        raise make_rejection(
            [_move_error(origin, each) if each.path in given else each for each in wrong.errors]
        ) from None


def _read_value(name: str, path: Path) -> str:
    """Return the text that ``NAME=@FILE`` names. Raises ImageError."""
    try:
        content = read_settings_file(path)
    except ImageError as error:
        hint = "the file the hub's `waypost token create` was printed into" if name == "hub.token" else ""
        raise ImageError(f"{name}=@{error.message}", hint=hint, code=USAGE) from None
    if len(content) > FILE_BYTES_MAX:
        raise ImageError(f"{name}=@{path}: larger than {FILE_BYTES_MAX} bytes: too large for a setting", code=USAGE)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ImageError(f"{name}=@{path} is not in UTF-8", hint="save it as UTF-8", code=USAGE) from None
    text = text.rstrip("\r\n") if name in AS_WRITTEN else text.strip()
    if "PRIVATE KEY" in text and name != PRIVATE_KEY:  # otherwise each of its lines would be reported as an invalid key
        hint = "use the public key, from the file that ends in .pub"
        raise ImageError(f"{name}=@{path}: this is a private key", hint=hint, code=USAGE)
    return text


def load_fleet(path: Path, base: Plain | None) -> list[CardSettings]:
    """Return the settings for each row of a CSV, on top of a document.

    The first row holds the names of the settings. Raises ImageError that lists the problems of all rows.
    """
    rows = table.read_rows(path)
    row, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    called = [name for name in names if name]
    for name in called:
        _require_known(name, f"{path}, row {row}")
    if NAME not in called or len(set(called)) < len(called):
        raise ImageError(
            f"{path}, row {row}: the column {NAME} is required, and each column may be there once", code=USAGE
        )
    made: list[CardSettings] = []
    errors: list[ConfigurationError] = []
    names_seen, tokens_seen = dict[str, int](), dict[str, int]()
    for row, cells in rows:
        if any(cell.strip() and not name for name, cell in zip_longest(names, cells, fillvalue="")):
            errors.append(ConfigurationError(str(path), row, "", "a cell is in a column without a name"))
            continue
        spaced = [name for name, cell in zip(names, cells, strict=False) if name in AS_WRITTEN and cell != cell.strip()]
        if spaced:
            errors += [ConfigurationError(str(path), row, name, _SPACED) for name in spaced]
            continue
        given = {name: cell.strip() for name, cell in zip(names, cells, strict=False) if cell.strip()}
        try:  # a row is a gateway of its own, with its own name
            one = _build_settings({NAME: "", **given}, base, ResourceOrigin(str(path), {(): row}))
        except _InvalidSettings as wrong:
            errors += wrong.errors
            continue
        first = names_seen.setdefault(one.card.name, row)
        if first != row:
            errors.append(ConfigurationError(str(path), row, NAME, f"{one.card.name} is in row {first} already"))
        token = one.card.spec.hub.token if one.card.spec.hub is not None else ""
        first = tokens_seen.setdefault(token, row) if token else row
        if first != row:
            words = f"is that of row {first}, and a token enrols one gateway: waypost token create --count 2"
            errors.append(ConfigurationError(str(path), row, "hub.token", words))
        made.append(one)
    if len(made) > CARDS_MAX:
        errors.append(ConfigurationError(str(path), 0, "", f"{CARDS_MAX} rows at most"))
    if errors:
        raise make_rejection(errors)
    if not made:
        raise ImageError(f"{path} has no rows", code=USAGE)
    return made


# --- inside ---------------------------------------------------------------------------------------------------------


_SPACED: Final = "begins or ends with a space: remove it; if it is intended, write it into the file of this gateway"


class _InvalidSettings(ImageError):
    """Settings with errors in them."""

    def __init__(self, errors: Sequence[ConfigurationError]) -> None:
        shown = make_rejection(errors)
        super().__init__(shown.message, hint=shown.hint, code=USAGE)
        self.errors = errors


def _require_text(name: str, value: str) -> None:
    """Raise ImageError for an argument that is not UTF-8, as a terminal in another encoding gives it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        hint = f"write it into a file in UTF-8: {name}=@FILE"
        raise ImageError(f"{name}: the terminal's input is not UTF-8", hint=hint, code=USAGE) from None


def _require_known(name: str, place: str) -> None:
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ImageError(
            f'{place}: "{name}" is not a setting{meant}', hint=f"the settings are {', '.join(NAMES)}", code=USAGE
        )


def _build_settings(given: Mapping[str, str], base: Plain | None, origin: ResourceOrigin) -> CardSettings:
    """Build settings from values by name on top of a document. Raises _InvalidSettings with paths by these names."""
    plain = copy.deepcopy(base) if base is not None else document("", {})
    plain["spec"] = plain.get("spec") or {}  # None if everything below it is a comment
    if not isinstance(plain["spec"], dict):  # its content would be lost
        raise _InvalidSettings(
            [ConfigurationError(origin.source, origin.line(("spec",)), "spec", "a mapping is expected")]
        )
    for name, value in given.items():
        *outer, last = ("metadata", NAME) if name == NAME else ("spec", *name.split("."))
        place = plain
        for key in outer:
            place = _get_mapping(place, key)
        place[last] = _split_list(value, LISTS[name]) if name in LISTS else value
    if not _get_mapping(plain, "metadata").get(NAME):
        raise _InvalidSettings([ConfigurationError(origin.source, origin.line(()), NAME, "is missing")])
    found = build(KINDS, plain, origin)
    errors = KINDS.validate([found]) if isinstance(found, Resource) else found
    if errors:
        raise _InvalidSettings([_name_by_column(error) for error in errors])
    assert isinstance(found, Resource)  # noqa: S101 - else there are errors
    return CardSettings(card_of(found, text_of(plain).encode()), plain)


def _split_list(value: str, between: str | None) -> list[str]:
    """Split a value. Lines are those of a file of keys: comments and empty lines are left out."""
    parts = value.split(between)
    return parts if between is None else [each.strip() for each in parts if each.strip() and each.lstrip()[0] != "#"]


def _get_mapping(place: Plain, key: str) -> Plain:
    """Return the mapping at a key, creating it in place of anything else."""
    found = place.get(key)
    if not isinstance(found, dict):
        found = place[key] = {}
    return found


def _move_error(origin: ResourceOrigin, error: ConfigurationError) -> ConfigurationError:
    """Return the error with another origin."""
    return ConfigurationError(origin.source, origin.line(()), error.path, error.message)


def _name_by_column(error: ConfigurationError) -> ConfigurationError:
    """Return the error with its path as the column spells it."""
    path = error.path.rpartition(": ")[2].removeprefix("spec.").partition("[")[0]
    shown = NAME if path.startswith("metadata") else path
    return ConfigurationError(error.source, error.line, shown, error.message)
