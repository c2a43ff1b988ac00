"""Labels of gateways (``site=berlin``), and selectors that choose gateways by them (``site=berlin,ring!=canary``).

Values in and out. The words are those of Kubernetes' labels, of which this is the part without sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cloud.hub.limits import LABELS_MAX, SELECTOR_CHARACTERS_MAX

Labels: TypeAlias = Mapping[str, str]
Changes: TypeAlias = Mapping[str, str | None]
"""What labels become; None: the gateway has it no more."""

_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_REQUIREMENT: Final = re.compile(r"(?P<without>!?)(?P<key>[^=!]+)(?:(?P<verb>!?=)(?P<value>.+))?")
_ALLOWED: Final = "letters, digits, - . _, 63 at most, beginning and ending with a letter or digit"


class LabelError(ValueError):
    """It is no label or selector, or one too many; the message says why."""


class Requirement(NamedTuple):
    """One condition of a selector."""

    key: str
    value: str | None
    """None: any."""
    wanted: bool
    """False: the gateway must not have it."""

    def matches(self, labels: Labels) -> bool:
        has = self.key in labels if self.value is None else labels.get(self.key) == self.value
        return has is self.wanted

    def __str__(self) -> str:
        if self.value is None:
            return self.key if self.wanted else f"!{self.key}"
        return f"{self.key}{'=' if self.wanted else '!='}{self.value}"


class Selector(NamedTuple):
    """Chooses gateways: those for which every requirement holds. Its text is the same for each order of these."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Labels) -> bool:
        return all(each.matches(labels) for each in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(each) for each in self.requirements)


def selector(text: str) -> Selector:
    """``key=value``, ``key!=value`` (also where it has none), ``key`` (has any), ``!key`` (has none), with commas
    between them. Raises `LabelError`."""
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise LabelError(f"a selector has {SELECTOR_CHARACTERS_MAX} characters at most")
    return Selector(tuple(sorted({_requirement(word.strip()) for word in text.split(",")}, key=str)))


def changes(words: Iterable[str]) -> dict[str, str | None]:
    """``key=value`` sets a label, ``key-`` takes it away. Raises `LabelError`."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not key.endswith("-"):
            raise LabelError(f'"{word}" is no label; expected key=value, or key- to take it away')
        found[key if equals else key[:-1]] = value if equals else None
    require_sound(found)
    return found


def require_sound(found: Changes) -> None:
    """Raises `LabelError`."""
    for key, value in found.items():
        if _KEY.fullmatch(key) is None:
            raise LabelError(f'"{key[:80]}" is no name of a label: {_ALLOWED}; / within it')
        if value is not None and _VALUE.fullmatch(value) is None:
            raise LabelError(f'"{value[:80]}" is no value of a label: {_ALLOWED}')


def changed(before: Labels, found: Changes) -> dict[str, str]:
    """What labels are after changes. Raises `LabelError` where they would be too many."""
    after = {key: value for key, value in {**before, **found}.items() if value is not None}
    if len(after) > LABELS_MAX:
        raise LabelError(f"a gateway has {LABELS_MAX} labels at most")
    return after


def shown(labels: Labels) -> str:
    """``ring=canary,site=berlin``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _requirement(word: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(word)
    if found is None or (found["without"] and found["verb"]):
        raise LabelError(f'"{word}" chooses no gateways; expected key=value, key!=value, key or !key')
    require_sound({found["key"]: found["value"]})
    return Requirement(found["key"], found["value"], wanted=not found["without"] and found["verb"] != "!=")
