"""A hub with bearer tokens of an issuer for applications and people, as gateways have them for clients."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from proton import ConnectionException, Message, SSLDomain
from proton.utils import BlockingConnection

from bridge.engine import Closed, PeerOpened
from tests.support.amqp_client import detached_with
from tests.support.bearer import until_closed
from tests.support.enrolled import enrolling_hub
from tests.support.http_client import ask
from tests.support.issuer import AUDIENCE, TestIssuer
from tests.support.processes import Waypost, wait_until

WAIT_S = 30.0
SCOPE = "openid send:app/# recv:app/# view:#"


class Site:
    """A hub and the issuer it trusts."""

    def __init__(self, folder: Path, issuer: TestIssuer) -> None:
        self.issuer = issuer
        self.authority = folder / "hub" / "authority" / "ca.pem"
        file = folder / "hub.yaml"
        oidc = f"{{issuer: '{issuer.url}', audience: {AUDIENCE}, clientId: console}}"
        tenants = "[{name: acme, quota: {connections: 100}}]"
        file.write_text(f"{{apiVersion: waypost/v1, kind: Hub, spec: {{oidc: {oidc}, tenants: {tenants}}}}}")
        self.hub: Waypost = enrolling_hub(folder, "--config", str(file))

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def connect(self, token: str) -> BlockingConnection:
        """Connect with Proton's client and the token as its password."""
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(self.authority))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        url = f"amqps://localhost:{self.hub.port('amqps')}"
        return BlockingConnection(
            url, timeout=WAIT_S, ssl_domain=domain, user="token", password=token, allowed_mechs="PLAIN", reconnect=False
        )

    def ask(self, token: str) -> int:
        """Request the list of gateways; return the status."""
        headers = {"Authorization": f"Bearer {token}"}
        return ask(self.hub, "GET", "/api/v1/gateways", headers=headers, tls=self.context).status


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with TestIssuer() as issuer:
        made = Site(tmp_path_factory.mktemp("tokens"), issuer)
        with made.hub:
            yield made


def test_application_with_a_token_sends_and_receives(site: Site) -> None:
    connection = site.connect(site.issuer.token("app@acme", SCOPE))
    receiver = connection.create_receiver("app/a", credit=1)
    connection.create_sender("app/a").send(Message(body="one"))
    assert receiver.receive(WAIT_S).body == "one"
    receiver.accept()
    with detached_with("amqp:unauthorized-access"):
        connection.create_sender("other")
    connection.close()


def test_first_user_of_a_tenant_opens_its_space(site: Site) -> None:
    """A tenant's address space opens for its first user; until then clients are asked to retry."""

    def let_in() -> bool:
        try:
            site.connect(site.issuer.token("app@beta", SCOPE)).close()
        except ConnectionException:
            return False
        return True

    wait_until(let_in, timeout_s=WAIT_S, what="the space of a tenant nobody named")


@pytest.mark.parametrize("user", ["app", "app@Acme"])
def test_user_without_a_tenant_is_refused(site: Site, user: str) -> None:
    with pytest.raises(ConnectionException):
        site.connect(site.issuer.token(user, SCOPE))


def opened(site: Site, token: str) -> tuple[list[Any], str | None]:
    """Connect with OAUTHBEARER; return the events until the close, and the reason of a refusal."""
    with (
        socket.create_connection(("localhost", site.hub.port("amqps")), WAIT_S) as plain,
        site.context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return until_closed(connection, token, "localhost")


def test_expired_token_ends_the_connection(site: Site) -> None:
    for life_s in (2.0, 8.0, 30.0):  # on a busy machine the token may expire before it is used
        found, failure = opened(site, site.issuer.token("app@acme", SCOPE, life_s))
        if failure is None:
            break
    assert failure is None
    assert any(isinstance(event, PeerOpened) for event in found)
    (closed,) = [event for event in found if isinstance(event, Closed)]
    assert "the token has expired" in closed.condition.description


def test_token_of_another_audience_is_refused(site: Site) -> None:
    found, failure = opened(site, site.issuer.token("app@acme", SCOPE, aud="other"))
    assert "refused our credentials" in str(failure)
    assert not any(isinstance(event, PeerOpened) for event in found)


def test_token_opens_the_http_api(site: Site) -> None:
    assert site.ask(site.issuer.token("ann@acme", SCOPE)) == 200
    assert site.ask(site.issuer.token("ann@acme", "send:app/#")) == 403
    assert site.ask("x") == 401


def test_logout_by_the_issuer_ends_connections_and_refuses_the_token(site: Site) -> None:
    token, other = site.issuer.token("zoe@acme", SCOPE, sid="s1"), site.issuer.token("zoe@acme", SCOPE, sid="s2")
    connection = site.connect(token)
    body = urlencode({"logout_token": site.issuer.logout_token("console", sub="zoe@acme", sid="s1")}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    path = "/api/v1/session/oidc/logout"
    assert ask(site.hub, "POST", path, body, headers, tls=site.context).status == 200
    with pytest.raises(ConnectionException, match="ended the token"):
        connection.wait(lambda: False, timeout=WAIT_S)
    assert site.ask(token) == 401
    assert site.ask(other) == 200
