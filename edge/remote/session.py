"""Sessions of a user at consoles: sign in, sign out, and the client of a console with the session of its context."""

from __future__ import annotations

import ssl
from http.client import HTTPException
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from bridge.enrolment import AUTHORITY_PATH
from bridge.resources.endpoint import ListenEndpoint, authority
from edge.output.errors import CommandError, Exit
from edge.output.text import word
from edge.remote import contexts
from edge.remote.client import ANSWER_S, ConsoleClient, Login, as_document
from edge.remote.contexts import Context
from edge.remote.trust import CertificateChanged, fingerprint, one_certificate, shown_certificate, tls_context

SESSION: Final = "session"
AUTHORITY_BYTES_MAX: Final = 100_000
"""Longest file of authorities that is read."""
_PORTS: Final = {"http": 80, "https": 443}


class SignedIn(msgspec.Struct, kw_only=True):
    """Fields of the answer of a console about its session that commands need."""

    user: str | None
    open: bool
    methods: tuple[str, ...] = ()
    expires_at: str | None = None


class UnknownCertificate(NamedTuple):
    """Certificate that no authority of this machine has signed."""

    context: Context
    """Context that accepts it."""
    fingerprint: str
    """SHA-256 of what is accepted."""
    what: str
    """``certificate`` or ``authority``."""


def parse_url(text: str, option: str) -> str:
    """Return the URL of a console, without a path, for a URL, HOST:PORT or the name of a context.

    Raises CommandError.
    """
    named = contexts.read().contexts.get(text)
    if named is not None and named.url:
        return named.url
    hint = "HOST:PORT or the URL follows http= or https= in the `ready` line"
    try:
        return _url_of(text)
    except ValueError as why:
        raise CommandError(f"{option} {text}: {why}", hint, code=Exit.USAGE, error="invalid-value") from None


def _url_of(text: str) -> str:
    """Return the URL of a console. Raises ValueError."""
    if "://" not in text:
        return f"http://{ListenEndpoint.parse(text.rstrip('/'))}"
    parts = urlsplit(text)
    if parts.scheme not in _PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError("expected https://HOST:PORT")
    return f"{parts.scheme}://{authority(parts.hostname, parts.port or _PORTS[parts.scheme])}"


def client_of(url: str) -> ConsoleClient:
    """Return the client of a console, with the session of its context if there is one. Raises CommandError."""
    known = contexts.of_url(contexts.read(), url) or Context(url=url)
    return ConsoleClient(url, Login(cookie=known.cookie), known)


def trusted(context: Context, ca: Path | None) -> Context | UnknownCertificate:
    """Return a context that verifies the console's certificate, or what the user has to accept for that.

    `ca`: file with the authorities. Raises CommandError.
    """
    parts = urlsplit(context.url)
    host, port = parts.hostname or "", parts.port or 443
    if parts.scheme == "http":
        if not ListenEndpoint(host, port).loopback:
            hint = f"use its https address; on its machine: waypost login {word(context.url)}"
            raise CommandError(
                "a password over plain HTTP can be read on the way", hint, error="no-tls", code=Exit.USAGE
            )
        return context
    if ca is not None:
        context = msgspec.structs.replace(context, ca=_read_ca(ca), certificate="")
    try:
        _try(context)
    except CertificateChanged:
        return _unknown(context, host, port)
    except ssl.SSLCertVerificationError as error:
        if ca is not None:
            what = f"{context.url}: its certificate is not of an authority in {ca}: {error.verify_message}"
            raise CommandError(what, error="certificate-not-trusted", code=Exit.UNREACHABLE) from None
        return _unknown(context, host, port)
    except OSError as error:
        raise _away(context.url, error) from None
    return context


def sign_in(context: Context, user: str, secret: str) -> tuple[Context, SignedIn]:
    """Open a session; return the context with its cookie. An empty secret is for a console without authentication.

    Raises CommandError.
    """
    client = ConsoleClient(context.url, trust=context)
    known = client.read(SignedIn, SESSION)
    if known.open:
        return _with_role(msgspec.structs.replace(context, user="", cookie="")), known
    if "password" in known.methods:
        body = {"user": user, "password": secret, "stay": True}
    else:
        body = {"token": secret, "stay": True}
    with client.open(SESSION, method="POST", body=body) as answer:
        cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        signed_in = as_document(SignedIn, client.document(answer, "POST"))
    return _with_role(msgspec.structs.replace(context, user=signed_in.user or "", cookie=cookie)), signed_in


def sign_out(context: Context) -> None:
    """End the session of a context. Raises CommandError."""
    if context.cookie:
        ConsoleClient(context.url, Login(cookie=context.cookie), context).ask(SESSION, method="DELETE")


def ways_to_sign_in(context: Context) -> SignedIn:
    """Return how a console lets people sign in. Raises CommandError."""
    return ConsoleClient(context.url, trust=context).read(SignedIn, SESSION)


def _with_role(context: Context) -> Context:
    """Return the context with the role of the node; a user who may not look leaves it unknown. Raises CommandError."""
    try:
        status = ConsoleClient(context.url, Login(cookie=context.cookie), context).ask("status")
    except CommandError as error:
        if error.error != "no-right":
            raise
        return context
    return msgspec.structs.replace(context, role="hub" if "gateways" in status else "gateway")


def _try(context: Context) -> None:
    """Connect once. Raises OSError; ssl.SSLCertVerificationError for a certificate that is not trusted."""
    connection = ConsoleClient(context.url, trust=context).connection(ANSWER_S)
    try:
        connection.connect()
    finally:
        connection.close()


def _unknown(context: Context, host: str, port: int) -> UnknownCertificate:
    """Return what the user has to accept: the authority that a hub shows, else the certificate of the server."""
    try:
        server = shown_certificate(host, port, ANSWER_S)
        shown = _shown_authority(msgspec.structs.replace(context, certificate=server))
        if shown:
            of_authority = msgspec.structs.replace(context, ca=shown, certificate="")
            try:
                _try(of_authority)
                return UnknownCertificate(of_authority, fingerprint(shown), "authority")
            except ssl.SSLCertVerificationError:
                pass  # the authority did not sign it, or for another name
        of_server = msgspec.structs.replace(context, ca="", certificate=server)
        return UnknownCertificate(of_server, fingerprint(server), "certificate")
    except (OSError, ValueError) as error:
        raise _away(context.url, error) from None


def _shown_authority(context: Context) -> str:
    """Return the certificate of a hub's own authority (PEM); empty without one, and for more than one.

    Only that certificate is returned, however it was written: the user sees the fingerprint of all that is accepted.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - 50 ms

    connection = ConsoleClient(context.url, trust=context).connection(ANSWER_S)
    try:
        connection.request("GET", AUTHORITY_PATH)
        answer = connection.getresponse()
        text = answer.read(AUTHORITY_BYTES_MAX).decode("ascii", "replace")
        if answer.status != 200:
            return ""
        return one_certificate(text).public_bytes(serialization.Encoding.PEM).decode()
    except (HTTPException, ValueError):
        return ""
    finally:
        connection.close()


def _read_ca(file: Path) -> str:
    """Return the authorities in a file (PEM). Raises CommandError."""
    try:
        text = file.read_text("ascii", "replace")
        tls_context(text)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        what = f"--ca {file}: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}"
        raise CommandError(what, "it has to have certificates (PEM)", error="invalid-value", code=Exit.USAGE) from None
    return text


def _away(url: str, error: OSError | ValueError) -> CommandError:
    return CommandError(f"{url} does not answer: {error}", error="unreachable", code=Exit.UNREACHABLE)
