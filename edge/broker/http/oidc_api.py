"""Signing in with an OpenID Connect issuer, for people in browsers.

====================================  ========  ====================================================================
``GET /api/v1/session/oidc``          anyone    goes to the issuer; ``?page=#/fleet&stay=1``
``GET /api/v1/session/oidc/callback`` anyone    comes back from it: opens the session, and goes to the page
``POST /api/v1/session/oidc/logout``  issuer    ends what a person has opened (Back-Channel Logout 1.0)
====================================  ========  ====================================================================

The answer of the issuer comes as a link that any site could make. So a sign-in belongs to the browser that began it: a
cookie, which a link cannot set, has the secret from which its state is made (`PendingSignIn`). The last redirect leads
to this node only: the page is the part after the ``#``. A failure leads to the sign-in page with a word
(`SignInFault`), and the log has the reason. Texts of the issuer are shown nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from edge.broker.configuration import AuthenticationMode
from edge.broker.http.access import HttpAccess, remote_host, set_user
from edge.broker.http.body import read_body
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import json_answer
from edge.broker.http.limits import OIDC_RENEW_BEFORE_S, OIDC_RENEW_RETRY_S, SESSION_BODY_BYTES_MAX
from edge.broker.http.pending_sign_in import PendingSignIn
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.http.session_cookie import is_encrypted
from edge.broker.http.sessions import BrowserSession, OpenedSession
from edge.broker.model.authorization import Ended
from edge.broker.model.refusals import RefusalCause
from edge.broker.security.proof import renewed_origin
from edge.broker.security.sign_in import PersonSignIn, SignedInPerson, SignInFailed, SignInFault
from edge.broker.security.sign_outs import SignOutNotKept
from edge.output.log_history import event
from edge.output.text import line

log = logging.getLogger(__name__)

BEGIN: Final = "/api/v1/session/oidc"
CALLBACK: Final = "/api/v1/session/oidc/callback"
_ANSWER_CHARACTERS_MAX: Final = 4_096
"""Characters of code and state in an answer of the issuer."""
_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS_MAX: Final = 16
"""Fields of a logout; it has one."""
_NOT_KEPT: Final = {**NEVER_CACHED, "Referrer-Policy": "no-referrer"}


class LogoutDocument(msgspec.Struct, kw_only=True):
    """Answer to a logout of the issuer, once it is on disk."""

    ended: int
    """Sessions and connections that it has ended at this node."""


def oidc_routes(access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of this module."""
    api = _OidcApi(access)
    return [
        HttpRoute("/api/v1/session/oidc", api.begin, methods=("GET",)),
        HttpRoute("/api/v1/session/oidc/callback", api.finish, methods=("GET",)),
        HttpRoute("/api/v1/session/oidc/logout", api.logout, methods=("POST",)),
    ]


