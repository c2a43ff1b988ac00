"""Sign-in of people at an OpenID Connect issuer: the authorization code flow with PKCE (RFC 6749, RFC 7636, RFC 9700).

`CodeFlow` builds the address at the issuer, exchanges the code, and verifies the tokens. The id token has to be for
this client and this sign-in (nonce). User and rights come from a token for the configured audience, exactly as for a
program that shows one. The module knows neither requests of browsers nor sessions; `edge.broker.http.oidc_api` does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from edge.broker.configuration import TokenIssuer
from edge.broker.security.issuer_requests import SIGN_OUT, IssuerError, discover, post_form
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity
from edge.broker.security.sign_in import IssuedTokens, SignedInPerson, SignInFailed, SignInFault
from edge.broker.security.sign_outs import EndedSignIn


class TokenCheck(Protocol):
    """Verifies the tokens of a sign-in with the keys of the issuer (`edge.broker.security.issuer.Issuer`)."""

    def check_person(self, tokens: IssuedTokens, nonce: str | None, decided: Decided) -> None:
        """Call `decided` once. `nonce`: that of the sign-in; None for renewed tokens, which have none."""
        ...

    def check_logout(self, token: bytes, decided: Callable[[LoginVerdict, EndedSignIn | None], None]) -> None:
        """Call `decided` once, for a logout token."""
        ...


Discover = Callable[[TokenIssuer], Mapping[str, Any]]
PostForm = Callable[[TokenIssuer, str, Mapping[str, str], tuple[str, str] | None], tuple[int, Any]]


class CodeFlow:
    """Sign-ins at one issuer."""

    def __init__(
        self,
        configuration: TokenIssuer,
        client_id: str,
        check: TokenCheck,
        *,
        find: Discover = discover,
        post: PostForm = post_form,
    ) -> None:
        """`find`, `post`: requests to the issuer; they block, and raise IssuerError."""
        self.configuration = configuration
        self._client_id = client_id
        self._check = check
        self._find = find
        self._post = post
        self._document: Mapping[str, Any] | None = None

    async def address(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return the address at the issuer where a person signs in. Raises SignInFailed."""
        document = await self._discovered()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self.configuration.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        place = str(document["authorization_endpoint"])
        return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"

    async def exchange(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> SignedInPerson:
        """Return the person of a code. Raises SignInFailed."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        return await self._tokens(form, nonce)

    async def renew(self, refresh_token: str) -> SignedInPerson:
        """Return the person again, with the rights that the issuer gives it now. Raises SignInFailed."""
        renewed = await self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token}, None)
        return renewed if renewed.refresh_token else renewed._replace(refresh_token=refresh_token)

    def sign_out_address(self, id_token: str, leads_to: str) -> str | None:
        """Return the address at the issuer that ends the session of a person there; None if it has none."""
        place = (self._document or {}).get(SIGN_OUT)
        if not isinstance(place, str) or not id_token:
            return None
        query = {"id_token_hint": id_token, "client_id": self._client_id, "post_logout_redirect_uri": leads_to}
        return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"

    async def ended_sign_in(self, logout_token: bytes) -> EndedSignIn:
        """Return the sign-in that a logout token of the issuer ends. Raises SignInFailed."""
        verdict: asyncio.Future[tuple[LoginVerdict, EndedSignIn | None]] = asyncio.get_running_loop().create_future()

        def decided(result: LoginVerdict, found: EndedSignIn | None) -> None:
            if not verdict.done():
                verdict.set_result((result, found))

        self._check.check_logout(logout_token, decided)
        result, ended = await verdict
        if ended is None:
            fault = SignInFault.ISSUER if result is LoginVerdict.BUSY else SignInFault.TOKEN
            raise SignInFailed(fault, "the logout token is not valid: the line before says why")
        return ended

    async def _discovered(self) -> Mapping[str, Any]:
        if self._document is None:
            try:
                self._document = await asyncio.to_thread(self._find, self.configuration)
            except IssuerError as error:
                raise SignInFailed(SignInFault.ISSUER, str(error)) from error
        return self._document

    async def _tokens(self, form: Mapping[str, str], nonce: str | None) -> SignedInPerson:
        document, own = await self._discovered(), self.configuration
        secret = (self._client_id, own.client_secret) if own.client_secret is not None else None
        sent = {**form, **({} if secret is not None else {"client_id": self._client_id})}
        try:
            status, found = await asyncio.to_thread(self._post, own, str(document["token_endpoint"]), sent, secret)
        except IssuerError as error:
            raise SignInFailed(SignInFault.ISSUER, str(error)) from error
        if status != 200 or not isinstance(found, Mapping):
            why = str(found.get("error", ""))[:60] if isinstance(found, Mapping) else ""
            fault = SignInFault.ISSUER if status >= 500 else SignInFault.CODE
            raise SignInFailed(fault, f"the token endpoint answered {status} {json.dumps(why)}")
        tokens = IssuedTokens(_text(found, "id_token"), _text(found, "access_token"))
        proven = await self._verified(tokens, nonce)
        return SignedInPerson(proven, _text(found, "refresh_token"), tokens.id_token)

    async def _verified(self, tokens: IssuedTokens, nonce: str | None) -> VerifiedIdentity:
        verdict: asyncio.Future[tuple[LoginVerdict, VerifiedIdentity | None]]
        verdict = asyncio.get_running_loop().create_future()

        def decided(result: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            if not verdict.done():
                verdict.set_result((result, proven))

        self._check.check_person(tokens, nonce, decided)
        result, proven = await verdict
        if proven is None:
            fault = SignInFault.ISSUER if result is LoginVerdict.BUSY else SignInFault.TOKEN
            raise SignInFailed(fault, "the tokens are not valid: the line before says why")
        return proven


def challenge_of(verifier: str) -> str:
    """Return the code challenge of a verifier (RFC 7636 section 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""
