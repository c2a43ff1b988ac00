"""Envelope of a manifest: COSE_Sign1 (RFC 9052 section 4.2), with the manifest as its payload.

The unprotected header is empty and the encoding deterministic, so no byte of an envelope can change without being
noticed. The type in the protected header keeps a signature for another purpose from being one of an artefact.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import cbor2

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import ArtefactAlgorithm, MakerPrivateKey, MakerPublicKey
from bridge.artefacts.limits import DEPTH_MAX, ENVELOPE_BYTES_MAX
from bridge.hidden import hides

TAG: Final = 18
"""Tag of COSE_Sign1."""
TYPE: Final = "application/vnd.waypost.artefact+cbor"
"""Type of the payload, in the protected header."""
CONTENT_TYPE: Final = 'application/cose; cose-type="cose-sign1"'
"""Media type of an envelope (RFC 9052 section 12.6)."""
_ALGORITHM, _TYPE, _KEY_ID = 1, 3, 4
_ALGORITHMS: Final = {each.cose: each for each in ArtefactAlgorithm}


@hides("payload")
class Envelope(NamedTuple):
    """Parts of an envelope; nothing of it is verified yet."""

    algorithm: ArtefactAlgorithm
    key_id: str
    protected: bytes
    payload: bytes
    signature: bytes

    def is_signed_by(self, key: MakerPublicKey) -> bool:
        """Return whether the signature is of this key."""
        return key.algorithm is self.algorithm and key.accepts(self.signature, _statement(self.protected, self.payload))


def seal(payload: bytes, key: MakerPrivateKey) -> bytes:
    """Return the signed envelope of a manifest. Raises `ArtefactRefused` when it becomes too large."""
    public = key.public
    protected = _encode({_ALGORITHM: public.algorithm.cose, _TYPE: TYPE, _KEY_ID: bytes.fromhex(public.id)})
    signature = key.sign(_statement(protected, payload))
    content = _encode(cbor2.CBORTag(TAG, [protected, {}, payload, signature]))
    _check_size(content)
    return content


def open_envelope(content: bytes) -> Envelope:
    """Return the parts of an envelope. Raises `ArtefactRefused`."""
    _check_size(content)
    found = _decode(content)
    if not isinstance(found, cbor2.CBORTag) or found.tag != TAG:
        raise _malformed("it is not COSE_Sign1")
    match found.value:
        case [bytes(protected), Mapping() as unprotected, bytes(payload), bytes(signature)] if not unprotected:
            pass
        case _:
            raise _malformed("it is not COSE_Sign1 with an empty unprotected header")
    if _encode(found) != content:
        raise _malformed("it is not in the deterministic encoding")
    algorithm, key_id = _header(protected)
    return Envelope(algorithm, key_id, protected, payload, signature)


def _header(protected: bytes) -> tuple[ArtefactAlgorithm, str]:
    found = _decode(protected)
    match found:
        case {1: int(number), 3: str(kind), 4: bytes(key_id)} if len(found) == 3 and kind == TYPE:
            pass
        case _:
            raise _malformed("its header is not that of an artefact")
    if _encode(found) != protected:
        raise _malformed("its header is not in the deterministic encoding")
    if number not in _ALGORITHMS:
        words = f"algorithm {number} of COSE is not known here; sign with Ed25519 or ES256"
        raise ArtefactRefused(ArtefactFault.UNSUPPORTED_VERSION, words)
    return _ALGORITHMS[number], key_id.hex()


def _statement(protected: bytes, payload: bytes) -> bytes:
    """Return what is signed: Sig_structure of RFC 9052 section 4.4."""
    return _encode(["Signature1", protected, b"", payload])


def _encode(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _decode(content: bytes) -> Any:
    stream = io.BytesIO(content)
    decoder = cbor2.CBORDecoder(
        stream,
        semantic_decoders=_NO_TAGS,
        max_depth=DEPTH_MAX,
        allow_indefinite=False,
        allow_duplicate_keys=False,
    )
    try:
        found = decoder.decode()
    except cbor2.CBORDecodeEOF:
        raise ArtefactRefused(ArtefactFault.TRUNCATED, "the signed manifest ends too early") from None
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError):
        raise _malformed("it is not CBOR") from None
    if stream.tell() != len(content):
        raise _malformed("there are bytes after its end")
    return found


def _refuse_tag(_content: Any, _in_key: bool) -> Any:
    raise ValueError


_NO_TAGS: Final[Mapping[int, Any]] = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004), _refuse_tag
)
"""Tags that the library would turn into objects; an envelope has none of them."""


def _check_size(content: bytes) -> None:
    if len(content) > ENVELOPE_BYTES_MAX:
        words = f"the signed manifest has {len(content)} bytes, and at most {ENVELOPE_BYTES_MAX} are allowed"
        raise ArtefactRefused(ArtefactFault.TOO_LARGE, words)


def _malformed(why: str) -> ArtefactRefused:
    return ArtefactRefused(ArtefactFault.MALFORMED, f"the signed manifest cannot be read: {why}")
