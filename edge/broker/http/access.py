"""Authentication and rights of HTTP requests, for all paths except ``/healthz``.

A client authenticates with each request: by the Authorization field (Basic, RFC 7617; Bearer, RFC 6750), by the cookie
of a session (`sessions`), or by the certificate of its connection, in this order. A local process that can read the
data directory may use the operator token in it.

A browser sends cookies by itself, also with a request that a page of another site makes. So the cookie is SameSite, the
`guard` refuses such requests, and a change with a cookie has to be one that no form can send (`_check_page`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from starlette.requests import Request

from edge.broker.http.limits import SESSIONS_MAX
from edge.broker.http.peer import peer_of
from edge.broker.http.rates import ApiRates
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import READS
from edge.broker.http.session_archive import (
    BY_OPERATOR,
    BY_PASSWORD,
    ArchiveFailed,
    KeptSession,
    SessionArchive,
    kept_origin,
)
from edge.broker.http.session_cookie import SessionCookie
from edge.broker.http.session_keeper import SessionKeeper
from edge.broker.http.sessions import BrowserSession, BrowserSessions, OpenedSession
from edge.broker.model.authorization import EVERYTHING, AccessRule, Ended, Grant, Operation
from edge.broker.model.refusals import RefusalCause
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import LoginVerdict, TokenOrigin, VerifiedIdentity
from edge.broker.security.sign_in import PersonSignIn
from edge.broker.security.sign_outs import EndedSignIn
from edge.broker.security.site import is_loopback, same_origin
from edge.output.text import line, word

log = logging.getLogger(__name__)

SIGN_IN: Final = "/api/v1/session"
"""Path of sign-ins."""
USER: Final = "waypost.user"
"""Key of the authenticated user in the ASGI scope of a request."""
_COUNTED: Final = "waypost.counted"
"""Key of the users in the ASGI scope of a request for which it is counted already; None: its address."""
OPERATOR: Final = "operator"
"""User of the operator token in the data directory."""
OPERATOR_RULES: Final = (
    AccessRule((EVERYTHING,), frozenset((Operation.VIEW, Operation.MANAGE, Operation.SEND, Operation.RECV))),
)
"""Rights of the operator token. Whoever reads it can read the store, and add users, in the same directory."""
BASIC: Final = {"WWW-Authenticate": 'Basic realm="waypost", charset="UTF-8"'}
BEARER: Final = {"WWW-Authenticate": 'Bearer realm="waypost"'}
BEARER_OR_BASIC: Final = {"WWW-Authenticate": f"{BEARER['WWW-Authenticate']}, {BASIC['WWW-Authenticate']}"}
"""With tokens: a browser shows a password prompt, where the user enters the token."""
SESSION: Final = {"WWW-Authenticate": 'Session realm="waypost"'}
"""Challenge for the script of a page: a browser does not know this scheme, so it shows no prompt of its own."""
REQUESTED_WITH: Final = "x-requested-with"
"""Header with which a script says that it is one. Over plain HTTP browsers send no Sec-Fetch-Mode."""
_TYPES: Final = frozenset(("application/cose", "application/json", "application/octet-stream", "application/yaml"))
"""Content types of changes by a page. No form can send them."""
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "via")
"""Fields that a proxy adds: then the client is remote, even if the connection has a local address."""


class AdmittedClient(NamedTuple):
    """An authenticated client."""

    grant: Grant | None
    """Its rights; None without authentication."""
    ended: asyncio.Future[Ended]
    """Done when the grant ends during the request."""

    @property
    def user(self) -> str:
        """User with the quotas for the names that it creates; empty without authentication."""
        return "" if self.grant is None else self.grant.user


class HttpAccess:
    """Authenticates and authorizes requests."""

    def __init__(
        self,
        gate: Authenticator | None = None,
        operator_token: str | None = None,
        cookie: SessionCookie | None = None,
        *,
        operator_rules: Sequence[AccessRule] = OPERATOR_RULES,
        clock: Callable[[], float] = time.monotonic,
        utc_s: Callable[[], float] = time.time,
        sessions_max: int = SESSIONS_MAX,
        group_of: Callable[[str], str] = str,
        check_grant: Callable[[Grant], None] = lambda _grant: None,
    ) -> None:
        """Without a `gate`, or with an open one, every client may do everything. `operator_token`: see `OPERATOR`.

        `cookie`: cookie of sessions; None: no sessions. `clock`: monotonic seconds; `utc_s`: UTC seconds.
        `sessions_max` and `group_of`: see `BrowserSessions`. `check_grant` raises RequestRefused for a client that is
        not served.
        """
        self.gate = gate
        self._operator_token = operator_token
        self._operator_rules = operator_rules
        self._check_grant = check_grant
        self._rates = ApiRates()
        self.clock = clock
        self.utc_s = utc_s
        self.cookie = cookie or SessionCookie()
        release = gate.release if gate is not None else lambda _: None
        self.sessions = BrowserSessions(release, most=sessions_max, group_of=group_of)
        self.keeper: SessionKeeper | None = None
        """Keeps the sessions over restarts; None: they end with the process."""

    @property
    def open(self) -> bool:
        """True without authentication."""
        return self.gate is None or self.gate.open

    @property
    def code_flow(self) -> PersonSignIn | None:
        """Return the sign-in of people at the issuer; None where none is configured."""
        gate = self.gate
        return gate.bearer.code_flow if gate is not None and gate.tokens and gate.bearer is not None else None

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[AdmittedClient]:
        """Authenticate the client during a request. Raises RequestRefused."""
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        gate = self.gate
        if gate is None or gate.open:
            yield AdmittedClient(None, ended)
            return
        if self._by_operator(request):
            set_user(request, OPERATOR)
            yield AdmittedClient(Grant(OPERATOR, "", self._operator_rules), ended)
            return
        proven = await self._session_or_proven(request, gate)
        self._count(request, proven.user)
        if isinstance(proven, BrowserSession):
            set_user(request, proven.user)
            self._check_grant(proven.grant)
            with proven.serving(ended, self.clock):
                yield AdmittedClient(proven.grant, ended)
            return

        def revoke(why: Ended) -> None:
            if not ended.done():
                ended.set_result(why)

        grant = gate.grant(proven, proven.user, revoke)
        if grant is None:
            self._count(request)
            self.record(request, RefusalCause.UNKNOWN_USER, proven.user)
            raise RequestRefused(401, LoginVerdict.REFUSED.value, challenge(gate, request))
        set_user(request, grant.user)
        try:
            self._check_grant(grant)
            yield AdmittedClient(grant, ended)
        finally:
            gate.release(grant)

    async def _session_or_proven(self, request: Request, gate: Authenticator) -> BrowserSession | VerifiedIdentity:
        """Return the session or the verified identity of a request. Raises RequestRefused, and counts the request."""
        try:
            session = self._session_of(request, gate)
            return await _proven(gate, request) if session is None else session
        except RequestRefused:
            self._count(request)
            raise

    def _count(self, request: Request, user: str | None = None) -> None:
        """Count a request of a user, or one without valid credentials of an address; once for each. Raises
        RequestRefused.

        Requests of users do not count for their address: behind a proxy all people have the same one, and a stranger
        who uses up its limit must not keep them out.
        """
        counted: set[str | None] = request.scope.setdefault(_COUNTED, set())
        if user in counted:
            return
        counted.add(user)
        path, now = request.scope["path"], self.clock()
        if user is None:
            self._rates.check_address(path, remote_host(request), now)
        else:
            self._rates.check_user(path, user, now)

    def record(self, request: Request, cause: RefusalCause, user: str, address: str = "") -> None:
        """Record a refusal for operators."""
        if self.gate is not None:
            remote = request.client.host if request.client is not None else ""
            self.gate.refusals.add(cause, remote, user=user, address=address)

    async def require_user(self, request: Request) -> None:
        """Raise RequestRefused unless a user sent the request, with any rights."""
        async with self.admitted(request):
            pass

    async def require_view(self, request: Request) -> None:
        """Raise RequestRefused unless the client may view the state of the node."""
        async with self.admitted(request) as (grant, _):
            if grant is not None and not grant.may_view:
                raise RequestRefused(
                    403, f"{grant.user} has no right to view", next_step=_next_step(Operation.VIEW, grant.user)
                )

    async def require_manage(self, request: Request) -> None:
        """Raise RequestRefused unless the client may change the node.

        Without authentication only local clients may.
        """
        async with self.admitted(request) as (grant, _):
            if grant is None and not is_local(request):
                raise RequestRefused(403, "only from the node's own machine, as authentication is off")
            if grant is not None and not grant.may_manage:
                raise RequestRefused(
                    403, f"{grant.user} has no right to manage", next_step=_next_step(Operation.MANAGE, grant.user)
                )

    # --- sessions -------------------------------------------------------------------------------------------------

    def session_of(self, request: Request) -> BrowserSession | None:
        """Return the session of the cookie of a request; None without one, or if it has ended."""
        token = self.cookie.token(request)
        return self.sessions.find(token, self.clock()) if token is not None else None

    def keep_sessions(self, open_archive: Callable[[], SessionArchive], *, shared: bool = False) -> SessionKeeper:
        """Keep sessions in an archive; `open_archive` is called in a thread. Start the keeper, and later close it.

        `shared`: other nodes use the archive too, so a session that is unknown here may be open there.
        """
        self.keeper = SessionKeeper(
            self.sessions,
            open_archive,
            self._grant_kept,
            clock=self.clock,
            utc_s=self.utc_s,
            shared=shared,
            has_signed_out=self._has_signed_out,
        )
        return self.keeper

    def count_sign_out(self, request: Request) -> None:
        """Count a logout of the issuer for its address. Raises RequestRefused."""
        self._rates.check_sign_out(remote_host(request), self.clock())

    async def recover_session(self, request: Request) -> None:
        """Bring back the session of a request if it is kept. Raises RequestRefused if that cannot be known now."""
        token = self.cookie.token(request)
        if self.keeper is None or token is None or self.open or "authorization" in request.headers:
            return
        signs_in = request.method not in READS and request.url.path == SIGN_IN
        try:
            if self.keeper.needs_lookup(token):
                self._rates.check_lookup(remote_host(request), self.clock())
            await self.keeper.recover(token)
        except RequestRefused:
            if not signs_in:
                raise
        except ArchiveFailed as error:
            if not signs_in:  # the reason is for the log: anybody can send a cookie
                log.debug("a session cannot be looked up: %s", line(str(error)))
                what = "your session cannot be looked up now"
                raise RequestRefused(503, what, next_step="try again in some seconds") from None

    async def open_session(self, proven: VerifiedIdentity, *, stays: bool) -> OpenedSession | None:
        """Open a session of a verified user. Return None if the user has changed since."""
        gate = self.gate
        if gate is None:
            return None
        opened = self.sessions.open(
            lambda revoke: gate.grant_session(proven, "session", revoke), stays=stays, now=self.clock()
        )
        return await self._kept(opened, proven, self._way_of(gate))

    async def open_operator_session(self) -> OpenedSession | None:
        """Open a session with the rights of the operator token."""
        opened = self.sessions.open(self._grant_operator, stays=False, now=self.clock())
        return await self._kept(opened, VerifiedIdentity(OPERATOR), BY_OPERATOR)

    async def end_session(self, session: BrowserSession) -> None:
        """End a session; that is durable on return. Raises RequestRefused: it has ended, and may come back."""
        if self.keeper is None:
            self.sessions.end(session)
            return
        try:
            await self.keeper.end(session)
        except ArchiveFailed as error:
            raise _not_durable(error) from None

    async def end_sessions_of(self, user: str) -> int:
        """End the sessions of a user; return their number. As `end_session`."""
        if self.keeper is None:
            mine = [each for each in self.sessions if each.user == user]
            for each in mine:
                self.sessions.end(each)
            return len(mine)
        try:
            return await self.keeper.end_user(user)
        except ArchiveFailed as error:
            raise _not_durable(error) from None

    async def end_sign_in(self, ended: EndedSignIn) -> int:
        """End what a sign-in at the issuer has opened; return the number of sessions and connections. Raises
        SignOutNotKept."""
        return await self.gate.sign_outs.add(ended) if self.gate is not None else 0

    def is_operator(self, request: Request) -> bool:
        """Return True for a local client that shows the operator token."""
        return self._by_operator(request)

    async def _kept(self, opened: OpenedSession | None, proven: VerifiedIdentity, by: str) -> OpenedSession | None:
        """Keep an opened session over restarts."""
        if opened is not None and self.keeper is not None:
            token, session = opened
            kept = KeptSession(
                key=session.key,
                user=session.user,
                by=by,
                secret=proven.secret,
                rules=proven.rules,
                expires_at_s=proven.expires_at_s,
                origin=kept_origin(proven),
                stays=session.stays,
                opened_at_s=self.utc_s(),
                used_at_s=self.utc_s(),
            )
            await self.keeper.opened(session, token, kept)
        return opened

    def _grant_kept(self, kept: KeptSession, revoke: Callable[[Ended], None]) -> Grant | None:
        """Return the grant of a kept session with the rights of now; None if its user may not use it any more."""
        gate = self.gate
        if kept.by == BY_OPERATOR:
            return self._grant_operator(revoke) if self._operator_token is not None else None
        if gate is None or kept.by != self._way_of(gate) or (kept.by == BY_PASSWORD and not kept.secret):
            return None
        proven = VerifiedIdentity(kept.user, kept.rules, kept.expires_at_s, kept.secret, origin=kept.origin)
        return gate.grant_session(proven, "session", revoke, restored=True)

    def _has_signed_out(self, kept: KeptSession) -> bool:
        """Return True for a session with a sign-in that the issuer has ended."""
        return self.gate is not None and self.gate.sign_outs.covers(kept.origin)

    def origin_of(self, session: BrowserSession) -> TokenOrigin | None:
        """Return the origin of the token of a session; None without one."""
        return self.gate.token_grants.origin_of(session.grant) if self.gate is not None else None

    def _grant_operator(self, revoke: Callable[[Ended], None]) -> Grant:
        return Grant(OPERATOR, "session", self._operator_rules, revoke)

    @staticmethod
    def _way_of(gate: Authenticator) -> str:
        """Return how people sign in now, as `KeptSession.by` has it."""
        return gate.bearer.issuer if gate.tokens and gate.bearer is not None else BY_PASSWORD

    def _session_of(self, request: Request, gate: Authenticator) -> BrowserSession | None:
        """Return the session of a request; None if the client authenticates otherwise. Raises RequestRefused."""
        if "authorization" in request.headers or self.cookie.token(request) is None:
            return None
        session = self.session_of(request)
        if session is not None:
            _check_page(request)
        elif peer_of(request).identity is None:
            raise RequestRefused(401, Ended.SIGNED_OUT.value, challenge(gate, request))
        return session

    def _by_operator(self, request: Request) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if self._operator_token is None or scheme.lower() != "bearer" or not is_local(request):
            return False
        return hmac.compare_digest(shown.strip().encode("latin-1"), self._operator_token.encode("ascii"))


def _not_durable(error: ArchiveFailed) -> RequestRefused:
    what = "signed out here; but the session is still on disk, and may come back after a power cut"
    return RequestRefused(503, f"{what}: {error}")


def is_local(request: Request) -> bool:
    """Return True for a client on this machine without a proxy."""
    local = request.client is not None and is_loopback(request.client.host)
    return local and not any(field in request.headers for field in _FORWARDED)


def set_user(request: Request, user: str) -> None:
    """Note the user of a request, for the connection and for the audit."""
    peer_of(request).set_user(user)
    request.scope[USER] = user


def challenge(gate: Authenticator, request: Request) -> Mapping[str, str]:
    """Return the WWW-Authenticate field (RFC 9110 section 11.6.1)."""
    if request.headers.get("sec-fetch-mode", "navigate") != "navigate" or REQUESTED_WITH in request.headers:
        return SESSION
    return BEARER_OR_BASIC if gate.tokens else BASIC


def _check_page(request: Request) -> None:
    """Raise RequestRefused for a change with a cookie, unless a page of this node made it.

    The content type must be one that no form can send; without a body there need not be one.
    """
    if request.method in READS:
        return
    fields = request.headers
    origin = fields.get("origin")
    own = fields.get("sec-fetch-site") in ("same-origin", "none")
    if not (own or (origin is not None and same_origin(origin, fields.get("host")))):
        raise RequestRefused(403, "a request with a cookie has to come from a page of this node")
    empty = fields.get("content-length", "0") == "0" and "transfer-encoding" not in fields
    if not empty and fields.get("content-type", "").partition(";")[0].strip().lower() not in _TYPES:
        raise RequestRefused(415, f"with a cookie the body has to be one of {', '.join(sorted(_TYPES))}")


def parse_basic(authorization: str, wanted: Mapping[str, str], *, tokens: bool = False) -> tuple[str, bytes]:
    """Return user and password of the Basic scheme (RFC 7617). `wanted`: challenge of an error; `tokens`: the password
    is a bearer token. Raises RequestRefused."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        what = "a bearer token is" if tokens else "a user name and a password are"
        raise RequestRefused(401, f"{what} needed", wanted)
    try:
        username, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
        if colon:
            return username.decode("utf-8"), password
    except (binascii.Error, ValueError):  # UnicodeDecodeError is one
        pass
    raise RequestRefused(401, "the Authorization header is malformed", wanted)


