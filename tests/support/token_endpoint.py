"""Token endpoint of an OAuth 2.0 issuer for the client credentials grant (RFC 6749 section 4.4), as Keycloak has it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from tests.support.serving import serving

CLIENT, SECRET = "waypost gw1", "s+cr/et %"
PATH = "/realms/plant/protocol/openid-connect/token"


class TokenEndpoint:
    """Checks each request by the standard, and gives tokens that a test makes."""

    def __init__(self, make: Callable[[int], str] = "token-{}".format) -> None:
        """`make` makes the token of the n-th request."""
        self.url = ""
        self.requests = 0
        self.refused: list[str] = []
        """Errors of refused requests."""
        self.scopes: list[str | None] = []
        self.lifetime_s: Any = 300
        """Field `expires_in`; None: none."""
        self.answer: tuple[int, bytes] | None = None
        """Status and body to answer with; None: as the standard says."""
        self._make = make

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[TokenEndpoint]:
        async with serving(self._serve, tls=tls) as port:
            self.url = f"http{'s' if tls is not None else ''}://127.0.0.1:{port}{PATH}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            status, answer = self.answer or self._judge(request, headers, body)
            self.requests += 1
            writer.write(
                f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + answer
            )
            await writer.drain()

    def _judge(self, request: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if request != f"POST {PATH} HTTP/1.1" or headers["content-type"] != "application/x-www-form-urlencoded":
            return self._refuse(400, "invalid_request")
        kind, _, encoded = headers.get("authorization", "").partition(" ")
        client, _, secret = base64.b64decode(encoded).decode().partition(":")
        if kind != "Basic" or (unquote_plus(client), unquote_plus(secret)) != (CLIENT, SECRET):
            return self._refuse(401, "invalid_client")
        form = {name: values[0] for name, values in parse_qs(body.decode(), strict_parsing=True).items()}
        if form.get("grant_type") != "client_credentials":
            return self._refuse(400, "unsupported_grant_type")
        self.scopes.append(form.get("scope"))
        answer: dict[str, Any] = {"access_token": self._make(self.requests + 1), "token_type": "Bearer"}
        if self.lifetime_s is not None:
            answer["expires_in"] = self.lifetime_s
        return 200, json.dumps(answer).encode()

    def _refuse(self, status: int, error: str) -> tuple[int, bytes]:
        self.refused.append(error)
        return status, json.dumps({"error": error}).encode()
