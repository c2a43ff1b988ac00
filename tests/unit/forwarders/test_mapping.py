"""Names at one end mapped to names at the other."""

from __future__ import annotations

import pytest

from bridge.forwarders.mapping import Mapping, MappingError, as_pattern


@pytest.mark.parametrize(
    ("pattern", "mapped", "address", "expected"),
    [
        ("plant/#", "readings", "plant/7/temp", "readings"),
        ("plant/#", "plant/#", "plant/7/temp", "plant/7/temp"),
        ("plant/#", "site/9/plant/#", "plant/7/temp", "site/9/plant/7/temp"),
        ("plant/#", "#", "plant/7/temp", "7/temp"),
        ("plant/#", "cloud/#", "plant", "cloud"),
        ("plant/+/temp", "t/+", "plant/7/temp", "t/7"),
        ("+/+/#", "a/+/b/+/#", "x/y/z/w", "a/x/b/y/z/w"),
        ("plant/#", "telemetry/{device}/{address}", "plant/7", "telemetry/d_1/plant/7"),
        ("plant/#", "{gateway}.in", "plant/7", "gw1.in"),
        ("one", "two", "one", "two"),
    ],
)
def test_address_is_mapped_to_the_remote_name(pattern: str, mapped: str, address: str, expected: str) -> None:
    assert Mapping(pattern, mapped, "gw1")(address, "d/1") == expected


@pytest.mark.parametrize(
    ("pattern", "mapped", "address", "expected"),
    [
        ("plant/+", "cloud/+", "plant/7/temp", None),
        ("plant/+/temp", "cloud/+", "plant/7", None),
        ("plant/#", "cloud/#", "hall/7", None),
        ("plant/+", "plant/+", "plant/7/temp", "plant/7/temp"),
        ("plant/+", "readings", "plant/7/temp", "readings"),
        ("plant/+", "{address}", "plant/7/temp", "plant/7/temp"),
    ],
)
def test_messages_of_the_previous_filter_are_mapped(
    pattern: str, mapped: str, address: str, expected: str | None
) -> None:
    assert Mapping(pattern, mapped, "gw1")(address, "d") == expected


@pytest.mark.parametrize(
    ("pattern", "mapped", "says"),
    [
        ("plant/+", "cloud/#", "wildcards"),
        ("plant/7", "cloud/+", "wildcards"),
        ("+/#", "#/+", "wildcards"),
        ("plant/#", "{devise}/x", "devise"),
        ("plant/#", "{device/x", "brace"),
        ("plant/#", "{device}/#", "one or the other"),
    ],
)
def test_invalid_mappings_raise(pattern: str, mapped: str, says: str) -> None:
    with pytest.raises(MappingError, match=says):
        Mapping(pattern, mapped)


def test_device_adds_no_level() -> None:
    """A client chooses its own name, and must not choose among the addresses of the peer."""
    assert Mapping("a", "t/{device}")("a", "../x/y") == "t/.._x_y"


def test_mapping_results_are_limited() -> None:
    assert as_pattern("t/{device}/x") == "t/+/x"
    assert as_pattern("t/{address}") == "t/#"
    assert as_pattern("t/{device}/{address}/x") == "t/+/#"
    assert as_pattern("plant/#") == "plant/#"
