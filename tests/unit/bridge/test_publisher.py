"""Names of publishers: device and client in one text, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.publisher import SEPARATOR, client_of, device_of, publisher_name


@pytest.mark.parametrize(
    ("device", "client", "name"),
    [("pump7", "pump7", "pump7"), ("pump7", "c1", f"pump7{SEPARATOR}c1"), ("a b", "é", f"a b{SEPARATOR}é")],
)
def test_a_name_has_the_client_where_it_differs_from_the_device(device: str, client: str, name: str) -> None:
    assert publisher_name(device, client) == name
    assert (device_of(name), client_of(name)) == (device, client)


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_client_is_found_again_whatever_characters_it_has(device: str, client: str) -> None:
    name = publisher_name(device, client)
    assert SEPARATOR not in device_of(name)
    if SEPARATOR not in device:
        assert device_of(name) == device
    if SEPARATOR not in client or device != client:
        assert client_of(name) == client
