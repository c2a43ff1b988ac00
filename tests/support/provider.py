"""OpenID provider with the authorization code flow and PKCE, for tests. It signs everyone in at once, as `user`.

Attributes change what it sends, so that a test can be a hostile or a broken provider.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.support.issuer import AUDIENCE, TestIssuer

CLIENT = "console"


class TestProvider(TestIssuer):
    """Issuer with sign-in. Serves while it is entered."""

    def __init__(self, user: str = "ann", scope: str = "view:# manage:#", secret: str | None = None) -> None:
        super().__init__()
        self.user, self.scope, self.secret = user, scope, secret
        self.life_s = 300.0
        self.changes: dict[str, Any] = {}
        """Claims of id tokens that replace the right ones."""
        self.access: dict[str, Any] = {}
        """Claims of access tokens that replace the right ones."""
        self.opaque = False
        """Access tokens are not signed tokens."""
        self.denies = False
        self.removed = False
        """Refuses to renew tokens."""
        self.signs_out_at = ""
        """Address that ends a person's session; empty for a provider without one."""
        self.forms: list[dict[str, str]] = []
        """Requests of the token endpoint."""
        self.codes: dict[str, dict[str, str]] = {}
        """Parameters of the sign-in of each unused code."""
        self._renewals: set[str] = set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                split = urlsplit(self.path)
                if split.path == "/realms/plant/auth":
                    self.send_response(303)
                    self.send_header("Location", provider.answer(_first(split.query)))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self._send(200, provider.document(self.path))

            def do_POST(self) -> None:
                form = _first(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._send(*provider.tokens(form, self.headers.get("Authorization")))

            def _send(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server.server_close()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/realms/plant"

    def document(self, path: str) -> Any:
        found = super().document(path)
        if "issuer" in found:
            found |= {"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"}
            found |= {"end_session_endpoint": self.signs_out_at} if self.signs_out_at else {}
        return found

    def answer(self, asked: dict[str, str]) -> str:
        """Return where the browser of a sign-in is led to."""
        state = {"state": asked["state"], "iss": self.url}
        if self.denies:
            return f"{asked['redirect_uri']}?{urlencode({'error': 'access_denied', **state})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, **state})}"

    def tokens(self, form: dict[str, str], authorization: str | None) -> tuple[int, Any]:
        """Return status and document of the token endpoint."""
        self.forms.append(form)
        if self.secret is not None:
            shown = base64.b64decode((authorization or "").removeprefix("Basic ")).decode()
            if shown != f"{CLIENT}:{self.secret}":
                return 401, {"error": "invalid_client"}
        if form["grant_type"] == "refresh_token":
            if self.removed or form["refresh_token"] not in self._renewals:
                return 400, {"error": "invalid_grant"}
            self._renewals.discard(form["refresh_token"])
            return 200, self._made("")
        asked = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if (
            asked is None
            or asked["code_challenge"] != challenge.decode()
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        return 200, self._made(asked["nonce"])

    def _made(self, nonce: str) -> dict[str, str]:
        renewal = secrets.token_urlsafe(16)
        self._renewals.add(renewal)
        person = {"aud": CLIENT, "azp": CLIENT, "nonce": nonce, **self.changes}
        access = self.token(self.user, self.scope, self.life_s, **{"aud": AUDIENCE, **self.access})
        return {
            "id_token": self.token(self.user, **{"scope": "", "expires_in_s": self.life_s, **person}),
            "access_token": secrets.token_urlsafe(16) if self.opaque else access,
            "refresh_token": renewal,
            "token_type": "Bearer",
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self


def _first(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
