"""The model of a card, against figures by hand."""

from __future__ import annotations

import pytest

from tests.images.flash_wear import ERASE_BLOCK, FLASH_PAGE, Card, Written, count_writes
from tests.images.write_log import Write

pytestmark = [pytest.mark.images]


def programmed(open_blocks: int, *writes: tuple[int, int]) -> int:
    """Return the bytes that a card programs for writes of (position, bytes)."""
    card = Card(open_blocks)
    for place, size in writes:
        card.write(Write(place, 0, size))
    card.close()
    return card.programmed


def test_blocks_written_in_order_cost_their_size() -> None:
    pieces = [(place, ERASE_BLOCK // 4) for place in range(0, 3 * ERASE_BLOCK, ERASE_BLOCK // 4)]
    assert programmed(1, *pieces) == 3 * ERASE_BLOCK
    assert programmed(1, (0, 3 * ERASE_BLOCK)) == 3 * ERASE_BLOCK, "one write across blocks"


def test_rest_of_a_block_is_copied() -> None:
    assert programmed(1, (0, FLASH_PAGE)) == ERASE_BLOCK


def test_write_out_of_order_costs_a_copy_of_its_block() -> None:
    assert programmed(1, (FLASH_PAGE, FLASH_PAGE)) == ERASE_BLOCK + FLASH_PAGE
    assert programmed(1, (0, 512), (0, 512)) == ERASE_BLOCK + 2 * FLASH_PAGE, "less than a page costs a page"


def test_full_log_is_closed() -> None:
    pages = ERASE_BLOCK // FLASH_PAGE
    again = [(0, FLASH_PAGE)] * (pages + 1)
    assert programmed(1, *again) == 2 * ERASE_BLOCK + ERASE_BLOCK, "a log of one page over and over, and one of a page"


def test_more_open_blocks_save_copies() -> None:
    turns = [(block * ERASE_BLOCK, FLASH_PAGE) for _ in range(8) for block in range(2)]
    assert programmed(1, *turns) == 16 * ERASE_BLOCK
    assert programmed(2, *turns) == 2 * (8 * FLASH_PAGE + ERASE_BLOCK)


def test_writes_in_order_are_counted_for_several_streams() -> None:
    requests = [(Write(place, 0, 10), False) for place in (0, 1000, 10, 1010, 500)]
    assert count_writes([*requests, (Write(0, 0, 0), True)]) == Written(5, 1, 50, 20)
