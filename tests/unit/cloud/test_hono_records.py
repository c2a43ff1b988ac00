"""Files of Hono's registries are told apart by their shape, and what is none of them is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud.fleet.hono.limits import FILE_BYTES_MAX
from cloud.fleet.hono.records import (
    HonoCredentialsRecord,
    HonoDeviceRecord,
    HonoFileError,
    HonoRecord,
    HonoTenantRecord,
    PageMeaning,
    UnknownHonoRecord,
    read_content,
    read_records,
)
from cloud.fleet.hono.source import read_registry
from tests.support.hono_registry import CREDENTIALS, DEVICES, TENANTS, write, write_registry

OF_DEVICES = PageMeaning(tenants=False, tenant="DEFAULT_TENANT")
OF_TENANTS = PageMeaning(tenants=True)
NONE = PageMeaning(tenants=False)
DEVICE = {"tenant-id": "T", "device-id": "4711", "device": {"enabled": True}, "version": "1"}
KEYS = {"tenant-id": "T", "device-id": "4711", "credentials": [{"type": "psk", "auth-id": "a", "secrets": [{}]}]}
TENANT = {"_id": {"$oid": "64"}, "tenant-id": "T", "tenant": {"enabled": True}, "version": "1"}


def records(content: object, meaning: PageMeaning = NONE) -> list[HonoRecord]:
    return list(read_records(json.dumps(content).encode(), "file", meaning))


def kinds(found: list[HonoRecord]) -> list[type]:
    return [type(each) for each in found]


def document(each: HonoRecord) -> Any:
    assert isinstance(each, HonoTenantRecord | HonoDeviceRecord)
    return msgspec.json.decode(each.document)


class TestShapes:
    """One record of each source."""

    def test_files_of_the_registry(self) -> None:
        devices = records(DEVICES)
        assert kinds(devices) == [HonoDeviceRecord] * 6
        assert devices[1][:2] == ("DEFAULT_TENANT", "4712")
        assert document(devices[1]) == {"enabled": False, "via": ["gw-1"]}
        assert kinds(records(CREDENTIALS)) == [HonoCredentialsRecord] * 5
        (first, _) = records(TENANTS)
        assert first[0] == "DEFAULT_TENANT"
        assert document(first)["enabled"] == "true"

    @pytest.mark.parametrize("joint", ["\n", "\n\n", "\r\n"])
    def test_an_export_of_mongodb_has_an_object_a_line_or_a_list(self, joint: str) -> None:
        rows = [DEVICE, KEYS, TENANT]
        lines = joint.join(json.dumps(each) for each in rows).encode()
        wanted = [HonoDeviceRecord, HonoCredentialsRecord, HonoTenantRecord]
        assert kinds(list(read_records(lines, "file", NONE))) == wanted
        assert kinds(records(rows)) == wanted
        assert document(records(TENANT)[0]) == {"enabled": True}

    def test_pages_of_the_management_api(self) -> None:
        page = {"total": 1, "result": [{"id": "4711", "enabled": True, "status": {"created": "2020"}}]}
        (device,) = records(page, OF_DEVICES)
        assert device[:2] == ("DEFAULT_TENANT", "4711")
        (tenant,) = records([page], OF_TENANTS)
        assert isinstance(tenant, HonoTenantRecord)
        with pytest.raises(HonoFileError, match="does not name"):
            records(page)

    def test_one_object_with_all(self) -> None:
        page = {"total": 1, "result": [{"id": "OTHER"}]}
        both = {"tenants": page, "device-identities": DEVICES, "credentials": [KEYS]}
        found = records(both)
        assert kinds(found) == [HonoTenantRecord, *[HonoDeviceRecord] * 6, HonoCredentialsRecord]
        assert kinds(records({"tenants": TENANTS, "devices": [DEVICE]})) == [HonoTenantRecord] * 2 + [HonoDeviceRecord]

    @pytest.mark.parametrize(
        "content",
        [
            3,
            "text",
            [None],
            [[]],
            {},
            {"kind": "AddressSpace"},
            {"tenant": "T", "data": {}},
            {"tenant": "T", "devices": [{"data": {}}]},
            {"tenant": "T", "devices": ["4711"]},
            {"tenant": "T", "credentials": [{"type": "psk"}]},
            {"tenant-id": "T", "device-id": "4711"},
            {"tenant-id": "T", "device-id": "4711", "credentials": 3},
            {"tenant-id": "T", "device-id": 3, "device": {}},
            {"tenant": "T", "devices": {"4711": {}}},
            {"tenant": "T", "credentials": {"4711": []}},
            {"devices": 3},
            {"credentials": "x"},
            [{"type": "psk", "auth-id": "a", "secrets": [{}]}],
        ],
    )
    def test_anything_else_is_reported(self, content: object) -> None:
        assert kinds(records(content)) == [UnknownHonoRecord]

    def test_a_page_without_a_list_is_reported(self) -> None:
        assert kinds(records({"total": 1, "result": {"4711": {}}}, OF_DEVICES)) == [UnknownHonoRecord]

    def test_a_device_with_its_credentials_is_both(self) -> None:
        assert kinds(records({**DEVICE, **KEYS})) == [HonoDeviceRecord, HonoCredentialsRecord]

    def test_a_row_without_an_id_is_reported(self) -> None:
        assert kinds(records({"result": [{"enabled": True}, 3]}, OF_DEVICES)) == [UnknownHonoRecord] * 2


class TestFiles:
    """Damaged and too large files."""

    @pytest.mark.parametrize("content", [b"", b"[", b'[{"tenant": "T", "devices": [', b"{}x", b"\xff\xfe", b'{"a":1'])
    def test_a_damaged_file_is_an_error_without_its_content(self, content: bytes) -> None:
        with pytest.raises(HonoFileError, match="is not JSON"):
            list(read_records(content, "credentials.json", NONE))

    def test_every_cut_of_a_file_is_an_error(self) -> None:
        whole = json.dumps(CREDENTIALS).encode()
        for end in range(1, len(whole)):
            with pytest.raises(HonoFileError):
                list(read_records(whole[:end], "credentials.json", NONE))

    def test_the_size_is_limited(self, tmp_path: Path) -> None:
        path = tmp_path / "big.json"
        with path.open("wb") as file:
            file.truncate(FILE_BYTES_MAX + 1)
        with pytest.raises(HonoFileError, match="larger"):
            read_content(path)
        with pytest.raises(HonoFileError, match="cannot be read"):
            read_content(tmp_path)

    def test_a_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "tenants.json"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(TENANTS).encode())
        assert list(read_registry([path], "").tenants) == ["DEFAULT_TENANT", "OFF_TENANT"]


class TestRegistry:
    """All files together."""

    def test_credentials_find_their_device(self, tmp_path: Path) -> None:
        found = read_registry(write_registry(tmp_path), "")
        assert found.device_count == 6
        assert {name: len(each) for name, each in found.credentials["DEFAULT_TENANT"].items()} == {
            "4711": 3, "gw-1": 1, "unknown-device": 1,
        }  # fmt: skip
        assert "secrets" not in repr(found)

    def test_the_last_of_two_is_taken(self, tmp_path: Path) -> None:
        other = {**DEVICE, "device": {"enabled": False}}
        files = [write(tmp_path, "1.json", [DEVICE, TENANT]), write(tmp_path, "2.json", [other, DEVICE, other, TENANT])]
        found = read_registry(files, "")
        assert msgspec.json.decode(found.devices["T"]["4711"]) == {"enabled": False}
        assert set(found.twice) == {("T", "4711")}

    def test_a_name_tells_pages_of_tenants(self, tmp_path: Path) -> None:
        page = {"total": 1, "result": [{"id": "ACME"}]}
        assert list(read_registry([write(tmp_path, "tenants-1.json", page)], "").tenants) == ["ACME"]
        assert list(read_registry([write(tmp_path, "tenants.json", page)], "").tenants) == ["ACME"]
        assert list(read_registry([write(tmp_path, "devices.json", page)], "T").devices["T"]) == ["ACME"]

    @pytest.mark.parametrize("name", ["tenants-ACME-devices.json", "tenants1.json", "Tenants-1.json", "tenants-1.txt"])
    def test_an_unclear_name_is_an_error_for_pages_only(self, tmp_path: Path, name: str) -> None:
        page = {"total": 1, "result": [{"id": "4711"}]}
        with pytest.raises(HonoFileError, match="pages of tenants"):
            read_registry([write(tmp_path, name, page)], "ACME")
        assert list(read_registry([write(tmp_path, name, TENANTS)], "").tenants) == ["DEFAULT_TENANT", "OFF_TENANT"]

    def test_credentials_of_mongodb_are_known(self, tmp_path: Path) -> None:
        found = read_registry([write(tmp_path, "1.json", [KEYS]), write(tmp_path, "2.json", CREDENTIALS)], "")
        assert found.exported == {("T", "4711")}
