"""Artefacts: manifest, envelope, keys and verification (RFC 9052, RFC 9124)."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bridge.artefacts.envelope import TYPE, open_envelope, seal
from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.keys import ArtefactAlgorithm, InvalidKey, MakerPrivateKey, MakerPublicKey
from bridge.artefacts.limits import BOARDS_MAX, ENVELOPE_BYTES_MAX, FROM_VERSIONS_MAX, IMAGE_BYTES_MAX
from bridge.artefacts.manifest import ArtefactManifest, decode_manifest, encode_manifest
from bridge.artefacts.verification import (
    ImageVerifier,
    check_board,
    check_installed,
    check_sequence,
    verify_image,
    verify_manifest,
)
from tests.support.artefacts import IMAGE, KEY, OTHER_KEY, manifest_of, sealed

NOW_S = 1_800_000_000.0


def refused(fault: ArtefactFault) -> Any:
    """Expect a refusal with this reason."""
    return pytest.raises(ArtefactRefused, check=lambda error: error.fault is fault)


class TestManifest:
    def test_round_trip(self) -> None:
        found = manifest_of(from_versions=("1.0.0", "1.1.0"), not_before=5)
        assert decode_manifest(encode_manifest(found)) == found

    @pytest.mark.parametrize("fields", [
        {"name": ""}, {"name": "Blinker"}, {"name": "../x"}, {"name": "a/b"}, {"name": "a" * 65}, {"name": "a\n"},
        {"version": ""}, {"version": "1 2"}, {"version": "1\n"}, {"boards": ()}, {"boards": ("a b",)},
        {"boards": tuple(f"b{number}" for number in range(BOARDS_MAX + 1))},
        {"from_versions": tuple(f"{number}" for number in range(FROM_VERSIONS_MAX + 1))},
        {"size": 0}, {"size": IMAGE_BYTES_MAX + 1}, {"sequence": 0}, {"sequence": 2**53}, {"sha256": bytes(31)},
        {"not_before": -1}, {"not_before": 2**60},
    ])  # fmt: skip
    def test_fields_outside_their_limits_are_refused(self, fields: dict[str, Any]) -> None:
        with refused(ArtefactFault.MALFORMED):
            encode_manifest(manifest_of(**fields))

    def test_limits_themselves_are_allowed(self) -> None:
        boards = tuple(f"{number:064}" for number in range(BOARDS_MAX))
        versions = tuple(f"{number:064}" for number in range(FROM_VERSIONS_MAX))
        found = manifest_of(size=IMAGE_BYTES_MAX, boards=boards, from_versions=versions)
        assert verify_manifest(seal(encode_manifest(found), KEY), [KEY.public], None) == found

    @pytest.mark.parametrize("document", [[1], 7, "x", {}, {1: 2}, {1: "1"}, {1: None}])
    def test_other_documents_are_refused(self, document: Any) -> None:
        with pytest.raises(ArtefactRefused):
            decode_manifest(cbor2.dumps(document, canonical=True))

    def test_other_format_is_named(self) -> None:
        document = {**cbor2.loads(encode_manifest(manifest_of())), 1: 2}
        with refused(ArtefactFault.UNSUPPORTED_VERSION):
            decode_manifest(cbor2.dumps(document, canonical=True))

    @pytest.mark.parametrize("change", [{99: 1}, {"x": 1}, {2: "virus"}, {9: "x" * 32}, {8: 5.0}, {6: "pico-w"}])
    def test_unknown_and_wrong_fields_are_refused(self, change: dict[Any, Any]) -> None:
        document = {**cbor2.loads(encode_manifest(manifest_of())), **change}
        with refused(ArtefactFault.MALFORMED):
            decode_manifest(cbor2.dumps(document, canonical=True))

    def test_other_encoding_of_the_same_fields_is_refused(self) -> None:
        document = cbor2.loads(encode_manifest(manifest_of()))
        with refused(ArtefactFault.MALFORMED):
            decode_manifest(cbor2.dumps(dict(reversed(list(document.items())))))

    def test_explicitly_empty_list_is_another_encoding(self) -> None:
        document = {**cbor2.loads(encode_manifest(manifest_of())), 7: []}
        with refused(ArtefactFault.MALFORMED):
            decode_manifest(cbor2.dumps(document, canonical=True))

    @pytest.mark.parametrize("content", [
        b"\xbf\x01\x01\xff", b"\xa2\x01\x01\x01\x01", b"\xa1\x01" + b"\x81" * 50 + b"\x01", b"\xd8\x23\x61(",
        b"\xa1\x01\xc2\x49" + b"\xff" * 9, b"\xa0\x00",
    ])  # fmt: skip
    def test_hostile_cbor_is_refused(self, content: bytes) -> None:
        """Indefinite length, a key twice, depth, a regular expression, a large number, bytes after the end."""
        with pytest.raises(ArtefactRefused):
            decode_manifest(content)


class TestEnvelope:
    @pytest.mark.parametrize("key", [KEY, OTHER_KEY])
    def test_signature_is_that_of_cose(self, key: MakerPrivateKey) -> None:
        """RFC 9052 section 4.4, computed here once more."""
        content = seal(b"payload", key)
        tag = cbor2.loads(content)
        protected, unprotected, payload, signature = tag.value
        assert (tag.tag, dict(unprotected), payload, len(signature)) == (18, {}, b"payload", 64)
        header = {1: key.public.algorithm.cose, 3: TYPE, 4: bytes.fromhex(key.public.id)}
        assert dict(cbor2.loads(protected)) == header
        statement = cbor2.dumps(["Signature1", protected, b"", payload])
        assert key.public.accepts(signature, statement)

    def test_larger_than_the_limit(self) -> None:
        with refused(ArtefactFault.TOO_LARGE):
            seal(bytes(ENVELOPE_BYTES_MAX), KEY)
        with refused(ArtefactFault.TOO_LARGE):
            open_envelope(bytes(ENVELOPE_BYTES_MAX + 1))

    @pytest.mark.parametrize("content", [
        b"", b"\x00", cbor2.dumps([b"", {}, b"", b""]), cbor2.dumps(cbor2.CBORTag(98, [b"", {}, b"", b""])),
        cbor2.dumps(cbor2.CBORTag(18, [b"", {}, b""])), cbor2.dumps(cbor2.CBORTag(18, [b"", {1: -8}, b"", b""])),
        cbor2.dumps(cbor2.CBORTag(18, [b"\xa0", {}, None, b""])), cbor2.dumps(cbor2.CBORTag(18, "x")),
        cbor2.dumps(cbor2.CBORTag(18, cbor2.CBORTag(35, "("))),
    ])  # fmt: skip
    def test_other_documents_are_refused(self, content: bytes) -> None:
        with pytest.raises(ArtefactRefused):
            open_envelope(content)

    def test_bytes_after_the_end_are_refused(self) -> None:
        with refused(ArtefactFault.MALFORMED):
            open_envelope(seal(b"x", KEY) + b"\x00")

    def test_header_of_another_purpose_is_refused(self) -> None:
        protected = cbor2.dumps({1: -8, 3: "text/plain", 4: bytes(8)}, canonical=True)
        with refused(ArtefactFault.MALFORMED):
            open_envelope(cbor2.dumps(cbor2.CBORTag(18, [protected, {}, b"", b""]), canonical=True))

    def test_other_algorithm_is_not_supported(self) -> None:
        protected = cbor2.dumps({1: -257, 3: TYPE, 4: bytes(8)}, canonical=True)
        with refused(ArtefactFault.UNSUPPORTED_VERSION):
            open_envelope(cbor2.dumps(cbor2.CBORTag(18, [protected, {}, b"", b""]), canonical=True))


class TestVerification:
    @pytest.mark.parametrize("key", [KEY, OTHER_KEY])
    def test_trusted_key(self, key: MakerPrivateKey) -> None:
        assert verify_manifest(sealed(key=key), [KEY.public, OTHER_KEY.public], NOW_S) == manifest_of()

    def test_key_that_is_not_trusted(self) -> None:
        with refused(ArtefactFault.UNKNOWN_KEY):
            verify_manifest(sealed(), [OTHER_KEY.public], NOW_S)
        with refused(ArtefactFault.UNKNOWN_KEY):
            verify_manifest(sealed(), [], NOW_S)

    def test_payload_of_another_envelope(self) -> None:
        protected, _, _, signature = cbor2.loads(sealed()).value
        other = encode_manifest(manifest_of(sequence=99))
        content = cbor2.dumps(cbor2.CBORTag(18, [protected, {}, other, signature]), canonical=True)
        with refused(ArtefactFault.FORGED):
            verify_manifest(content, [KEY.public], NOW_S)

    def test_valid_from_its_first_second_on(self) -> None:
        content = sealed(not_before=int(NOW_S))
        assert verify_manifest(content, [KEY.public], NOW_S)
        assert verify_manifest(content, [KEY.public], None)
        with refused(ArtefactFault.NOT_YET_VALID):
            verify_manifest(content, [KEY.public], NOW_S - 1)

    def test_sequence_may_not_fall(self) -> None:
        for known in (None, 1, 12):
            check_sequence(manifest_of(sequence=12), known)
        with refused(ArtefactFault.DOWNGRADED):
            check_sequence(manifest_of(sequence=12), 13)

    def test_board(self) -> None:
        check_board(manifest_of(), "pico-w")
        with refused(ArtefactFault.WRONG_BOARD):
            check_board(manifest_of(), "esp32")

    def test_installed_version(self) -> None:
        check_installed(manifest_of(), "0.1")
        check_installed(manifest_of(from_versions=("1.1.0",)), "1.1.0")
        with refused(ArtefactFault.WRONG_FROM_VERSION):
            check_installed(manifest_of(from_versions=("1.1.0",)), "1.0.0")

    def test_image(self) -> None:
        verify_image(manifest_of(), io.BytesIO(IMAGE))
        with refused(ArtefactFault.TRUNCATED):
            verify_image(manifest_of(), io.BytesIO(IMAGE[:-1]))
        with refused(ArtefactFault.TOO_LARGE):
            verify_image(manifest_of(), io.BytesIO(IMAGE + b"x"))
        with refused(ArtefactFault.FORGED):
            verify_image(manifest_of(), io.BytesIO(b"x" + IMAGE[1:]))

    def test_more_bytes_than_stated_are_refused_at_once(self) -> None:
        verifier = ImageVerifier(manifest_of())
        verifier.add(IMAGE)
        with refused(ArtefactFault.TOO_LARGE):
            verifier.add(b"x")


class TestKeys:
    @pytest.mark.parametrize("algorithm", ArtefactAlgorithm)
    @pytest.mark.parametrize("password", [None, b"secret"])
    def test_round_trip(self, algorithm: ArtefactAlgorithm, password: bytes | None) -> None:
        key = MakerPrivateKey.generate(algorithm)
        again = MakerPrivateKey.parse(key.pem(password), password)
        assert again.public.id == MakerPublicKey.parse(key.public.pem).id == key.public.id
        assert key.public.accepts(again.sign(b"x"), b"x")
        assert not key.public.accepts(again.sign(b"x"), b"y")
        assert not key.public.accepts(again.sign(b"x")[:-1], b"x")
        assert not key.public.accepts(bytes(64), b"x")

    def test_id_is_of_the_key_itself(self) -> None:
        body = KEY.public.pem.split("-----")[2].replace("\n", "")
        assert hashlib.sha256(__import__("base64").b64decode(body)).hexdigest().startswith(KEY.public.id)

    def test_wrong_password(self) -> None:
        for password, given in ((b"secret", None), (None, b"secret"), (b"secret", b"other")):
            with pytest.raises(InvalidKey):
                MakerPrivateKey.parse(KEY.pem(password), given)

    def test_private_key_in_place_of_the_public_one(self) -> None:
        with pytest.raises(InvalidKey, match="private key"):
            MakerPublicKey.parse(KEY.pem(None).decode())

    def test_no_key(self) -> None:
        for text in ("", "x", "x" * 20_000, KEY.public.pem[:60]):
            with pytest.raises(InvalidKey):
                MakerPublicKey.parse(text)

    def test_other_types_of_keys(self) -> None:
        for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65_537, 2_048)):
            public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            with pytest.raises(InvalidKey):
                MakerPublicKey.parse(public.decode())
            with pytest.raises(InvalidKey):
                MakerPrivateKey.parse(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), None)

    def test_key_of_another_algorithm_with_the_same_id_does_not_count(self) -> None:
        found = open_envelope(sealed())
        assert found.is_signed_by(KEY.public)
        assert not found.is_signed_by(OTHER_KEY.public)


def test_digest_and_label_are_for_people() -> None:
    found: ArtefactManifest = manifest_of()
    assert (found.digest, found.label) == (hashlib.sha256(IMAGE).hexdigest(), "blinker 1.2.0")
