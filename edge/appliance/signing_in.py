"""`waypost login` and `waypost logout`: sessions at the consoles of gateways and hubs, kept in contexts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, TextIO

import click
import msgspec

from edge.output.errors import CommandError, Exit
from edge.output.password import ask_secret
from edge.output.terminal import say
from edge.output.text import word
from edge.remote import contexts
from edge.remote.contexts import Context, Contexts
from edge.remote.session import UnknownCertificate, parse_url, sign_in, sign_out, trusted, ways_to_sign_in

SECRET_BYTES_MAX: Final = 100_000
"""Longest password or token that is read from a file."""


@click.command()
@click.argument("url", required=False)
@click.option("--user", metavar="NAME", help="User to sign in as.  [default: prompt]")
@click.option(
    "--password-file",
    type=click.File("r"),
    help="Read the password from the first line of a file; - is standard input.  [default: prompt]",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificates of the authority (PEM), for example DATA/authority/ca.pem of a hub.",
)
@click.option(
    "--fingerprint",
    metavar="SHA256",
    help="Accept the certificate, or the hub's authority, with this fingerprint without a question.",
)
@click.option("--name", metavar="CONTEXT", help="Name of the context.  [default: host of the URL]")
def login(
    url: str | None,
    user: str | None,
    password_file: TextIO | None,
    ca: Path | None,
    fingerprint: str | None,
    name: str | None,
) -> None:
    """Sign in to a gateway or hub anywhere. Commands then work from this machine; `waypost logout` ends it.

    The context is in use from now on. Its file, readable for this user only, holds a session, never the password. The
    session ends after 12 hours without a command, when the node restarts, and when the rights or the password of the
    user change. Without URL it signs in again at the context in use.

    A certificate that no known authority has signed is shown once: compare its fingerprint with that on the label or of
    `waypost open`. Later commands accept only it (of a hub: its authority), and a changed one is reported as such.

    \b
      waypost login https://hub.example:8443
      waypost login https://10.0.0.17:8444 --user anna --name hall
      waypost login https://hub.example:8443 --ca ca.pem --user ci --password-file /run/secrets/ci
    """
    known = contexts.read()
    name, context = _chosen(known, url, name)
    found = trusted(context, ca)
    if isinstance(found, UnknownCertificate):
        before = any(each.url == context.url and (each.certificate or each.ca) for each in known.contexts.values())
        context = _accepted(found, fingerprint, changed=before)
    else:
        context = found
    ways = ways_to_sign_in(context)
    secret = ""
    if not ways.open:
        if user is None and "password" in ways.methods:
            user = _ask_user(context.user)
        secret = _secret(password_file, "password" if "password" in ways.methods else "token")
    context, signed_in = sign_in(context, user or "", secret)
    known = contexts.added(known, name, context)
    contexts.write(Contexts(name, known.contexts))
    role = f"{context.role} " if context.role else ""
    as_user = f", signed in as {signed_in.user}" if signed_in.user else ", which needs no sign-in"
    say(f"{name}: {role}{context.url}{as_user}; it is the context in use")


@click.command()
@click.argument("name", metavar="[CONTEXT]", required=False)
def logout(name: str | None) -> None:
    """End the session of a context. Its address stays, for `waypost login`.  [default: of the one in use]

    A session that cannot be ended, as its node is away, is kept.
    """
    known = contexts.read()
    name = name or known.current
    if name is None:
        raise CommandError(
            "no context is in use", "list them: waypost context list", error="no-context", code=Exit.USAGE
        )
    context = contexts.require(known, name)
    try:
        sign_out(context)
    except CommandError as error:
        if error.error != "not-signed-in":
            what = f"{name}: the session may still be open, and is kept here: {error.message}"
            hint = f"try again when the node answers; without it: waypost context remove {word(name)}"
            raise CommandError(what, hint, error=error.error, code=error.exit_code) from None
    signed_out = msgspec.structs.replace(context, cookie="")
    contexts.write(Contexts(known.current, {**known.contexts, name: signed_out}))
    say(f"{name}: signed out")


def _chosen(known: Contexts, url: str | None, name: str | None) -> tuple[str, Context]:
    """Return name and context to sign in at. Raises CommandError."""
    if url is None:
        chosen = name or known.current
        context = contexts.require(known, chosen) if chosen is not None else None
        if chosen is None or context is None or not context.url:
            hint = "waypost login https://HOST:PORT"
            raise CommandError("give the URL of a console", hint, error="no-context", code=Exit.USAGE)
        return chosen, context
    wanted = parse_url(url if "://" in url else f"https://{url}", "URL")
    same = next((each for each, context in known.contexts.items() if context.url == wanted), None)
    if name is None and same is not None:
        return same, known.contexts[same]
    host = wanted.partition("://")[2]
    taken = host.rpartition(":")[0] in known.contexts
    return name or (host if taken else host.rpartition(":")[0]), Context(url=wanted)


def _accepted(found: UnknownCertificate, expected: str | None, *, changed: bool) -> Context:
    """Return the context that accepts a certificate, after the user has. Raises CommandError.

    `changed`: another certificate was accepted before.
    """
    if expected is not None:
        if expected.replace(":", "").upper() != found.fingerprint.replace(":", ""):
            what = f"its {found.what} has another fingerprint: {found.fingerprint}"
            hint = "another machine may answer in its place: compare again at its own"
            raise CommandError(what, hint, error="certificate-changed", code=Exit.UNREACHABLE)
        return found.context
    url = found.context.url
    if changed:
        what = f"{url}: its certificate is not the accepted one; perhaps another machine answers in its place"
    else:
        what = f"{url}: its certificate is of no authority that this machine knows"
    if not sys.stdin.isatty():
        hint = f"give --ca FILE, or --fingerprint {found.fingerprint} after comparing it"
        error = "certificate-changed" if changed else "certificate-not-trusted"
        raise CommandError(what, hint, error=error, code=Exit.UNREACHABLE)
    say(what, err=True)
    say(f"SHA-256 fingerprint of its {found.what}: {found.fingerprint}", err=True)
    click.confirm("Is that the fingerprint of its label, or of `waypost open` there?", abort=True, err=True)
    return found.context


def _ask_user(known: str) -> str:
    user: str = click.prompt("user", default=known or None, err=True)
    return user


def _secret(file: TextIO | None, what: str) -> str:
    """Return the password or token. Raises CommandError."""
    if file is None:
        return ask_secret(what)
    text = file.readline(SECRET_BYTES_MAX).rstrip("\r\n")
    if not text:
        raise CommandError(f"no {what} in {file.name}", "write one line to it", error="no-password", code=Exit.USAGE)
    return text
