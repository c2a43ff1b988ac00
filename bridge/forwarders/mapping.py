"""Mapping of addresses between gateway and peer: a plain name, a pattern or a template.

A *name* is the target of all messages. A *pattern* has the wildcards of the filter, in the same order, and each is
replaced by what the filter's wildcard matched. With ``plant/+/temp`` to ``cloud/+/t`` the name ``plant/7/temp`` becomes
``cloud/7/t``; ``plant/#`` to ``site/9/plant/#`` adds a prefix, ``plant/#`` to ``#`` removes it. A *template* has
``{address}``, ``{device}`` and ``{gateway}``: ``telemetry/{device}/{address}``.

Filters are those of MQTT 5 section 4.7.1. Pure functions of strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

FIELDS: Final = ("address", "device", "gateway")
_FIELDS: Final = ", ".join(f"{{{field}}}" for field in FIELDS)
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_WILDCARDS: Final = ("+", "#")


class MappingError(ValueError):
    """The mapping does not fit the filter; the message says why."""


def wildcards(pattern: str) -> list[str]:
    """Return the wildcards of a filter, in order."""
    return [level for level in pattern.split("/") if level in _WILDCARDS]


def is_template(text: str) -> bool:
    """Return True when the text has fields for values of the message."""
    return "{" in text or "}" in text


def fits(mapped: str, pattern: str) -> None:
    """Check that `mapped` is a name, or a pattern or template that fits `pattern`. Raises `MappingError`."""
    if is_template(mapped):
        _check_template(mapped)
    elif wildcards(mapped) and wildcards(mapped) != wildcards(pattern):
        raise MappingError(
            f'"{mapped}" is a pattern: it needs the wildcards of "{pattern}" in the same order; or use a name, or a '
            f"template of {_FIELDS}, which fit every filter"
        )


def _check_template(text: str) -> None:
    unknown = [field for field in _FIELD.findall(text) if field not in FIELDS]
    if unknown:
        raise MappingError(f"there is no field {{{unknown[0]}}}; the fields are {_FIELDS}")
    rest = _FIELD.sub("", text)
    if "{" in rest or "}" in rest:
        raise MappingError(f'"{text}": a brace is not closed')
    if wildcards(text):
        raise MappingError(f'"{text}" has wildcards and fields; use one or the other')


def as_pattern(mapped: str) -> str:
    """Return a filter that matches every name the mapping can produce, to find overlaps."""
    if not is_template(mapped):
        return mapped
    levels: list[str] = []
    for level in mapped.split("/"):
        if "{address}" in level:
            return "/".join([*levels, "#"])  # an address has levels of its own
        levels.append("+" if "{" in level else level)
    return "/".join(levels)


class Mapping:
    """Maps the names that a filter matches to names of the peer, or the other way round."""

    def __init__(self, pattern: str, mapped: str, gateway: str = "") -> None:
        """Raises `MappingError` when `mapped` does not fit `pattern`."""
        fits(mapped, pattern)
        self.pattern = pattern
        self.mapped = mapped
        self._gateway = gateway
        self._of: Callable[[str, str], str | None]
        if mapped == pattern and wildcards(pattern):
            self._of = _same
        elif is_template(mapped):
            self._of = self._filled
        elif wildcards(mapped):
            self._of = self._carried
        else:
            self._of = self._one

    def __call__(self, address: str, device: str) -> str | None:
        """Return the mapped name for a message of `device` to `address`; None when it needs wildcards and the filter,
        which has been changed, does not match the address."""
        return self._of(address, device)

    def _one(self, _address: str, _device: str) -> str:
        return self.mapped

    def _carried(self, address: str, _device: str) -> str | None:
        return map_address(self.pattern, self.mapped, address) if _matches(self.pattern, address) else None

    def _filled(self, address: str, device: str) -> str:
        fields = {"address": address, "device": device.replace("/", "_"), "gateway": self._gateway}
        return _FIELD.sub(lambda found: fields[found[1]], self.mapped)


def _matches(pattern: str, name: str) -> bool:
    levels, named = pattern.split("/"), name.split("/")
    if levels[-1] == "#":
        levels, named = levels[:-1], named[: len(levels) - 1]
    alike = zip(levels, named, strict=False)
    return len(levels) == len(named) and all(level in ("+", one) for level, one in alike)


def _same(address: str, _device: str) -> str:
    return address


def map_address(pattern: str, mapped: str, name: str) -> str:
    """Return `mapped` with its wildcards replaced by what those of `pattern` match in `name`."""
    levels = name.split("/")
    matched: list[list[str]] = []
    for i, level in enumerate(pattern.split("/")):
        if level == "#":
            matched.append(levels[i:])
        elif level == "+":
            matched.append(levels[i : i + 1])
    result: list[str] = []
    following = iter(matched)
    for level in mapped.split("/"):
        result += next(following, []) if level in _WILDCARDS else [level]
    return "/".join(result)
