"""Memory and time that one message may cost: each bound of `bridge.limits` is exceeded and refused before decoding."""

from __future__ import annotations

import struct
import time
from uuid import UUID

import pytest

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import UUID_KEYS_MAX, Allowance, DecodeError, TooLarge, Uint, decode, encode
from bridge.limits import (
    ANNOTATIONS_MAX,
    BATCH_ENDS_MAX,
    DEPTH_MAX,
    FIXED_ITEMS_A_VALUE,
    HEADER_VALUES_MAX,
    JSON_BYTES_MAX,
    SECTIONS_MAX,
    VALUES_MAX,
)
from bridge.message import AMQP, Run
from edge.broker.message.amqp_annotations import merge_into_run
from edge.broker.message.translation import (
    AMQP_MESSAGE,
    decode_run,
    flags_of,
    mqtt_runs,
    payload_of,
    properties_of,
    read_header,
)

SOON_S = 1.0
"""Time limit for work that must not depend on the size of a message; without the bounds these tests take minutes."""


def listed(item: bytes, count: int) -> bytes:
    """Return a list of `count` times the same encoded item."""
    return struct.pack(">BII", 0xD0, len(item) * count + 4, count) + item * count


def array(constructor: int, item: bytes, count: int) -> bytes:
    return struct.pack(">BIIB", 0xF0, len(item) * count + 5, count, constructor) + item * count


def section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


EMPTY = b"\x45"
LARGE_LIST = section(s.VALUE, listed(EMPTY, 16 << 20))


class TestValues:
    def test_largest_allowed_number_of_values_is_accepted(self) -> None:
        value, end = decode(listed(EMPTY, VALUES_MAX))
        assert (len(value), end) == (VALUES_MAX, VALUES_MAX + 9)
        with pytest.raises(TooLarge):
            decode(listed(EMPTY, VALUES_MAX + 1))

    def test_nested_values_count(self) -> None:
        inner = listed(EMPTY, 100)
        assert len(decode(listed(inner, 40))[0]) == 40
        with pytest.raises(TooLarge):
            decode(listed(inner, 41))

    def test_several_values_share_one_allowance(self) -> None:
        allowance = Allowance(10)
        decode(listed(EMPTY, 6), 0, allowance)
        with pytest.raises(TooLarge):
            decode(listed(EMPTY, 5), 0, allowance)

    def test_numbers_of_an_array_are_cheap(self) -> None:
        count = VALUES_MAX * FIXED_ITEMS_A_VALUE
        assert decode(array(0x82, struct.pack(">d", 1.5), count))[0] == [1.5] * count
        with pytest.raises(TooLarge):
            decode(array(0x82, bytes(8), count + FIXED_ITEMS_A_VALUE))
        with pytest.raises(DecodeError):
            decode(array(0x82, bytes(8), 10)[:-1])

    def test_16_mib_of_lists_are_refused_at_once(self) -> None:
        begin = time.process_time()
        with pytest.raises(TooLarge):
            decode(LARGE_LIST, 3)
        assert time.process_time() - begin < SOON_S

    def test_adjacent_bytes_are_not_copied(self) -> None:
        """Decoding copies nothing behind an item: 4 000 short lists stand in front of 16 MiB."""
        content = b"\xc0\x01\x00" * 4_000 + encode(bytes(16 << 20))
        begin = time.process_time()
        value, _ = decode(struct.pack(">BII", 0xD0, len(content) + 4, 4_001) + content)
        assert len(value) == 4_001
        assert time.process_time() - begin < SOON_S

    def test_depth_is_bounded(self) -> None:
        value = EMPTY
        for _ in range(DEPTH_MAX):
            value = listed(value, 1)
        decode(value)
        with pytest.raises(DecodeError, match="deep"):
            decode(listed(value, 1))

    def test_colliding_keys_are_bounded(self) -> None:
        keys = {UUID(int=i * ((1 << 61) - 1)): None for i in range(UUID_KEYS_MAX + 1)}
        with pytest.raises(DecodeError, match="UUID"):
            decode(encode(keys))
        assert len(decode(encode(dict(list(keys.items())[:-1])))[0]) == UUID_KEYS_MAX


