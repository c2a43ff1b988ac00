"""Authentication and rights of HTTP requests, for all paths except ``/healthz``.

A client authenticates with each request by the Authorization field (Basic, RFC 7617; Bearer, RFC 6750) or by the
certificate of its connection. A local process that can read the data directory may use the operator token in it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from starlette.requests import Request

from edge.broker.http.peer import peer_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import EVERYTHING, AccessRule, Ended, Grant, Operation
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.site import is_loopback
from edge.output.text import word

OPERATOR: Final = "operator"
"""User of the operator token in the data directory."""
OPERATOR_RULES: Final = (AccessRule((EVERYTHING,), frozenset((Operation.VIEW, Operation.MANAGE))),)
BASIC: Final = {"WWW-Authenticate": 'Basic realm="waypost", charset="UTF-8"'}
BEARER: Final = {"WWW-Authenticate": 'Bearer realm="waypost"'}
BEARER_OR_BASIC: Final = {"WWW-Authenticate": f"{BEARER['WWW-Authenticate']}, {BASIC['WWW-Authenticate']}"}
"""With tokens: a browser shows a password prompt, where the user enters the token."""
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

    def __init__(self, gate: Authenticator | None = None, operator_token: str | None = None) -> None:
        """Without a `gate`, or with an open one, every client may do everything. `operator_token`: see `OPERATOR`."""
        self._gate = gate
        self._operator_token = operator_token

    @property
    def open(self) -> bool:
        """True without authentication."""
        return self._gate is None or self._gate.open

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[AdmittedClient]:
        """Authenticate the client during a request. Raises RequestRefused."""
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        gate = self._gate
        if gate is None or gate.open:
            yield AdmittedClient(None, ended)
            return
        if self._by_operator(request):
            peer_of(request).set_user(OPERATOR)
            yield AdmittedClient(Grant(OPERATOR, "", OPERATOR_RULES), ended)
            return

        def revoke(why: Ended) -> None:
            if not ended.done():
                ended.set_result(why)

        proven = await _proven(gate, request)
        grant = gate.grant(proven, proven.user, revoke)
        if grant is None:
            raise RequestRefused(401, LoginVerdict.REFUSED.value, challenge(gate))
        peer_of(request).set_user(grant.user)
        try:
            yield AdmittedClient(grant, ended)
        finally:
            gate.release(grant)

    async def require_user(self, request: Request) -> None:
        """Raise RequestRefused unless a user sent the request, with any rights."""
        async with self.admitted(request):
            pass

    async def require_view(self, request: Request) -> None:
        """Raise RequestRefused unless the client may view the state of the node."""
        async with self.admitted(request) as (grant, _):
            if grant is not None and not grant.may_view:
                raise RequestRefused(
                    403, f"{grant.user} has no right to view: {_next_step(Operation.VIEW, grant.user)}"
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
                    403, f"{grant.user} has no right to manage: {_next_step(Operation.MANAGE, grant.user)}"
                )

    def _by_operator(self, request: Request) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if self._operator_token is None or scheme.lower() != "bearer" or not is_local(request):
            return False
        return hmac.compare_digest(shown.strip().encode("latin-1"), self._operator_token.encode("ascii"))


def is_local(request: Request) -> bool:
    """Return True for a client on this machine without a proxy."""
    local = request.client is not None and is_loopback(request.client.host)
    return local and not any(field in request.headers for field in _FORWARDED)


def challenge(gate: Authenticator) -> Mapping[str, str]:
    """Return the WWW-Authenticate field (RFC 9110 section 11.6.1)."""
    return BEARER_OR_BASIC if gate.tokens else BASIC


def parse_basic(authorization: str, wanted: Mapping[str, str]) -> tuple[str, bytes]:
    """Return user and password of the Basic scheme (RFC 7617). Raises RequestRefused."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        what = "a user name and a password are" if wanted is BASIC else "a bearer token is"
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
    source = request.client.host if request.client is not None else ""
    verdict: asyncio.Future[tuple[LoginVerdict, VerifiedIdentity | None]] = asyncio.get_running_loop().create_future()

    def decided(result: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        if not verdict.done():
            verdict.set_result((result, proven))

    authorization = request.headers.get("authorization")
    if authorization is None and identity is not None:
        return VerifiedIdentity(identity)
    if gate.tokens and (authorization or "").lower().startswith("bearer "):
        gate.check_token((authorization or "")[7:].strip().encode(), decided, source)
    else:
        username, password = parse_basic(authorization or "", challenge(gate))
        gate.check(username, password, decided, source)
    result, proven = await verdict
    if result is LoginVerdict.BUSY:
        raise RequestRefused(503, result.value)
    if proven is None:
        raise RequestRefused(401, "the token is not valid" if gate.tokens else result.value, challenge(gate))
    return proven


def _next_step(operation: Operation, user: str) -> str:
    return f"give it {operation.value}:# (waypost device allow {word(user[:100])} --allow …, or its MessagingUser)"
