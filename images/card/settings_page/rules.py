"""Rules for settings, from the product's own types, as the page's script reads them.

The schema of the file gives the fields; each field names the function of `edge.card.fields` that reads its text, and
the script has one of the same name.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec import inspect

from bridge import enrolment
from bridge.resources import values
from bridge.resources.completion import json_schema
from bridge.resources.declaration import alternative, fields_of, marked, part_in, reader_of
from bridge.resources.endpoint import PORT_MAX
from bridge.resources.fields import Name, ResourcePart
from bridge.resources.resource import OWN_VERSION
from bridge.topic_filter import NAME_BYTES_MAX
from edge.card import countries, fields
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, KEYS_MAX, KIND, KINDS, CardSpec

NAME: Final = "name"
"""The gateway's own name, which is not in `spec`."""
TEXTS: Final = {
    "host_name": fields.HOST_NAME, "passphrase": fields.PASSPHRASE, "country": fields.COUNTRY,
    "access_point": fields.ACCESS_POINT, "pin": fields.PIN, "word": fields.WORD, "time_server": fields.TIME_SERVER,
    "wifi_user": fields.WIFI_USER, "login_password": fields.LOGIN_PASSWORD, "certificate": fields.CERTIFICATE,
    "private_key": fields.PRIVATE_KEY, "disk_kind": fields.DISK_KIND,
}  # fmt: skip
"""Rules with a pattern, by the function that applies them."""
LINES: Final = ("certificate", "private_key")
"""Checks of texts that have several lines."""
PLAIN: Final = "plain"
"""Check of a text that may be anything."""


class PageField(NamedTuple):
    """Setting with one input on the page."""

    name: str
    """Path below `spec`, or `NAME`."""
    check: str
    """Function of the script that checks a text, or each line of a list."""
    required: bool
    """True when its mapping requires it."""
    many: bool
    """True for a list: one value a line."""
    secret: bool
    about: str
    """Description from the schema."""


def list_fields() -> list[PageField]:
    """Return the settings in the order of the file."""
    schemas = json_schema(KINDS)["definitions"]
    name = schemas["Metadata"]["properties"]["name"]["description"]
    return [PageField(NAME, "resource_name", True, False, False, name), *_list_fields(CardSpec, "", schemas)]


def _list_fields(part: type[ResourcePart], prefix: str, schemas: dict[str, Any]) -> list[PageField]:
    found: list[PageField] = []
    for field in fields_of(part):
        name = f"{prefix}{'.'.join(field.path)}"
        inner = part_in(field.type)
        if inner is not None:
            found += _list_fields(inner, f"{name}.", schemas)
            continue
        type_, many = _value_type(field.type)
        about = str(schemas[part.__name__]["properties"][field.path[-1]].get("description", ""))
        found.append(PageField(name, _check(type_), field.required, many, field.secret, about))
    return found


def _value_type(type_: inspect.Type) -> tuple[inspect.Type, bool]:
    """Return the type of a value, and whether the field is a list of such values."""
    bare = marked(type_).type
    if reader_of(marked(type_).extra) is None and isinstance(bare, inspect.UnionType):
        return _value_type(alternative(bare))
    if isinstance(bare, inspect.VarTupleType):
        return bare.item_type, True
    return type_, False


def _check(type_: inspect.Type) -> str:
    reader = reader_of(marked(type_).extra)
    if reader is not None:
        return str(getattr(reader.read, "__name__", reader.read))
    bare = marked(type_).type
    return "limited_text" if isinstance(bare, inspect.StrType) and bare.max_length is not None else PLAIN


def make_rules() -> dict[str, Any]:
    """Return all that the script has to know, for JSON."""
    name = marked(inspect.type_info(Name)).type
    if not isinstance(name, inspect.StrType) or name.pattern is None:
        raise TypeError(name)
    return {
        "file": FILE,
        "fileBytesMax": FILE_BYTES_MAX,
        "apiVersion": OWN_VERSION,
        "kind": KIND,
        "fields": [field._asdict() for field in list_fields()],
        "texts": {check: [rule.pattern, rule.words] for check, rule in TEXTS.items()},
        "resourceName": name.pattern,
        "countries": sorted(countries.KNOWN),
        "meant": countries.MEANT,
        "ssidBytesMax": fields.SSID_BYTES_MAX,
        "placeholder": fields.PLACEHOLDER,
        "sshTypes": fields.SSH_TYPES,
        "keysMax": KEYS_MAX,
        "topicBytesMax": NAME_BYTES_MAX,
        "hubPorts": values.HUB_PORTS,
        "portMax": PORT_MAX,
        "sizeUnits": values.SIZE_UNITS,
        "sizeBytesMax": values.SIZE_BYTES_MAX,
        "token": {
            "prefix": enrolment.TOKEN_PREFIX,
            "idCharacters": 2 * enrolment.TOKEN_ID_BYTES,
            "secretBytes": enrolment.TOKEN_SECRET_BYTES,
            "fingerprintBytes": enrolment.TOKEN_FINGERPRINT_BYTES,
        },
    }