class TestSections:
    def test_largest_allowed_number_of_sections_is_accepted(self) -> None:
        one = section(s.DATA, encode(b""))
        assert len(list(s.sections(one * SECTIONS_MAX))) == SECTIONS_MAX
        with pytest.raises(TooLarge):
            list(s.sections(one * (SECTIONS_MAX + 1)))

    def test_values_of_all_sections_count_together(self) -> None:
        one = section(s.SEQUENCE, listed(EMPTY, 1_000))
        assert payload_of(one * 4)[2].startswith(b"[[[],")
        with pytest.raises(TooLarge):
            payload_of(one * 5)

    def test_arriving_message_is_bounded(self) -> None:
        many = listed(b"\x40", HEADER_VALUES_MAX + 1)
        assert read_header(section(s.HEADER, many)) == read_header(b"")
        with pytest.raises(TooLarge):
            properties_of(section(s.PROPERTIES, many))
        annotations = encode({f"x-opt-{i}": None for i in range(HEADER_VALUES_MAX)})
        with pytest.raises(TooLarge):
            flags_of(section(s.MESSAGE_ANNOTATIONS, annotations), settled=False)


class TestTranslated:
    """A message that is too large to translate is delivered untranslated, with a mark."""

    @pytest.mark.parametrize(
        "body",
        [
            LARGE_LIST,
            section(s.VALUE, listed(encode("x" * 1_000), JSON_BYTES_MAX // 1_000 + 1)),
            section(s.SEQUENCE, listed(encode("x" * JSON_BYTES_MAX), 1)),
            section(s.DATA, encode(b"")) * (SECTIONS_MAX + 1),
        ],
    )
    def test_message_passes_unchanged(self, body: bytes) -> None:
        begin = time.process_time()
        (run,) = mqtt_runs(Run("a", "d", AMQP, b"", [body]))
        assert time.process_time() - begin < SOON_S
        assert run.bodies == [body]
        assert decode_run(run.properties).content_type == AMQP_MESSAGE

    def test_long_text_stays_text(self) -> None:
        text = "x" * (4 * JSON_BYTES_MAX)
        (run,) = mqtt_runs(Run("a", "d", AMQP, b"", [section(s.VALUE, encode(text))]))
        assert run.bodies == [text.encode()]


class TestAnnotations:
    def test_message_with_too_many_annotations_is_unchanged(self) -> None:
        def body(count: int) -> bytes:
            pairs = b"".join(encode(f"x-{i}") + b"\x40" for i in range(count))
            map32 = struct.pack(">BII", 0xD1, len(pairs) + 4, 2 * count) + pairs
            return section(s.MESSAGE_ANNOTATIONS, map32) + section(s.DATA, encode(b""))

        added = encode({"x-opt-added": 1})
        few, many = body(ANNOTATIONS_MAX), body(ANNOTATIONS_MAX + 1)
        assert b"x-opt-added" in merge_into_run(Run("a", "d", AMQP, b"", [few]), added).bodies[0]
        assert merge_into_run(Run("a", "d", AMQP, b"", [many]), added).bodies == [many]
        [out] = plain.messages(plain.Hop("gw", "e"), 1, Run("a", "d", AMQP, b"", [many]))
        assert out.endswith(many)

    def test_ends_of_logs_in_a_batch_are_bounded(self) -> None:
        ends = dict.fromkeys(range(BATCH_ENDS_MAX), 1)
        assert plain.ends_of(plain.batch_message(b"x", ends)) == ends
        with pytest.raises(plain.MessageError):
            plain.ends_of(plain.batch_message(b"x", {**ends, BATCH_ENDS_MAX: 1}))
        with pytest.raises(plain.MessageError):
            plain.batch_in(plain.batch_message(b"x", {**ends, BATCH_ENDS_MAX: 1}))


def test_body_of_a_plain_message_is_not_parsed() -> None:
    """A plain message lands with any body; the lake reports a body that cannot be decoded."""
    message = section(s.MESSAGE_ANNOTATIONS, encode({"x-opt-other": Uint(1)})) + LARGE_LIST
    begin = time.process_time()
    assert plain.parse(message).run.bodies == [message]
    assert plain.body_of(section(s.DATA, encode(b"b")) + section(s.FOOTER, listed(EMPTY, VALUES_MAX + 1))) == b"b"
    assert time.process_time() - begin < SOON_S
