"""No changed or shortened artefact is ever accepted, whatever its fields are."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.artefacts.envelope import open_envelope, seal
from bridge.artefacts.faults import ArtefactRefused
from bridge.artefacts.keys import MakerPrivateKey
from bridge.artefacts.manifest import ArtefactKind, ArtefactManifest, decode_manifest, encode_manifest
from bridge.artefacts.verification import verify_manifest
from tests.support.artefacts import KEY, OTHER_KEY, sealed

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
VERSIONS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}", fullmatch=True)
MANIFESTS = st.builds(
    ArtefactManifest,
    kind=st.sampled_from(ArtefactKind),
    name=NAMES,
    version=VERSIONS,
    sequence=st.integers(1, 2**53 - 1),
    boards=st.lists(NAMES, min_size=1, max_size=4).map(tuple),
    from_versions=st.lists(VERSIONS, max_size=4).map(tuple),
    size=st.integers(1, 4 << 30),
    sha256=st.binary(min_size=32, max_size=32),
    not_before=st.none() | st.integers(0, 253_402_300_799),
)
TRUSTED = [KEY.public, OTHER_KEY.public]


def is_accepted(content: bytes) -> bool:
    """Return whether an envelope is accepted; nothing but `ArtefactRefused` may be raised."""
    try:
        verify_manifest(content, TRUSTED, None)
    except ArtefactRefused:
        return False
    return True


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_every_bit_flip_and_every_truncation_is_refused(key: MakerPrivateKey) -> None:
    content = sealed(key=key, from_versions=("1.0", "1.1"), not_before=7)
    assert is_accepted(content)
    for at in range(len(content)):
        assert not is_accepted(content[:at]), at
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            assert not is_accepted(bytes(changed)), (at, bit)


@given(MANIFESTS)
def test_manifest_has_one_encoding(manifest: ArtefactManifest) -> None:
    content = encode_manifest(manifest)
    assert decode_manifest(content) == manifest
    assert encode_manifest(decode_manifest(content)) == content


@given(MANIFESTS, st.data())
def test_change_of_any_byte_is_refused(manifest: ArtefactManifest, data: st.DataObject) -> None:
    content = bytearray(seal(encode_manifest(manifest), KEY))
    at, value = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 255))
    same = content[at] == value
    content[at] = value
    assert is_accepted(bytes(content)) == same


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda tail: sealed()[:60] + tail))
def test_any_bytes_are_refused_with_a_reason(content: bytes) -> None:
    assert not is_accepted(content)


CBOR = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary(max_size=40),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.integers(0, 12) | st.text(), each, max_size=6),
    max_leaves=12,
)


@given(CBOR, CBOR)
def test_any_cbor_inside_a_signed_envelope_is_refused_with_a_reason(payload: object, header: object) -> None:
    """A maker's program may be wrong, and its signature right."""
    assert not is_accepted(seal(cbor2.dumps(payload), KEY))
    with pytest.raises(ArtefactRefused):
        open_envelope(cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps(header), {}, cbor2.dumps(payload), bytes(64)])))
