"""Every parser, with damaged seeds and random bytes, raises only its documented exceptions (README of this folder)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fuzz.damage import damaged, damages
from tests.property.fuzz.parsers import PARSERS

data = st.data()


@pytest.mark.parametrize("name", PARSERS)
def test_seeds_are_understood(name: str) -> None:
    """Each parser understands at least one of its seeds; it may refuse the others."""
    parser = PARSERS[name]
    refused = 0
    for seed in parser.seeds:
        try:
            parser.take(seed)
        except parser.raises:
            refused += 1
    assert refused < len(parser.seeds) or name.startswith("scram"), "a proof is of one exchange"


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=None)
@given(drawn=data)
def test_damaged_seeds_raise_only_documented_errors(name: str, drawn: st.DataObject) -> None:
    parser = PARSERS[name]
    with contextlib.suppress(*parser.raises):
        parser.take(damaged(drawn.draw(st.sampled_from(parser.seeds)), drawn.draw(damages)))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=80, deadline=None)
@given(noise=st.binary(max_size=200))
def test_random_bytes_raise_only_documented_errors(name: str, noise: bytes) -> None:
    parser = PARSERS[name]
    with contextlib.suppress(*parser.raises):
        parser.take(noise)
