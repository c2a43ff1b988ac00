"""Public keys of the issuer of bearer tokens: fetched, stored on disk and refreshed.

Keys come from the issuer's discovery document (OpenID Connect Discovery 1.0 section 4). While the issuer cannot be
reached the last keys stay valid for a configured grace period, also across restarts: devices have to connect while
the gateway is offline.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bridge.durable_file import replace_file
from edge.broker.configuration import TokenIssuer
from edge.broker.security.code_flow import CodeFlow
from edge.broker.security.issuer_requests import IssuerError, fetch_keys
from edge.broker.security.limits import (
    ISSUER_ASKED_S_MIN,
    ISSUER_REFRESH_S,
    ISSUER_RETRY_S,
    TOKENS_WAITING_MAX,
)
from edge.broker.security.logout_tokens import verify_logout
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity
from edge.broker.security.sign_in import IssuedTokens
from edge.broker.security.sign_outs import EndedSignIn
from edge.broker.security.tokens import (
    BearerTokenError,
    IssuerKey,
    UnknownIssuerKey,
    is_signed,
    read_keys,
    verify,
    verify_person,
)

if TYPE_CHECKING:
    from edge.broker.security.introspection import Introspection, TokenConnections

log = logging.getLogger(__name__)

FILE: Final = "issuer.json"
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""Opaque token (RFC 6750 section 2.1)."""

T = TypeVar("T")
Fetch = Callable[[TokenIssuer], Any]


