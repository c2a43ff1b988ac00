"""Device certificates revoked by an openssl list on a running gateway, over every listener with TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from edge.broker.mqtt import packets
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority, Issued
from tests.support.configured_gateway import gateway_with
from tests.support.problems import find_problem, health
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 20.0
USERS: Final = "".join(
    f"""
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.{name}}}
spec:
  username: {name}
  authentication: {{type: serviceaccount}}
  authorization: [{{addresses: ["#"], operations: [send, recv, view]}}]
"""
    for name in ("pump1", "pump2")
)


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


def connected(site: Site, pump: Issued, protocol: str) -> ssl.SSLSocket | None:
    """Connect and read an answer; None when the gateway refuses the certificate."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if protocol == "mqtts":
        request = packets.Connect(Path(pump.certificate).stem, 5).encode()
    raw = socket.create_connection(("127.0.0.1", site.gateway.port(protocol)), WAIT_S)
    peer = site.authority.context(pump).wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
    try:
        peer.do_handshake()
        peer.sendall(request)
        if peer.recv(65_536):
            return peer
    except OSError:
        pass
    peer.close()
    return None


def lets_in(site: Site, pump: Issued, protocol: str = "mqtts") -> bool:
    peer = connected(site, pump, protocol)
    if peer is not None:
        peer.close()
    return peer is not None


def is_over(peer: ssl.SSLSocket) -> bool:
    """Return True once the gateway has closed the connection."""
    peer.settimeout(0.05)
    try:
        return not peer.recv(65_536)
    except TimeoutError:
        return False
    except OSError:
        return True


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
            peer = connected(site, pump, protocol)
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
