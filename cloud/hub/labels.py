"""Labels of gateways (``site=berlin``), and selectors that choose gateways by them (``site=berlin,ring!=canary``).

Pure. The syntax is that of Kubernetes labels, without sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cloud.hub.limits import LABELS_MAX, SELECTOR_CHARACTERS_MAX

Labels: TypeAlias = Mapping[str, str]
Changes: TypeAlias = Mapping[str, str | None]
"""New values of labels; None removes the label."""

_KEY: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_REQUIREMENT: Final = re.compile(r"(?P<without>!?)(?P<key>[^=!]+)(?:(?P<verb>!?=)(?P<value>.+))?")
_ALLOWED: Final = "letters, digits, - . _, 63 at most, beginning and ending with a letter or digit"


class LabelError(ValueError):
    """Invalid label or selector, or too many labels; the message says why."""


class Requirement(NamedTuple):
    """One condition of a selector."""

    key: str
    value: str | None
    """None: any value."""
    wanted: bool
    """False: the gateway must not match."""

    def matches(self, labels: Labels) -> bool:
        has = self.key in labels if self.value is None else labels.get(self.key) == self.value
        return has is self.wanted

    def __str__(self) -> str:
        if self.value is None:
            return self.key if self.wanted else f"!{self.key}"
        return f"{self.key}{'=' if self.wanted else '!='}{self.value}"


class LabelSelector(NamedTuple):
    """Conjunction of requirements on labels. Its text does not depend on the order in which they were written."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Labels) -> bool:
        return all(each.matches(labels) for each in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(each) for each in self.requirements)


def parse_selector(text: str) -> LabelSelector:
    """Parse a selector: comma-separated ``key=value``, ``key!=value`` (also true without the label), ``key`` (label
    exists), ``!key`` (label missing). Raises `LabelError`."""
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise LabelError(f"the selector is longer than {SELECTOR_CHARACTERS_MAX} characters")
    return LabelSelector(tuple(sorted({_requirement(word.strip()) for word in text.split(",")}, key=str)))


def parse_changes(words: Iterable[str]) -> dict[str, str | None]:
    """Parse changes: ``key=value`` sets a label, ``key-`` removes it. Raises `LabelError`."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not key.endswith("-"):
            raise LabelError(f'"{word}" is not a label; expected key=value, or key- to remove it')
        found[key if equals else key[:-1]] = value if equals else None
    validate_labels(found)
    return found


def validate_labels(found: Changes) -> None:
    """Check names and values of labels. Raises `LabelError`."""
    for key, value in found.items():
        if _KEY.fullmatch(key) is None:
            raise LabelError(f'"{key[:80]}" is not a label name; allowed: {_ALLOWED}; / inside')
        if value is not None and _VALUE.fullmatch(value) is None:
            raise LabelError(f'"{value[:80]}" is not a label value; allowed: {_ALLOWED}')


def apply_changes(before: Labels, found: Changes) -> dict[str, str]:
    """Return the labels after changes. Raises `LabelError` for too many."""
    after = {key: value for key, value in {**before, **found}.items() if value is not None}
    if len(after) > LABELS_MAX:
        raise LabelError(f"more than {LABELS_MAX} labels")
    return after


def format_labels(labels: Labels) -> str:
    """Format labels: ``ring=canary,site=berlin``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _requirement(word: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(word)
    if found is None or (found["without"] and found["verb"]):
        raise LabelError(f'"{word}" is not a selector; expected key=value, key!=value, key or !key')
    validate_labels({found["key"]: found["value"]})
    return Requirement(found["key"], found["value"], wanted=not found["without"] and found["verb"] != "!=")
