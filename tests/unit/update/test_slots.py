"""Recorded output of RAUC 1.8 about two slots, and its parsed form."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from edge.appliance.update.slots import BundleInfo, Rauc, SlotsError, SystemSlot

STATUS: dict[str, Any] = json.loads(
    """
{"compatible":"waypost-arm64","variant":"","booted":"A","boot_primary":"rootfs.1","slots":[
{"rootfs.1":{"class":"rootfs","device":"/dev/disk/by-partuuid/67617465-03","type":"ext4","bootname":"B",
 "state":"inactive","parent":null,"mountpoint":null,"boot_status":"bad","slot_status":{"bundle":
  {"compatible":"waypost-arm64","version":"0.2.0","description":null,"build":"abc"},
  "checksum":{"sha256":"abc","size":805306368},"status":"ok"}}},
{"rootfs.0":{"class":"rootfs","device":"/dev/disk/by-partuuid/67617465-02","type":"ext4","bootname":"A",
 "state":"booted","parent":null,"mountpoint":null,"boot_status":"good","slot_status":{"bundle":{"compatible":null}}}}]}
"""
)


def rauc(said: object, code: int = 0) -> Rauc:
    text = said if isinstance(said, str) else json.dumps(said)
    program = (
        f"import sys; sys.stdout.write({text!r}); sys.stderr.write('no such bus' if {code} else ''); sys.exit({code})"
    )
    return Rauc((sys.executable, "-S", "-c", program))


def test_both_slots_are_read() -> None:
    found = rauc(STATUS).slots()
    assert found.booted == SystemSlot("rootfs.0", "A", True, "", "")
    assert found.other == SystemSlot("rootfs.1", "B", False, "0.2.0", "abc")
    assert found.first == "rootfs.1"
    assert found.booted.has_system
    assert not found.other._replace(version="").has_system


def test_bundle_is_read() -> None:
    assert rauc({"compatible": "waypost-arm64", "version": "0.2.0", "build": "abc"}).inspect("x") == BundleInfo(
        "0.2.0", "abc"
    )


def test_error_of_rauc_is_reported() -> None:
    with pytest.raises(SlotsError, match="no such bus"):
        rauc("", code=1).mark_good()
    with pytest.raises(SlotsError, match="not print JSON"):
        rauc("Compatible: x").slots()
    with pytest.raises(SlotsError, match="gateway from a card"):
        rauc({**STATUS, "booted": None}).slots()
    with pytest.raises(SlotsError, match="cannot be run"):
        Rauc(("/nonexistent/rauc",)).slots()
