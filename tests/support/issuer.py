"""Real token issuer for tests: its own keys, a discovery document, a key set and introspection over HTTP."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "waypost"


class SigningKey:
    """Private key with its published part."""

    def __init__(self, key_id: str, algorithm: str = "ES256") -> None:
        self.id, self.algorithm = key_id, algorithm
        self.private: Any
        if algorithm.startswith("ES"):
            self.private, to_jwk = ec.generate_private_key(ec.SECP256R1()), ECAlgorithm.to_jwk
        elif algorithm == "EdDSA":
            self.private, to_jwk = ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm.to_jwk  # type: ignore[assignment]
        else:
            self.private, to_jwk = rsa.generate_private_key(65537, 2048), RSAAlgorithm.to_jwk  # type: ignore[assignment]
        published = json.loads(to_jwk(self.private.public_key()))
        self.published = {**published, "kid": key_id, "use": "sig"}

    def token(self, claims: dict[str, Any], **header: Any) -> str:
        return jwt.encode(claims, self.private, self.algorithm, {"kid": self.id, **header})


class TestIssuer:
    """Serves while it is entered; `requests` counts requests."""

    __test__ = False

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys) or [SigningKey("k1")]
        self.requests: list[str] = []
        self.answering = True
        self.introspection_secret = ""
        """Secret of the client `node` that may ask about tokens; empty: no client may."""
        self.ended: set[str] = set()
        """Tokens that are not active any more."""
        self.opaque_tokens: dict[str, dict[str, Any]] = {}
        """Claims of opaque tokens."""
        self.introspected: list[str] = []
        """Tokens that were asked about."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                body = json.dumps(issuer.document(self.path)).encode()
                self.send_response(200 if issuer.answering else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, document = issuer.introspect(form.get("token", [""])[0], self.headers.get("Authorization"))
                body = json.dumps(document).encode()
                self.send_response(status if issuer.answering else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/realms/plant"

    def document(self, path: str) -> Any:
        if path == "/realms/plant/.well-known/openid-configuration":
            asking = {"introspection_endpoint": f"{self.url}/introspect"} if self.introspection_secret else {}
            return {"issuer": self.url, "jwks_uri": f"{self.url}/certs", **asking}
        return {"keys": [key.published for key in self.keys]}

    def introspect(self, token: str, authorization: str | None) -> tuple[int, Any]:
        """Return status and document of an answer about a token (RFC 7662)."""
        shown = b64decode((authorization or "").removeprefix("Basic ")).decode()
        if shown != f"node:{self.introspection_secret}":
            return 401, {"error": "invalid_client"}
        self.introspected.append(token)
        claims = self.opaque_tokens.get(token)
        if claims is None and token.count(".") == 2:
            claims = jwt.decode(token, options={"verify_signature": False})
        if claims is None or token in self.ended or claims["exp"] <= time.time():
            return 200, {"active": False}
        return 200, {"active": True, **claims}

    def claims(self, user: str = "ann", scope: str = "", expires_in_s: float = 300.0, **more: Any) -> dict[str, Any]:
        now = time.time()
        base = {"iss": self.url, "aud": AUDIENCE, "sub": user, "scope": scope, "iat": now, "exp": now + expires_in_s}
        return {**base, **more}

    def logout_token(self, client: str, **more: Any) -> str:
        """Return a logout token for a client (OpenID Connect Back-Channel Logout 1.0 section 2.4)."""
        now = time.time()
        events = {"http://schemas.openid.net/event/backchannel-logout": {}}
        base = {"iss": self.url, "aud": client, "iat": now, "exp": now + 120, "jti": str(now), "events": events}
        return self.keys[-1].token({**base, **more}, typ="logout+jwt")

    def token(self, user: str = "ann", scope: str = "", expires_in_s: float = 300.0, **more: Any) -> str:
        """Return a token signed with the newest key."""
        return self.keys[-1].token(self.claims(user, scope, expires_in_s, **more))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
