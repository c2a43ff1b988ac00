"""The cookie that holds the token of a session (RFC 6265bis).

Cookies belong to a host, whatever the port. So the name of the cookie contains a digest of the node, and several nodes
of one machine do not overwrite each other's. Over TLS the name has the prefix ``__Host-``: only this host can set it,
over TLS, for all paths. Over plain HTTP, where a browser would reject that, it is a cookie without ``Secure``.
"""

from __future__ import annotations

import hashlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.limits import OIDC_SIGN_IN_S, SESSION_STAY_S

_DIGEST_CHARACTERS: Final = 8


class SessionCookie:
    """The cookie of one node."""

    def __init__(self, *node: str) -> None:
        """`node`: texts that tell this node from others of its machine, such as its kind, name and data directory."""
        digest = hashlib.sha256("\0".join(node).encode("utf-8", "surrogateescape")).hexdigest()
        self._name = f"waypost-{digest[:_DIGEST_CHARACTERS]}"

    def name(self, request: Request) -> str:
        """Return the name for the connection of a request."""
        return f"__Host-{self._name}" if is_encrypted(request) else self._name

    def token(self, request: Request) -> str | None:
        """Return the token that a request shows; None without one."""
        return request.cookies.get(self.name(request)) or None

    def put(self, request: Request, response: Response, token: str, *, stays: bool) -> None:
        """Give the token to the browser. Unless it `stays`, the browser forgets it when it is closed."""
        self._set(request, response, token, int(SESSION_STAY_S) if stays else None)

    def remove(self, request: Request, response: Response) -> None:
        """Let the browser forget the token."""
        self._set(request, response, "", 0)

    # --- sign-in at an issuer: `SameSite=Lax`, as the browser comes back by a link of another site ------------------

    def sign_in(self, request: Request) -> str | None:
        """Return the sign-in that this browser began (`PendingSignIn.cookie`); None without one."""
        return request.cookies.get(f"{self.name(request)}-oidc") or None

    def put_sign_in(self, request: Request, response: Response, pending: str) -> None:
        """Give the browser its sign-in."""
        self._set(request, response, pending, int(OIDC_SIGN_IN_S), of_sign_in=True)

    def remove_sign_in(self, request: Request, response: Response) -> None:
        """Let the browser forget its sign-in."""
        self._set(request, response, "", 0, of_sign_in=True)

    def _set(
        self, request: Request, response: Response, token: str, max_age_s: int | None, *, of_sign_in: bool = False
    ) -> None:
        response.set_cookie(
            f"{self.name(request)}-oidc" if of_sign_in else self.name(request),
            token,
            max_age=max_age_s,
            path="/",
            secure=is_encrypted(request),
            httponly=True,
            samesite="lax" if of_sign_in else "strict",
        )


def is_encrypted(request: Request) -> bool:
    """Return True for a request over TLS, to this node or to a proxy in front of it.

    A client that names a scheme of its own choice weakens only its own cookie.
    """
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.url.scheme == "https" or forwarded == "https"
