"""Registered schema of the messages of some addresses: how they are read, and their missing fields."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from spark.decoding import document
from spark.decoding.limits import DESCRIPTOR_BYTES_MAX
from spark.decoding.protobuf import BadDescriptor, message_class
from spark.decoding.value import UnreadableBody

Format = Literal["json", "number", "text", "cbor", "senml+json", "senml+cbor", "sparkplug", "protobuf"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


class BadSchema(ValueError):
    """Invalid schema; the text says why."""


class PayloadSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """Schema for the addresses that `pattern` matches (`+` one level, `#` all further ones).

    `tenant`      tenant of the addresses; None: all.
    `time`        field with the time of the measurement, instead of the usual names.
    `device`      path of the field that names the device.
    `units`       unit by metric; `*` for all others.
    `descriptor`  for Protobuf: a descriptor set, in Base64; `message` is the full name of its message.
    """

    pattern: str
    format: Format
    tenant: str | None = None
    time: str | None = None
    device: str | None = None
    units: Mapping[str, str] = {}
    descriptor: str | None = None
    message: str | None = None

    def check(self) -> None:
        """Raise `BadSchema` if the schema is invalid."""
        check_pattern(self.pattern)
        if (self.format == "protobuf") != (self.descriptor is not None and self.message is not None):
            raise BadSchema("format protobuf, and no other, requires a descriptor set and the name of its message")
        try:
            for unit in self.units.values():
                document.check_name(unit)
        except UnreadableBody as unreadable:
            raise BadSchema(f"a unit: {unreadable}") from None
        if self.descriptor is not None:
            self.message_class()

    def message_class(self) -> object:
        """Return the message class of the registered descriptor. Raises `BadSchema`."""
        try:
            descriptor = base64.b64decode(self.descriptor or "", validate=True)
        except binascii.Error:
            raise BadSchema("the descriptor is not Base64") from None
        if len(descriptor) > DESCRIPTOR_BYTES_MAX:
            raise BadSchema(f"a descriptor set of more than {DESCRIPTOR_BYTES_MAX} bytes")
        try:
            found: object = message_class(descriptor, self.message or "")
        except BadDescriptor as error:
            raise BadSchema(str(error)) from None
        return found


def check_pattern(pattern: str) -> None:
    """Raise `BadSchema` for a pattern that is not a valid MQTT topic filter."""
    levels = pattern.split("/")
    if not pattern or "#" in levels[:-1] or any(len(level) > 1 and {"+", "#"} & {*level} for level in levels):
        raise BadSchema(
            f"pattern {pattern!r}: + matches one whole level, # matches all further levels and has to be the last one"
        )


def matches(pattern: str, address: str) -> bool:
    """Return whether a pattern matches, like an MQTT topic filter (5.0 section 4.7): `plant/#` matches `plant`, too."""
    wanted, levels = pattern.split("/"), address.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels) or (level not in ("+", levels[index])):
            return False
    return len(wanted) == len(levels)


def specificity(pattern: str) -> tuple[int, ...]:
    """Return a key that rises with specificity: level by level, a name before `+` before `#`."""
    return tuple({"#": 0, "+": 1}.get(level, 2) for level in pattern.split("/"))
