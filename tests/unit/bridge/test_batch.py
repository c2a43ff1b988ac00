"""Edge cases of the batch format: input that `encode` and `decode` refuse."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random

import pytest
import zstandard

from bridge import batch
from bridge.batch import AddressRange, BatchError, Codec, cost, decode, encode
from bridge.columns import dictionary
from bridge.lane import BatchLane
from bridge.limits import BATCH_EXPANDED_BYTES_MAX, BATCH_MESSAGES_MAX, BATCH_NAME_BYTES_MAX
from bridge.message import CLOCK_GOOD, Run, Stored
from tests.support.hostile_gateway import columns_of, sealed, table_of

EPOCH = "00112233445566778899aabbccddeeff"
RECEIVED = 1_760_000_000_000_000_000


def stored(address: str, sequence: int, *bodies: bytes, device: str = "pump", properties: bytes = b"") -> Stored:
    return Stored(7, sequence, Run(address, device, 1 | CLOCK_GOOD, properties, list(bodies), RECEIVED + sequence))


def encoded(*items: Stored, **options: object) -> bytes:
    return encode(items, space="default", epoch=EPOCH, **options)  # type: ignore[arg-type]


def resealed(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    """Return the changed `data` with a valid checksum, to reach the checks behind it."""
    changed = bytearray(data)
    change(changed)
    changed[4:8] = zlib.crc32(changed[8:]).to_bytes(4, "little")
    return bytes(changed)


class TestRanges:
    def test_addresses_are_grouped_and_keep_their_order(self) -> None:
        result = decode(encoded(stored("a", 5, b"1"), stored("b", 9, b"2"), stored("a", 6, b"3", b"4")))
        assert result.ranges == [AddressRange("a", 0, 5, 3), AddressRange("b", 0, 9, 1)]
        assert [(item.sequence, item.run.bodies) for item in result.stored()] == [
            (5, [b"1"]), (6, [b"3", b"4"]), (9, [b"2"]),
        ]  # fmt: skip
        assert len(result) == 4

    def test_gap_in_the_sequence_starts_a_new_range(self) -> None:
        result = decode(encoded(stored("a", 5, b"1"), stored("a", 7, b"2")))
        assert result.ranges == [AddressRange("a", 0, 5, 1), AddressRange("a", 0, 7, 1)]

    def test_base_is_carried_and_never_above_the_first(self) -> None:
        result = decode(encoded(stored("a", 5, b"1"), stored("b", 2, b"2"), bases={"a": 3, "b": 4}))
        assert result.ranges == [AddressRange("a", 3, 5, 1), AddressRange("b", 2, 2, 1)]

    def test_head_fields_are_carried(self) -> None:
        result = decode(encoded(stored("a", 0, b""), lane=BatchLane.BACKLOG))
        assert (result.space, result.epoch, result.lane) == ("default", EPOCH, BatchLane.BACKLOG)

    def test_incompressible_batches_are_sent_uncompressed(self) -> None:
        assert encoded(stored("a", 0, Random(1).randbytes(5000)))[8] == Codec.NONE
        assert encoded(stored("a", 0, *[b"x" * 100] * 100))[8] == Codec.ZSTD


class TestExpansion:
    """Both ends sum up the decoded size of a batch in advance, so no gateway makes a batch that a hub refuses."""

    def large(self, messages: int, properties: int) -> Stored:
        run = Run("a", "pump", 1, bytes(properties), [b""] * messages, RECEIVED)
        return Stored(7, 0, run)

    def test_both_ends_compute_the_same_cost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        items = stored("ü" * 50, 5, *[b"x" * 9] * 30, device="pümp", properties=b"p" * 77), stored("b", 0, b"y" * 4000)
        monkeypatch.setattr(batch, "EXPANSION_CHECKED_BYTES", 0)
        size = decode(encoded(*items)).expanded
        written_out = 30 * (100 + len("pümp".encode()) + 77 + 9) + 1 + 4 + 4000
        assert written_out <= size <= written_out + 1_000, "the columns that are no names are counted too"
        monkeypatch.setattr(batch, "BATCH_EXPANDED_BYTES_MAX", size)
        decode(encoded(*items))
        data = encoded(*items)
        monkeypatch.setattr(batch, "BATCH_EXPANDED_BYTES_MAX", size - 1)
        with pytest.raises(ValueError, match="together"):
            encoded(*items)
        with pytest.raises(BatchError, match="together"):
            decode(data)

    def test_shared_properties_count_once(self) -> None:
        fitting = (BATCH_EXPANDED_BYTES_MAX - 100_000) // 65_536
        assert len(encoded(self.large(fitting, 65_535))) < 400
        assert decode(encoded(self.large(fitting, 65_535))).expanded <= BATCH_EXPANDED_BYTES_MAX
        with pytest.raises(ValueError, match="together"):
            encoded(self.large(fitting + 2, 65_535))

    def test_largest_allowed_number_of_messages_is_accepted(self) -> None:
        assert len(decode(encoded(self.large(BATCH_MESSAGES_MAX, 0)))) == BATCH_MESSAGES_MAX
        with pytest.raises(ValueError, match="1 to"):
            encoded(self.large(BATCH_MESSAGES_MAX + 1, 0))

    def test_long_names_are_bounded(self) -> None:
        def named(length: int) -> bytes:
            return encode([stored("a", 0, b"1")], space="default", epoch="e" * length)

        assert decode(named(BATCH_NAME_BYTES_MAX)).epoch == "e" * BATCH_NAME_BYTES_MAX
        with pytest.raises(BatchError, match="names"):
            decode(named(BATCH_NAME_BYTES_MAX + 1))

    def test_dictionary_larger_than_the_runs_is_refused(self) -> None:
        columns = columns_of([1])
        many = columns[:4] + dictionary([b"d"] * 2) + columns[4 + len(dictionary([b"d"])) :]
        decode(sealed(table_of("a", 0, 1), columns, messages=1, ranges=1))
        with pytest.raises(BatchError, match="dictionary"):
            decode(sealed(table_of("a", 0, 1), many, messages=1, ranges=1))

    def test_head_states_the_cost(self) -> None:
        for items in ((stored("a", 0, b"x" * 500),), tuple(stored(f"a{i}", 0, b"") for i in range(50))):
            assert cost(encoded(*items)) == decode(encoded(*items)).size
        assert cost(b"") == cost(b"short") == 0


class TestEncodeRefuses:
    def test_empty_batch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1 to"):
            encoded()

    def test_empty_run_is_refused(self) -> None:
        with pytest.raises(ValueError, match="without messages"):
            encoded(stored("a", 0, b"1"), stored("a", 1))

    def test_negative_sequence_is_refused(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            encoded(stored("a", -1, b"1"))

    def test_batch_above_the_limit_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch, "BATCH_COLUMNS_BYTES_MAX", 1000)
        with pytest.raises(ValueError, match="too large"):
            encoded(stored("a", 0, b"x" * 1000))


class TestDecodeRefuses:
    DATA = encoded(stored("a", 5, *[b"reading"] * 50), stored("b", 0, b"4"))
    PLAIN = encoded(stored("a", 5, b"1", b"2", b"3"), stored("b", 0, b"4"), codec=Codec.NONE)

    def test_every_truncation_is_refused(self) -> None:
        for length in range(len(self.DATA)):
            with pytest.raises(BatchError):
                decode(self.DATA[:length])

    def test_every_truncation_with_a_valid_checksum_is_refused(self) -> None:
        for data in (self.DATA, self.PLAIN):
            for length in range(8, len(data)):
                with pytest.raises(BatchError):
                    decode(resealed(data[:length], lambda _: None))

    def test_every_bit_flip_is_refused(self) -> None:
        for bit in range(len(self.DATA) * 8):
            changed = bytearray(self.DATA)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BatchError):
                decode(bytes(changed))

    def test_appended_bytes_are_refused(self) -> None:
        with pytest.raises(BatchError, match="checksum"):
            decode(self.DATA + b"\0")
        with pytest.raises(BatchError, match="too many"):
            decode(resealed(self.DATA + b"\0", lambda _: None))

    @pytest.mark.parametrize(
        ("offset", "value", "why"),
        [
            (8, 9, "codec"),
            (9, 2, "lane"),
            (10, 1, "reserved"),
            (12, 0, "0 messages"),
            (12, 5, "add up"),
            (16, 5, "ranges"),
        ],
    )
    def test_invalid_head_is_refused(self, offset: int, value: int, why: str) -> None:
        with pytest.raises(BatchError, match=why):
            decode(resealed(self.PLAIN, lambda data: data.__setitem__(offset, value)))

    def test_bomb_is_refused_by_its_declared_size(self) -> None:
        def declare(data: bytearray) -> None:
            data[28:32] = struct.pack("<I", batch.BATCH_COLUMNS_BYTES_MAX + 1)

        with pytest.raises(BatchError, match="declares"):
            decode(resealed(self.DATA, declare))

    def test_bomb_that_understates_its_size_is_refused(self) -> None:
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 20))
        head = bytearray(self.DATA[:40])
        names = self.DATA[40 : 40 + len("default") + len(EPOCH)]
        table_packed = struct.unpack_from("<I", head, 24)[0]
        table = self.DATA[40 + len(names) :][:table_packed]
        head[32:36] = struct.pack("<I", len(bomb))
        with pytest.raises(BatchError, match="declared size"):
            decode(resealed(bytes(head) + names + table + bomb, lambda _: None))

    def test_names_that_are_not_text_are_refused(self) -> None:
        with pytest.raises(BatchError, match="UTF-8"):
            decode(resealed(self.PLAIN, lambda data: data.__setitem__(40, 0xFF)))

    def test_changed_byte_with_a_valid_checksum_is_refused_or_decodes(self) -> None:
        """A changed byte behind a valid checksum raises `BatchError` or gives a consistent batch."""
        for offset in range(8, len(self.PLAIN)):
            for value in (0, 1, 0x7F, 0xFF):
                try:
                    result = decode(resealed(self.PLAIN, lambda data: data.__setitem__(offset, value)))  # noqa: B023
                except BatchError:
                    continue
                assert sum(len(item.run) for item in result.stored()) == len(result)
