"""Statements of routers: their size is bounded, whatever characters addresses have."""

from __future__ import annotations

import pytest

from edge.broker.limits import NETWORK_ANNOUNCED_MAX, NETWORK_NAME_BYTES_MAX, NETWORK_STATEMENT_BYTES_MAX
from edge.broker.network.statements import ANYCAST, Statement, can_announce, decode_document, encode_document


@pytest.mark.parametrize("character", ["a", '"', "\x01", "ü"])
def test_statement_of_the_longest_addresses_is_accepted(character: str) -> None:
    longest = next(n for n in range(NETWORK_NAME_BYTES_MAX, 0, -1) if can_announce(character * n))
    names = [ANYCAST + character * longest] * NETWORK_ANNOUNCED_MAX
    encoded = encode_document(Statement(router="hall", instance=1, version=1, base=0, neighbours={}, added=names))
    assert len(encoded) <= NETWORK_STATEMENT_BYTES_MAX
    assert decode_document(encoded)
    assert not can_announce(character * (longest + 1))
