"""Variables of a fleet or a device: names that balena takes, and values that a gateway takes, looked at before they are
set. A gateway reads them at its start (`edge.appliance.first_boot.environment`), far away from who has set them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from bridge.proxy import parse_proxy
from bridge.resources.values import size
from edge.card import fields
from images.errors import USAGE, ImageError

NAME: Final = "WAYPOST_NAME"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED: Final = ("BALENA_", "RESIN_")
"""Names that configure balenaOS itself begin with these; the API takes them elsewhere and ignores them here."""
OWN: Final = "WAYPOST_"
TOKEN: Final = "WAYPOST_TOKEN"  # noqa: S105 - the name of a variable
VALUE_CHARACTERS_MAX: Final = 64 << 10
"""Of one out of a file: ours have a few hundred; a larger file is another one than was meant."""


def variables(given: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE`, as given; `NAME=@FILE` takes the file's text. Raises ImageError for what is no variable, or none of
    a gateway."""
    found: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator:
            raise ImageError(f"{name}: not NAME=VALUE", code=USAGE)
        found[checked_name(name)] = _text_of(name, Path(value[1:])) if value.startswith("@") else value
        check_value(name, found[name])
    return found


def checked_name(name: str) -> str:
    """The name. Raises ImageError."""
    if not _VARIABLE.fullmatch(name):
        raise ImageError(f"{name}: a variable's name has letters, digits and _ only", code=USAGE)
    if name.startswith(RESERVED):
        raise ImageError(f"{name}: configures balenaOS itself", hint="set it in balena's dashboard", code=USAGE)
    known = tuple(_VALUES)
    if name.startswith(OWN) and name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        hint = f"there are {', '.join(_VALUES)}"
        raise ImageError(f"{name}: no variable of a gateway is called so{meant}", hint=hint, code=USAGE)
    return name


def check_value(name: str, value: str, place: str = "") -> None:
    """`place`: before the name, where a value comes from. Raises ImageError, which quotes no secret."""
    try:
        _VALUES.get(name, _anything)(value)
    except ValueError as error:
        raise ImageError(f"{place}{name}: {error}", code=USAGE) from None


def _anything(_value: str) -> None:
    """Of variables that are none of ours."""


def _name(value: str) -> None:
    """A container takes it in small letters, and `_` for `-`."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value):
        raise ValueError(f'"{value}" is not a name; allowed: letters and digits, and between them . - _')


def _hubs(value: str) -> None:
    """URLs of one hub, with spaces between them."""
    for url in value.split():
        fields.reachable_hub(fields.hub_url(url))


def _filters(value: str) -> None:
    for each in value.split():
        fields.topic_filter(each)


_VALUES: Final[Mapping[str, Callable[[str], object]]] = {
    NAME: _name,
    "WAYPOST_HUB": _hubs,
    TOKEN: fields.token,
    "WAYPOST_PROXY": parse_proxy,
    "WAYPOST_FORWARD": _filters,
    "WAYPOST_KEEP_FREE": size,
}


def _text_of(name: str, path: Path) -> str:
    """So that a token is in no list of processes. Raises ImageError."""
    try:
        with path.open(encoding="utf-8-sig") as text:
            value = text.read(VALUE_CHARACTERS_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not in UTF-8"
        raise ImageError(f"{name}=@{path}: {why}", code=USAGE) from None
    if len(value) > VALUE_CHARACTERS_MAX:
        raise ImageError(f"{name}=@{path}: more than {VALUE_CHARACTERS_MAX} characters", code=USAGE)
    return value
