"""Rights that a peer needs to link a router over AMQP."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.engine import Link
from edge.broker.model.authorization import NETWORK, AccessRule, Grant, Operation
from edge.broker.router.networking.capability import CAPABILITY
from tests.unit.amqp.broker import Client, Site

ROUTER = AccessRule((NETWORK,), frozenset((Operation.RELAY,)))
OTHER = AccessRule(("#",), frozenset(Operation))


def linked(client: Client, grant: Grant | None) -> Link:
    """Attach a router's control link as a peer with these rights."""
    client.session._peer.grant = grant
    link = client.engine.attach_sender("b>control", NETWORK, desired_capabilities=(CAPABILITY,), snd_settle_mode=1)
    client.site.settle_down()
    return link


def grant_of(*rules: AccessRule) -> Any:
    return Grant("router", "b", rules)


def test_a_router_with_the_right_is_linked() -> None:
    site = Site()
    assert not linked(site.client("b"), grant_of(ROUTER)).closed
    assert site.router.network is not None


@pytest.mark.parametrize("grant", [None, grant_of(OTHER)])
def test_a_peer_that_has_not_proven_the_right_is_refused(grant: Grant | None) -> None:
    site = Site()
    assert linked(site.client("b"), grant).closed
    assert site.router.network is None


def test_a_space_of_a_tenant_links_no_router() -> None:
    site = Site()
    site.router.links_routers = False
    assert linked(site.client("b"), grant_of(ROUTER)).closed
    assert site.router.network is None


def test_a_new_token_without_the_right_ends_the_link() -> None:
    site = Site()
    client = site.client("b")
    linked(client, grant_of(ROUTER))
    assert site.router.network is not None
    client.session._links.detach_forbidden(grant_of(ROUTER))
    site.settle_down()
    assert site.router.network.peerings
    client.session._links.detach_forbidden(grant_of(OTHER))
    site.settle_down()
    assert not site.router.network.peerings
    assert client.ended
