"""Gateways, users and tenants that certificates and user names identify, and names that identify none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.limits import GATEWAY_NAME_CHARACTERS_MAX
from cloud.hub.peers import (
    CertifiedGateway,
    HubPeer,
    InvalidPeer,
    PeerKind,
    gateway_fault,
    gateway_uri,
    parse_user,
    read_certificate,
    tenant_fault,
    tenants_of,
)


def shown(*uris: str) -> dict[str, Any]:
    """Return a certificate as `ssl` does."""
    return {
        "subject": ((("organizationName", "somebody"),), (("commonName", "somebody"),)),
        "subjectAltName": (("DNS", "localhost"), *(("URI", uri) for uri in uris)),
        "serialNumber": "0A1B",
    }


class TestCertificates:
    def test_uri_identifies_the_gateway(self) -> None:
        found = read_certificate(shown("https://elsewhere/", "waypost://acme/gw1"))
        assert found == CertifiedGateway(HubPeer("acme", "gw1", PeerKind.GATEWAY), 0x0A1B)

    @given(st.text(min_size=1, max_size=GATEWAY_NAME_CHARACTERS_MAX).filter(lambda name: gateway_fault(name) is None))
    def test_every_name_of_a_gateway_survives(self, name: str) -> None:
        assert read_certificate(shown(gateway_uri("acme", name))).peer == HubPeer("acme", name, PeerKind.GATEWAY)

    @pytest.mark.parametrize(
        "uris",
        [
            (),
            ("waypost://acme/gw1", "waypost://other/gw1"),
            ("waypost://acme",),
            ("waypost://acme/",),
            ("waypost:///gw1",),
            ("waypost://Acme/gw1",),
            ("waypost://a.b/gw1",),
            ("waypost://acme:5671/gw1",),
            ("waypost://you@acme/gw1",),
            ("waypost://acme/../other/gw1",),
            ("waypost://acme/a/b",),
            ("waypost://acme/gw1?",),
            ("waypost://acme/gw1#",),
            ("waypost://acme/%67w1",),
            ("waypost://acme/%2f",),
            ("waypost://acme/gw%ff",),
            ("waypost://acme/gw%0A1",),
            ("waypost://acme/gw%1",),
            ("waypost://acme/gw 1",),
            ("waypost://acme/" + "g" * (GATEWAY_NAME_CHARACTERS_MAX + 1),),
        ],
    )
    def test_other_uris_identify_no_gateway(self, uris: tuple[str, ...]) -> None:
        with pytest.raises(InvalidPeer):
            read_certificate(shown(*uris))

    def test_common_name_identifies_no_gateway(self) -> None:
        """A certificate without the URI of a gateway is refused, although the authority issued it."""
        with pytest.raises(InvalidPeer, match="0 URIs"):
            read_certificate({"subject": ((("commonName", "gw1"),),), "serialNumber": "01"})


class TestUsers:
    def test_user_belongs_to_one_tenant(self) -> None:
        assert parse_user("reader@acme", PeerKind.APPLICATION) == HubPeer("acme", "reader", PeerKind.APPLICATION)
        assert parse_user("reader@acme", PeerKind.PERSON).identity == "reader@acme"

    @pytest.mark.parametrize(
        "identity",
        ["", "reader", "@acme", "reader@", "reader@Acme", "a@b@acme", "a/b@acme", "reader@acme.org", "r" * 65 + "@a"],
    )
    def test_invalid_user_names_are_refused(self, identity: str) -> None:
        with pytest.raises(InvalidPeer):
            parse_user(identity, PeerKind.PERSON)

    def test_tenants_of_users_are_listed(self) -> None:
        """Invalid names are left out, as the name of a tenant becomes the name of a folder."""
        assert tenants_of(["a@acme", "b@acme", "c@other", "d@../up", "nobody"]) == ["acme", "other"]

    def test_identities_are_distinct(self) -> None:
        assert (
            HubPeer("acme", "gw1", PeerKind.GATEWAY).identity != HubPeer("acme", "gw1", PeerKind.APPLICATION).identity
        )
        assert HubPeer("acme", "gw1", PeerKind.GATEWAY).identity != HubPeer("other", "gw1", PeerKind.GATEWAY).identity


@pytest.mark.parametrize(("name", "good"), [("a", True), ("a-1", True), ("-a", False), ("a-", False), ("", False)])
@pytest.mark.parametrize("end", ["", "\n"])
def test_invalid_tenants_are_refused(name: str, good: bool, end: str) -> None:
    assert (tenant_fault(name + end) is None) is (good and not end)


def test_tenant_has_63_characters_at_most() -> None:
    assert tenant_fault("t" * 63) is None
    assert tenant_fault("t" * 64) is not None
