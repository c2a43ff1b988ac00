"""Device certificates revoked by an openssl list on a running gateway, over every listener with TLS."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority, Issued
from tests.support.certified_device import USERS, connected, is_admitted, is_over
from tests.support.configured_gateway import gateway_with
from tests.support.problems import find_problem, health
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 20.0


class Site(NamedTuple):
    gateway: Waypost
    authority: Authority
    pumps: tuple[Issued, Issued]
    file: Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    authority = Authority(tmp_path / "ca")
    server, one, two = authority.issue("gw1"), authority.issue("pump1"), authority.issue("pump2")
    file = tmp_path / "revoked.crl"
    file.write_bytes(authority.revocations())
    tls = f'certificate: "{server.certificate}", key: "{server.key}", clientCa: "{authority.certificate}"'
    resources = gateway_of(
        authentication="{name: external}",
        listeners=f', mqtts: "127.0.0.1:0", https: "127.0.0.1:0", tls: {{{tls}, clientCrl: "{file}"}}',
        extra=USERS,
    )
    with gateway_with(tmp_path, resources) as running:
        yield Site(running, authority, (one, two), file)


def lets_in(site: Site, pump: Issued, protocol: str = "mqtts") -> bool:
    return is_admitted(site.authority, site.gateway, pump, protocol)


def said(site: Site, words: str, severity: str) -> None:
    """Wait until the problem is listed."""
    port = site.gateway.port("http")
    wait_until(
        lambda: find_problem(port, "revocations", words) is not None, timeout_s=WAIT_S, what=f"{words} is reported"
    )
    assert (find_problem(port, "revocations", words) or {})["severity"] == severity


def test_revoked_client_is_disconnected_within_seconds_and_refused(site: Site) -> None:
    stays, leaves = site.pumps
    with contextlib.ExitStack() as opened:

        def of(pump: Issued, protocol: str) -> ssl.SSLSocket:
            peer = connected(site.authority, site.gateway, pump, protocol)
            assert peer is not None
            return opened.enter_context(peer)

        staying, leaving = ([of(pump, protocol) for protocol in ("mqtts", "https")] for pump in site.pumps)
        site.authority.revoke(leaves)
        site.file.write_bytes(site.authority.revocations())
        for peer in leaving:
            wait_until(partial(is_over, peer), timeout_s=WAIT_S, what="the connection of who is revoked ends")
        assert not any(is_over(peer) for peer in staying)
    assert not any(lets_in(site, leaves, protocol) for protocol in ("mqtts", "https"))
    assert lets_in(site, stays)


def test_torn_list_is_reported_and_the_previous_one_applies(site: Site) -> None:
    one, two = site.pumps
    site.authority.revoke(two)
    good = site.authority.revocations()
    site.file.write_bytes(good)
    wait_until(lambda: not lets_in(site, two), timeout_s=WAIT_S, what="who is revoked is not let in")
    site.file.write_bytes(good[: len(good) // 2])
    said(site, "the previous lists apply", "warning")
    assert (lets_in(site, one), lets_in(site, two)) == (True, False)
    site.file.write_bytes(good)
    port = site.gateway.port("http")
    wait_until(lambda: find_problem(port, "revocations") is None, timeout_s=WAIT_S, what="it is solved")


def test_list_that_expired_long_ago_refuses_all_client_certificates(site: Site) -> None:
    site.file.write_bytes(site.authority.revocations(begins="20200101000000Z", ends="20200102000000Z"))
    said(site, "2020-01-02T00:00:00Z: client certificates are refused", "error")
    assert not lets_in(site, site.pumps[0])
    assert health(site.gateway.port("http"))[0] == 503
