"""Order of versions as numbers."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import Version

from cloud.hub.version_rank import UNRANKED, rank_version

ORDERED = [
    "0.1.0", "0.1.1", "0.9.12", "0.10.0", "1.0.0.dev3", "1.0.0a1", "1.0.0a2", "1.0.0b1", "1.0.0rc1", "1.0.0rc12",
    "1.0.0", "1.0.0.post1", "1.0.1", "1.10.0", "2026.11.30",
]  # fmt: skip


def test_order_is_that_of_python_packages() -> None:
    assert sorted(ORDERED, key=Version) == ORDERED
    for older, newer in itertools.pairwise(map(rank_version, ORDERED)):
        assert UNRANKED < older < newer < 1 << 63


@pytest.mark.parametrize(
    ("one", "same"),
    [("1", "1.0.0"), ("v1.4", "1.4.0"), ("1.5.0-rc.1", "1.5.0rc1"), ("1.4.0+g12ab", "1.4.0"), ("1.4.0.7", "1.4.0")],
)
def test_same_rank(one: str, same: str) -> None:
    assert rank_version(one) == rank_version(same)


def test_large_numbers_stay_within_63_bits() -> None:
    most = rank_version("999999999.999999999.999999999.post999999999")
    assert rank_version("9999.9999.9999rc1") < most < 1 << 63


@pytest.mark.parametrize("text", [None, "", "test", "1.", "1.x", "1.4.0 ", "-1", "1.4.0~1", "\uff11.4.0", "1.4.0-foo"])
def test_other_texts_have_no_rank(text: str | None) -> None:
    assert rank_version(text) == UNRANKED
