"""A registry of Hono as its files, its MongoDB and its management API have it."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Final

PASSWORD: Final = "hono-secret"
SALT: Final = b"\x32\xae\xf0\x17"
BCRYPT: Final = "$2a$10$N7UMjhZ2hYx.yuvW9WVXZ.4y33mr6MvnpAsZ8wgLHnkamH2tZ1jD."
KEY: Final = base64.b64encode(b"hono-psk-secret").decode()
SECRETS: Final = (PASSWORD, BCRYPT, KEY)
"""Texts that no report may have."""


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def hashed(password: str = PASSWORD, *, function: str = "sha512", salt: bytes = SALT) -> dict[str, Any]:
    """Return a secret as Hono's registry stores it."""
    digest = hashlib.new(function, salt + password.encode()).digest()
    return {
        "id": "2edbb8d9-3418-4e1f-a026-58428991a583",
        "not-before": "2017-05-01T14:00:00+0100",
        "not-after": "2037-06-01T14:00:00+01:00",
        "hash-function": f"sha-{function[3:]}",
        "salt": base64_of(salt),
        "pwd-hash": base64_of(digest),
    }


def password_of(device: str, *secrets: dict[str, Any], auth_id: str = "") -> dict[str, Any]:
    return {
        "device-id": device,
        "type": "hashed-password",
        "auth-id": auth_id or device,
        "enabled": True,
        "secrets": list(secrets or (hashed(),)),
    }


TENANTS: Final[list[dict[str, Any]]] = [
    {
        "tenant-id": "DEFAULT_TENANT",
        "enabled": "true",
        "adapters": [{"type": "hono-mqtt", "enabled": True, "device-authentication-required": True}],
        "resource-limits": {"max-connections": 100},
        "custom": {"billing": 1},
    },
    {"tenant-id": "OFF_TENANT", "enabled": False},
]
DEVICES: Final[list[dict[str, Any]]] = [
    {
        "tenant": "DEFAULT_TENANT",
        "devices": [
            {
                "device-id": "4711",
                "created": "2020-09-16T12:34:44.000000Z",
                "updated": None,
                "data": {
                    "enabled": True,
                    "comment": "messages without a content type get the default one",
                    "defaults": {"content-type": "application/vnd.bumlux", "importance": "high"},
                    "ext": {"brand": "ACME"},
                },
            },
            {"device-id": "4712", "data": {"enabled": False, "via": ["gw-1"]}},
            {"device-id": "4713", "data": {"viaGroups": "group-1"}},
            {"device-id": "gw-1", "data": {"enabled": True, "memberOf": ["group-1"]}},
            {"device-id": "has space", "data": {"enabled": True}},
        ],
    },
    {"tenant": "NO_TENANT", "devices": [{"device-id": "lost", "data": {}}]},
]
CREDENTIALS: Final[list[dict[str, Any]]] = [
    {
        "tenant": "DEFAULT_TENANT",
        "credentials": [
            password_of("4711", hashed(), {"hash-function": "bcrypt", "pwd-hash": BCRYPT}, auth_id="sensor1"),
            {"device-id": "4711", "type": "psk", "auth-id": "little-sensor", "secrets": [{"key": KEY}]},
            {
                "device-id": "4711",
                "type": "x509-cert",
                "auth-id": "CN=Device 4711,OU=Hono,O=Eclipse IoT",
                "enabled": True,
                "secrets": [{}],
            },
            password_of("gw-1", {"hash-function": "bcrypt", "pwd-hash": BCRYPT}),
            password_of("unknown-device"),
        ],
    }
]


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(content, indent=2))
    return path


def write_registry(folder: Path) -> list[Path]:
    """Write the three files of Hono's registry."""
    return [
        write(folder, "tenants.json", TENANTS),
        write(folder, "device-identities.json", DEVICES),
        write(folder, "credentials.json", CREDENTIALS),
    ]
