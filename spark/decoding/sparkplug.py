"""Sparkplug B (specification 3.0): births and data of edge nodes and their devices.

Topic: `spBv1.0/<group>/<NBIRTH|NDATA|NDEATH|DBIRTH|DDATA|DDEATH>/<node>[/<device>]`. The subject of a message is
`<group>/<node>[/<device>]`. A metric of a birth has its name, and often an alias and a data type, which the following
data leaves out: then the value has its `alias` and no metric. `transforms.births` finds the birth that names it,
because one message has no reference to another.

Births and deaths are also a value: `online`, 1 or 0, as in the specification's STATE messages. The death of a node is
the will that it left at its server when it connected: its time is that of the birth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from spark.decoding import reasons
from spark.decoding.document import check_name, is_unicode, scalar
from spark.decoding.limits import DEPTH_MAX, METRIC_CHARACTERS_MAX, VALUES_MAX
from spark.decoding.sparkplug_payload import Payload
from spark.decoding.timestamps import TIME_US_MAX
from spark.decoding.value import UnreadableBody, Value

NAMESPACE: Final = "spBv1.0"
STATE: Final = f"{NAMESPACE}/STATE/"
"""Topics of host applications, with payloads in JSON."""
BIRTHS: Final = ("NBIRTH", "DBIRTH")
DATA: Final = ("NDATA", "DDATA")
DEATHS: Final = ("NDEATH", "DDEATH")
WILL: Final = "NDEATH"
COMMANDS: Final = ("NCMD", "DCMD")
ONLINE: Final = "online"
_COMPRESSED: Final = "SPBV1.0_COMPRESSED"
_UNIT: Final = "engUnit"
"""Property that holds a metric's unit, by convention; the specification names none."""
SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}
"""Data types Int8 to Int64 and their bits: such values are sent as unsigned two's complement."""
BITS_MAX: Final = 64
"""Bits of an integer that a double cannot always hold exactly: the decoder computes the signed value, too."""
_BOOLEAN, _WORD, _LONG_WORD = 11, 32, 64
_UNKNOWN, _DATATYPE_MAX = 0, (1 << 31) - 1


class Topic(NamedTuple):
    """Kind of a message, and its subject."""

    kind: str
    subject: str


def parse_topic(address: str) -> Topic:
    """Parse a topic. Raises `UnreadableBody`."""
    levels = address.split("/")
    if len(levels) not in (4, 5) or levels[0] != NAMESPACE or not all(levels):
        raise UnreadableBody(reasons.SPARKPLUG_TOPIC)
    group, kind, *names = levels[1:]
    if kind not in BIRTHS + DATA + DEATHS + COMMANDS or (kind[0] == "D") != (len(names) == 2):
        raise UnreadableBody(reasons.SPARKPLUG_TOPIC)
    return Topic(kind, "/".join((group, *names)))


def values(body: bytes, address: str) -> list[Value]:
    """Return the values of a message. Raises `UnreadableBody`."""
    kind, subject = parse_topic(address)
    check_name(subject)
    if kind in COMMANDS:
        raise UnreadableBody(reasons.SPARKPLUG_COMMAND)
    try:
        payload = Payload.FromString(body)
    except DecodeError:
        raise UnreadableBody(reasons.NOT_SPARKPLUG) from None
    if payload.uuid == _COMPRESSED:
        raise UnreadableBody(reasons.SPARKPLUG_COMPRESSED)
    sent_us = _microseconds(payload.timestamp) if payload.HasField("timestamp") and kind != WILL else None
    found: list[Value] = []
    if kind not in DATA:
        state = scalar(ONLINE, kind in BIRTHS, sent_us)
        found.append(state._replace(device=subject))
    for value in _metrics(payload.metrics, "", 0, sent_us):
        if len(found) == VALUES_MAX:
            raise UnreadableBody(reasons.TOO_MANY)
        found.append(value._replace(device=subject, time_us=None if kind == WILL else value.time_us))
    if not found:
        raise UnreadableBody(reasons.NO_VALUES)
    return found


def _metrics(metrics: Any, prefix: str, depth: int, sent_us: int | None) -> Iterator[Value]:
    if depth == DEPTH_MAX:
        raise UnreadableBody(reasons.TOO_DEEP)
    for metric in metrics:
        if not (metric.HasField("name") and metric.name) and not metric.HasField("alias"):
            raise UnreadableBody(reasons.SPARKPLUG_NAMELESS)
        name = prefix + _name(metric)
        check_name(name)
        at_us = _microseconds(metric.timestamp) if metric.HasField("timestamp") else sent_us
        if metric.WhichOneof("value") == "template_value":
            yield from _metrics(metric.template_value.metrics, f"{name}/", depth + 1, at_us)
            continue
        value = _value(metric, name, at_us)
        if metric.HasField("alias"):
            value = value._replace(alias=_bigint(metric.alias))
        yield value._replace(datatype=_datatype(metric.datatype)) if metric.HasField("datatype") else value


def _name(metric: Any) -> str:
    """Return the name of a metric. Texts that are not UTF-8 arrive as bytes."""
    if not isinstance(metric.name, str):
        raise UnreadableBody(reasons.NOT_TEXT)
    return metric.name


def _value(metric: Any, name: str, at_us: int | None) -> Value:
    """Return the value of one metric, as far as it can be read without its birth."""
    which = metric.WhichOneof("value")
    unit = _unit(metric.properties) if metric.HasField("properties") else None
    if metric.is_null or which is None:
        return Value(name, time_us=at_us, unit=unit)
    raw = getattr(metric, which)
    if which not in ("int_value", "long_value"):
        return scalar(name, raw, at_us, unit)
    bits = SIGNED.get(metric.datatype)
    if bits is not None:
        return scalar(name, twos_complement(raw, bits), at_us, unit)
    if metric.datatype == _BOOLEAN:
        return scalar(name, bool(raw), at_us, unit)
    value = scalar(name, raw, at_us, unit)
    if metric.HasField("datatype"):
        return value
    signed = float(twos_complement(raw, _WORD if which == "int_value" else _LONG_WORD))
    return value._replace(text=value.text if signed == value.value else None, signed=signed)


def twos_complement(raw: int, bits: int) -> int:
    """Return an integer sent as unsigned as the signed integer of this many bits."""
    raw &= (1 << bits) - 1
    return raw - (1 << bits) if raw >> (bits - 1) else raw


def _datatype(raw: int) -> int:
    """Return a data type that fits its column: the specification's go up to 34, and columns hold 31 bits."""
    return raw if raw <= _DATATYPE_MAX else _UNKNOWN


def _bigint(alias: int) -> int:
    """Return an alias as a signed integer: columns hold 64 bits with sign, an alias has 64 without."""
    return twos_complement(alias, 64)


def _unit(properties: Any) -> str | None:
    for key, raw in zip(properties.keys, properties.values, strict=False):
        if key == _UNIT and raw.WhichOneof("value") == "string_value":
            unit = raw.string_value
            return unit if isinstance(unit, str) and len(unit) <= METRIC_CHARACTERS_MAX and is_unicode(unit) else None
    return None


def _microseconds(milliseconds: int) -> int | None:
    sent_us = milliseconds * 1_000
    return sent_us if sent_us <= TIME_US_MAX else None