async def _proven(gate: Authenticator, request: Request) -> VerifiedIdentity:
    """Verify the Authorization of a request, or its certificate. Raises RequestRefused."""
    identity = peer_of(request).identity
    source = remote_host(request)
    authorization = request.headers.get("authorization")
    if authorization is None and identity is not None:
        return VerifiedIdentity(identity)
    if gate.tokens and (authorization or "").lower().startswith("bearer "):
        result, proven = await verify(gate, "", (authorization or "")[7:].strip().encode(), source)
    else:
        username, password = parse_basic(authorization or "", challenge(gate, request), tokens=gate.tokens)
        result, proven = await verify(gate, username, password, source)
    if result is LoginVerdict.BUSY:
        raise RequestRefused(503, result.value)
    if proven is None:
        raise RequestRefused(401, failure_words(gate, result), challenge(gate, request))
    return proven


async def verify(
    gate: Authenticator, username: str, password: bytes, source: str
) -> tuple[LoginVerdict, VerifiedIdentity | None]:
    """Verify a password, or a token where clients have tokens. `source`: address of the client."""
    verdict: asyncio.Future[tuple[LoginVerdict, VerifiedIdentity | None]] = asyncio.get_running_loop().create_future()

    def decided(result: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        if not verdict.done():
            verdict.set_result((result, proven))

    gate.check(username, password, decided, source)
    return await verdict


def failure_words(gate: Authenticator, verdict: LoginVerdict) -> str:
    """Return why a login failed."""
    return "the token is not valid" if gate.tokens else verdict.value


def remote_host(request: Request) -> str:
    """Return the address of the client; empty if it is unknown."""
    return request.client.host if request.client is not None else ""


def _next_step(operation: Operation, user: str) -> str:
    return f"give it {operation.value}:# (waypost user allow {word(user[:100])} --allow …, or its MessagingUser)"
