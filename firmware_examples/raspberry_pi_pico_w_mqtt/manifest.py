"""Signed manifest of a new version: COSE_Sign1 (RFC 9052) with ES256, verified with the keys of the maker.

MicroPython has SHA-256 and long integers, so ECDSA with P-256 is calculated here. Nothing of it is secret. Ed25519
would need SHA-512, which boards do not have.
"""

import binascii
import hashlib

ENVELOPE_BYTES_MAX = 1024
IMAGE_BYTES_MAX = 256 * 1024
TYPE = "application/vnd.waypost.artefact+cbor"
ES256 = -7
DEPTH_MAX = 8
BEGIN, END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)


class RefusedImage(Exception):
    """The new version is refused; `args[0]` is one of the reasons of docs/how-to/update-devices.md."""


def is_version(text):
    """Return whether a text may go into a topic or a path as a version."""
    fits = 0 < len(text) <= 64 and text[0] not in ".+_-"
    return fits and all(c in ".+_-" or "0" <= c <= "9" or "a" <= c <= "z" or "A" <= c <= "Z" for c in text)


def check_version(version, offered):
    """Raise RefusedImage unless a manifest is of the version that was offered."""
    if version != offered:
        raise RefusedImage("forged")


def open_manifest(envelope, keys, place, now_s, feed=lambda: None):
    """Return version, sequence, size and SHA-256 of an envelope that one of the keys (PEM) has signed.

    Raises RefusedImage.
    `place`: name, board, version and sequence of the program that runs. `now_s`: 0 if the time is not known. `feed` is
    called again and again: the calculation takes seconds on a board.
    """
    if len(envelope) > ENVELOPE_BYTES_MAX:
        raise RefusedImage("too-large")
    if envelope[:2] != b"\xd2\x84":  # tag 18, a list of four
        raise RefusedImage("malformed" if envelope else "truncated")
    parts = decode(envelope[1:])
    protected, unprotected, payload, signature = parts
    if unprotected != {} or not all(isinstance(each, bytes) for each in (protected, payload, signature)):
        raise RefusedImage("malformed")
    header = decode(protected)
    if not isinstance(header, dict) or len(header) != 3 or header.get(3) != TYPE or 1 not in header or 4 not in header:
        raise RefusedImage("malformed")
    if header[1] != ES256:
        raise RefusedImage("unsupported-version")
    statement = b"\x84\x6aSignature1" + _string(protected) + b"\x40" + _string(payload)
    if not _verify(_key_of(keys, header[4]), hashlib.sha256(statement).digest(), signature, feed):
        raise RefusedImage("forged")
    return _fitting(decode(payload), place, now_s)


def _fitting(fields, place, now_s):
    name, board, version, sequence = place
    if not isinstance(fields, dict):
        raise RefusedImage("malformed")
    if fields.get(1) != 1:
        raise RefusedImage("unsupported-version")
    kinds = {2: str, 3: str, 4: str, 5: int, 6: list, 7: list, 8: int, 9: bytes, 10: int}
    needed = (2, 3, 4, 5, 6, 8, 9)
    if any(key != 1 and not isinstance(fields[key], kinds.get(key, RefusedImage)) for key in fields):
        raise RefusedImage("malformed")
    if any(key not in fields for key in needed) or fields[2] != "firmware" or not is_version(fields[4]):
        raise RefusedImage("malformed")
    if len(fields[9]) != 32 or fields[8] < 1:
        raise RefusedImage("malformed")
    if fields[8] > IMAGE_BYTES_MAX:
        raise RefusedImage("too-large")
    if fields[3] != name:  # another artefact under the name of ours
        raise RefusedImage("forged")
    if now_s and fields.get(10, 0) > now_s:
        raise RefusedImage("not-yet-valid")
    if fields[5] <= sequence:
        raise RefusedImage("downgraded")
    if board not in fields[6]:
        raise RefusedImage("wrong-board")
    if 7 in fields and version not in fields[7]:
        raise RefusedImage("wrong-from-version")
    return fields[4], fields[5], fields[8], binascii.hexlify(fields[9]).decode()


# --- CBOR in the deterministic encoding (RFC 8949, 4.2.1), as far as manifests have it ---------------------------


def decode(content):
    """Return one item. Raises RefusedImage."""
    value, end = _item(content, 0, 0)
    if end != len(content):
        raise RefusedImage("malformed")
    return value


