"""Connectors in the output of `waypost status`."""

from __future__ import annotations

from typing import Any

from edge.appliance.cli import _format_uplinks, _receiver


def connector(name: str, kind: str, state: str, endpoint: str | None) -> dict[str, Any]:
    return {"name": name, "type": kind, "state": state, "endpoint": endpoint}


def document(*connectors: dict[str, Any]) -> dict[str, Any]:
    first = connectors[0]
    uplink = {"state": first["state"], "endpoint": first["endpoint"]}
    return {"uplink": uplink, "bridge": {"connectors": list(connectors)}}


def test_single_connector_is_one_line() -> None:
    shown = document(connector("hub", "waypost", "connected", "amqps://hub:5671"))
    assert _format_uplinks(shown) == "connected amqps://hub:5671"
    assert _receiver(shown) == "the hub"


def test_several_connectors_have_a_line_each() -> None:
    shown = document(
        connector("hub", "waypost", "connected", "amqps://hub:5671"), connector("lake", "kafka", "connecting", None)
    )
    assert _format_uplinks(shown).splitlines() == [
        "hub (waypost): connected amqps://hub:5671",
        "lake (kafka): connecting ",
        "details: waypost bridge status",
    ]
    assert _receiver(shown) == "their peers"


def test_status_of_an_older_gateway_has_no_bridge() -> None:
    assert _format_uplinks({"uplink": {"state": "off"}}) == "off "
