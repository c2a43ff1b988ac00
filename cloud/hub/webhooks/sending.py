"""Signed requests to the URLs of webhooks and of receivers of alerts (Standard Webhooks 1.0).

``webhook-signature: v1,<Base64>`` is the HMAC-SHA256 of ``<webhook-id>.<webhook-timestamp>.<body>`` with the secret;
while two secrets are valid, it lists a signature of each. A request that is repeated has the same ``webhook-id``.
Redirects are not followed: the server is the one that was configured.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import secrets as randomness
import ssl
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple, Self

import httpx

from bridge.connectors.http.network import Connect, transport
from bridge.connectors.http.signing import SECRET_PREFIX, secret_of, signature
from bridge.connectors.http.verdict import phrase, wait_s
from bridge.hidden import hides
from cloud.hub.webhooks.limits import ANSWER_BYTES_MAX, ANSWER_CHARACTERS_SHOWN, POST_S_MAX
from edge.output.text import line

SECRET_BYTES: Final = 32
USER_AGENT: Final = "waypost-hub"


class PostFailed(Exception):
    """The server did not take a request; the message says why."""

    def __init__(self, why: str, status: int = 0, wait_s: float = 0.0) -> None:
        """`status`: 0 without an answer; `wait_s`: seconds that the server asks to wait."""
        super().__init__(why)
        self.status = status
        self.wait_s = wait_s


@hides("body", "secrets")
class SignedRequest(NamedTuple):
    """Request to send."""

    id: str
    """Identity, the same for each attempt."""
    body: bytes
    secrets: Sequence[str]
    """Secrets to sign with; without any, the request is not signed."""

    def fields(self, now_s: float) -> dict[str, str]:
        """Return the fields of the request. `now_s`: UTC seconds since 1970."""
        fields = {"Content-Type": "application/json", "webhook-id": self.id}
        if self.secrets:
            at = int(now_s)
            signed = [signature(key_of(each), self.id, at, self.body) for each in self.secrets]
            fields |= {"webhook-timestamp": str(at), "webhook-signature": " ".join(signed)}
        return fields


def make_secret() -> str:
    """Return a new secret for signatures."""
    return SECRET_PREFIX + base64.b64encode(randomness.token_bytes(SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """Return the key of a secret: the bytes in ``whsec_<Base64>``, or those of another text that an operator chose.

    Raises ValueError for Base64 that cannot be read.
    """
    return secret_of(secret) if secret.startswith(SECRET_PREFIX) else secret.encode()


class PostConnection:
    """Connection to one URL, for one request after the other; an asynchronous context manager."""

    def __init__(self, url: str, connect: Connect) -> None:
        """`connect` chooses the addresses that may be reached."""
        self._url = url
        context = _authorities() if url.startswith("https:") else None
        self._client = httpx.AsyncClient(
            transport=transport(context, connect),
            follow_redirects=False,
            trust_env=False,
            timeout=POST_S_MAX,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},  # an answer must not expand
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def post(self, request: SignedRequest, now_s: float) -> None:
        """Send a request. `now_s`: UTC seconds since 1970. Raises `PostFailed`."""
        try:
            fields = request.fields(now_s)
        except ValueError as error:
            raise PostFailed(f"the secret cannot be used: {error}") from None
        try:
            async with asyncio.timeout(POST_S_MAX):
                await self._exchange(request.body, fields, now_s)
        except TimeoutError:
            raise PostFailed(f"it does not answer within {POST_S_MAX:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, ValueError) as error:
            raise PostFailed(_words_of(error)) from None

    async def _exchange(self, body: bytes, fields: dict[str, str], now_s: float) -> None:
        async with self._client.stream("POST", self._url, headers=fields, content=body) as answer:
            said = b""
            async for part in answer.aiter_raw():
                said += part
                if len(said) >= ANSWER_BYTES_MAX:
                    break
            if answer.is_success:
                return
            words = line(said.decode("utf-8", "replace").strip()[:ANSWER_CHARACTERS_SHOWN])
            why = f"it answers {phrase(answer.status_code)}{f': {words}' if words else ''}"
            if answer.has_redirect_location:
                why = f"{why}; redirects are not followed: give the final URL"
            raise PostFailed(why, answer.status_code, wait_s(answer.headers.get("retry-after"), now_s))


async def post_once(url: str, request: SignedRequest, now_s: float, connect: Connect) -> None:
    """Send one request. `now_s`: UTC seconds since 1970. Raises `PostFailed`."""
    async with PostConnection(url, connect) as connection:
        await connection.post(request, now_s)


def is_gone(failure: PostFailed) -> bool:
    """Return True if the server wants no further requests, ever."""
    return failure.status == HTTPStatus.GONE


def _words_of(error: BaseException) -> str:
    """Return an error on one line: that of the system, if it is the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {line(cause.verify_message)}"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return line(error) or type(error).__name__


@functools.cache
def _authorities() -> ssl.SSLContext:
    """Return the TLS context of all requests: loading the system's authorities takes some 20 ms."""
    return ssl.create_default_context()
