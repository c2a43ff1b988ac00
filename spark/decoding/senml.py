"""SenML (RFC 8428) in JSON and CBOR: packs of records with base fields, resolved (section 4.6).

The metric of a record is its resolved name, base name and name together, as in the standard. A sum is a value of its
own, `<name>.sum`. Times below 2^28 are relative to the gateway's reception.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from spark.decoding import reasons
from spark.decoding.document import check_name, scalar
from spark.decoding.limits import METRIC_CHARACTERS_MAX, VALUES_MAX
from spark.decoding.value import UnreadableBody, Value

_NUMBERS: Final = {
    -1: "bver", -2: "bn", -3: "bt", -4: "bu", -5: "bv", -6: "bs",
    0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb", 5: "s", 6: "t", 7: "ut", 8: "vd",
}  # fmt: skip
"""Labels of SenML in CBOR (section 6)."""
_LABELS: Final = frozenset(_NUMBERS.values())
_VALUES: Final = ("v", "vs", "vb", "vd")
_TYPES: Final = {"vs": str, "vb": bool}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]*", re.ASCII)
_VERSIONS: Final = (*range(1, 11), 26)
"""Up to 10: RFC 8428. 26: with secondary units (RFC 9100), which change only the unit's text."""
_RELATIVE_BELOW: Final = 2**28
"""Seconds (section 4.5.3)."""
_INTEGER_MAX: Final = 10**300
"""Largest integer that can be added to a double."""
_TIME_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""


def looks_like(document: object) -> bool:
    """Return whether a JSON document has only fields of SenML: devices on MQTT 3 cannot declare the format."""
    if not isinstance(document, list) or not document:
        return False
    return all(type(record) is dict and record.keys() <= _LABELS for record in document) and any(
        ("n" in record or "bn" in record) and not record.keys().isdisjoint((*_VALUES, "s")) for record in document
    )


def values(document: object, received_us: int) -> list[Value]:
    """Return the values of a pack. Raises `UnreadableBody`, also if only one record is invalid."""
    if not isinstance(document, list):
        raise UnreadableBody(reasons.NOT_SENML)
    pack = _Pack(received_us)
    for record in document:
        if not isinstance(record, dict):
            raise UnreadableBody(reasons.NOT_SENML)
        pack.add({_NUMBERS.get(label, label) if type(label) is int else label: raw for label, raw in record.items()})
    if not pack.values:
        raise UnreadableBody(reasons.NO_VALUES)
    return pack.values


class _Pack:
    """Base fields in force, and the values so far."""

    def __init__(self, received_us: int) -> None:
        self.values: list[Value] = []
        self._received_us = received_us
        self._name = ""
        self._unit: str | None = None
        self._base: dict[str, float] = {"bt": 0, "bv": 0, "bs": 0}

    def add(self, record: Mapping[Any, Any]) -> None:
        if any(isinstance(label, str) and label.endswith("_") for label in record):
            raise UnreadableBody(reasons.SENML_MUST_UNDERSTAND)
        self._take_base(record)
        given = [label for label in _VALUES if label in record]
        if len(given) > 1:
            raise UnreadableBody(reasons.NOT_SENML)
        if not given and "s" not in record:
            if "n" in record:
                raise UnreadableBody(reasons.NOT_SENML)
            return  # base fields for what follows
        name = self._name + _text(record, "n", "")
        if len(name) > METRIC_CHARACTERS_MAX:
            raise UnreadableBody(reasons.TOO_LONG)
        if _NAME.fullmatch(name) is None:
            raise UnreadableBody(reasons.SENML_NAME)
        time_us = self._time_us(record)
        unit = _text(record, "u", self._unit)
        if unit is not None:
            check_name(unit)
        for label in given:
            self._append(self._value(name, label, record, time_us, unit))
        if "s" in record:
            total = self._base["bs"] + _number(record, "s")
            self._append(scalar(f"{name}.sum", total, time_us, unit))

    def _append(self, value: Value) -> None:
        if len(self.values) == VALUES_MAX:
            raise UnreadableBody(reasons.TOO_MANY)
        self.values.append(value)

    def _take_base(self, record: Mapping[Any, Any]) -> None:
        if record.get("bver", 10) not in _VERSIONS:
            raise UnreadableBody(reasons.SENML_VERSION)
        self._name = _text(record, "bn", self._name)
        self._unit = _text(record, "bu", self._unit)
        for label in self._base:
            if label in record:
                self._base[label] = _number(record, label)

    def _value(self, name: str, label: str, record: Mapping[Any, Any], time_us: int, unit: str | None) -> Value:
        if label == "vd":
            return Value(name, reason=reasons.NOT_A_SCALAR)
        if label == "v":
            return scalar(name, self._base["bv"] + _number(record, "v"), time_us, unit)
        raw = record[label]
        if not isinstance(raw, _TYPES[label]):
            raise UnreadableBody(reasons.NOT_SENML)
        return scalar(name, raw, time_us, unit)

    def _time_us(self, record: Mapping[Any, Any]) -> int:
        seconds = self._base["bt"] + (_number(record, "t") if "t" in record else 0)
        if not -_TIME_S_MAX <= seconds <= _TIME_S_MAX:
            raise UnreadableBody(reasons.NOT_SENML)
        own_us = round(seconds * 1_000_000)
        return own_us if seconds >= _RELATIVE_BELOW else self._received_us + own_us


def _text(record: Mapping[Any, Any], label: str, otherwise: Any) -> Any:
    raw = record.get(label, otherwise)
    if raw is not otherwise and not isinstance(raw, str):
        raise UnreadableBody(reasons.NOT_SENML)
    return raw


def _number(record: Mapping[Any, Any], label: str) -> float:
    raw = record[label]
    if isinstance(raw, bool) or not isinstance(raw, int | float) or abs(raw) > _INTEGER_MAX:
        raise UnreadableBody(reasons.NOT_SENML)
    return raw
