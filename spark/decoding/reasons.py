"""Reasons for rejects: the words in column `reason` of table `reject`.

Queries and `replay --reason` compare them, so they stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark.decoding.limits import BODY_BYTES_MAX, DEPTH_MAX, METRIC_CHARACTERS_MAX, VALUES_MAX

NOT_TEXT = "not UTF-8 text"
NOT_A_VALUE = "neither JSON nor a number"
NOT_A_NUMBER = "not a number"
NO_VALUES = "no values"
NOT_FINITE = "not a finite number"
NOT_UNICODE = "text with half a character"
NOT_A_SCALAR = "bytes or a value of a kind that no column has"
TOO_LARGE = f"a body of more than {BODY_BYTES_MAX} bytes"
TOO_LONG = f"a name of more than {METRIC_CHARACTERS_MAX} characters"
TOO_DEEP = f"nested deeper than {DEPTH_MAX} levels"
TOO_MANY = f"more than {VALUES_MAX} values"
NO_DECODER = "no decoder for its content type"
NOT_JSON = "not JSON"
NOT_GZIP = "not gzip, though it begins so"
NOT_CBOR = "not CBOR"
NOT_SENML = "not SenML"
SENML_VERSION = "a SenML version that is not known"
SENML_NAME = "a SenML name that is empty or has characters a name may not have"
SENML_MUST_UNDERSTAND = "a SenML field that must be understood and is not"
NOT_PROTOBUF = "not the registered Protobuf message"
NO_SCHEMA = "Protobuf without a registered schema"
NOT_SPARKPLUG = "not a Sparkplug B payload"
SPARKPLUG_TOPIC = "not a Sparkplug topic"
SPARKPLUG_COMMAND = "a Sparkplug command, no reading"
SPARKPLUG_COMPRESSED = "a compressed Sparkplug payload"
SPARKPLUG_NAMELESS = "a Sparkplug metric with neither name nor alias"
CLOCK = "its gateway's clock was wrong, and how far is not told yet"
NO_BIRTH = "a Sparkplug alias whose birth has not landed"

_REGISTER: Final = "send a number or JSON, or say how to read it: waypost lake schema add --help"
_SMALLER: Final = "send it in several messages, or with fewer levels and shorter names"
_WAIT: Final = "nothing: it is read when the missing report has landed"

NEXT_STEPS: Final[Mapping[str, str]] = {
    **dict.fromkeys((NOT_A_VALUE, NO_DECODER, NO_SCHEMA, NOT_JSON, NOT_CBOR, NOT_TEXT, NOT_PROTOBUF), _REGISTER),
    **dict.fromkeys((TOO_LARGE, TOO_LONG, TOO_DEEP, TOO_MANY), _SMALLER),
    CLOCK: _WAIT,
    NO_BIRTH: "nothing, or ask the node for a rebirth: it is read when the birth has landed",
    NOT_FINITE: "see why the device has no value; the other values of the message were read",
}
"""Next step for a person, by reason; other reasons contain the remedy at the device."""
