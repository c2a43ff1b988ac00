"""Access tokens for Kafka's SASL OAUTHBEARER, by the client credentials grant (RFC 6749 section 4.4).

A token is kept and shared by all connections of a connector. It is renewed at three quarters of its lifetime; if the
token endpoint does not answer then, the old token is used until it ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    KAFKA_TOKEN_ANSWER_BYTES_MAX,
    KAFKA_TOKEN_LIFETIME_S,
    KAFKA_TOKEN_LIFETIME_S_MAX,
    KAFKA_TOKEN_RETRY_S,
    TOKEN_LIFETIME_USED,
)
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.hidden import hides

log = logging.getLogger(__name__)

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""Characters that a token may have in the SASL message, which ends a field by a control character."""


@hides("value")
class AccessToken(NamedTuple):
    """Token with its lifetime in seconds."""

    value: str
    lifetime_s: float


class TokenError(KafkaError):  # type: ignore[misc]
    """No token; the text is for operators. The library treats it as a failed connection."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


Fetch = Callable[[], Awaitable[AccessToken]]
"""Requests a new token. Raises `TokenError`."""


class ClientCredentialsTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Token provider of one connector."""

    def __init__(self, fetch: Fetch, now_s: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._now_s = now_s
        self._lock = asyncio.Lock()
        self._token: AccessToken | None = None
        self._renew_at = self._ends_at = 0.0

    async def token(self) -> str:
        """Return a valid token. Raises `TokenError`."""
        async with self._lock:
            token = self._token
            if token is None or self._now_s() >= self._renew_at:
                token = await self._renew()
            return token.value

    def forget(self) -> None:
        """Drop the token, because the brokers refused it."""
        self._token = None

    async def _renew(self) -> AccessToken:
        asked_at, present = self._now_s(), self._token
        try:
            fetched = await self._fetch()
        except TokenError as error:
            if present is None or self._now_s() >= self._ends_at:
                raise
            self._renew_at = self._now_s() + KAFKA_TOKEN_RETRY_S
            log.warning("%s; the present token is used until it ends", error.why)
            return present
        self._token = fetched
        self._renew_at = asked_at + fetched.lifetime_s * TOKEN_LIFETIME_USED
        self._ends_at = asked_at + fetched.lifetime_s
        return fetched


def tokens_of(identity: ClientIdentity, settings: KafkaSettings) -> ClientCredentialsTokens:
    """Return the token provider for the settings of a connector. Raises ValueError without a token endpoint."""
    if settings.token_url is None or identity.username is None or identity.password is None:
        raise ValueError("OAUTHBEARER needs tokenUrl and credentials")
    url, client, secret = settings.token_url, identity.username, identity.password

    async def fetch() -> AccessToken:
        return await request_token(url, client, secret, scope=settings.scope, authority=settings.token_authority)

    return ClientCredentialsTokens(fetch)


async def request_token(url: str, client: str, secret: str, *, scope: str | None, authority: str | None) -> AccessToken:
    """Request a token. `authority`: file with the authority of the endpoint's certificate; None: those of the system.

    Raises `TokenError`, which contains neither the secret nor the answer's tokens.
    """
    import httpx  # noqa: PLC0415 - few connectors need it, and it takes 5 MiB

    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    auth = httpx.BasicAuth(quote_plus(client), quote_plus(secret))  # both are form-encoded (RFC 6749 section 2.3.1)
    try:
        context = ssl.create_default_context(cafile=authority)
        async with (
            httpx.AsyncClient(verify=context, trust_env=False, timeout=CONNECT_TIMEOUT_S) as endpoint,
            endpoint.stream("POST", url, data=form, auth=auth, follow_redirects=False) as answer,
        ):
            status, body = answer.status_code, b""
            async for part in answer.aiter_raw():
                body += part
                if len(body) > KAFKA_TOKEN_ANSWER_BYTES_MAX:
                    raise TokenError(f"the token endpoint's answer has more than {KAFKA_TOKEN_ANSWER_BYTES_MAX} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise TokenError(
            f"the token endpoint does not answer ({error or type(error).__name__}); check kafka.tokenUrl"
        ) from None
    return read_answer(status, body)


def read_answer(status: int, body: bytes) -> AccessToken:
    """Read the answer of a token endpoint (RFC 6749 section 5). Raises `TokenError`."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        document = None
    fields = document if isinstance(document, dict) else {}
    if status in (400, 401):
        reason = str(fields.get("error") or f"HTTP status {status}")[:100]
        raise TokenError(
            f"the token endpoint refuses this client ({reason}); check the connector's credentials and kafka.scope"
        )
    token, lifetime_s = fields.get("access_token"), fields.get("expires_in", KAFKA_TOKEN_LIFETIME_S)
    if status != 200 or not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise TokenError(f"the token endpoint gives no token (HTTP status {status}); check kafka.tokenUrl")
    if str(fields.get("token_type", "")).lower() != "bearer":
        raise TokenError("the token endpoint gives tokens of another type than Bearer")
    if isinstance(lifetime_s, bool) or not isinstance(lifetime_s, int | float) or not lifetime_s > 0:
        lifetime_s = KAFKA_TOKEN_LIFETIME_S
    return AccessToken(token, min(float(lifetime_s), KAFKA_TOKEN_LIFETIME_S_MAX))
