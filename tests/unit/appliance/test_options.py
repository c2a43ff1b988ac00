"""Options of `waypost run`, combined with resources."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.parse import parse
from edge.broker.model.addresses import AddressTable, AddressType
from edge.configuration.kinds import KINDS
from edge.configuration.options import OptionsRefused, RunOptions, configuration_of
from edge.configuration.repository import Repository

GATEWAY = """\
apiVersion: waypost/v1
kind: Gateway
metadata: {name: north}
spec:
  listeners: {mqtt: "0.0.0.0:1883"}
"""


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("queue/a", AddressType.QUEUE),
        ("queue/a/b", AddressType.QUEUE),
        ("topic/a", AddressType.TOPIC),
        ("anycast/a", AddressType.ANYCAST),
        ("multicast/a", AddressType.MULTICAST),
        ("anything/else", AddressType.TOPIC),
    ],
)
def test_dev_preset_has_its_listeners(tmp_path: Path, address: str, kind: AddressType) -> None:
    configuration = configuration_of(RunOptions(data=tmp_path, dev=True))
    assert AddressTable(configuration.rules, configuration.default_rule).rule(address).type is kind
    assert {configuration.endpoint(name) for name in ("mqtt", "amqp", "http")} == {ListenEndpoint("127.0.0.1", 0)}


def test_websocket_listeners_are_configured(tmp_path: Path) -> None:
    options = RunOptions(data=tmp_path, dev=True, mqtt_ws="127.0.0.1:0", amqp_ws="[::1]:15673")
    configuration = configuration_of(options)
    assert (configuration.endpoint("mqtt-ws"), configuration.endpoint("amqp-ws")) == (
        ListenEndpoint("127.0.0.1", 0),
        ListenEndpoint("::1", 15673),
    )
    with pytest.raises(OptionsRefused, match=r"0\.0\.0\.0"):
        configuration_of(RunOptions(data=tmp_path, dev=True, mqtt_ws="0.0.0.0:0"))
    with pytest.raises(OptionsRefused, match="--amqp-ws nowhere"):
        configuration_of(RunOptions(data=tmp_path, dev=True, amqp_ws="nowhere"))


def test_hub_short_form_is_expanded(tmp_path: Path) -> None:
    options = RunOptions(
        data=tmp_path, dev=True, mqtt="127.0.0.1:1999", hub="amqp://127.0.0.1:5673", gateway="gw1", forward=("load/#",)
    )
    configuration = configuration_of(options)
    assert configuration.endpoint("mqtt") == ListenEndpoint("127.0.0.1", 1999)
    assert configuration.gateway == "gw1"
    (connector,), (forwarder,) = configuration.connectors, configuration.forwarders
    assert connector.endpoints == (ListenEndpoint("127.0.0.1", 5673),)
    assert (connector.container, forwarder.filter, forwarder.connector) == ("gw1", "load/#", connector.name)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "nothing is configured"),
        ({"dev": True, "mqtt": "0.0.0.0:0"}, "loopback"),
        ({"dev": True, "mqtt": "192.0.2.1:0"}, "loopback"),
        ({"dev": True, "mqtt": "1883"}, "host:port"),
        ({"dev": True, "mqtt": "127.0.0.1:70000"}, "70000"),
        ({"dev": True, "forward": ("a/#",)}, "needs a hub"),
        ({"dev": True, "hub": "amqp://h:1", "gateway": "g"}, "also needs --gateway"),
        ({"dev": True, "hub": "amqp://h:1", "forward": ("a",)}, "also needs --gateway"),
        ({"dev": True, "hub": "http://h:1", "gateway": "g", "forward": ("a",)}, "amqp"),
        ({"dev": True, "hub": "amqp://h:1", "gateway": "g", "forward": ("a/#/b",)}, "#"),
    ],
)
def test_conflicting_options_are_refused(tmp_path: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionsRefused, match=says):
        configuration_of(RunOptions(data=tmp_path, **options))  # type: ignore[arg-type]


def test_applied_resources_are_served(tmp_path: Path) -> None:
    Repository(tmp_path).apply(parse(KINDS, GATEWAY, "gateway.yaml"))
    configuration = configuration_of(RunOptions(data=tmp_path))
    assert configuration.gateway == "north"
    assert [str(listener.endpoint) for listener in configuration.listeners] == ["0.0.0.0:1883"]
    assert configuration_of(RunOptions(data=tmp_path, mqtt="127.0.0.1:0")).endpoint("mqtt") == ListenEndpoint(
        "127.0.0.1", 0
    )
    with pytest.raises(OptionsRefused, match="loopback"):
        configuration_of(RunOptions(data=tmp_path, dev=True))


def test_space_has_its_own_name_at_its_peers(tmp_path: Path) -> None:
    """Two spaces with one name would be one client of a peer, which would drop what one sends to the other."""
    peer = "connectors: [{name: peer, type: mqtt, endpointHosts: [{host: h}]}]"
    text = f"""{GATEWAY}---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}}, spec: {{quota: {{bytes: 1Gi}}, {peer}}}}}
---
{{apiVersion: waypost/v1, kind: TenantSpace, metadata: {{name: acme}},
  spec: {{hosts: [acme], quota: {{bytes: 1Gi}}, {peer}}}}}
"""
    configuration = configuration_of(RunOptions(data=tmp_path), parse(KINDS, text, "a.yaml"))
    (tenant,) = configuration.spaces
    names = [each.container for each in (*configuration.connectors, *tenant.connectors)]
    assert names == ["north", "north-acme"]
