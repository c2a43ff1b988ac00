"""Signing in and out over HTTP, for the pages of a gateway or hub.

================================  ========  ========================================================================
``GET /api/v1/session``           anyone    who is signed in, with which rights, and how to sign in: `SessionDocument`
``POST /api/v1/session``          anyone    sign in with `SignIn`: sets the cookie, and answers like GET
``DELETE /api/v1/session``        anyone    sign out: ends the session of the cookie, and answers like GET
``POST /api/v1/session/link``     operator  a code that signs in once (`LinkDocument`), for `waypost open`
================================  ========  ========================================================================

Wrong passwords count like those of other protocols (`security.login_throttle`): 429 while there are too many. The code
flow of OpenID Connect has routes of its own (`oidc_api`). Each way to sign in has a name in `SessionDocument.methods`,
and ends in `HttpAccess.open_session`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.hidden import hides
from edge.broker.http.access import OPERATOR, HttpAccess, failure_words, is_local, remote_host, set_user, verify
from edge.broker.http.body import read_body
from edge.broker.http.json_documents import json_answer
from edge.broker.http.limits import SESSION_BODY_BYTES_MAX, SESSION_LINK_S
from edge.broker.http.oidc_api import oidc_routes
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.http.session_cookie import is_encrypted
from edge.broker.http.session_links import SignInLinks
from edge.broker.http.sessions import BrowserSession, OpenedSession
from edge.broker.model.authorization import Grant, Operation
from edge.broker.model.refusals import RefusalCause
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.limits import USERNAME_CHARACTERS_MAX
from edge.broker.security.proof import LoginVerdict
from edge.output.log_history import event
from edge.output.text import line

log = logging.getLogger(__name__)

PATH: Final = "/api/v1/session"


class SessionDocument(msgspec.Struct, kw_only=True):
    """The signed-in user, and its rights."""

    user: str | None
    """Signed-in user; None without one, and where authentication is off."""
    view: bool
    """The user may see the state of the node."""
    manage: bool
    """The user may change the node."""
    open: bool
    """Authentication is off: everybody may see everything, and change it from the node's own machine."""
    secure: bool
    """The connection has TLS, or does not leave this machine."""
    methods: tuple[str, ...]
    """Ways to sign in: `password` (user and password), `token` (a token of the issuer), `oidc` (at the issuer).
    Links always work."""
    provider: str | None
    """Host of the issuer where people sign in; None unless `methods` has `oidc`."""
    expires_at: str | None
    """End of the session if it is not used, as an ISO time in UTC; None without a session."""
    sign_out_at: str | None = None
    """Address at the issuer that ends the person's session there too, in the answer to a sign-out: go to it."""


@hides("password", "token", "link")
class SignIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of: user and password; token; link."""

    user: str = ""
    password: str = ""
    token: str = ""
    """Bearer token of the issuer."""
    link: str = ""
    """Code of `POST /api/v1/session/link`."""
    stay: bool = False
    """Keep the session for 12 h without requests, also when the browser is closed; else for 30 minutes."""


class LinkDocument(msgspec.Struct, kw_only=True):
    """Code of a link: add ``#link=CODE`` to the address of the console."""

    code: str
    """Works once."""
    seconds: float
    """For how long it works."""


MayOperate = Callable[[Grant, Operation], bool]
"""Returns True if a user may view or manage, over HTTP, what the node shows it."""


def may_operate(grant: Grant, operation: Operation) -> bool:
    """Return True for a right to the whole space of a gateway."""
    return grant.may_manage if operation is Operation.MANAGE else grant.may_view


def session_routes(
    access: HttpAccess, may: MayOperate = may_operate, *, utc_s: Callable[[], float] = time.time
) -> Sequence[HttpRoute]:
    """Return the routes of this module. `utc_s` returns UTC seconds."""
    api = _SessionApi(access, may, utc_s)
    return [
        HttpRoute("/api/v1/session", api.show, methods=PURE),
        HttpRoute("/api/v1/session", api.sign_in, methods=("POST",)),
        HttpRoute("/api/v1/session", api.sign_out, methods=("DELETE",)),
        HttpRoute("/api/v1/session/link", api.link, methods=("POST",)),
        *oidc_routes(access),
    ]