def _item(content, at, depth):
    if depth > DEPTH_MAX:
        raise RefusedImage("malformed")
    major, value, at = _head(content, at)
    if major in (0, 1):
        return (value if major == 0 else -1 - value), at
    if major in (2, 3):
        if at + value > len(content):
            raise RefusedImage("truncated")
        found = content[at : at + value]
        try:
            return (found if major == 2 else found.decode()), at + value
        except UnicodeError:
            raise RefusedImage("malformed") from None
    if major == 4:
        items = []
        for _ in range(value):
            item, at = _item(content, at, depth + 1)
            items.append(item)
        return items, at
    if major == 5:
        return _map(content, at, depth, value)
    raise RefusedImage("malformed")


def _map(content, at, depth, count):
    found, last = {}, b""
    for _ in range(count):
        key, end = _item(content, at, depth + 1)
        if not isinstance(key, int) or content[at:end] <= last:
            raise RefusedImage("malformed")
        last = content[at:end]
        found[key], at = _item(content, end, depth + 1)
    return found, at


def _head(content, at):
    """Return major type, value and next index."""
    if at >= len(content):
        raise RefusedImage("truncated")
    major, form = content[at] >> 5, content[at] & 31
    at += 1
    if form < 24:
        return major, form, at
    if form > 27:
        raise RefusedImage("malformed")
    width = 1 << (form - 24)
    if at + width > len(content):
        raise RefusedImage("truncated")
    value = int.from_bytes(content[at : at + width], "big")
    if value < (24 if width == 1 else 1 << (4 * width)):
        raise RefusedImage("malformed")
    return major, value, at + width


def _string(content):
    length = len(content)
    if length < 24:
        return bytes([0x40 | length]) + content
    return (bytes([0x58, length]) if length < 256 else bytes([0x59, length >> 8, length & 255])) + content


# --- ECDSA with P-256 --------------------------------------------------------------------------------------------


def _key_of(keys, key_id):
    """Return the point of the key with this identifier: the start of the SHA-256 of its DER. Raises RefusedImage."""
    for pem in keys.split(BEGIN)[1:]:
        der = binascii.a2b_base64(pem.split(END)[0].replace("\n", ""))
        if hashlib.sha256(der).digest()[:8] == key_id and len(der) == 91 and der[26] == 4:
            return int.from_bytes(der[27:59], "big"), int.from_bytes(der[59:], "big")
    raise RefusedImage("unknown-key")


def _verify(point, digest, signature, feed):
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    x, y = point
    on_curve = (y * y - (x * x - 3) * x - B) % P == 0
    if len(signature) != 64 or not 0 < r < N or not 0 < s < N or not on_curve or x == G[0]:
        return False
    inverse = _inverse(s, N)
    u1, u2 = int.from_bytes(digest, "big") * inverse % N, r * inverse % N
    both = _affine(_add((G[0], G[1], 1), point))
    total = (0, 1, 0)
    for bit in range(255, -1, -1):
        if not bit % 16:
            feed()
        total = _double(total)
        chosen = (u1 >> bit & 1) + 2 * (u2 >> bit & 1)
        if chosen:
            total = _add(total, (None, G, point, both)[chosen])
    return total[2] != 0 and (_affine(total)[0] - r) % N == 0


def _double(point):
    """Return twice a point in Jacobian coordinates."""
    x, y, z = point
    delta, gamma = z * z % P, y * y % P
    beta, alpha = x * gamma % P, 3 * (x - delta) * (x + delta) % P
    x3 = (alpha * alpha - 8 * beta) % P
    return x3, (alpha * (4 * beta - x3) - 8 * gamma * gamma) % P, ((y + z) * (y + z) - gamma - delta) % P


def _add(point, other):
    """Return the sum of a point in Jacobian coordinates and an affine one."""
    x, y, z = point
    if not z:
        return other[0], other[1], 1
    square = z * z % P
    h, r = (other[0] * square - x) % P, (other[1] * square * z - y) % P
    if not h:
        return _double(point) if not r else (0, 1, 0)
    h2 = h * h % P
    h3, v = h * h2 % P, x * h2 % P
    x3 = (r * r - h3 - 2 * v) % P
    return x3, (r * (v - x3) - y * h3) % P, z * h % P


def _affine(point):
    inverse = _inverse(point[2], P)
    return point[0] * inverse * inverse % P, point[1] * inverse * inverse * inverse % P


def _inverse(number, modulus):
    a, b, u, v = number % modulus, modulus, 1, 0
    while a:
        quotient = b // a
        a, b, u, v = b - quotient * a, a, v - quotient * u, u
    return v % modulus
