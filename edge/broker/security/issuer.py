"""The issuer of bearer tokens as a gateway knows it: its public keys, fetched, kept on disk, and refreshed.

Keys come from the issuer's discovery document (OpenID Connect Discovery 1.0 section 4). Without the issuer those
fetched last go on counting for a stated grace, over restarts too: a gateway is offline at times, its devices are not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from edge.broker.configuration import TlsFiles, TokenIssuer
from edge.broker.security.limits import (
    ISSUER_ASKED_S_MIN,
    ISSUER_DOCUMENT_BYTES_MAX,
    ISSUER_REFRESH_S,
    ISSUER_RETRY_S,
    ISSUER_TIMEOUT_S,
    TOKENS_WAITING_MAX,
)
from edge.broker.security.peer_tls import peer_context
from edge.broker.security.private_file import write_private
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity
from edge.broker.security.tokens import BearerTokenError, IssuerKey, UnknownIssuerKey, read_keys, verify

log = logging.getLogger(__name__)

FILE: Final = "issuer.json"
DISCOVERY: Final = "/.well-known/openid-configuration"
_READ_BYTES: Final = 16_384

Fetch = Callable[[TokenIssuer], Any]


class IssuerError(Exception):
    """The issuer did not give its keys; the message says why."""


class Issuer:
    """Verifies tokens (`edge.broker.security.proof.BearerVerifier`). `start`, later `stop`; inside a running loop."""

    def __init__(
        self,
        configuration: TokenIssuer,
        data: Path,
        *,
        utc_s: Callable[[], float] = time.time,
        fetch: Fetch | None = None,
    ) -> None:
        """`data`: the folder the keys are kept in; `fetch` asks the issuer (blocking) and raises IssuerError."""
        self.configuration = configuration
        self.problem: str | None = None
        """Why the issuer could not be asked the last time; None when it could."""
        self._file = data / FILE
        self._utc_s = utc_s
        self._fetch = fetch or fetch_keys
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched_at_s: float | None = None
        self._asked_at = float("-inf")
        self._asking = False
        """An answer is under way: who needs it waits."""
        self._wanted = asyncio.Event()
        self._waiting: list[tuple[bytes, Decided]] = []
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take the keys kept on disk, and begin to follow the issuer."""
        self._load()
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="token issuer")

    async def stop(self) -> None:
        """Idempotent."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        self._answer_waiting()

    @property
    def overdue(self) -> str | None:
        """Why no token is taken now, while the issuer's keys are not known, or too old."""
        if self._known():
            return None
        return f"no bearer token is taken: token issuer {self.configuration.issuer}: {self.problem or 'not asked yet'}"

    def _known(self) -> bool:
        fetched_at_s = self._fetched_at_s
        return fetched_at_s is not None and self._utc_s() - fetched_at_s <= self.configuration.grace_s

    # --- tokens -----------------------------------------------------------------------------------------------

    def check(self, token: bytes, decided: Decided) -> None:
        """Call `decided` once: at once, or when the issuer has been asked about a key that is not known."""
        try:
            proven = self._verified(token)
        except UnknownIssuerKey as why:
            if not self._may_ask():
                self._refuse(why, decided)
            elif len(self._waiting) >= TOKENS_WAITING_MAX:
                decided(LoginVerdict.BUSY, None)
            else:
                self._waiting.append((token, decided))
                self._wanted.set()
        except BearerTokenError as why:
            self._refuse(why, decided)
        else:
            decided(LoginVerdict.ACCEPTED, proven)

    def _verified(self, token: bytes) -> VerifiedIdentity:
        if not self._known():
            raise UnknownIssuerKey("the issuer's keys are not known, or older than the grace")
        return verify(token, self._keys, self.configuration, self._utc_s())

    def _may_ask(self) -> bool:
        """Anybody can name keys that do not exist: the issuer is not to be asked for each of them."""
        loop = asyncio.get_running_loop()
        return self._asking or bool(self._waiting) or loop.time() - self._asked_at >= ISSUER_ASKED_S_MIN

    def _refuse(self, why: BearerTokenError, decided: Decided) -> None:
        log.info("a token was refused: %s", why)
        decided(LoginVerdict.REFUSED if self._known() else LoginVerdict.BUSY, None)

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for token, decided in waiting:
            try:
                proven = self._verified(token)
            except BearerTokenError as why:
                self._refuse(why, decided)
            else:
                decided(LoginVerdict.ACCEPTED, proven)

    # --- keys -------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._wanted.clear()
            self._asked_at, self._asking = asyncio.get_running_loop().time(), True
            try:
                document = await asyncio.to_thread(self._fetch, self.configuration)
                keys = _usable(document)
            except (IssuerError, BearerTokenError) as why:
                self._failed(str(why))
            else:
                await self._take(keys, document)
            self._asking = False
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
            log.warning("the token issuer's keys cannot be kept in %s: %s", self._file, error.strerror)

    def _failed(self, why: str) -> None:
        if why != self.problem:
            log.warning(
                "token issuer %s: %s; the keys fetched last count for %g s after they were",
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
            log.warning("%s cannot be used, the issuer is asked: %s", self._file, type(error).__name__)

    def _save(self, document: Any, fetched_at_s: float) -> None:
        kept = {"issuer": self.configuration.issuer, "fetched_at": fetched_at_s, "keys": document}
        write_private(self._file, json.dumps(kept))


def _usable(document: Any) -> tuple[IssuerKey, ...]:
    keys = read_keys(document)
    if not keys:
        raise IssuerError("it publishes no key we could use")
    return keys


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead from TLS to none."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetch_keys(issuer: TokenIssuer) -> Any:
    """The issuer's key set. Blocks for `ISSUER_TIMEOUT_S` at most, twice. Raises IssuerError."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if issuer.issuer.startswith("https:"):
        try:
            handlers.append(urllib.request.HTTPSHandler(context=peer_context(TlsFiles(ca=issuer.ca))))
        except OSError as error:
            raise IssuerError(str(error)) from error
    opener = urllib.request.build_opener(*handlers)
    document = _get(opener, issuer.issuer.rstrip("/") + DISCOVERY)
    if not isinstance(document, dict) or document.get("issuer") != issuer.issuer:
        raise IssuerError("its discovery document is that of another issuer")  # section 4.3
    where = str(document.get("jwks_uri"))
    _check_place(where, issuer)
    return _get(opener, where)


def _check_place(where: str, issuer: TokenIssuer) -> None:
    """Raise IssuerError unless keys may be fetched there: a document must not send us to any machine we can reach."""
    try:
        place, own = urlsplit(where), urlsplit(issuer.issuer)
    except ValueError:
        raise IssuerError("its discovery document names no jwks_uri") from None
    if place.scheme != own.scheme:
        raise IssuerError("its discovery document names no jwks_uri of the same scheme")
    if place.netloc.lower() not in (own.netloc.lower(), *(host.lower() for host in issuer.key_hosts)):
        host = place.netloc.rpartition("@")[2][:100]
        raise IssuerError(f"its keys are said to be at {host}, another host: list it in oidc.keyHosts if they are")


def _get(opener: urllib.request.OpenerDirector, url: str) -> Any:
    deadline = time.monotonic() + ISSUER_TIMEOUT_S
    body = b""
    try:
        with opener.open(url, timeout=ISSUER_TIMEOUT_S) as answer:
            while part := answer.read1(_READ_BYTES):
                body += part
                if len(body) > ISSUER_DOCUMENT_BYTES_MAX:
                    raise IssuerError(f"{url}: more than {ISSUER_DOCUMENT_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise IssuerError(f"{url}: not whole within {ISSUER_TIMEOUT_S:g} s")
        return json.loads(body)
    except urllib.error.HTTPError as error:
        error.close()
        raise IssuerError(f"{url}: status {error.code}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise IssuerError(f"{url}: {getattr(error, 'reason', None) or error}") from error
