"""Reports about devices of hostile gateways are refused before they reach the registry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge.device_reports import DeviceReport, LocalDevicesPart

PART: dict[str, Any] = {"type": "list", "base": "", "position": "01", "digest": "", "after": "m", "until": None}


def read(**changed: Any) -> DeviceReport:
    document = {**PART, "names": ["n"], **changed}
    read: DeviceReport = msgspec.json.decode(msgspec.json.encode(document), type=DeviceReport)
    return read


@pytest.mark.parametrize(
    "changed",
    [
        {"names": ["a"]},
        {"names": ["m"]},
        {"names": ["n", "n"]},
        {"names": ["o", "n"]},
        {"names": ["o"], "until": "n"},
        {"names": [], "until": "m"},
        {"names": [], "until": ""},
        {"names": [""], "after": ""},
        {"names": ["n\0"]},
        {"names": ["n\n"]},
        {"names": ["n\x85"]},
        {"after": "a\0"},
        {"until": "n\0"},
        {"position": "01\n"},
    ],
)
def test_a_part_that_does_not_fit_its_range_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**changed)


def test_a_tenant_with_a_control_character_is_refused() -> None:
    document = {"type": "provisioned", "devices_of": "a\0", "certificate": ""}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(document), type=DeviceReport)


def test_parts_of_a_list_are_read() -> None:
    assert isinstance(read(names=["n", "o"], until="o"), LocalDevicesPart)
    assert isinstance(read(names=[], until=None, after=""), LocalDevicesPart)
