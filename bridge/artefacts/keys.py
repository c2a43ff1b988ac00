"""Keys of makers: Ed25519 and ECDSA with P-256, as PEM.

The private key stays with the maker. Hub and gateway have the public key, and name it by its id.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from bridge.artefacts.limits import KEY_FILE_BYTES_MAX

KEY_ID_BYTES: Final = 8
"""Bytes of a key id: of a million keys, two have the same with a chance of one in 37 million."""
SIGNATURE_BYTES: Final = 64
"""Bytes of a signature, of both algorithms."""
_HALF: Final = SIGNATURE_BYTES // 2


class ArtefactAlgorithm(enum.Enum):
    """Signature algorithm; the value is its name, `cose` its number in the registry of COSE (RFC 9053 section 2)."""

    ED25519 = "ed25519"
    ES256 = "es256"

    @property
    def cose(self) -> int:
        """Number of the algorithm in COSE."""
        return -8 if self is ArtefactAlgorithm.ED25519 else -7


class InvalidKey(ValueError):
    """The key cannot be used; the message says why."""


class MakerPublicKey:
    """Public key of a maker."""

    def __init__(self, key: Ed25519PublicKey | EllipticCurvePublicKey) -> None:
        self._key = key
        self.algorithm: Final = (
            ArtefactAlgorithm.ED25519 if isinstance(key, Ed25519PublicKey) else ArtefactAlgorithm.ES256
        )
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.id: Final = hashlib.sha256(der).digest()[:KEY_ID_BYTES].hex()
        """Start of the SHA-256 of the key (SubjectPublicKeyInfo)."""

    @classmethod
    def parse(cls, pem: str) -> MakerPublicKey:
        """Read a public key. Raises `InvalidKey`, also for a private one."""
        if "PRIVATE KEY" in pem:
            raise InvalidKey("this is the private key: keep it with the maker, and give the file .pub.pem")
        if len(pem) > KEY_FILE_BYTES_MAX:
            raise InvalidKey(f"a public key has at most {KEY_FILE_BYTES_MAX} bytes")
        try:
            found = load_pem_public_key(pem.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidKey("expected a public key in PEM: -----BEGIN PUBLIC KEY-----") from None
        if isinstance(found, Ed25519PublicKey) or _is_p256(found):
            return cls(found)  # type: ignore[arg-type]
        raise InvalidKey("the key must be Ed25519, or ECDSA with the curve P-256")

    @property
    def pem(self) -> str:
        """The key in PEM."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def accepts(self, signature: bytes, statement: bytes) -> bool:
        """Return whether a signature of COSE is of this key and statement."""
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            if isinstance(self._key, Ed25519PublicKey):
                self._key.verify(signature, statement)
            else:
                r, s = int.from_bytes(signature[:_HALF], "big"), int.from_bytes(signature[_HALF:], "big")
                self._key.verify(encode_dss_signature(r, s), statement, ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


class MakerPrivateKey:
    """Private key of a maker."""

    def __init__(self, key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public: Final = MakerPublicKey(key.public_key())

    @classmethod
    def generate(cls, algorithm: ArtefactAlgorithm) -> MakerPrivateKey:
        """Make a new key."""
        if algorithm is ArtefactAlgorithm.ED25519:
            return cls(Ed25519PrivateKey.generate())
        return cls(generate_private_key(SECP256R1()))

    @classmethod
    def parse(cls, pem: bytes, password: bytes | None) -> MakerPrivateKey:
        """Read a private key. Raises `InvalidKey`, which quotes nothing of it."""
        try:
            found = load_pem_private_key(pem, password)
        except TypeError:
            words = "the key has a password" if password is None else "the key has no password"
            raise InvalidKey(words) from None
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidKey("it is no private key in PEM, or its password is another one") from None
        if isinstance(found, Ed25519PrivateKey):
            return cls(found)
        if isinstance(found, EllipticCurvePrivateKey) and _is_p256(found.public_key()):
            return cls(found)
        raise InvalidKey("the key must be Ed25519, or ECDSA with the curve P-256")

    def pem(self, password: bytes | None) -> bytes:
        """Return the key in PEM (PKCS #8), encrypted if there is a password."""
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of COSE of a statement."""
        if isinstance(self._key, Ed25519PrivateKey):
            return self._key.sign(statement)
        r, s = decode_dss_signature(self._key.sign(statement, ECDSA(hashes.SHA256())))
        return r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big")


def _is_p256(key: object) -> bool:
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
