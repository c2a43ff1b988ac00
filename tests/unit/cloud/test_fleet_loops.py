"""Rings over a fleet are refused and named when they are configured; the list of hops ends the undetected ones."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.batch import decode, encode
from bridge.lane import BatchLane
from bridge.message import Run, Stored
from bridge.plain import Hop, messages, parse
from cloud.hub.desired.loops import Documents, FleetLoop, require_no_ring

X, Y = "x/#", "y/#"


def forwards(address: str, remote: str, direction: str, connector: str = "cloud", name: str = "f") -> dict[str, Any]:
    forwarder = {"name": name, "remoteAddress": f"{connector}/{remote}", "direction": direction}
    spec = {"address": address, "type": "topic", "forwarders": [forwarder]}
    return {"apiVersion": "waypost/v1", "kind": "Address", "metadata": {"name": f"{name}-{direction}"}, "spec": spec}


def space(*hosts: str, name: str = "cloud") -> dict[str, Any]:
    connector = {"name": name, "type": "amqp", "endpointHosts": [{"host": host, "port": 5672} for host in hosts]}
    spec = {"connectors": [connector]}
    return {"apiVersion": "waypost/v1", "kind": "AddressSpace", "metadata": {"name": "default"}, "spec": spec}


def hub(url: str) -> dict[str, Any]:
    spec = {"hub": {"url": url}}
    return {"apiVersion": "waypost/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": spec}


def across(takes: str, gives: str, *hosts: str) -> Documents:
    """Return forwarders from an address of a peer and back to another of its addresses."""
    return [space(*hosts), forwards("in/#", takes, "in"), forwards("in/#", gives, "out", name="g")]


class TestRings:
    def test_ring_of_two_gateways_over_one_peer_is_refused(self) -> None:
        with pytest.raises(FleetLoop) as found:
            require_no_ring({"b": across(Y, X, "rabbit")}, {"a": across(X, Y, "rabbit")})
        words = str(found.value)
        assert all(each in words for each in ("gateway a", "gateway b", '"f" (in/# from', '"g" (in/# to'))
        assert "nothing was sent" in words

    def test_connectors_with_a_shared_endpoint_reach_the_same_addresses(self) -> None:
        others = {"a": across(X, Y, "rabbit1", "rabbit2")}
        with pytest.raises(FleetLoop):
            require_no_ring({"b": across(Y, X, "rabbit2")}, others)
        require_no_ring({"b": across(Y, X, "rabbit3")}, others)

    def test_ring_of_three_gateways_is_refused(self) -> None:
        others = {"a": across(X, Y, "rabbit"), "b": across(Y, "z/#", "rabbit")}
        require_no_ring({"c": across("w/#", X, "rabbit")}, others)
        with pytest.raises(FleetLoop, match=r"gateway a.*gateway [bc].* [bc]"):
            require_no_ring({"c": across("z/1", X, "rabbit")}, others)

    def test_ring_over_the_hub_is_refused(self) -> None:
        """One gateway sends to its hub; another receives the live copies and sends them again."""
        sends = [hub("amqps://hub.example:5671"), forwards(X, X, "out", "hub")]
        takes = [space("rabbit"), forwards(X, Y, "out", name="g")]
        require_no_ring({"b": takes}, {"a": sends})
        ring = [
            hub("amqp://hub.example:5672"),
            space("hub.example"),
            forwards(X, X, "in"),
            forwards(X, X, "out", "hub"),
        ]
        with pytest.raises(FleetLoop):
            require_no_ring({"b": ring}, {"a": sends})

    def test_identical_gateways_count_as_one(self) -> None:
        alike = across(X, Y, "rabbit")
        require_no_ring({f"store-{i}": alike for i in range(2_000)}, {})
        with pytest.raises(FleetLoop):
            require_no_ring({f"store-{i}": alike for i in range(2_000)}, {"center": across(Y, X, "rabbit")})

    def test_existing_ring_does_not_block_other_gateways(self) -> None:
        others = {"a": across(X, Y, "rabbit"), "b": across(Y, X, "rabbit")}
        require_no_ring({"c": across("v/#", "w/#", "rabbit")}, others)

    def test_gateways_without_common_names_are_no_ring(self) -> None:
        require_no_ring({"b": across("y/1", X, "rabbit")}, {"a": across(X, "y/2", "rabbit")})


def test_messages_that_return_over_hubs_carry_their_hops() -> None:
    """Live copies of a hub carry the list of hops, so a gateway recognises its own messages."""
    run = Run("plant/1", "pump", 1, b"", [b"x"], 5)
    for gateway, hops in (("g1", ("g1",)), ("g2", ("g1", "g2")), ("g1", ("g1", "g2", "g1"))):
        batch = decode(encode([Stored(0, 7, run)], space="default", epoch="e", lane=BatchLane.LIVE))
        [stored] = batch.stored()
        [copy] = messages(Hop(gateway, "e"), stored.sequence, stored.run)
        arrival = parse(copy)
        assert arrival.hops == hops
        run = arrival.run
        run.address = "plant/1"
