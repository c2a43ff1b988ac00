"""Malicious tokens and issuers over HTTP and `$cbs`: no login succeeds, and the gateway dials no host for them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from proton import Message
from proton.utils import SyncRequestResponse

from edge.broker.configuration import TokenIssuer
from edge.broker.security.issuer_requests import IssuerError, fetch_keys
from edge.broker.security.limits import TOKEN_BYTES_MAX
from tests.fault.hostile.web import ask, gateway_of
from tests.support.amqp_client import amqp_client
from tests.support.configured_gateway import gateway_with
from tests.support.issuer import AUDIENCE, SigningKey, TestIssuer
from tests.support.processes import Waypost

RIGHTS = "send:jobs recv:jobs view:# manage:#"


def part(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


class Elsewhere:
    """Server that must not receive requests; answers with a redirect or given data."""

    def __init__(self, location: str = "") -> None:
        self.asked = 0
        elsewhere = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                elsewhere.asked += 1
                self.send_response(302 if location else 200)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Elsewhere:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Site(NamedTuple):
    issuer: TestIssuer
    gateway: Waypost
    elsewhere: Elsewhere


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tokens")
    with TestIssuer(SigningKey("k1", "RS256")) as issuer, Elsewhere() as elsewhere:
        oidc = f'{{name: external, oidc: {{issuer: "{issuer.url}", audience: {AUDIENCE}}}}}'
        with gateway_with(folder, gateway_of(authentication=oidc, listeners=', amqp: "127.0.0.1:0"')) as gateway:
            yield Site(issuer, gateway, elsewhere)


def unsigned(site: Site) -> str:
    return jwt.encode(site.issuer.claims("eve", RIGHTS), None, "none")


def mac_with_the_public_key(site: Site) -> str:
    public = site.issuer.keys[0].private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{part(site.issuer.claims('eve', RIGHTS))}"
    mac = hmac.digest(public, body.encode(), hashlib.sha256)
    return f"{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def by_a_stranger(site: Site, **header: Any) -> str:
    return SigningKey("k1", "RS256").token(site.issuer.claims("eve", RIGHTS), **header)


BAD: dict[str, Callable[[Site], str]] = {
    "none": unsigned,
    "HS256 with the public key": mac_with_the_public_key,
    "a stranger's key": by_a_stranger,
    "jku": lambda site: by_a_stranger(site, jku=f"{site.elsewhere.url}/jwks"),
    "x5u": lambda site: by_a_stranger(site, x5u=f"{site.elsewhere.url}/cert.pem"),
    "jwk": lambda site: by_a_stranger(site, jwk=SigningKey("k1", "RS256").published),
    "kid up the folders": lambda site: by_a_stranger(site, kid="../../../../dev/null"),
    "kid of a URL": lambda site: by_a_stranger(site, kid=f"{site.elsewhere.url}/jwks"),
    "kid of SQL": lambda site: by_a_stranger(site, kid="k1' UNION SELECT 'x"),
    "a critical extension": lambda site: site.issuer.keys[0].token(
        site.issuer.claims("eve", RIGHTS), crit=["http://example.org/x"], **{"http://example.org/x": True}
    ),
    "expired": lambda site: site.issuer.token("eve", RIGHTS, -1.0),
    "not yet": lambda site: site.issuer.token("eve", RIGHTS, nbf=time.time() + 3_600),
    "issued in the future": lambda site: site.issuer.token("eve", RIGHTS, iat=time.time() + 3_600),
    "no end": lambda site: site.issuer.keys[0].token(
        {name: value for name, value in site.issuer.claims("eve", RIGHTS).items() if name != "exp"}
    ),
    "another audience": lambda site: site.issuer.token("eve", RIGHTS, aud="other"),
    "another issuer": lambda site: site.issuer.token("eve", RIGHTS, iss="https://evil.example"),
    "too large": lambda site: site.issuer.token("eve", RIGHTS, padding="x" * TOKEN_BYTES_MAX),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_token_is_refused_and_dials_no_host(site: Site, name: str) -> None:
    """A bad token gets 401 over HTTP and `$cbs`.

    Hosts in the token receive no request, and the next good token is accepted.
    """
    port = site.gateway.port("http")
    bad, good = BAD[name](site), site.issuer.token("ann", RIGHTS)
    # a head of 16 KiB is refused before its token is checked
    assert ask(port, "POST", "/t/jobs", token=bad, body=b"x").status in (400, 401)
    assert ask(port, "GET", "/metrics", token=bad).status in (400, 401)
    assert ask(port, "POST", "/t/jobs", token=good, body=b"x").status == 202
    with amqp_client(site.gateway, allowed_mechs="ANONYMOUS") as connection:
        tokens = SyncRequestResponse(connection, "$cbs")

        def put(token: str) -> int:
            answer = tokens.call(Message(properties={"operation": "put-token", "type": "jwt"}, body=token))
            return int(answer.properties["status-code"])

        assert put(bad) == 401
        assert put(good) == 202
    assert site.elsewhere.asked == 0


class TestIssuers:
    """Location of keys as an issuer announces it."""

    def test_redirect_of_an_issuer_is_refused(self) -> None:
        with Elsewhere() as target, Elsewhere(target.url) as issuer:
            with pytest.raises(IssuerError, match="302"):
                fetch_keys(TokenIssuer(issuer=issuer.url, audience=AUDIENCE))
            assert target.asked == 0

    @pytest.mark.parametrize(
        "place",
        ["file:///etc/passwd", "ftp://127.0.0.1/x", "https://127.0.0.1/x", "http://[", "/x", "", "data:,{}"],
    )
    def test_keys_of_another_scheme_are_refused(self, place: str) -> None:
        with TestIssuer() as issuer:
            issuer.document = lambda path: {"issuer": issuer.url, "jwks_uri": place}  # type: ignore[method-assign]
            with pytest.raises(IssuerError, match="jwks_uri"):
                fetch_keys(TokenIssuer(issuer=issuer.url, audience=AUDIENCE))

    def test_keys_of_another_host_are_refused_unless_listed(self) -> None:
        """Keys are not fetched from another host, nor from an unlisted port of this machine."""
        with TestIssuer() as issuer, Elsewhere() as inside:
            for place in (
                inside.url,
                inside.url.replace("//", f"//{issuer.url.partition('//')[2].partition('/')[0]}@"),
            ):
                issuer.document = lambda path, place=place: {"issuer": issuer.url, "jwks_uri": place}  # type: ignore
                with pytest.raises(IssuerError, match="another host"):
                    fetch_keys(TokenIssuer(issuer=issuer.url, audience=AUDIENCE))
            assert inside.asked == 0
            listed = TokenIssuer(issuer=issuer.url, audience=AUDIENCE, key_hosts=(inside.url.partition("//")[2],))
            issuer.document = lambda path: {"issuer": issuer.url, "jwks_uri": inside.url}  # type: ignore[method-assign]
            assert fetch_keys(listed) == {}


def test_long_poll_ends_with_the_token(site: Site) -> None:
    """A waiting request gets no message after its token has expired."""
    port = site.gateway.port("http")
    while ask(port, "GET", "/c/jobs?wait=1", token=site.issuer.token("ann", RIGHTS)).status == 200:
        pass  # messages of other tests
    begin = time.monotonic()
    answer = ask(port, "GET", "/c/jobs?wait=15", token=site.issuer.token("ann", RIGHTS, 2.0))
    assert (answer.status, "expired" in answer.document["error"]) == (401, True)
    assert time.monotonic() - begin < 14