class Issuer:
    """Verifies tokens (`edge.broker.security.sign_in.BearerVerifier`). `start`, later `stop`; inside a running loop."""

    def __init__(
        self,
        configuration: TokenIssuer,
        data: Path,
        *,
        utc_s: Callable[[], float] = time.time,
        fetch: Fetch | None = None,
    ) -> None:
        """`data`: folder for the stored keys; `fetch` requests the keys (blocking) and raises IssuerError."""
        self.configuration = configuration
        self.problem: str | None = None
        """Why the last request to the issuer failed; None if it succeeded."""
        self._file = data / FILE
        self._utc_s = utc_s
        self._fetch = fetch or fetch_keys
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched_at_s: float | None = None
        self._requested_at = float("-inf")
        self._requesting = False
        """A request is in progress; tokens with unknown keys wait for it."""
        self._wanted = asyncio.Event()
        self._waiting: list[tuple[Callable[[], Any], Callable[[LoginVerdict, Any], None]]] = []
        self._following: asyncio.Task[None] | None = None
        client = configuration.client_id
        self.code_flow = CodeFlow(configuration, client, self) if client is not None else None
        """Sign-in of people; None without a client."""
        self._introspection = _introspection(configuration, data, utc_s)

    @property
    def issuer(self) -> str:
        """Return the identifier of the issuer."""
        return self.configuration.issuer

    def start(self, connections: TokenConnections | None = None) -> None:
        """Load the stored keys and start refreshing them. `connections`: those that end with their token."""
        self._load()
        if self._introspection is not None:
            self._introspection.start(connections)
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="token issuer")

    async def stop(self) -> None:
        """Stop refreshing; tokens that wait are answered. Idempotent."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        self._answer_waiting()
        if self._introspection is not None:
            await self._introspection.stop()

    @property
    def overdue(self) -> str | None:
        """Why tokens are not accepted at the moment: no keys, keys older than the grace period, or no answers about
        new tokens; else None."""
        if self._has_keys():
            asking = self._introspection
            if asking is None or asking.problem is None:
                return None
            return f"no new bearer token is accepted: introspection at the token issuer: {asking.problem}"
        return (
            f"no bearer token is accepted: token issuer {self.configuration.issuer}: {self.problem or 'no answer yet'}"
        )

    def _has_keys(self) -> bool:
        fetched_at_s = self._fetched_at_s
        return fetched_at_s is not None and self._utc_s() - fetched_at_s <= self.configuration.grace_s

    # --- tokens -------------------------------------------------------------------------------------------------

    def check(self, token: bytes, decided: Decided, source: str = "") -> None:
        """Call `decided` once: at once, or after the issuer has answered. `source`: address of the client."""
        asking = self._introspection
        if asking is None:
            self._check(lambda: self._verified(token), decided)
        elif is_signed(token):
            self._check(lambda: self._verified(token), _then_confirm(asking, token, decided, source))
        elif _TOKEN.fullmatch(token):
            asking.confirm(token, None, decided, source)
        else:
            self._refuse(BearerTokenError("not a token"), decided)

    def check_person(self, tokens: IssuedTokens, nonce: str | None, decided: Decided) -> None:
        """Check the tokens of a sign-in, like `check`. `nonce`: None for renewed tokens.

        The issuer is asked about the access token, if that is a signed one, and so about the sign-in.
        """
        asking, access = self._introspection, tokens.access_token.encode()
        if asking is not None and is_signed(access):
            decided = _then_confirm(asking, access, decided, "")
        self._check(
            lambda: verify_person(tokens, nonce, self._known_keys(), self.configuration, self._utc_s()), decided
        )

    def _verified(self, token: bytes) -> VerifiedIdentity:
        return verify(token, self._known_keys(), self.configuration, self._utc_s())

    def check_logout(self, token: bytes, decided: Callable[[LoginVerdict, EndedSignIn | None], None]) -> None:
        """Check a logout token, like `check`."""
        self._check(lambda: verify_logout(token, self._known_keys(), self.configuration, self._utc_s()), decided)

    def _check(self, verified: Callable[[], T], decided: Callable[[LoginVerdict, T | None], None]) -> None:
        try:
            proven = verified()
        except UnknownIssuerKey as why:
            if not self._may_request():
                self._refuse(why, decided)
            elif len(self._waiting) >= TOKENS_WAITING_MAX:
                decided(LoginVerdict.BUSY, None)
            else:
                self._waiting.append((verified, decided))
                self._wanted.set()
        except BearerTokenError as why:
            self._refuse(why, decided)
        else:
            decided(LoginVerdict.ACCEPTED, proven)

    def _known_keys(self) -> tuple[IssuerKey, ...]:
        if not self._has_keys():
            raise UnknownIssuerKey("the keys of the issuer are unknown or older than the grace period")
        return self._keys

    def _may_request(self) -> bool:
        """Limit the requests for unknown keys, since any client can name keys that do not exist."""
        loop = asyncio.get_running_loop()
        return self._requesting or bool(self._waiting) or loop.time() - self._requested_at >= ISSUER_ASKED_S_MIN

    def _refuse(self, why: BearerTokenError, decided: Callable[[LoginVerdict, None], None]) -> None:
        log.info("token refused: %s", why)
        decided(LoginVerdict.REFUSED if self._has_keys() else LoginVerdict.BUSY, None)

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for verified, decided in waiting:
            try:
                proven = verified()
            except BearerTokenError as why:
                self._refuse(why, decided)
            else:
                decided(LoginVerdict.ACCEPTED, proven)

    # --- keys ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._wanted.clear()
            self._requested_at, self._requesting = asyncio.get_running_loop().time(), True
            try:
                document = await asyncio.to_thread(self._fetch, self.configuration)
                keys = _usable(document)
            except (IssuerError, BearerTokenError) as why:
                self._failed(str(why))
            else:
                await self._take(keys, document)
            self._requesting = False
            self._answer_waiting()
            try:
                async with asyncio.timeout(ISSUER_REFRESH_S if self.problem is None else ISSUER_RETRY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _take(self, keys: tuple[IssuerKey, ...], document: Any) -> None:
        if self.problem is not None or self._fetched_at_s is None:
            log.info("token issuer %s: %d keys", self.configuration.issuer, len(keys))
        self.problem = None
        self._keys, self._fetched_at_s = keys, self._utc_s()
        try:
            await asyncio.to_thread(self._save, document, self._fetched_at_s)
        except OSError as error:
            log.warning("cannot store the keys of the token issuer in %s: %s", self._file, error.strerror)

    def _failed(self, why: str) -> None:
        if why != self.problem:
            log.warning(
                "token issuer %s: %s; the last keys stay valid for %g s after they were fetched",
                self.configuration.issuer,
                why,
                self.configuration.grace_s,
            )
        self.problem = why

    def _load(self) -> None:
        try:
            kept = json.loads(self._file.read_bytes())
            if kept["issuer"] == self.configuration.issuer:
                self._keys, self._fetched_at_s = read_keys(kept["keys"]), float(kept["fetched_at"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, BearerTokenError) as error:
            log.warning("cannot read %s (%s); asking the issuer", self._file, type(error).__name__)

    def _save(self, document: Any, fetched_at_s: float) -> None:
        kept = {"issuer": self.configuration.issuer, "fetched_at": fetched_at_s, "keys": document}
        replace_file(self._file, json.dumps(kept).encode())


def _introspection(configuration: TokenIssuer, data: Path, utc_s: Callable[[], float]) -> Introspection | None:
    """Return the questions about tokens; None if none are configured."""
    settings = configuration.introspection
    if settings is None:
        return None
    from edge.broker.security.introspection import Introspection  # noqa: PLC0415 - only where it is configured

    return Introspection(configuration, settings, data, utc_s=utc_s)


def _then_confirm(asking: Introspection, token: bytes, decided: Decided, source: str) -> Decided:
    """Return a callback that asks the issuer about a token once its signature was accepted."""

    def verified(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        if proven is None:
            decided(verdict, None)
        else:
            asking.confirm(token, proven, decided, source)

    return verified


def _usable(document: Any) -> tuple[IssuerKey, ...]:
    keys = read_keys(document)
    if not keys:
        raise IssuerError("it publishes no usable key")
    return keys
