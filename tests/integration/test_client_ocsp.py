"""Device certificates of which `openssl ocsp` says whether they were revoked, on a running gateway."""

from __future__ import annotations

import contextlib
import ssl
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from edge.broker.listeners.ocsp.known_answers import FILE
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority, Issued
from tests.support.certified_device import USERS, connected, is_admitted, is_over
from tests.support.configured_gateway import gateway_with
from tests.support.ocsp_responder import OcspResponder
from tests.support.problems import find_problem
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 30.0


class OcspSite:
    """Authority with its responder, two pumps, and gateways that ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.responder = OcspResponder(self.authority)
        self.server = self.authority.issue("gw1")
        named = self.responder.url
        self.pumps = [self.authority.issue(name, responder=named) for name in ("pump1", "pump2")]
        for pump in self.pumps:
            self.authority.register(pump)

    def gateway(self, settings: str) -> Waypost:
        tls = f'certificate: "{self.server.certificate}", key: "{self.server.key}"'
        tls += f', clientCa: "{self.authority.certificate}", clientOcsp: {{{settings}}}'
        text = gateway_of(
            authentication="{name: external}",
            listeners=f', mqtts: "127.0.0.1:0", https: "127.0.0.1:0", tls: {{{tls}}}',
            extra=USERS,
        )
        return gateway_with(self.folder, text)


@pytest.fixture
def site(tmp_path: Path) -> OcspSite:
    return OcspSite(tmp_path)


def lets_in(site: OcspSite, gateway: Waypost, pump: Issued) -> bool:
    return is_admitted(site.authority, gateway, pump)


def test_revoked_certificate_ends_its_connections_and_opens_none(site: OcspSite) -> None:
    stays, leaves = site.pumps
    with site.responder, site.gateway("mode: hard, interval: 1s") as gateway, contextlib.ExitStack() as opened:

        def of(pump: Issued, protocol: str) -> ssl.SSLSocket:
            peer = connected(site.authority, gateway, pump, protocol)
            assert peer is not None
            return opened.enter_context(peer)

        staying, leaving = ([of(pump, protocol) for protocol in ("mqtts", "https")] for pump in site.pumps)
        site.authority.revoke(leaves)
        for peer in leaving:
            wait_until(partial(is_over, peer), timeout_s=WAIT_S, what="the connection of the revoked device ends")
        assert not any(is_over(peer) for peer in staying)
        assert not lets_in(site, gateway, leaves)
        assert lets_in(site, gateway, stays)


def test_known_certificate_is_accepted_offline_also_after_a_restart(site: OcspSite) -> None:
    known, fresh = site.pumps
    settings = "mode: hard, interval: 1s, offlineGrace: 1h"
    with site.responder, site.gateway(settings) as gateway:
        assert lets_in(site, gateway, known)
        assert gateway.stop() == 0
        assert (gateway.data / FILE).exists()
    with site.gateway(settings) as gateway:
        wait_until(lambda: not lets_in(site, gateway, fresh), timeout_s=WAIT_S, what="a device without an answer")
        assert lets_in(site, gateway, known)
        port = gateway.port("http")
        wait_until(lambda: find_problem(port, "ocsp") is not None, timeout_s=WAIT_S, what="the problem is listed")
        with site.responder:
            wait_until(lambda: lets_in(site, gateway, fresh), timeout_s=2 * WAIT_S, what="the responder is back")
            wait_until(lambda: find_problem(port, "ocsp") is None, timeout_s=WAIT_S, what="it is solved")


def test_soft_mode_accepts_without_a_responder_and_refuses_what_was_revoked(site: OcspSite) -> None:
    fresh, revoked = site.pumps
    site.authority.revoke(revoked)
    with site.gateway("mode: soft, interval: 1s") as gateway:
        with site.responder:
            assert not lets_in(site, gateway, revoked)
        assert lets_in(site, gateway, fresh)
        assert not lets_in(site, gateway, revoked)


def test_response_of_a_signer_without_the_purpose_is_no_answer(site: OcspSite) -> None:
    site.responder.signer = site.authority.issue("impostor", usage="clientAuth")
    with site.responder, site.gateway("mode: hard, interval: 1s") as gateway:
        assert not lets_in(site, gateway, site.pumps[0])


def test_configured_responder_replaces_the_one_of_the_certificate(site: OcspSite) -> None:
    elsewhere = site.authority.issue("pump1", file="pump3", responder="http://127.0.0.1:9/")
    site.authority.register(elsewhere)
    with site.responder, site.gateway(f'mode: hard, responder: "{site.responder.url}"') as gateway:
        assert lets_in(site, gateway, elsewhere)