class _SessionApi:
    def __init__(self, access: HttpAccess, may: MayOperate, utc_s: Callable[[], float]) -> None:
        self._access = access
        self._may = may
        self._utc_s = utc_s
        self._links = SignInLinks()

    async def show(self, request: Request) -> Response:
        """Answer with the user of the request; also a request that would be refused gets 200."""
        session = self._shown_session(request)
        try:
            async with self._access.admitted(request) as (grant, _):
                response = self._response(request, grant, session)
        except RequestRefused:
            return self._response(request, None, None)
        if session is not None and session.stays:  # the cookie lives as long as the session
            self._access.cookie.put(request, response, self._access.cookie.token(request) or "", stays=True)
        return response

    async def sign_in(self, request: Request) -> Response:
        try:
            _check_type(request)
            document = _parse(await read_body(request, SESSION_BODY_BYTES_MAX, "a sign-in"))
            gate = self._access.gate
            if gate is None or gate.open:
                return self._response(request, None, None)
            opened = await self._opened(request, document, gate)
        except RequestRefused as refused:
            return refused.response()
        await self._end_former(request)
        token, session = opened
        set_user(request, session.user)
        log.info("sign-in: user=%s from=%s", line(session.user), remote_host(request) or "-", extra=event("sign-in"))
        response = self._response(request, session.grant, session)
        self._access.cookie.put(request, response, token, stays=session.stays)
        return response

    async def sign_out(self, request: Request) -> Response:
        session, leaves_at = self._access.session_of(request), None
        try:
            if session is not None:
                async with self._access.admitted(request):  # checks that a page of this node sent it
                    leaves_at = self._sign_out_address(request, session)
                log.info(
                    "sign-out: user=%s from=%s",
                    line(session.user),
                    remote_host(request) or "-",
                    extra=event("sign-in"),
                )
                await self._access.end_session(session)
            response = self._response(request, None, None, leaves_at)
        except RequestRefused as refused:
            response = refused.response()
        if session is None or session not in self._access.sessions:
            self._access.cookie.remove(request, response)
        return response

    async def link(self, request: Request) -> Response:
        if not self._access.is_operator(request):
            why = "only with the operator token, on the node's own machine (waypost open)"
            return RequestRefused(403, why).response()
        set_user(request, OPERATOR)
        made = LinkDocument(code=self._links.make(self._access.clock()), seconds=SESSION_LINK_S)
        return json_answer(made)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _end_former(self, request: Request) -> None:
        """End the session that this browser had. If that is not durable, it ends when it is idle."""
        before = self._access.session_of(request)
        if before is not None:
            with contextlib.suppress(RequestRefused):
                await self._access.end_session(before)

    async def _opened(self, request: Request, document: SignIn, gate: Authenticator) -> OpenedSession:
        """Verify a sign-in and open its session. Raises RequestRefused."""
        source = remote_host(request)
        if document.link:
            if not self._links.take(document.link, self._access.clock()):
                gate.failed(source, "", "", RefusalCause.TOKEN)
                raise self._failed(request, "-", 401, "the link was used already, or is older than a minute")
            opened = await self._access.open_operator_session()
        else:
            if gate.throttles(source, "" if gate.tokens else document.user):
                raise self._failed(request, document.user, 429, "too many wrong passwords: wait a minute")
            secret = document.token if gate.tokens else document.password
            verdict, proven = await verify(gate, document.user, secret.encode("utf-8", "surrogatepass"), source)
            if verdict is LoginVerdict.BUSY:
                raise self._failed(request, document.user, 503, verdict.value)
            if proven is None:
                raise self._failed(request, document.user, 401, failure_words(gate, verdict))
            opened = await self._access.open_session(proven, stays=document.stay)
        if opened is None:
            raise self._failed(request, document.user, 401, LoginVerdict.REFUSED.value)
        return opened

    def _failed(self, request: Request, user: str, status: int, why: str) -> RequestRefused:
        shown = line(user[:USERNAME_CHARACTERS_MAX]) or "-"
        log.warning(
            "sign-in refused: user=%s from=%s: %s", shown, remote_host(request) or "-", why, extra=event("sign-in")
        )
        return RequestRefused(status, why)

    def _shown_session(self, request: Request) -> BrowserSession | None:
        """Return the session that authenticates a request."""
        if self._access.open or "authorization" in request.headers:
            return None
        return self._access.session_of(request)

    def _sign_out_address(self, request: Request, session: BrowserSession) -> str | None:
        """Return where the person signs out at the issuer; None unless it signed in there."""
        flow, scheme = self._access.code_flow, "https" if is_encrypted(request) else "http"
        if flow is None or not session.id_token:
            return None
        return flow.sign_out_address(session.id_token, f"{scheme}://{request.headers.get('host', '')}/")

    def _response(
        self,
        request: Request,
        grant: Grant | None,
        session: BrowserSession | None,
        sign_out_at: str | None = None,
    ) -> Response:
        local, is_open, gate = is_local(request), self._access.open, self._access.gate
        flow = self._access.code_flow
        methods = {
            "oidc": flow is not None,
            "password": gate is not None and gate.passwords,
            "token": gate is not None and gate.tokens,
        }
        document = SessionDocument(
            user=grant.user if grant is not None else None,
            view=is_open or (grant is not None and self._may(grant, Operation.VIEW)),
            manage=local if is_open else grant is not None and self._may(grant, Operation.MANAGE),
            open=is_open,
            secure=local or is_encrypted(request),
            methods=tuple(name for name, there in methods.items() if there),
            provider=urlsplit(flow.configuration.issuer).netloc if flow is not None else None,
            expires_at=self._ends(session) if session is not None else None,
            sign_out_at=sign_out_at,
        )
        return json_answer(document)

    def _ends(self, session: BrowserSession) -> str:
        now = self._access.clock()
        ends_at_s = self._utc_s() + session.ends_at_s(now) - now
        if session.grant.expires_at_s is not None:
            ends_at_s = min(ends_at_s, session.grant.expires_at_s)
        return datetime.fromtimestamp(ends_at_s, UTC).isoformat(timespec="seconds")


def _check_type(request: Request) -> None:
    """Raise RequestRefused for a body that a form of another site can send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused(415, "the body has to be application/json")


def _parse(body: bytes) -> SignIn:
    """Return a sign-in. Raises RequestRefused, without quoting the body."""
    try:
        return msgspec.json.decode(body, type=SignIn)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"
        raise RequestRefused(400, f"the sign-in is malformed: {where}") from None
