"""The resources of a mirror are valid, and its end leaves those that were there before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bridge.resources.parse import parse
from bridge.resources.resource import Resource
from edge.appliance.shadow.mirror_resources import (
    MirrorSource,
    comparison_identity,
    mirror_fault,
    mirror_in,
    outgoing_with,
    with_mirror,
    with_user,
    without_mirror,
)
from edge.configuration.kinds import KINDS
from edge.configuration.own_text import resources_in
from tests.support.configured_gateway import address, resources

SOURCE = MirrorSource("old.example", 1883, None, "gw", "secret")
CLOUD = (
    "authenticationService: {name: standard}, connectors: [{name: cloud, type: mqtt, endpointHosts: [{host: HOST}]}]"
)


def parsed(*documents: str, space: str = "authenticationService: {name: standard}") -> list[Resource]:
    return parse(KINDS, resources(*documents, space=space), "test")


def mirrored(before: Sequence[Resource], *filters: str) -> list[Resource]:
    """Return the resources with a mirror, as a gateway checks them."""
    with_one = resources_in(with_user(before))
    made = resources_in(with_mirror(with_one, SOURCE, filters))
    assert KINDS.validate(made) == []
    return made


def documents(found: Sequence[Resource]) -> list[dict[str, Any]]:
    return [each.document for each in found]


@pytest.mark.parametrize("filters", [("#",), ("plant/#", "cmd/+/x")])
def test_mirror_is_added_and_removed(filters: tuple[str, ...]) -> None:
    before = parsed(address("plant", "plant/#", "topic"))
    made = mirrored(before, *filters)
    found = mirror_in(made)
    assert found is not None
    assert (set(found.filters), found.client_id) == (set(filters), "hall-shadow")
    identity = comparison_identity(made)
    assert identity.username == "waypost-shadow"
    assert identity.password
    assert documents(resources_in(without_mirror(made))) == documents(before)


def test_clients_without_users_need_none() -> None:
    made = mirrored(parsed(space="authenticationService: {name: none}"), "#")
    assert comparison_identity(made).username is None


@pytest.mark.parametrize(
    ("document", "filters", "code"),
    [
        (address("jobs", "jobs/#", "queue"), ("#",), "shadow-takes-messages"),
        (address("jobs", "jobs/#", "queue"), ("plant/#",), None),
        ("", ("plant/#", "plant/1"), "invalid-value"),
        ("", ("$SYS/#",), "invalid-value"),
    ],
)
def test_filters_that_cannot_be_mirrored_are_refused(document: str, filters: tuple[str, ...], code: str | None) -> None:
    fault = mirror_fault(parsed(document), SOURCE, filters)
    assert (fault.code if fault is not None else None) == code


def test_second_mirror_is_refused() -> None:
    fault = mirror_fault(mirrored(parsed(), "#"), SOURCE, ("#",))
    assert fault is not None
    assert fault.code == "shadow-exists"


@pytest.mark.parametrize(("host", "code"), [("old.example", "shadow-loop"), ("cloud.example", None)])
def test_connector_to_the_same_broker_is_refused(host: str, code: str | None) -> None:
    fault = mirror_fault(parsed(space=CLOUD.replace("HOST", f"{host}, port: 1883")), SOURCE, ("#",))
    assert (fault.code if fault is not None else None) == code


def test_connectors_that_send_mirrored_messages_on_are_named() -> None:
    sending = "type: topic, forwarders: [{name: up, remoteAddress: cloud}]"
    forwards = address("all", "plant/#", "topic").replace("type: topic", sending)
    found = parsed(forwards, space=CLOUD.replace("HOST", "cloud.example"))
    assert (outgoing_with(found, ["#"]), outgoing_with(found, ["other/#"])) == (["cloud"], [])