class _OidcApi:
    def __init__(self, access: HttpAccess) -> None:
        self._access = access
        self._renewing: set[asyncio.Task[None]] = set()
        if access.keeper is not None:
            access.keeper.renew_with(self)

    async def begin(self, request: Request) -> Response:
        query = request.query_params
        pending = PendingSignIn.begin(query.get("page", ""), stay=query.get("stay") == "1")
        try:
            where = await self._flow().address(_redirect_uri(request), pending.state, pending.nonce, pending.verifier)
        except SignInFailed as failed:
            return self._failed(request, failed)
        response = RedirectResponse(where, 303, headers=_NOT_KEPT)
        self._access.cookie.put_sign_in(request, response, pending.cookie)
        return response

    async def finish(self, request: Request) -> Response:
        try:
            flow, pending = self._flow(), self._answered(request)
        except SignInFailed as failed:
            return self._failed(request, failed)
        try:
            person = await self._signed_in(request, flow, pending)
            token, session = await self._open(person, pending)
            session.signed_in_at_issuer(person.id_token)
        except SignInFailed as failed:
            response = self._failed(request, failed)
            self._access.cookie.remove_sign_in(request, response)
            return response
        if self._access.keeper is not None:
            await self._access.keeper.keep_renewal(session, person)
        if person.refresh_token:
            self.resume(session, person.refresh_token)
        set_user(request, session.user)
        log.info("sign-in: user=%s from=%s by the issuer", line(session.user), remote_host(request) or "-")
        response = RedirectResponse(f"/{pending.leads_to}", 303, headers=_NOT_KEPT)
        self._access.cookie.put(request, response, token, stays=session.stays)
        self._access.cookie.remove_sign_in(request, response)
        return response

    async def logout(self, request: Request) -> Response:
        """End the sign-in that the issuer has ended. The answer comes when that is durable."""
        try:
            self._access.count_sign_out(request)
            ended = await self._logout_flow().ended_sign_in(await _logout_token(request))
            count = await self._access.end_sign_in(ended)
        except SignInFailed as failed:
            log.warning("logout by the issuer refused: from=%s: %s", remote_host(request) or "-", failed)
            status = 503 if failed.fault is SignInFault.ISSUER else 400
            return RequestRefused(status, "the logout token is not accepted; the log says why", NEVER_CACHED).response()
        except SignOutNotKept as error:
            log.warning("logout by the issuer: %s", error)
            what = "signed out here; but that is not on disk"
            return RequestRefused(503, what, NEVER_CACHED, next_step="send it again").response()
        except RequestRefused as refused:
            return refused.response()
        name = line(ended.subject or ended.session)
        log.info("logout by the issuer: %s: %d sessions and connections ended", name, count, extra=event("sign-in"))
        return json_answer(LogoutDocument(ended=count))

    def _logout_flow(self) -> PersonSignIn:
        """Return the sign-in at the issuer. Raises RequestRefused where none is configured."""
        flow, gate = self._access.code_flow, self._access.gate
        if flow is None and gate is not None and gate.mode is AuthenticationMode.EXTERNAL and gate.bearer is None:
            raise RequestRefused(503, "the issuer is being changed")
        if flow is None:
            raise RequestRefused(404, "people do not sign in at an issuer here", next_step="set oidc.clientId")
        return flow

    def _flow(self) -> PersonSignIn:
        """Return the sign-in at the issuer. Raises SignInFailed where none is configured."""
        flow = self._access.code_flow
        if flow is None:
            raise SignInFailed(SignInFault.ISSUER, "no client is configured (oidc.clientId)")
        return flow

    async def _open(self, person: SignedInPerson, pending: PendingSignIn) -> OpenedSession:
        """Open the session of a person. Raises SignInFailed."""
        opened = await self._access.open_session(person.proven, stays=pending.stay)
        if opened is None:
            raise SignInFailed(SignInFault.TOKEN, "the user has changed")
        return opened

    def _answered(self, request: Request) -> PendingSignIn:
        """Return the sign-in that an answer belongs to. Raises SignInFailed; the sign-in of the browser then goes on,
        because any site can make such a link."""
        pending = PendingSignIn.of_cookie(self._access.cookie.sign_in(request) or "")
        state = request.query_params.get("state", "")[:_ANSWER_CHARACTERS_MAX]
        if pending is None or not pending.is_answered_by(state):
            raise SignInFailed(SignInFault.STATE, "the answer belongs to no sign-in of this browser")
        return pending

    async def _signed_in(self, request: Request, flow: PersonSignIn, pending: PendingSignIn) -> SignedInPerson:
        """Verify an answer of the issuer. Raises SignInFailed."""
        query = request.query_params
        code = query.get("code", "")[:_ANSWER_CHARACTERS_MAX]
        if query.get("iss", flow.configuration.issuer) != flow.configuration.issuer:
            raise SignInFailed(SignInFault.STATE, "the answer is that of another issuer")
        if "error" in query or not code:
            raise SignInFailed(SignInFault.DENIED, f"the issuer answered {query.get('error', '')[:60]!r}")
        return await flow.exchange(code, _redirect_uri(request), pending.verifier, pending.nonce)

    def resume(self, session: BrowserSession, refresh_token: str) -> None:
        """Keep the rights of a session those that the issuer gives, until it ends."""
        flow = self._access.code_flow
        if flow is None:
            return
        renewing = asyncio.get_running_loop().create_task(self._renew(session, flow, refresh_token))
        self._renewing.add(renewing)
        renewing.add_done_callback(self._renewing.discard)

    async def renew(self, refresh_token: str) -> SignedInPerson | None:
        """Return the person of a token with the rights of now; None if the issuer gives it none."""
        flow = self._access.code_flow
        try:
            return await flow.renew(refresh_token) if flow is not None else None
        except SignInFailed as failed:
            log.info("a session is not restored: %s", failed)
            return None

    async def _renew(self, session: BrowserSession, flow: PersonSignIn, refresh_token: str) -> None:
        """Keep the rights of a session those that the issuer gives, until the session ends.

        A session has the life of its token. Before its end the next one is requested; the issuer refuses when the
        person was removed there, and the session ends.
        """
        gate, keeper = self._access.gate, self._access.keeper
        while gate is not None and session in self._access.sessions and session.grant.expires_at_s is not None:
            left_s = session.grant.expires_at_s - self._access.utc_s()
            await asyncio.sleep(max(1.0, left_s - OIDC_RENEW_BEFORE_S))
            if session not in self._access.sessions:
                return
            if keeper is not None and (elsewhere := await keeper.renewed_elsewhere(session)) is not None:
                if not gate.renew(session.grant, elsewhere.proven):
                    self._access.sessions.end(session, Ended.CHANGED)
                    return
                refresh_token = elsewhere.refresh_token
                continue
            if keeper is not None and not await keeper.may_renew(session):
                continue
            origin = self._access.origin_of(session)
            try:
                person = await flow.renew(refresh_token)
                person = person._replace(proven=renewed_origin(origin, person.proven))
            except SignInFailed as failed:
                log.info("session of %s is not renewed: %s", line(session.user), failed)
                if failed.fault is not SignInFault.ISSUER:
                    self._access.sessions.end(session, Ended.CHANGED)
                    return
                await asyncio.sleep(OIDC_RENEW_RETRY_S)  # until the token ends, and the session with it
                continue
            if self._access.code_flow is not flow or not gate.renew(session.grant, person.proven):
                self._access.sessions.end(session, Ended.CHANGED)
                return
            refresh_token = person.refresh_token
            session.signed_in_at_issuer(person.id_token)
            if keeper is not None:
                await keeper.keep_renewal(session, person)

    def _failed(self, request: Request, failed: SignInFailed) -> Response:
        """Lead to the sign-in page, which says why in words."""
        log.warning("sign-in by the issuer refused: from=%s: %s", remote_host(request) or "-", failed)
        if self._access.gate is not None and failed.fault is SignInFault.TOKEN:
            self._access.gate.failed(remote_host(request), "", "", RefusalCause.TOKEN)
        return RedirectResponse(f"/#sign-in={quote(failed.fault.value)}", 303, headers=_NOT_KEPT)


async def _logout_token(request: Request) -> bytes:
    """Return the token of a logout, which comes as a form. Raises RequestRefused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise RequestRefused(415, f"the body has to be {_FORM}")
    body = await read_body(request, SESSION_BODY_BYTES_MAX, "a logout token")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        fields = {}
    tokens = fields.get("logout_token", [])
    if len(tokens) != 1:
        raise RequestRefused(400, "one logout_token is expected")
    return tokens[0].encode("utf-8", "surrogatepass")


def _redirect_uri(request: Request) -> str:
    """Return the callback under the name that the browser uses: the issuer compares that of both requests."""
    scheme = "https" if is_encrypted(request) else "http"
    return f"{scheme}://{request.headers.get('host', '')}{CALLBACK}"
