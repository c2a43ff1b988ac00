"""Names of publishers: device and client joined in one text, and split again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.publisher import SEPARATOR, client_of, device_of, is_client, is_relay, publisher_name


@pytest.mark.parametrize(
    ("device", "client", "name"),
    [("pump7", "pump7", "pump7"), ("pump7", "c1", f"pump7{SEPARATOR}c1"), ("a b", "é", f"a b{SEPARATOR}é")],
)
def test_name_has_the_client_where_it_differs_from_the_device(device: str, client: str, name: str) -> None:
    assert publisher_name(device, client) == name
    assert (device_of(name), client_of(name)) == (device, client)


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_client_name_survives_with_any_characters(device: str, client: str) -> None:
    name = publisher_name(device, client)
    assert (device_of(name), client_of(name)) == tuple(part.replace(SEPARATOR, "_") for part in (device, client))
    assert is_client(name, client)
    relay = publisher_name(device, client, relay=True)
    assert (device_of(relay), client_of(relay)) == (device_of(name), client_of(name))
    assert (is_relay(name), is_relay(relay)) == (False, True)


@pytest.mark.parametrize(
    "client", [f"c{SEPARATOR}relay", f"{SEPARATOR}relay", f"c{SEPARATOR}d{SEPARATOR}relay", "relay"]
)
def test_client_cannot_pose_as_a_relay(client: str) -> None:
    assert not is_relay(publisher_name("pump7", client))
    assert not is_relay(publisher_name(client, client))
