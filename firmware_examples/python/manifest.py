"""Signed manifest of a new version: COSE_Sign1 (RFC 9052), verified with the keys of the maker."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

ENVELOPE_BYTES_MAX = 16 << 10
IMAGE_BYTES_MAX = 64 << 20
TYPE = "application/vnd.waypost.artefact+cbor"
ED25519, ES256 = -8, -7
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
"""Version, which goes into the path of a request."""


class Refused(Exception):
    """The new version is refused; `reason` is one of docs/how-to/update-devices.md."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class MakerManifest:
    """Verified statement about an image."""

    version: str
    sequence: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Place:
    """Identity of the program that runs; a new version has to fit to it."""

    name: str
    board: str
    version: str
    sequence: int


def open_manifest(envelope: bytes, keys: str, place: Place, now_s: int | None) -> MakerManifest:
    """Return the manifest of an envelope that one of the keys (PEM) has signed. Raises Refused.

    `now_s`: seconds since 1970; None if the time is not known.
    """
    if len(envelope) > ENVELOPE_BYTES_MAX:
        raise Refused("too-large")
    tagged = _decode(envelope)
    if not isinstance(tagged, cbor2.CBORTag) or tagged.tag != 18 or not isinstance(tagged.value, (list, tuple)):
        raise Refused("malformed")
    parts = tuple(tagged.value)
    kinds = (bytes, Mapping, bytes, bytes)
    if len(parts) != 4 or parts[1] or not all(map(isinstance, parts, kinds)):
        raise Refused("malformed")
    protected, _, payload, signature = parts
    header = _decode(protected)
    if not isinstance(header, Mapping) or set(header) != {1, 3, 4} or header[3] != TYPE:
        raise Refused("malformed")
    if header[1] not in (ED25519, ES256):
        raise Refused("unsupported-version")
    statement = cbor2.dumps(["Signature1", protected, b"", payload], canonical=True)
    _verify(_key_of(keys, header[4]), header[1], statement, signature)
    return _fitting(_decode(payload), place, now_s)


def _decode(content: bytes) -> Any:
    """Decode one item in the deterministic encoding. Raises Refused."""
    try:
        found = cbor2.loads(content)
        same = cbor2.dumps(found, canonical=True) == content
    except cbor2.CBORDecodeEOF:
        raise Refused("truncated") from None
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError):
        raise Refused("malformed") from None
    if not same:
        raise Refused("malformed")
    return found


def _key_of(keys: str, key_id: object) -> Any:
    """Return the key with this identifier: the start of the SHA-256 of its DER. Raises Refused."""
    for pem in re.findall(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\n?", keys, re.DOTALL):
        key = load_pem_public_key(pem.encode())
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if hashlib.sha256(der).digest()[:8] == key_id:
            return key
    raise Refused("unknown-key")


def _verify(key: Any, algorithm: int, statement: bytes, signature: bytes) -> None:
    if len(signature) != 64 or isinstance(key, Ed25519PublicKey) != (algorithm == ED25519):
        raise Refused("forged")
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, statement)
        else:
            r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
            key.verify(encode_dss_signature(r, s), statement, ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise Refused("forged") from None


def _fitting(fields: Any, place: Place, now_s: int | None) -> MakerManifest:
    """Return the manifest of a payload that fits to a place. Raises Refused."""
    if not isinstance(fields, dict) or fields.get(1) != 1:
        raise Refused("unsupported-version" if isinstance(fields, dict) else "malformed")
    kinds = {2: str, 3: str, 4: str, 5: int, 6: list, 7: list, 8: int, 9: bytes, 10: int}
    needed = set(kinds) - {7, 10}
    wrong = [key for key, value in fields.items() if key != 1 and type(value) is not kinds.get(key)]
    if wrong or not needed <= set(fields) or fields[2] != "firmware" or not VERSION.fullmatch(fields[4]):
        raise Refused("malformed")
    if len(fields[9]) != 32 or fields[8] < 1:
        raise Refused("malformed")
    if fields[8] > IMAGE_BYTES_MAX:
        raise Refused("too-large")
    if fields[3] != place.name:  # another artefact under the name of ours
        raise Refused("forged")
    if now_s is not None and fields.get(10, 0) > now_s:
        raise Refused("not-yet-valid")
    if fields[5] <= place.sequence:
        raise Refused("downgraded")
    if place.board not in fields[6]:
        raise Refused("wrong-board")
    if 7 in fields and place.version not in fields[7]:
        raise Refused("wrong-from-version")
    return MakerManifest(fields[4], fields[5], fields[8], fields[9].hex())
