"""Check variables of a fleet or a device before they are set.

balena accepts the names, and a gateway reads the values at its start (`edge.appliance.first_boot.environment`).
An error there would not reach the person that set the value.
"""

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
"""Prefixes of names that configure balenaOS itself. The API takes those elsewhere and ignores them here."""
OWN: Final = "WAYPOST_"
TOKEN: Final = "WAYPOST_TOKEN"  # noqa: S105 - the name of a variable
VALUE_CHARACTERS_MAX: Final = 64 << 10
"""Characters of a value from a file. Ours have a few hundred; a larger file was given by mistake."""


def parse_variables(given: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` arguments; `NAME=@FILE` takes the text of the file.

    Raises ImageError for a name that is not valid, or not a variable of a gateway.
    """
    found: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator:
            raise ImageError(f"{name}: not NAME=VALUE", code=USAGE)
        found[check_name(name)] = _read_value(name, Path(value[1:])) if value.startswith("@") else value
        check_value(name, found[name])
    return found


def check_name(name: str) -> str:
    """Return the name if it is valid. Raises ImageError."""
    if not _VARIABLE.fullmatch(name):
        raise ImageError(f"{name}: a variable's name has letters, digits and _ only", code=USAGE)
    if name.startswith(RESERVED):
        raise ImageError(f"{name}: configures balenaOS itself", hint="set it in balena's dashboard", code=USAGE)
    known = tuple(_VALUES)
    if name.startswith(OWN) and name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        hint = f"the variables are {', '.join(_VALUES)}"
        raise ImageError(f"{name}: not a variable of a gateway{meant}", hint=hint, code=USAGE)
    return name


def check_value(name: str, value: str, place: str = "") -> None:
    """Raise ImageError for an invalid value; the message quotes no secret.

    `place`: where the value comes from, put before the name.
    """
    try:
        _VALUES.get(name, _accept_any)(value)
    except ValueError as error:
        raise ImageError(f"{place}{name}: {error}", code=USAGE) from None


def _accept_any(_value: str) -> None:
    """Accept any value of a variable that is not ours."""


def _check_gateway_name(value: str) -> None:
    """Check a name; a container lowers its letters and turns `_` into `-`."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value):
        raise ValueError(f'"{value}" is not a name; allowed: letters and digits, and between them . - _')


def _check_hubs(value: str) -> None:
    """Check the URLs of one hub, separated by spaces."""
    for url in value.split():
        fields.reachable_hub(fields.hub_url(url))


def _check_filters(value: str) -> None:
    for each in value.split():
        fields.topic_filter(each)


_VALUES: Final[Mapping[str, Callable[[str], object]]] = {
    NAME: _check_gateway_name,
    "WAYPOST_HUB": _check_hubs,
    TOKEN: fields.token,
    "WAYPOST_PROXY": parse_proxy,
    "WAYPOST_FORWARD": _check_filters,
    "WAYPOST_KEEP_FREE": size,
}


def _read_value(name: str, path: Path) -> str:
    """Return the text of a file, so that a token is not on a command line. Raises ImageError."""
    try:
        with path.open(encoding="utf-8-sig") as text:
            value = text.read(VALUE_CHARACTERS_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not in UTF-8"
        raise ImageError(f"{name}=@{path}: {why}", code=USAGE) from None
    if len(value) > VALUE_CHARACTERS_MAX:
        raise ImageError(f"{name}=@{path}: more than {VALUE_CHARACTERS_MAX} characters", code=USAGE)
    return value
