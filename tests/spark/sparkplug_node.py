"""Sparkplug B messages of a node with their known values: births, data by alias, deaths.

Payloads are built from the specification's field numbers (6.4.1). The node remembers its birth, which gives data its
names.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tests.spark.bodies import EPOCH, Body, Known
from tests.spark.decoding.test_sparkplug import field

INT16, UINT64, DOUBLE, BOOLEAN, TEXT = 2, 8, 10, 11, 12
"""Data types (specification 3.0, section 6.4.16)."""
NO_BIRTH: Final = "a Sparkplug alias whose birth has not landed"
_NAMES: Final = ("temperature", "offset", "count", "running", "state")
_TYPES: Final[Mapping[str, int]] = dict(zip(_NAMES, (DOUBLE, INT16, UINT64, BOOLEAN, TEXT), strict=True))
_UNITS: Final[Mapping[str, str]] = {"temperature": "Cel", "offset": "mm"}


class Said(NamedTuple):
    """A value on the wire and after decoding."""

    wire: tuple[int, bytes | str | float]
    value: float | None
    text: str | None


def _said(randoms: random.Random, name: str) -> Said:
    number = randoms.randrange(1, 1_000)
    match _TYPES[name]:
        case datatype if datatype == DOUBLE:
            return Said((13, number / 8), number / 8, None)
        case datatype if datatype == INT16:  # two's complement
            return Said((10, 2**32 - number), -float(number), None)
        case datatype if datatype == UINT64:
            return Said((11, number), float(number), None)
        case datatype if datatype == BOOLEAN:
            return Said((14, number % 2), float(number % 2), "true" if number % 2 else "false")
    return Said((15, f"Stufe {number}"), None, f"Stufe {number}")


class Node:
    """Node, or device of one, named `subject`; `is_born`: its births land, so its data can be read."""

    def __init__(self, subject: str, *, is_born: bool = True) -> None:
        self._subject = subject
        self._is_born = is_born
        self._aliases: Sequence[str] = _NAMES

    def birth(self, randoms: random.Random, at: datetime) -> Body:
        """Give each metric a new alias."""
        self._aliases = randoms.sample(_NAMES, len(_NAMES))
        measured_at = _milliseconds(at)
        known = [Known("online", 1.0, "true", measured_at=measured_at, device=self._subject)]
        metrics = []
        for alias, name in enumerate(self._aliases):
            said, unit, datatype = _said(randoms, name), _UNITS.get(name), _TYPES[name]
            metric = field(1, name) + field(2, alias) + field(4, datatype)
            if unit is not None:
                value = field(1, TEXT) + field(8, unit)
                metric += field(9, field(1, "engUnit") + field(2, value))
            metrics.append(field(2, metric + field(*said.wire)))
            known.append(Known(name, said.value, said.text, None, measured_at, unit, self._subject, alias, datatype))
        return Body(_payload(at, metrics), None, known)

    def data(self, randoms: random.Random, at: datetime) -> Body:
        """Some metrics by alias, each with its own time."""
        measured_at, metrics, known = _milliseconds(at), [], []
        for alias in sorted(randoms.sample(range(len(_NAMES)), 3)):
            name = self._aliases[alias]
            said = _said(randoms, name)
            metrics.append(field(2, field(2, alias) + field(3, _since_1970(measured_at)) + field(*said.wire)))
            known.append(Known(name, said.value, said.text, None, measured_at, _UNITS.get(name), self._subject))
        if not self._is_born:
            known = [Known("", reason=NO_BIRTH, measured_at=measured_at, device=self._subject)]
        return Body(_payload(at + timedelta(seconds=1), metrics), None, known)

    def will(self, at: datetime) -> Body:
        """Return a death; its time is that of the birth and is ignored."""
        return Body(_payload(at, []), None, [Known("online", 0.0, "false", device=self._subject)])


def _payload(at: datetime, metrics: Sequence[bytes]) -> bytes:
    return field(1, _since_1970(at)) + b"".join(metrics) + field(3, 0)


def _since_1970(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def _milliseconds(at: datetime) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=_since_1970(at))
